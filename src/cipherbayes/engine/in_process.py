"""All parties in this process: the embedded default."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from cipherbayes.protocols.csp import Csp
from cipherbayes.protocols.site import Site
from cipherbayes.protocols.transcripts import keep_transcript


class LocalSite:
    """A site that is an object here; it still sees and sends only bytes."""

    def __init__(self, site: Site[Any], home: Path | None = None) -> None:
        self._site = site
        self._home = home
        self._answer: bytes | None = None
        self._seconds = 0.0

    def enrol(self) -> bytes:
        return self._site.enrol()

    def join(self, manifest: bytes, offer: bytes) -> None:
        self._site.join(manifest, offer)

    def ask(self, request: bytes) -> None:
        started = time.process_time()
        self._answer = self._site.handle(request)
        self._seconds += time.process_time() - started

    def answer(self) -> bytes | None:
        return self._answer

    def seconds(self) -> float:
        return self._seconds

    def conclude(self, transcript: bytes) -> None:
        if self._home is not None:
            keep_transcript(self._home, transcript)
        self._site.conclude(transcript)

    def end(self) -> None:
        """Do nothing: :meth:`RunFolder.end` ends the run once the result is written."""


class LocalCsp:
    """A CSP that is an object here."""

    def __init__(self, csp: Csp[Any]) -> None:
        self._csp = csp
        self._seconds = 0.0

    def offer(self) -> bytes:
        return self._csp.offer()

    def join(self, manifest: bytes) -> None:
        self._csp.join(manifest)

    def decrypt(self, request: bytes) -> bytes:
        started = time.process_time()
        answer = self._csp.handle(request)
        self._seconds += time.process_time() - started
        return answer

    def seconds(self) -> float:
        return self._seconds

    def end(self) -> None:
        """Do nothing: :meth:`RunFolder.end` ends the run once the result is written."""

"""Each party in a process of its own, the messages exactly as on the wire.

A party is started as ``python -m cipherbayes.engine.party FOLDER NAME``, reads its
part of the run's folder itself and answers on its standard output. Nothing is
shared but bytes: a party that dies takes no other with it.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO, cast

from cipherbayes.engine import pipes
from cipherbayes.engine.party_client import CspConnection, SiteConnection
from cipherbayes.errors import LostPartyError, RunError


class PartyProcess:
    """A running party."""

    patience = 24 * 3600.0
    """Seconds that one answer may take; then the party is ended, and lost."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
            [sys.executable, "-m", "cipherbayes.engine.party", str(folder), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, verb: bytes, *parts: bytes) -> None:
        """Send a question; a dead party shows when its answer is read."""
        with contextlib.suppress(BrokenPipeError):
            pipes.write(cast(BinaryIO, self._process.stdin), verb, *parts)

    def receive(self) -> bytes | None:
        """The answer, or None if the party is gone or takes too long."""
        stream = cast(BinaryIO, self._process.stdout)
        answer = pipes.read_within(stream, self.patience)
        if answer is None:
            # Half an answer may be under way: nothing after it can be understood.
            self._process.kill()
            return None
        verb, body = answer
        if verb == b"!":
            raise RunError(body.decode("utf-8", "replace"), where=f"party {self.name}")
        return body

    def call(self, verb: bytes, *parts: bytes) -> bytes:
        """Ask and wait; a party that is gone is an error."""
        self.send(verb, *parts)
        answer = self.receive()
        if answer is None:
            raise self._lost()
        return answer

    def _lost(self) -> LostPartyError:
        """How the process ended: by itself it says why, killed it says nothing."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        code = self._process.returncode
        how, remedy = "ended", "see its message above, then `cipherbayes resume`"
        if code is None:
            how, remedy = "closed its end of the pipe", "`cipherbayes resume` goes on"
        elif code < 0:
            how = f"was killed ({signal.strsignal(-code) or f'signal {-code}'})"
            remedy = "`cipherbayes resume` starts it again and goes on"
        return LostPartyError(
            f"the process of {self.name} {how}", where="local processes", remedy=remedy
        )

    def end(self) -> None:
        """Nothing: :meth:`RunFolder.end` does it once the result is written."""

    def close(self) -> None:
        """End the party."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class RemoteSite(PartyProcess, SiteConnection):
    """A site in its own process."""


class RemoteCsp(PartyProcess, CspConnection):
    """The CSP in its own process."""

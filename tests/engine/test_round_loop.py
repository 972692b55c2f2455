"""The loop around the rounds: who is asked when."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cipherbayes.engine.round_loop import drive

WAIT = 30.0


class FarParty:
    """A party that answers only once every other one was asked the same."""

    def __init__(self, everyone: threading.Barrier, sites: threading.Barrier) -> None:
        self._everyone, self._sites = everyone, sites
        self.heard: list[str] = []

    def __getattr__(self, verb: str) -> Any:
        def answer(*_: bytes) -> Any:
            (self._sites if verb == "conclude" else self._everyone).wait(WAIT)
            self.heard.append(verb)
            return 0.5 if verb == "seconds" else b"signed"

        return answer


class NoRounds:
    """A server that convenes a run and has nothing to ask."""

    stopped = None
    present = ("a", "b")

    def __init__(self) -> None:
        self.enrolled: list[bytes] = []

    @property
    def finished(self) -> bool:
        return bool(self.enrolled)

    def convene(self, enrolled: list[bytes], offer: bytes) -> bytes:
        self.enrolled = list(enrolled)
        return b"manifest"

    def transcript(self) -> bytes:
        return b"transcript"


def test_far_parties_are_asked_at_the_same_time_before_and_after_the_rounds() -> None:
    everyone, both = threading.Barrier(3), threading.Barrier(2)
    a, b, csp = (FarParty(everyone, both) for _ in range(3))
    server: Any = NoRounds()
    with ThreadPoolExecutor(3) as pool:
        traffic = drive(
            server,
            {"a": a, "b": b},
            csp,
            rounds=0,
            progress=lambda done, rounds: None,
            each=pool.map,
        )
    assert server.enrolled == [b"signed", b"signed"]
    assert a.heard == b.heard == ["enrol", "join", "seconds", "conclude", "end"]
    assert csp.heard == ["offer", "join", "seconds", "end"]
    assert traffic.site_seconds == {"a": 0.5, "b": 0.5}

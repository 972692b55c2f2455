"""The loop around the rounds: who is asked when."""

from __future__ import annotations

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cipherbayes.engine.processes import PartyProcess
from cipherbayes.engine.round_loop import drive
from cipherbayes.errors import LostPartyError

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
    present: tuple[str, ...] = ("a", "b")

    def __init__(self, spare: int = 0) -> None:
        self.spare = spare
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


def killed() -> PartyProcess:
    """A party whose process ended without a word."""
    party = object.__new__(PartyProcess)
    party.name = "b"
    party._process = subprocess.Popen(
        ["sleep", "60"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    party._process.kill()
    return party


@pytest.mark.parametrize("stage", ["enrol", "join"])
def test_a_party_killed_before_the_first_round_is_lost_as_far_as_the_study_allows(
    stage: str,
) -> None:
    party = killed()

    class Site(FarParty):
        def __getattr__(self, verb: str) -> Any:
            if self is b and verb == stage:
                return lambda *_: party.call(b"?")
            return super().__getattr__(verb)

    alone = threading.Barrier(1)
    a, b, csp = (Site(alone, alone) for _ in range(3))

    def driven(server: Any) -> None:
        drive(server, {"a": a, "b": b}, csp, rounds=0, progress=lambda *_: None)

    try:
        with pytest.raises(LostPartyError, match=r"process of b was killed") as error:
            driven(NoRounds(spare=0))
        assert "message above" not in str(error.value)
        server = NoRounds(spare=1)
        driven(server)
        assert server.enrolled == [b"signed"] * (1 if stage == "enrol" else 2)
        assert csp.heard[-1] == "end"
    finally:
        party.close()

"""Lines to parties: a slow one is waited for, a lost one is noticed and named."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from cipherbayes.errors import RunError

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from cipherbayes.engine.flare import channels
from cipherbayes.engine.flare.certified import GREETING
from cipherbayes.engine.flare.channels import FlareSite
from cipherbayes.engine.flare.questions import ALIVE, BUSY, IDLE, Sealed


class Party:
    """A party and the network to it, as FLARE's engine shows them to the server."""

    def __init__(self, seconds: float = 0.0, *, lost: bool = False) -> None:
        self.seconds = seconds
        self.lost = lost
        self.swallowed = 0
        """Questions that never reach the party, which is idle then."""
        self.asked: list[bytes] = []
        self._seal: Sealed | None = None

    def new_context(self) -> FLContext:
        return FLContext()

    def send_aux_request(
        self, targets: list[str], topic: str, request: Shareable, **options: Any
    ) -> dict[str, Shareable]:
        (name,) = targets
        if topic == GREETING:
            assert options["secure"]
            self._seal = Sealed(request["key"])
            return {name: make_reply(ReturnCode.OK)}
        assert self._seal is not None
        question = self._seal.question_in(request)
        assert question is not None
        self.asked.append(question.verb)
        if self.lost:
            hung_up = options["fl_ctx"].get_prop(ReservedKey.RUN_ABORT_SIGNAL)
            wait(options["timeout"], hung_up)
            return {name: make_reply(ReturnCode.TIMEOUT)}
        if question.verb == ALIVE:
            state = IDLE if self.swallowed else BUSY
            return {name: self._seal.answer(question, state)}
        if self.asked.count(b"H") <= self.swallowed:
            hung_up = options["fl_ctx"].get_prop(ReservedKey.RUN_ABORT_SIGNAL)
            wait(options["timeout"], hung_up)
            return {name: make_reply(ReturnCode.TIMEOUT)}
        time.sleep(self.seconds)
        if question.body == b"wrong":
            return {name: self._seal.failure(question, "no table")}
        return {name: self._seal.answer(question, b"answer")}


def wait(seconds: float, signal: Signal) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not signal.triggered:
        time.sleep(0.01)


def line(party: Party) -> FlareSite:
    context = FLContext()
    context.put(ReservedKey.ENGINE, party, private=True, sticky=False)
    context.put(ReservedKey.RUN_ABORT_SIGNAL, Signal(), private=True, sticky=False)
    made = FlareSite("north", context)
    assert made.greet(time.monotonic() + 1.0)
    return made


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(channels, "PROBE_EVERY", 0.05)
    monkeypatch.setattr(channels, "PROBE_TIMEOUT", 0.05)


def test_a_slow_party_is_waited_for_as_long_as_it_is_alive():
    party = Party(seconds=0.6)
    slow = line(party)
    slow.ask(b"request")
    assert slow.answer() == b"answer"
    assert party.asked.count(ALIVE) > channels.PROBES
    assert party.asked.count(b"H") == 1, "a question is asked once"
    slow.close()


def test_a_question_that_got_lost_is_asked_again(monkeypatch):
    monkeypatch.setattr(channels, "PATIENCE", 0.2)
    party = Party()
    party.swallowed = 2
    forgetful = line(party)
    forgetful.ask(b"request")
    assert forgetful.answer() == b"answer"
    assert party.asked.count(b"H") == 3
    forgetful.close()


def test_a_lost_party_is_noticed_by_its_silence():
    lost = line(party := Party())
    party.lost = True
    started = time.monotonic()
    lost.ask(b"request")
    assert lost.answer() is None
    assert time.monotonic() - started < 2.0
    assert party.asked.count(ALIVE) == channels.PROBES
    lost.close()


def test_a_party_that_recovers_between_probes_is_not_lost():
    party = Party(seconds=0.0)
    shaky = line(party)
    party.lost = True
    threading.Timer(0.07, lambda: setattr(party, "lost", False)).start()
    assert not shaky.alive()
    time.sleep(0.1)
    assert shaky.alive()
    shaky.close()


def test_a_call_to_a_lost_party_names_it():
    lost = line(party := Party())
    party.lost = True
    with pytest.raises(RunError, match="cannot be reached") as caught:
        lost.enrol()
    assert "site north" in str(caught.value)
    lost.close()


def test_a_partys_own_failure_is_told_in_its_words():
    failing = line(Party())
    failing.ask(b"wrong")
    with pytest.raises(RunError, match="no table") as caught:
        failing.answer()
    assert "site north" in str(caught.value)
    failing.close()

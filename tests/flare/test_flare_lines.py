"""Lines to parties: a slow one is waited for, a lost one is noticed and named."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from cipherbayes.errors import RunError

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.message import Message

from cipherbayes.engine.flare import channels
from cipherbayes.engine.flare.certified import GREETING, TOPIC, WHOLE
from cipherbayes.engine.flare.channels import FlareSite
from cipherbayes.engine.flare.questions import ALIVE, BUSY, IDLE, MOST_WHOLE, Sealed


class Party:
    """A party and the network to it, as FLARE's engine shows them to the server."""

    def __init__(self, seconds: float = 0.0, *, lost: bool = False) -> None:
        self.seconds = seconds
        self.lost = lost
        self.swallowed = 0
        """Questions that never reach the party, which is idle then."""
        self.whole = True
        """Whether messages in one piece arrive."""
        self.answer = b"answer"
        self.asked: list[bytes] = []
        self.ways: list[str] = []
        self._seal: Sealed | None = None
        self.core_cell = self

    def new_context(self) -> FLContext:
        context = FLContext()
        context.put(ReservedKey.RUN_NUM, "job", private=False, sticky=False)
        return context

    def get_client_from_name(self, name: str) -> Client:
        client = Client(name, "token")
        client.set_fqcn(name)
        return client

    def get_cell(self) -> Party:
        return self

    def send_request(
        self, channel: str, topic: str, target: str, request: Message, **options: Any
    ) -> Message:
        assert (target, topic) == ("north.job", WHOLE)
        if not self.whole:
            return Message()
        return Message(payload=self._reply(request.payload, topic, Signal(), options))

    def send_aux_request(
        self, targets: list[str], topic: str, request: Shareable, **options: Any
    ) -> dict[str, Shareable]:
        (name,) = targets
        if topic == GREETING:
            assert options["secure"]
            self._seal = Sealed(request["key"])
            return {name: make_reply(ReturnCode.OK)}
        hung_up = options["fl_ctx"].get_prop(ReservedKey.RUN_ABORT_SIGNAL)
        return {name: self._reply(request, topic, hung_up, options)}

    def _reply(
        self, request: Shareable, topic: str, hung_up: Signal, options: dict[str, Any]
    ) -> Shareable:
        assert self._seal is not None
        question = self._seal.question_in(request)
        assert question is not None
        self.asked.append(question.verb)
        if question.verb != ALIVE:
            self.ways.append(topic)
        if self.lost:
            wait(options["timeout"], hung_up)
            return make_reply(ReturnCode.TIMEOUT)
        if question.verb == ALIVE:
            return self._seal.answer(question, IDLE if self.swallowed else BUSY)
        if self.asked.count(b"H") <= self.swallowed:
            wait(options["timeout"], hung_up)
            return make_reply(ReturnCode.TIMEOUT)
        time.sleep(self.seconds)
        if question.body == b"wrong":
            return self._seal.failure(question, "no table")
        if topic == WHOLE and len(self.answer) > MOST_WHOLE:
            return self._seal.long_answer(question)
        return self._seal.answer(question, self.answer)


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
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "PROBE_EVERY", 0.05)
    monkeypatch.setattr(channels, "PROBE_TIMEOUT", 0.05)
    monkeypatch.setattr(channels, "WHOLE_TIMEOUT", 0.02)


def test_a_slow_party_is_waited_for_as_long_as_it_is_alive() -> None:
    party = Party(seconds=0.6)
    slow = line(party)
    slow.ask(b"request")
    assert slow.answer() == b"answer"
    assert party.asked.count(ALIVE) > channels.PROBES
    assert party.asked.count(b"H") == 1, "a question is asked once"
    slow.close()


def test_a_question_that_got_lost_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "PATIENCE", 0.2)
    party = Party()
    party.swallowed = 2
    forgetful = line(party)
    forgetful.ask(b"request")
    assert forgetful.answer() == b"answer"
    assert party.asked.count(b"H") == 3
    forgetful.close()


def test_a_question_and_its_answer_travel_in_one_piece() -> None:
    quick = line(party := Party())
    for _ in range(5):
        quick.ask(b"request")
        assert quick.answer() == b"answer"
    assert party.ways == [WHOLE] * 5
    quick.close()


def test_a_long_question_travels_as_a_stream() -> None:
    wordy = line(party := Party())
    wordy.ask(bytes(MOST_WHOLE + 1))
    assert wordy.answer() == b"answer"
    assert party.ways == [TOPIC]
    wordy.close()


def test_a_long_answer_is_fetched_as_a_stream_and_so_are_the_next() -> None:
    wordy = line(party := Party())
    party.answer = bytes(MOST_WHOLE + 1)
    for _ in range(2):
        wordy.ask(b"request")
        assert wordy.answer() == party.answer
    assert party.ways == [WHOLE, TOPIC, TOPIC]
    wordy.close()


def test_where_messages_in_one_piece_do_not_arrive_streams_do() -> None:
    party = Party()
    party.whole = False
    slow = line(party)
    for _ in range(channels.WHOLE_FAILURES + 2):
        slow.ask(b"request")
        assert slow.answer() == b"answer"
    assert set(party.ways) == {TOPIC}
    party.whole = True
    slow.ask(b"request")
    assert slow.answer() == b"answer"
    assert party.ways[-1] == TOPIC, "a line that is slow stays with streams"
    slow.close()


def test_a_lost_party_is_noticed_by_its_silence() -> None:
    lost = line(party := Party())
    party.lost = True
    lost.ask(b"request")
    assert lost.answer() is None
    assert party.asked.count(ALIVE) == channels.PROBES
    lost.close()


def test_a_party_that_recovers_between_probes_is_not_lost() -> None:
    party = Party(seconds=0.0)
    shaky = line(party)
    party.lost = True
    threading.Timer(0.07, lambda: setattr(party, "lost", False)).start()
    assert shaky._probe() is None
    time.sleep(0.1)
    assert shaky._probe() is not None
    shaky.close()


def test_a_call_to_a_lost_party_names_it() -> None:
    lost = line(party := Party())
    party.lost = True
    with pytest.raises(RunError, match="cannot be reached") as caught:
        lost.enrol()
    assert "site north" in str(caught.value)
    lost.close()


def test_a_partys_own_failure_is_told_in_its_words() -> None:
    failing = line(Party())
    failing.ask(b"wrong")
    with pytest.raises(RunError, match="no table") as caught:
        failing.answer()
    assert "site north" in str(caught.value)
    failing.close()

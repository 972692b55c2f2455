"""Questions and answers under the job's key, and greetings under certificates."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    StreamHeaderKey,
)

from cipherbayes.engine.flare.certified import (
    GREETING,
    TOPIC,
    WHOLE,
    greetings_only_from,
)
from cipherbayes.engine.flare.executor import PartyExecutor
from cipherbayes.engine.flare.party_thread import PartyThread
from cipherbayes.engine.flare.questions import (
    ALIVE,
    BUSY,
    IDLE,
    MOST_WHOLE,
    LongAnswerError,
    PartyFailedError,
    PartyQuestion,
    Sealed,
)

KEY, OTHER = bytes(32), bytes([1]) * 32


@given(st.binary(min_size=1, max_size=1), st.binary())
def test_a_question_and_its_answer_arrive_as_they_were_sent(
    verb: Any, body: Any
) -> None:
    here, there = Sealed(KEY), Sealed(KEY)
    asked = PartyQuestion.of(verb, body)
    assert there.question_in(here.question(asked)) == asked
    assert here.answer_in(asked, there.answer(asked, body)) == body


@pytest.mark.parametrize("field", ["verb", "body", "nonce", "tag"])
def test_a_changed_message_is_not_taken(field: Any) -> None:
    seal = Sealed(KEY)
    message = seal.question(PartyQuestion.of(b"H", b"body"))
    message[field] = bytes([message[field][0] ^ 1]) + message[field][1:]
    assert seal.question_in(message) is None
    del message[field]
    assert seal.question_in(message) is None


def test_an_answer_fits_its_own_question_only() -> None:
    seal = Sealed(KEY)
    one, other = PartyQuestion.of(b"H", b"x"), PartyQuestion.of(b"H", b"x")
    assert seal.answer_in(other, seal.answer(one, b"y")) is None
    assert seal.answer_in(one, seal.question(one)) is None
    assert seal.answer_in(one, None) is None
    assert seal.answer_in(one, make_reply(ReturnCode.TIMEOUT)) is None


def test_a_failure_comes_back_as_one() -> None:
    seal = Sealed(KEY)
    asked = PartyQuestion.of(b"H", b"")
    with pytest.raises(PartyFailedError, match="no table"):
        seal.answer_in(asked, seal.failure(asked, "no table"))


class Responding:
    """A endpoint that counts."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, bytes]] = []

    def respond(self, verb: bytes, body: bytes) -> bytes:
        self.asked.append((verb, body))
        return b"answer"

    def rest(self) -> None:
        self.asked.append((b"rest", b""))


def party(key: bytes | None) -> tuple[PartyExecutor, Responding]:
    executor, endpoint = PartyExecutor("00" * 16), Responding()
    executor._party = PartyThread(lambda: endpoint)
    if key is not None:
        greeting = Shareable()
        greeting["key"] = key
        executor._greet("", greeting, None)
    return executor, endpoint


@pytest.mark.parametrize("key", [None, OTHER])
def test_a_question_without_the_servers_key_is_refused(key: Any) -> None:
    executor, endpoint = party(key)
    message = Sealed(KEY).question(PartyQuestion.of(b"H", b"body"))
    reply = executor._answer("", message, None)
    assert reply.get_return_code() == ReturnCode.BAD_REQUEST_DATA
    assert endpoint.asked == []


def test_the_first_greeting_of_a_job_counts() -> None:
    executor, endpoint = party(KEY)
    second = Shareable()
    second["key"] = OTHER
    executor._greet("", second, None)
    asked = PartyQuestion.of(b"H", b"body")
    reply = executor._answer("", Sealed(KEY).question(asked), None)
    assert Sealed(KEY).answer_in(asked, reply) == b"answer"
    assert endpoint.asked[0] == (b"H", b"body")


@pytest.mark.parametrize(
    ("topic", "size", "fits"),
    [
        (WHOLE, MOST_WHOLE, True),
        (WHOLE, MOST_WHOLE + 1, False),
        (TOPIC, MOST_WHOLE + 1, True),
    ],
)
def test_a_long_answer_does_not_travel_in_one_piece(
    topic: Any, size: Any, fits: Any
) -> None:
    executor, endpoint = party(KEY)
    seal, asked = Sealed(KEY), PartyQuestion.of(b"H", b"body")
    endpoint.respond = lambda verb, body: bytes(size)  # type: ignore[method-assign]
    reply = executor._answer(topic, seal.question(asked), None)
    if fits:
        assert seal.answer_in(asked, reply) == bytes(size)
    else:
        with pytest.raises(LongAnswerError):
            seal.answer_in(asked, reply)


def test_a_job_that_ends_answers_no_more() -> None:
    executor, endpoint = party(KEY)
    executor.handle_event(EventType.END_RUN, None)
    seal, asked = Sealed(KEY), PartyQuestion.of(b"H", b"body")
    reply = executor._answer("", seal.question(asked), None)
    with pytest.raises(PartyFailedError, match="cannot take part"):
        seal.answer_in(asked, reply)
    assert endpoint.asked == []


def test_a_party_says_whether_it_works_on_a_question() -> Any:
    executor, endpoint = party(KEY)
    seal, started, finish = Sealed(KEY), threading.Event(), threading.Event()

    def respond(verb: bytes, body: bytes) -> bytes:
        started.set()
        finish.wait(5.0)
        return b"answer"

    endpoint.respond = respond  # type: ignore[method-assign]

    def state() -> bytes | None:
        asked = PartyQuestion.of(ALIVE, b"")
        return seal.answer_in(asked, executor._answer("", seal.question(asked), None))

    assert state() == IDLE
    question = seal.question(PartyQuestion.of(b"H", b"body"))
    working = threading.Thread(target=executor._answer, args=("", question, None))
    working.start()
    started.wait(5.0)
    assert state() == BUSY
    finish.set()
    working.join()
    assert state() == IDLE


def test_tasks_are_not_served() -> None:
    executor, _ = party(KEY)
    reply = executor.execute("train", Shareable(), None, None)
    assert reply.get_return_code() == ReturnCode.TASK_UNKNOWN


# -- greetings -------------------------------------------------------------


class FakeCell:
    """Keeps the filters that are set on it, and applies them as FLARE does."""

    def __init__(self) -> None:
        self.core_cell = self
        self._early: dict[tuple[str, str], Any] = {}
        self._late: dict[tuple[str, str], Any] = {}

    def add_incoming_filter(self, channel: str, topic: str, cb: Any) -> None:
        self._early[channel, topic] = cb

    def add_incoming_request_filter(self, channel: str, topic: str, cb: Any) -> None:
        self._late[channel, topic] = cb

    def passes(
        self, origin: str, topic: str = GREETING, *, whole: bool = False, **headers: Any
    ) -> bool:
        headers[MessageHeaderKey.ORIGIN] = origin
        way = CellChannel.AUX_COMMUNICATION, topic
        if not whole:
            headers[StreamHeaderKey.CHANNEL], headers[StreamHeaderKey.TOPIC] = way
            way = STREAM_CHANNEL, STREAM_DATA_TOPIC
        message = Message(headers)
        if way in self._early:
            self._early[way](message)
        # FLARE has decrypted and verified by now, and removes the header.
        message.headers.pop(MessageHeaderKey.ENCRYPTED, None)
        return way not in self._late or self._late[way](message) is None


SIGNED = {MessageHeaderKey.SECURE: True, MessageHeaderKey.ENCRYPTED: True}


@pytest.mark.parametrize(
    ("origin", "headers", "passes"),
    [
        ("server.job", SIGNED, True),
        ("server.job", {}, False),
        ("server.job", {MessageHeaderKey.SECURE: True}, False),
        ("north.job", SIGNED, False),
        ("csp.job", SIGNED, False),
        ("server.other", SIGNED, False),
        ("server", SIGNED, False),
    ],
)
def test_only_the_jobs_server_may_greet_and_only_signed(
    origin: Any, headers: Any, passes: Any
) -> None:
    cell = FakeCell()
    greetings_only_from(cell, "server.job")
    assert cell.passes(origin, **headers) is passes
    assert cell.passes(origin, topic="another", **headers)


@pytest.mark.parametrize("origin", ["server.job", "north.job"])
@pytest.mark.parametrize("headers", [{}, SIGNED])
def test_a_greeting_in_one_piece_is_refused_whoever_sends_it(
    origin: Any, headers: Any
) -> None:
    cell = FakeCell()
    greetings_only_from(cell, "server.job")
    assert not cell.passes(origin, whole=True, **headers)
    assert cell.passes(origin, WHOLE, whole=True, **headers)

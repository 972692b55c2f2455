"""A party's thread: questions first, then what the next one will need."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cipherbayes.engine.flare import party_thread
from cipherbayes.engine.flare.party_thread import PartyThread, pause_before_rest
from cipherbayes.errors import RunError

seconds = st.floats(0.0, 100.0)


class Diary:
    """A party that writes down what it does."""

    def __init__(self) -> None:
        self.done: list[bytes] = []
        self.threads: set[int] = set()
        self.rested = threading.Event()

    def respond(self, verb: bytes, body: bytes) -> bytes:
        self.done.append(body)
        self.threads.add(threading.get_ident())
        return verb + body

    def rest(self) -> None:
        self.done.append(b"rest")
        self.threads.add(threading.get_ident())
        self.rested.set()


def test_a_party_answers_and_rests_once_in_a_thread_of_its_own() -> None:
    diary = Diary()
    party = PartyThread(lambda: diary)
    assert party.ask(b"H", b"one") == b"Hone"
    assert diary.rested.wait(5.0)
    time.sleep(0.05)
    assert party.ask(b"H", b"two") == b"Htwo"
    party.end()
    assert diary.done[:3] == [b"one", b"rest", b"two"]
    assert len(diary.threads) == 1
    assert threading.get_ident() not in diary.threads


def test_a_question_comes_before_the_work_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(party_thread, "FIRST_WAIT", 60.0)
    diary = Diary()
    party = PartyThread(lambda: diary)
    for body in (b"first", b"second"):
        party.ask(b"H", body)
    assert diary.done == [b"first", b"second"]


@given(seconds, seconds)
def test_the_pause_is_half_the_wait_at_most_and_leaves_time_for_the_work(
    wait: float, work: float
) -> None:
    pause = pause_before_rest(wait, work)
    assert 0.0 <= pause <= min(wait / 2.0, party_thread.LONGEST_PAUSE)
    assert pause == 0.0 or pause + 2.0 * work <= wait * (1.0 + 1e-12)


def test_a_party_that_cannot_be_made_fails_every_question() -> None:
    def broken() -> Diary:
        raise RunError("no table", where="north")

    party = PartyThread(broken)
    for _ in range(2):
        with pytest.raises(RunError, match="no table"):
            party.ask(b"H", b"")


def test_a_failure_ends_neither_the_thread_nor_the_next_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    diary = Diary()
    party = PartyThread(lambda: diary)

    def tired() -> None:
        diary.rested.set()
        raise ValueError("a value that no log may show")

    diary.rest = tired  # type: ignore[method-assign]
    diary.respond = lambda verb, body: bytes(int(body))  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="invalid literal"):
        party.ask(b"H", b"x")
    assert diary.rested.wait(5.0)
    assert party.ask(b"H", b"2") == bytes(2)
    assert "no log may show" not in caplog.text


def test_a_party_that_has_ended_takes_no_question() -> None:
    party = PartyThread(Diary)
    party.end()
    with pytest.raises(RuntimeError, match="ended"):
        party.ask(b"H", b"")

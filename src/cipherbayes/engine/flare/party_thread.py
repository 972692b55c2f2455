"""The one thread that a party lives in, as its databases demand.

What can be done for the next question before it is asked (noise, encryptions of zero)
is done half-way to it, judged by how long the last one took to come, or earlier if it
takes long. At once it would delay this party's answer on its way out and, where parties
share a machine, the others'. A question that comes earlier is answered first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

log = logging.getLogger("cipherbayes.flare")

FIRST_WAIT = 0.02
"""Seconds between questions, as a party expects before it knows."""
LONGEST_PAUSE = 1.0
"""Seconds after which a party works for its next question, however long that takes."""


class Answering(Protocol):
    """What answers questions; see :class:`cipherbayes.engine.party.PartyEndpoint`."""

    def respond(self, verb: bytes, body: bytes) -> bytes:
        """The answer to a question."""

    def rest(self) -> None:
        """Prepare the next answer while no question is waiting."""


class _Asked(NamedTuple):
    verb: bytes
    body: bytes
    answer: Future[bytes]
    at: float


class PartyThread:
    """A party, asked from any thread, at work in one.

    Parameters
    ----------
    make
        Makes the party, in its thread. If it fails, so does every question.
    """

    def __init__(self, make: Callable[[], Answering]) -> None:
        self._make = make
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._ended = False
        self._door = threading.Lock()
        # A daemon: what must last is on disk before it is answered.
        threading.Thread(target=self._live, name="party", daemon=True).start()

    def ask(self, verb: bytes, body: bytes) -> bytes:
        """Wait for the answer to a question."""
        asked = _Asked(verb, body, Future(), time.monotonic())
        with self._door:
            if self._ended:
                raise RuntimeError("the party has ended")
            self._asked.put(asked)
        return asked.answer.result()

    def end(self) -> None:
        """Answer what was asked before, and nothing more."""
        with self._door:
            self._ended = True
            self._asked.put(None)

    def _live(self) -> None:
        party: Future[Answering] = Future()
        _settle(party, self._make)
        answered, resting = 0.0, 0.0
        pause: float | None = None
        while True:
            try:
                asked = self._asked.get(timeout=pause)
            except Empty:
                started, pause = time.monotonic(), None
                _rest(party.result())
                resting = time.monotonic() - started
                continue
            if asked is None:
                return
            waited = asked.at - answered if answered else FIRST_WAIT
            _settle(asked.answer, partial(_respond, party, asked))
            answered = time.monotonic()
            if party.exception() is None:
                pause = pause_before_rest(waited, resting)


def pause_before_rest(waited: float, resting: float) -> float:
    """Seconds from an answer to the work for the next question.

    Parameters
    ----------
    waited
        What lay between the last answer and its next question.
    resting
        What the work took the last time.
    """
    return min(max(min(waited / 2.0, waited - 2.0 * resting), 0.0), LONGEST_PAUSE)


def _settle(promised: Future[Any], make: Callable[[], Any]) -> None:
    """Give a future its result, or the error that was raised instead."""
    try:
        promised.set_result(make())
    except Exception as error:
        promised.set_exception(error)


def _respond(party: Future[Answering], asked: _Asked) -> bytes:
    return party.result().respond(asked.verb, asked.body)


def _rest(party: Answering) -> None:
    try:
        party.rest()
    except Exception as error:
        # The question itself will be answered with it, if it still holds then.
        log.warning("could not prepare the next answer: %s", type(error).__name__)

"""Lines to parties over FLARE's auxiliary requests: pushed, never polled for.

FLARE carries an auxiliary request as a stream: cut into pieces, each acknowledged and
repeated until it is. A round's messages are small enough to travel in one piece, which
takes a third of the time, so a question is first asked in that way. Whatever comes of
it but an answer, the question is then asked as a stream.

A question waits as long as its party is alive: a slow site is waited for, a site that
is gone is noticed within seconds, because a second, tiny question ("alive?") goes out
every few seconds while the first is pending. A party that is alive but has had nothing
to do for a while never got the question, or its answer got lost: it is asked again,
which costs nothing, since a party repeats the answer that it has given.
"""

from __future__ import annotations

import logging
import secrets
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from typing import Any

from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import CellChannel
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message

from cipherbayes.engine import pipes
from cipherbayes.engine.flare.certified import GREETING, TOPIC, WHOLE
from cipherbayes.engine.flare.questions import (
    ALIVE,
    IDLE,
    KEY_BYTES,
    MOST_WHOLE,
    LongAnswerError,
    PartyFailedError,
    PartyQuestion,
    Sealed,
)
from cipherbayes.engine.party_client import (
    ROUND,
    CspConnection,
    PartyConnection,
    SiteConnection,
)
from cipherbayes.errors import LostPartyError, RunError

log = logging.getLogger("cipherbayes.flare")

LONGEST_ANSWER = 24 * 3600.0
"""Seconds after which an answer is given up although its party is alive."""
GREETING_TIMEOUT = 2.0
PROBE_EVERY = 3.0
PROBE_TIMEOUT = 4.0
PROBES = 2
"""A party is lost when this many probes in a row find nobody."""
PATIENCE = 30.0
"""Seconds without work after which a party is asked again; doubled every time, since
a large message over a slow network may still be on its way."""
WHOLE_TIMEOUT = 5.0
"""Seconds after which a question in one piece is asked again, as a stream."""
WHOLE_FAILURES = 3
"""After this many all questions of a line are streams: its party or network is slow."""


class FlareConnection(PartyConnection):
    """A line to one party of the running job.

    Parameters
    ----------
    name
        The party's name, which is that of its certificate.
    fl_ctx
        The job's context.
    """

    def __init__(self, name: str, fl_ctx: FLContext) -> None:
        self.name = name
        self._engine: Any = fl_ctx.get_engine()
        self._aborted: Signal = fl_ctx.get_run_abort_signal()
        self._new_context()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix=f"line-{name}")
        self._pending: Future[bytes | None] | None = None
        self._asked = (b"", b"")
        self._whole_left = WHOLE_FAILURES
        self._key = secrets.token_bytes(KEY_BYTES)
        self._seal = Sealed(self._key)

    def send(self, verb: bytes, *parts: bytes) -> None:
        self._asked = verb, b"".join(pipes.pieces(*parts))
        self._pending = self._pool.submit(self._ask, *self._asked, LONGEST_ANSWER)

    def receive(self) -> bytes | None:
        assert self._pending is not None
        pending, self._pending = self._pending, None
        failures, idle_since, patience = 0, time.monotonic(), PATIENCE
        while failures < PROBES:
            try:
                return pending.result(PROBE_EVERY)
            except StillWaiting:
                state = self._probe()
                failures = failures + 1 if state is None else 0
                if state != IDLE:
                    idle_since = time.monotonic()
            except PartyFailedError as error:
                raise RunError(str(error), where=self._label) from None
            if self._aborted.triggered:
                break
            if time.monotonic() - idle_since > patience:
                log.warning("%s has no question: asking again", self._label)
                self._hung_up.trigger(True)
                self._new_context()
                pending = self._pool.submit(self._ask, *self._asked, LONGEST_ANSWER)
                idle_since, patience = time.monotonic(), 2.0 * patience
        self._hung_up.trigger(True)
        return None

    def _new_context(self) -> None:
        """A context with a signal of its own, by which one question is given up."""
        self._hung_up = Signal()
        self._fl_ctx = self._engine.new_context()
        self._fl_ctx.put(
            ReservedKey.RUN_ABORT_SIGNAL, self._hung_up, private=True, sticky=False
        )

    def call(self, verb: bytes, *parts: bytes) -> bytes:
        self.send(verb, *parts)
        answer = self.receive()
        if answer is None:
            raise LostPartyError(
                "cannot be reached",
                where=self._label,
                remedy="see that it runs and has a network, then submit again",
            )
        return answer

    def _probe(self) -> bytes | None:
        """Whether the party works on a question; None if it does not answer."""
        return self._ask(ALIVE, b"", PROBE_TIMEOUT)

    def greet(self, deadline: float) -> bool:
        """Hand the party this job's key, until a time of the monotonic clock.

        The party may still be starting: it is greeted until it answers.
        """
        while not self._greeted():
            if self._aborted.triggered or time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def close(self) -> None:
        self._hung_up.trigger(True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def _label(self) -> str:
        return self.name if self.name == "csp" else f"site {self.name}"

    def _greeted(self) -> bool:
        greeting = Shareable()
        greeting["key"] = self._key
        reply = self._request(GREETING, greeting, GREETING_TIMEOUT, secure=True)
        return reply is not None and reply.get_return_code() == ReturnCode.OK

    def _ask(self, verb: bytes, body: bytes, timeout: float) -> bytes | None:
        hung_up = self._hung_up
        if verb == ROUND and self._whole_left > 0 and len(body) <= MOST_WHOLE:
            answer = self._ask_whole(verb, body)
            if answer is not None or hung_up.triggered:
                return answer
        asked = PartyQuestion.of(verb, body)
        sealed = self._seal.question(asked)
        return self._seal.answer_in(asked, self._request(TOPIC, sealed, timeout))

    def _ask_whole(self, verb: bytes, body: bytes) -> bytes | None:
        """The answer, if it and the question can travel in one piece."""
        asked = PartyQuestion.of(verb, body)
        try:
            reply = self._request_whole(self._seal.question(asked), WHOLE)
            answer = self._seal.answer_in(asked, reply)
        except LongAnswerError:
            self._whole_left = 0
            return None
        if answer is None:
            self._whole_left -= 1
        return answer

    def _request_whole(self, message: Shareable, topic: str) -> Shareable | None:
        party = self._engine.get_client_from_name(self.name)
        if party is None:
            return None
        # As FLARE itself fills in a request before it makes a stream of it.
        message.set_header(ReservedHeaderKey.TOPIC, topic)
        message.set_peer_props(self._fl_ctx.get_all_public_props())
        try:
            reply = self._engine.get_cell().core_cell.send_request(
                channel=CellChannel.AUX_COMMUNICATION,
                topic=topic,
                target=FQCN.join([party.get_fqcn(), self._fl_ctx.get_job_id()]),
                request=Message(payload=message),
                timeout=WHOLE_TIMEOUT,
                optional=True,
            )
        except RuntimeError:  # the job ends
            return None
        answer = reply.payload
        return answer if isinstance(answer, Shareable) else None

    def _request(
        self, topic: str, message: Shareable, timeout: float, *, secure: bool = False
    ) -> Shareable | None:
        replies = self._engine.send_aux_request(
            targets=[self.name],
            topic=topic,
            request=message,
            timeout=timeout,
            fl_ctx=self._fl_ctx,
            optional=True,
            secure=secure,
        )
        reply: Shareable | None = (replies or {}).get(self.name)
        return reply


class FlareSite(FlareConnection, SiteConnection):
    """A site on its own machine."""


class FlareCsp(FlareConnection, CspConnection):
    """The CSP on its own machine."""

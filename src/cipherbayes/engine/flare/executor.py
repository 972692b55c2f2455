"""A site or the CSP in a FLARE job: holds the party, answers questions.

FLARE starts one process per party and job. The party object lives in a thread of its
own there, as its databases demand; questions are answered one after the other. A
question whether the party is alive is answered at once, however long its table takes.

Errors are told in full to this party's log, and to the server in the words that
:mod:`cipherbayes.protocols.refusals` allows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from cipherbayes.engine.flare.certified import (
    GREETING,
    TOPIC,
    WHOLE,
    greetings_only_from,
)
from cipherbayes.engine.flare.jobs import job_study
from cipherbayes.engine.flare.kits import CSP, Kit
from cipherbayes.engine.flare.party_thread import PartyThread
from cipherbayes.engine.flare.questions import (
    ALIVE,
    BUSY,
    IDLE,
    KEY_BYTES,
    MOST_WHOLE,
    PartyQuestion,
    Sealed,
)
from cipherbayes.engine.logs import keep_party_log
from cipherbayes.engine.party import PartyEndpoint
from cipherbayes.engine.party_client import ROUND
from cipherbayes.protocols.messages import encode
from cipherbayes.protocols.refusals import refuse, said_outside, told_inside

log = logging.getLogger("cipherbayes.flare")


class PartyExecutor(Executor):  # type: ignore[misc]
    """The party whose certificate this process runs under.

    Parameters
    ----------
    run
        Id of the run, in hexadecimal.
    """

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run
        self._name = ""
        self._party: PartyThread | None = None
        self._seal: Sealed | None = None
        self._working = 0
        self._stop_log: Callable[[], None] = lambda: None
        self._count = threading.Lock()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            engine = fl_ctx.get_engine()
            job = fl_ctx.get_job_id()
            self._name = fl_ctx.get_identity_name()
            kit = Path(engine.get_workspace().get_root_dir())
            self._stop_log = keep_party_log(kit)
            log.info("%s: run %s begins or goes on", self._name, self._run)
            # All that can fail happens in there: FLARE reports what fails here.
            party = partial(_open, engine.get_workspace(), job, self._run)
            self._party = PartyThread(party)
            greetings_only_from(engine.get_cell(), f"server.{job}")
            engine.register_aux_message_handler(GREETING, self._greet)
            engine.register_aux_message_handler(TOPIC, self._answer)
            engine.register_aux_message_handler(WHOLE, self._answer)
        elif event_type == EventType.END_RUN and self._party is not None:
            self._party.end()
            log.info("%s: run %s is left", self._name, self._run)
            self._stop_log()

    def execute(
        self,
        task_name: str,
        shareable: Shareable,
        fl_ctx: FLContext,
        abort_signal: Signal,
    ) -> Shareable:
        """Refuse every task: parties are asked by requests, never by tasks."""
        return make_reply(ReturnCode.TASK_UNKNOWN)

    def _greet(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Take the key of this job's questions from the server, once."""
        key = request.get("key")
        if self._seal is None and type(key) is bytes and len(key) == KEY_BYTES:
            self._seal = Sealed(key)
        return make_reply(ReturnCode.OK)

    def _answer(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        seal = self._seal
        question = None if seal is None else seal.question_in(request)
        if seal is None or question is None or self._party is None:
            log.warning("refused a question that is not the server's")
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        if question.verb == ALIVE:
            return seal.answer(question, BUSY if self._working else IDLE)
        self._work(1)
        try:
            answer = self._party.ask(question.verb, question.body)
            if topic == WHOLE and len(answer) > MOST_WHOLE:
                return seal.long_answer(question)
            return seal.answer(question, answer)
        except Exception as error:
            log.error("%s", told_inside(error))
            return self._refused(seal, question, error)
        finally:
            self._work(-1)

    def _refused(
        self, seal: Sealed, question: PartyQuestion, error: Exception
    ) -> Shareable:
        """What the server is sent of an error: the same bytes for all of a kind.

        A site answers a round with a refusal whoever caught the error.
        """
        if question.verb == ROUND and self._name not in ("", CSP):
            return seal.answer(question, encode(refuse(self._name, error)))
        return seal.failure(question, said_outside(self._name, error))

    def _work(self, change: int) -> None:
        with self._count:
            self._working += change


def _open(workspace: Any, job: str, run: str) -> PartyEndpoint:
    """The party that the kit's certificate names."""
    mine = Kit.open(Path(workspace.get_root_dir()))
    folder = mine.run(run, job_study(workspace, job))
    if mine.role == CSP:
        return PartyEndpoint(folder.csp(), folder.path)
    return PartyEndpoint(folder.site(mine.name), folder.path, tells_time=False)

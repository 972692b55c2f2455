"""The server in a FLARE job: drives the protocol, reports how far it is.

Everything that must survive is in the kit's ``runs`` folder: a job that was cut is
submitted again under the same run id, and the server goes on from its checkpoint.
"""

from __future__ import annotations

import base64
import logging
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.signal import Signal

from cipherbayes.engine.flare.channels import FlareConnection, FlareCsp, FlareSite
from cipherbayes.engine.flare.jobs import job_study
from cipherbayes.engine.flare.kits import CSP, SERVER, Kit
from cipherbayes.engine.local import Finished, finish
from cipherbayes.engine.round_loop import drive
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.errors import CipherbayesError, RunError
from cipherbayes.protocols.transcripts import keep_transcript
from cipherbayes.typing import JsonObject

log = logging.getLogger("cipherbayes.flare")

FOLLOW = "cipherbayes"
"""Topic on which whoever submitted the run asks how far it is."""
STARTUP_SECONDS = 120.0
"""Seconds that parties have to start their part of a job."""
MORE_SECONDS = 10.0
"""What they have more for each of them: many may share a machine."""
COLLECT_SECONDS = 20.0
ENDING_SECONDS = 20.0
"""FLARE ends a job's process within five seconds, where it does."""


class RoundsController(Controller):  # type: ignore[misc]
    """The server party; a subclass puts the result together.

    Parameters
    ----------
    run
        Id of the run, in hexadecimal.
    """

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run
        self._status: JsonObject = {"state": "starting", "done": 0, "rounds": 0}
        self._files: dict[str, str] = {}
        self._collected = threading.Event()

    def start_controller(self, fl_ctx: FLContext) -> None:
        fl_ctx.get_engine().register_app_command(FOLLOW, self._follow)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """See that the job's process ends.

        A thread of FLARE's that waits for a party which was killed can keep it
        alive for ever, and with it the job: the next submission would wait too.
        """
        last_resort = threading.Timer(ENDING_SECONDS, os._exit, (0,))
        last_resort.daemon = True
        last_resort.start()

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        try:
            self._files = self._play(fl_ctx)
            self._say("finished")
        except CipherbayesError as error:
            log.error("%s", error)
            self._fail(error)
        except Exception:
            log.exception("unexpected failure")
            self._fail(
                RunError(
                    "unexpected failure", where=SERVER, remedy="see the server's log"
                )
            )
        # Whoever submitted the run fetches the outcome; nobody need be there.
        self._collected.wait(COLLECT_SECONDS)
        if self._status["state"] == "failed":
            self.system_panic(self._status["error"]["what"], fl_ctx)

    def _play(self, fl_ctx: FLContext) -> dict[str, str]:
        started = time.perf_counter()
        engine: Any = fl_ctx.get_engine()
        workspace, job = engine.get_workspace(), fl_ctx.get_job_id()
        study = job_study(workspace, job)
        kit = Kit.open(workspace.get_root_dir()).require(SERVER)
        folder = kit.run(self._run, study)
        csp = FlareCsp(CSP, fl_ctx)
        sites = {name: FlareSite(name, fl_ctx) for name in study.sites}
        pool = ThreadPoolExecutor(len(sites) + 1, thread_name_prefix="all-parties")
        try:
            self._gather([csp, *sites.values()], pool)
            server, rounds = folder.server()
            self._progress(server.rounds_done, folder.plan.rounds)
            traffic = drive(
                server,
                sites,
                csp,
                rounds=folder.plan.rounds,
                progress=self._progress,
                each=pool.map,
            )
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for line in (csp, *sites.values()):
                line.close()
        keep_transcript(folder.path, server.transcript())
        finished = finish(rounds, server.stopped, traffic)
        with tempfile.TemporaryDirectory(dir=folder.path) as out:
            self.save_result(folder, finished, started, Path(out))
            keep_transcript(Path(out), server.transcript())
            return {
                path.name: base64.b64encode(path.read_bytes()).decode()
                for path in Path(out).iterdir()
            }

    def save_result(
        self, folder: RunFolder, finished: Finished, started: float, out: Path
    ) -> None:
        """Write what the rounds amount to into a folder."""
        raise NotImplementedError

    def _gather(self, lines: list[FlareConnection], pool: ThreadPoolExecutor) -> None:
        """Wait until every party has taken the job's key."""
        deadline = time.monotonic() + STARTUP_SECONDS + MORE_SECONDS * len(lines)
        greeted = pool.map(lambda line: line.greet(deadline), lines)
        missing = [x.name for x, here in zip(lines, greeted, strict=True) if not here]
        if missing:
            raise RunError(
                f"{', '.join(missing)} did not start",
                where=SERVER,
                remedy="see the log at that party, then submit again",
            )

    def _progress(self, done: int, rounds: int) -> None:
        self._say("running", done=done, rounds=rounds)

    def _fail(self, error: CipherbayesError) -> None:
        # Between machines a run that was cut is submitted again.
        remedy = error.remedy.replace("cipherbayes resume", "cipherbayes submit")
        words = {"what": error.what, "where": error.where, "remedy": remedy}
        self._say("failed", error=words)

    def _say(self, state: str, **facts: Any) -> None:
        self._status = {**self._status, "state": state, **facts}

    def _follow(self, topic: str, data: Any, fl_ctx: FLContext) -> JsonObject:
        """How far the run is; with the outcome, once there is one."""
        status = self._status
        if status["state"] not in ("finished", "failed"):
            return status
        self._collected.set()
        return {**status, "files": self._files}

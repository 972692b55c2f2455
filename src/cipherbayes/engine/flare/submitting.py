"""Submit a study to the parties, follow it, bring the result back.

The folder that the result goes to remembers the run's id. Submitting into it again
goes on with that run: rounds that were released are not released again.
"""

from __future__ import annotations

import base64
import io
import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from cipherbayes.engine.flare.handshake import check_server
from cipherbayes.engine.flare.jobs import write_job
from cipherbayes.engine.flare.kits import ADMIN, CSP, Kit, is_loopback
from cipherbayes.errors import RunError, StudyError
from cipherbayes.storage.folders import LOG, require_new_folder
from cipherbayes.study.schema import Study
from cipherbayes.typing import JsonObject, Progress

_FOLLOW = "cipherbayes"
_POLL_SECONDS = 0.3
_CONNECT_SECONDS = 30.0
_SUBMISSION = "submission.json"
_RESULT = ("study.toml", "transcript.bin", "posterior.nc", "result.json")


class AbsentError(RunError):
    """Somebody is not there, and may still come."""


def submit(
    study: Study, kit: Kit, out: Path, progress: Progress, *, wait: float = 0.0
) -> None:
    """Run a study on the parties' machines, from where it stands to its end.

    The result is in the folder ``out`` afterwards.

    Parameters
    ----------
    kit
        The lead's kit.
    out
        Folder for the result: new, or that of a submission that was cut.
    wait
        Seconds to wait for a server or parties that are not there yet.
    """
    kit.require(ADMIN)
    study = study.without_paths()
    if study.insecure and not is_loopback(kit.host):
        raise StudyError(
            "insecure-repeatable noise is for one machine only",
            where=f"study '{study.name}'",
            remedy='set privacy.randomness = "secure"',
        )
    run = _run_of(out, study)
    if wait > 0.0:
        _await_everyone(kit, study, time.monotonic() + wait)
    with _session(kit) as session:
        _refuse_missing(session, study)
        with tempfile.TemporaryDirectory() as scratch:
            job = session.submit_job(str(write_job(Path(scratch), study, run)))
    files = _followed(kit, job, progress)
    for name in _RESULT:
        # result.json last and in one move: a folder without it is no result.
        partial = out / f".{name}.partial"
        partial.write_bytes(base64.b64decode(files[name]))
        os.replace(partial, out / name)


def _run_of(out: Path, study: Study) -> str:
    """The run that a folder belongs to, begun now if it is new."""
    path = out / _SUBMISSION
    fingerprint = study.fingerprint()
    if not path.exists():
        require_new_folder(out, remedy="give a new folder as --out", allowed=(LOG,))
        out.mkdir(parents=True, exist_ok=True)
        run = secrets.token_hex(16)
        content = {"version": 1, "run": run, "study": fingerprint}
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return run
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        run, begun = str(content["run"]), content["study"]
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(
            "cannot be read", where=str(path), remedy="submit into a new folder"
        ) from None
    if begun != fingerprint:
        raise RunError(
            "holds a run of another study",
            where=str(out),
            remedy="submit the changed study into a new folder",
        )
    if (out / "result.json").exists():
        raise RunError(
            "is finished already",
            where=str(out),
            remedy="read result.json, or use `cipherbayes predict`",
        )
    return run


@contextmanager
def _session(kit: Kit) -> Iterator[Any]:
    """A connection to the server under the lead's certificate."""
    from nvflare.fuel.flare_api.api_spec import AuthenticationError, NoConnection

    if not check_server(kit):
        # FLARE would try for its whole timeout.
        raise _unreachable(kit.host)
    try:
        # FLARE reports to the terminal; what matters is raised.
        with redirect_stdout(io.StringIO()):
            session = _connected(kit)
    except AuthenticationError:
        raise RunError(
            "does not accept this certificate",
            where=f"server {kit.host}",
            remedy="use the admin kit of the same `cipherbayes deploy`",
        ) from None
    try:
        yield session
    except NoConnection:
        raise _unreachable(kit.host) from None
    finally:
        with redirect_stdout(io.StringIO()):
            session.close()


def _connected(kit: Kit) -> Any:
    """A session with the server, once it is up.

    A server that is still starting, or busy, may not answer in time, and one that
    answers a challenge without its certificate makes FLARE's client fail with a
    TypeError.
    """
    from nvflare.apis.fl_exception import FLCommunicationError
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            return new_secure_session(kit.name, str(kit.path), timeout=_CONNECT_SECONDS)
        except (TypeError, OSError, RuntimeError, FLCommunicationError):
            if time.monotonic() > deadline:
                raise _unreachable(kit.host) from None
            time.sleep(_POLL_SECONDS)


def _await_everyone(kit: Kit, study: Study, deadline: float) -> None:
    """Return when all are connected, or say who is missing when time is up."""
    while True:
        try:
            with _session(kit) as session:
                return _refuse_missing(session, study)
        except AbsentError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def _unreachable(host: str) -> AbsentError:
    return AbsentError(
        "cannot be reached",
        where=f"server {host}",
        remedy="start it with `cipherbayes server start`, then submit again",
    )


def _refuse_missing(session: Any, study: Study) -> None:
    """Say at once who is not there, instead of waiting for them."""
    present = {client.name for client in session.get_system_info().client_info}
    missing = sorted({CSP, *study.sites} - present)
    if missing:
        raise AbsentError(
            f"{', '.join(missing)} not connected",
            where="server",
            remedy="start the party with `cipherbayes site start` (or csp start)",
        )


def _followed(kit: Kit, job: str, progress: Progress) -> dict[str, str]:
    """The files of the result, over as many connections as that takes.

    The run goes on at the server while the lead is not connected to it.
    """
    heard = time.monotonic()

    def hear() -> None:
        nonlocal heard
        heard = time.monotonic()

    while True:
        try:
            with _session(kit) as session:
                return _follow(session, job, progress, hear)
        except AbsentError:
            if time.monotonic() - heard > _CONNECT_SECONDS:
                raise
            time.sleep(_POLL_SECONDS)


def _follow(
    session: Any, job: str, progress: Progress, hear: Callable[[], None]
) -> dict[str, str]:
    """The files of the result, when the run has ended well.

    ``hear`` is called whenever the server has answered: a job with many parties may
    take minutes to start.
    """
    from nvflare.fuel.flare_api.api_spec import InternalError, JobNotRunning, NoReply

    while True:
        try:
            status = session.do_app_command(job, _FOLLOW, {})
        except (JobNotRunning, InternalError, NoReply):
            status = {"state": "starting"}
        hear()
        if status["state"] == "failed":
            raise RunError(**status["error"])
        if status["state"] == "finished":
            progress(status["done"], status["rounds"])
            files: dict[str, str] = status["files"]
            return files
        if status["state"] == "running":
            progress(status["done"], status["rounds"])
        else:
            _refuse_ended(session.get_job_meta(job))
        time.sleep(_POLL_SECONDS)


def _refuse_ended(meta: JsonObject) -> None:
    state = str(meta.get("status", ""))
    if state.startswith("FINISHED"):
        raise RunError(
            f"FLARE ended the job ({state.partition(':')[2].lower()})",
            where="server",
            remedy="see the log of the party that stopped, then submit again",
        )

"""Runs that die at a chosen point: started in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import cipherbayes.results.run
from cipherbayes.crypto.bfv.keys import PublicKey, SecretKey
from cipherbayes.crypto.key_folder import KeyFolder
from cipherbayes.engine.processes import PartyProcess
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.inference.released import PrivatePsgld
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.pooled.curator import Curator
from cipherbayes.protocols.stores import AnswerStore, Checkpoint
from cipherbayes.results.result import Result
from cipherbayes.storage.custody import VARIABLE
from cipherbayes.study.schema import Study

# What is about to happen, or has just happened, when the process dies.
POINTS: dict[str, tuple[type, str, str]] = {
    "as the folder is laid out": (KeyFolder, "identity", "before"),
    "before a site opens its ledger": (RunFolder, "site", "before"),
    "before the key pair": (KeyFolder, "create_pair", "before"),
    "after the key pair": (KeyFolder, "create_pair", "after"),
    "before the sum over records": (Contributions, "total", "before"),
    "before the ledger's commit": (Contributions, "total", "after"),
    "after the ledger's commit": (Ledger, "release", "after"),
    "before encryption": (PublicKey, "encrypt", "before"),
    "after encryption": (PublicKey, "encrypt", "after"),
    "before decryption": (SecretKey, "decrypt", "before"),
    "before the CSP's memory": (AnswerStore, "keep", "before"),
    "after the CSP's memory": (AnswerStore, "keep", "after"),
    "before theta moves": (PrivatePsgld, "advance", "before"),
    "before the checkpoint": (Checkpoint, "keep_state", "before"),
    "after the checkpoint": (Checkpoint, "keep_state", "after"),
    "before a fact's checkpoint": (Checkpoint, "keep_fact", "before"),
    "after a fact's checkpoint": (Checkpoint, "keep_fact", "after"),
    "before the result is saved": (Result, "save", "before"),
    "before the end": (RunFolder, "end", "before"),
    "after a pooled release": (Curator, "release", "after"),
}


def die() -> None:
    """What kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(point: str, number: int) -> None:
    """Arrange that the ``number``-th passage (from 1) of a point is the last."""
    owner, name, moment = POINTS[point]
    honest: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def fatal(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        last = calls == number
        if last and moment == "before":
            die()
        result = honest(*args, **kwargs)
        if last:
            die()
        return result

    setattr(owner, name, fatal)


def _run(text: str, out: Path, point: str, number: int) -> None:
    die_at(point, number)
    _begin_or_resume(Study.model_validate_json(text), out)


def _run_and_kill(text: str, out: Path, party: str, number: int, moment: str) -> None:
    """A run in several processes that loses a party, or the driving process."""
    calls = 0
    send, receive = PartyProcess.send, PartyProcess.receive

    def fatal_send(self: PartyProcess, verb: bytes, *parts: bytes) -> None:
        nonlocal calls
        if verb == b"H" and self.name == party:
            calls += 1
            if calls == number and moment == "before":
                os.kill(self.pid, signal.SIGKILL)
        send(self, verb, *parts)

    def fatal_receive(self: PartyProcess) -> bytes | None:
        answer = receive(self)
        if self.name == party and calls == number and moment == "after":
            os.kill(self.pid, signal.SIGKILL)
        return answer

    def progress(done: int, total: int) -> None:
        if party == "driver" and done == number:
            die()

    PartyProcess.send = fatal_send  # type: ignore[method-assign]
    PartyProcess.receive = fatal_receive  # type: ignore[method-assign]
    _begin_or_resume(Study.model_validate_json(text), out, progress)


def _begin_or_resume(study: Study, out: Path, progress: Any = None) -> None:
    options = {} if progress is None else {"progress": progress}
    if (out / "run.json").exists():
        cipherbayes.results.run.resume(out, **options)
    else:
        cipherbayes.results.run.run(study, out=out, **options)


# A clean process that has imported everything forks each run in milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["cipherbayes.results.run", "opendp.measurements"])


def forked(target: Callable[..., None], *args: Any) -> BaseProcess:
    """A process with this test's state folder.

    By itself it would have that of the test which happened to start the fork server.
    """
    return CONTEXT.Process(target=_in_state, args=(os.environ[VARIABLE], target, *args))


def _in_state(state: str, target: Callable[..., None], *args: Any) -> None:
    os.environ[VARIABLE] = state
    target(*args)


def crash(study: Study, out: Path, point: str, number: int) -> int:
    """Begin or resume a run that dies at a point; its exit code."""
    return _wait(_run, study, out, point, number)


def crash_party(
    study: Study, out: Path, party: str, number: int, moment: str = "before"
) -> int:
    """Begin or resume a run in several processes that loses a party."""
    return _wait(_run_and_kill, study, out, party, number, moment)


def _wait(target: Callable[..., None], study: Study, *args: Any) -> int:
    process = forked(target, study.model_dump_json(), *args)
    process.start()
    process.join(120)
    assert process.exitcode is not None, "the run neither ended nor died"
    return process.exitcode

"""A whole private study on this machine, from its folder to its draws."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.engine.in_process import LocalCsp, LocalSite
from cipherbayes.engine.processes import RemoteCsp, RemoteSite
from cipherbayes.engine.round_loop import Traffic, drive
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.errors import BudgetError
from cipherbayes.inference.chains import Draws
from cipherbayes.protocols.messages import encode
from cipherbayes.protocols.rounds import Course
from cipherbayes.protocols.transcripts import (
    CuratorTotal,
    TranscriptHead,
    keep_transcript,
    written,
)
from cipherbayes.typing import Floats

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Finished:
    """What a private run leaves behind."""

    draws: Draws
    moments: Floats | None
    rounds: int
    stopped: str | None
    traffic: Traffic


def run_folder(
    folder: RunFolder,
    tables: Mapping[str, PreparedTable] | None,
    progress: Progress,
) -> Finished:
    """Take a run from where it stands to its end.

    Parameters
    ----------
    tables
        Tables already open; left out, each site opens its own.
    """
    if tables is None:
        folder.refuse_equal_files()
    if folder.study.protocol == "pooled":
        return _pooled(folder, tables, progress)
    server, course = folder.server()
    if server.finished:
        # Killed before the result was written: all that it needs is in the checkpoint.
        return finish(course, None, Traffic())
    if folder.study.study.engine == "local-processes":
        sites = {name: RemoteSite(folder.path, name) for name in server.present}
        csp = RemoteCsp(folder.path, "csp")
        try:
            traffic = drive(
                server, sites, csp, rounds=folder.plan.rounds, progress=progress
            )
        finally:
            for party in (*sites.values(), csp):
                party.close()
    else:
        local = {
            name: LocalSite(
                folder.site(name, None if tables is None else tables[name]),
                folder.home(name),
            )
            for name in server.present
        }
        traffic = drive(
            server,
            local,
            LocalCsp(folder.csp()),
            rounds=folder.plan.rounds,
            progress=progress,
        )
    keep_transcript(folder.path, server.transcript())
    return finish(course, server.stopped, traffic)


def _pooled(
    folder: RunFolder,
    tables: Mapping[str, PreparedTable] | None,
    progress: Progress,
) -> Finished:
    curator, course = folder.curator(tables)
    stopped = None
    started = time.process_time()
    try:
        while not course.finished:
            phase = course.phase
            values = curator.release(course.round, phase, course.asked())
            total = CuratorTotal(
                folder.run, folder.plan.study_hash, course.round, phase.purpose, values
            )
            course.accept(encode(total), values, 1)
            progress(course.round, folder.plan.rounds)
    except BudgetError as error:
        stopped = error.what
    head = TranscriptHead(folder.run, folder.plan.study_hash, b"", ())
    keep_transcript(folder.path, written(head, course.messages()))
    traffic = Traffic()
    traffic.site_seconds = {"all": time.process_time() - started}
    return finish(course, stopped, traffic)


def finish(course: Course, stopped: str | None, traffic: Traffic) -> Finished:
    """What the rounds of a run amount to."""
    draws = course.draws()
    if draws is None:
        assert stopped is not None
        raise BudgetError(
            stopped,
            where="before there was a posterior",
            remedy="see `cipherbayes ledger` for what each table has spent",
        )
    return Finished(draws, course.moments(), course.round, stopped, traffic)


class TemporaryFolder:
    """A run's folder for as long as a run from Python lasts."""

    def __enter__(self) -> Path:
        self._path = Path(tempfile.mkdtemp(prefix="cipherbayes-"))
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)

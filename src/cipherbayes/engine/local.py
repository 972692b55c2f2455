"""A whole private study on this machine, from its folder to its draws."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.engine.in_process import LocalCsp, LocalSite
from cipherbayes.engine.processes import RemoteCsp, RemoteSite
from cipherbayes.engine.round_loop import Traffic, drive
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.errors import BudgetError
from cipherbayes.inference.chains import Draws
from cipherbayes.protocols.messages import encode
from cipherbayes.protocols.protocol import CuratedProtocol
from cipherbayes.protocols.rounds import Closing, StudyRounds
from cipherbayes.protocols.transcripts import (
    CuratorTotal,
    TranscriptHead,
    keep_transcript,
    transcript_bytes,
)
from cipherbayes.typing import Floats, Progress


@dataclass(frozen=True)
class Finished:
    """What a private run leaves behind."""

    draws: Draws
    moments: Floats | None
    rounds: int
    stopped: str | None
    traffic: Traffic
    closing: Mapping[str, Closing] = field(default_factory=dict)
    column_models: Floats | None = None
    range_ends: Floats | None = None


def run_parties(
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
    if isinstance(folder.protocol, CuratedProtocol):
        return _curated(folder, folder.protocol, tables, progress)
    server, rounds = folder.server()
    if server.finished:
        # Killed before the result was written: all that it needs is in the checkpoint.
        return finish(rounds, None, Traffic())
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
    return finish(rounds, server.stopped, traffic)


def _curated(
    folder: RunFolder,
    protocol: CuratedProtocol[Any],
    tables: Mapping[str, PreparedTable] | None,
    progress: Progress,
) -> Finished:
    """Whoever holds all tables releases one total after the other."""
    rounds = protocol.rounds(folder.plan, folder.checkpoint())
    curator = protocol.curator(folder, folder.held_tables(tables))
    stopped = None
    started = time.process_time()
    run, study = folder.run, folder.plan.study_hash
    try:
        while not rounds.finished:
            phase, number = rounds.phase, rounds.round
            values = curator.release(number, phase, rounds.asked())
            total = CuratorTotal(run, study, number, phase.purpose, values)
            rounds.accept(encode(total), values, 1)
            progress(rounds.round, folder.plan.rounds)
    except BudgetError as error:
        stopped = error.what
    keep_transcript(
        folder.path,
        transcript_bytes(TranscriptHead(run, study, b"", ()), rounds.messages()),
    )
    traffic = Traffic()
    traffic.site_seconds = {"all": time.process_time() - started}
    return finish(rounds, stopped, traffic)


def finish(rounds: StudyRounds[Any], stopped: str | None, traffic: Traffic) -> Finished:
    """What the rounds of a run amount to."""
    draws = rounds.draws()
    if draws is None:
        raise BudgetError(
            stopped or "the run stopped",
            where="before there was a posterior",
            remedy="`cipherbayes ledger TABLE.ledger` shows what a table spent, and "
            "its owner raises the budget with --budget EPSILON (several machines: "
            "budget in site.toml); then `cipherbayes resume` goes on",
        )
    return Finished(
        draws,
        rounds.moments(),
        rounds.round,
        stopped,
        traffic,
        rounds.closing(),
        rounds.column_models(),
        rounds.range_ends(),
    )


class TemporaryFolder:
    """A run's folder for as long as a run from Python lasts."""

    def __enter__(self) -> Path:
        self._path = Path(tempfile.mkdtemp(prefix="cipherbayes-"))
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)

"""How a site's work grows with its rows: a pass, a scan, and a whole private study.

A Parquet table of 20 features is written for each number of rows. Measured, each in a
process of its own: the fastest plain scan of the same columns, one pass of the clipped
gradient that reads the table again, and a private study over it from beginning to end
(``pooled``, noise-aware, as a study that says nothing else). All columns are read in
every round, so a round can cost no less than a scan unless the records are held in
memory.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

import cipherbayes as cb
from cipherbayes.protocols.plan import plan_study
from cipherbayes.storage.custody import VARIABLE
from cipherbayes_research.benchmarks.scans import (
    MODEL,
    NAMES,
    SCANS,
    alone,
    peak_megabytes,
    scan,
    streamed,
    write_table,
)

LEAST, MOST = 100_000, 1_000_000


class GrowthOfRows(TypedDict):
    """One number of rows; seconds are of the clock on the wall.

    ``study_s`` is a whole study with its posterior, which does not depend on the rows;
    ``rounds_s`` is from opening the table to the last round. ``…_cpu_s`` is what all
    threads used together: on a machine that others use too it tells more.
    """

    rows: int
    file_bytes: int
    scan: str
    scan_s: float
    scan_cpu_s: float
    pass_s: float
    pass_cpu_s: float
    pass_speed: float
    pass_megabytes: float
    study_s: float
    rounds_s: float
    rounds_cpu_s: float
    study_rounds: int
    study_megabytes: float
    ns_per_row_and_round: float
    round_over_scan: float


class StudyCost(TypedDict):
    """A whole private study, and its part before the posterior is drawn."""

    seconds: float
    rounds_seconds: float
    rounds_cpu_seconds: float
    rounds: int
    megabytes: float


def row_counts(most: int) -> list[int]:
    """Powers of ten from 100,000 up to a number of rows."""
    counts = [LEAST]
    while counts[-1] * 10 <= most:
        counts.append(counts[-1] * 10)
    return counts


def run_growth(counts: Sequence[int], folder: Path) -> Iterator[GrowthOfRows]:
    """Measure one number of rows after the other; a table is in the folder so long."""
    for rows in counts:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            path = Path(scratch) / "table.parquet"
            alone(write_table, path, rows)
            yield measure(path, rows)


def measure(path: Path, rows: int) -> GrowthOfRows:
    """Everything that is measured over one table."""
    scans = {name: alone(scan, path, name) for name in SCANS}
    fastest = min(scans, key=lambda name: float(scans[name]["seconds"]))
    scanned = scans[fastest]
    one_pass = alone(streamed, path)
    study: StudyCost = alone(private_study, path, rows)
    per_round = study["rounds_seconds"] / study["rounds"]
    return {
        "rows": rows,
        "file_bytes": path.stat().st_size,
        "scan": fastest,
        "scan_s": scanned["seconds"],
        "scan_cpu_s": scanned["cpu_seconds"],
        "pass_s": one_pass["seconds"],
        "pass_cpu_s": one_pass["cpu_seconds"],
        "pass_speed": scanned["seconds"] / one_pass["seconds"],
        "pass_megabytes": one_pass["peak_megabytes"],
        "study_s": study["seconds"],
        "rounds_s": study["rounds_seconds"],
        "rounds_cpu_s": study["rounds_cpu_seconds"],
        "study_rounds": study["rounds"],
        "study_megabytes": study["megabytes"],
        "ns_per_row_and_round": per_round / rows * 1e9,
        "round_over_scan": per_round / scanned["seconds"],
    }


def private_study(path: Path, rows: int) -> StudyCost:
    """A private study over the table, from opening it to its posterior."""
    study = cb.Study(
        study={"protocol": "pooled"},
        model=MODEL,
        features={name: {"low": -3.0, "high": 3.0} for name in NAMES},
        privacy={"epsilon": 1.0, "delta": 1e-9, "records": rows},
        sites={"site": {}},
    )
    # The table is nobody's and is written again for every measurement.
    os.environ[VARIABLE] = str(path.parent / "state")
    rounds = plan_study(study).rounds
    clocks = (time.perf_counter, time.process_time)
    ended = [0.0, 0.0]

    def progress(done: int, total: int) -> None:
        ended[:] = [clock() for clock in clocks]

    started, cpu = (clock() for clock in clocks)
    cb.run(study, {"site": path}, progress=progress)
    return {
        "seconds": time.perf_counter() - started,
        "rounds_seconds": ended[0] - started,
        "rounds_cpu_seconds": ended[1] - cpu,
        "rounds": rounds,
        "megabytes": peak_megabytes(),
    }

"""How a site's work grows with its rows: a scan, a round's pass, a whole private study.

A Parquet table of six features and an outcome is written for each number of rows, with
the types and the rounding of a laboratory's table. Measured over it:

- **scan**: the fastest way that pyarrow or DuckDB has of reading these columns into
  Arrow batches, with both cores, and doing nothing with them;
- **pass**: what a round of the study computes of the table, from the question to the
  sums before noise, as the study's own site does it. Rounds differ (histograms, scores,
  scores with information), so each kind is measured and the mean is over the rounds of
  the study. Scans and passes take turns in one process and the table is in the system's
  cache; each figure is a median;
- **study**: a private study (``pooled``, noise-aware, as one that says nothing else),
  in a process of its own, from opening the table to the last round.

A table of up to 2 GiB of prepared records is held in memory; a larger one is decoded
once, when it is opened, into a file without a name that the passes read.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import cipherbayes as cb
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.study_plan import StudyPlan, plan_releases
from cipherbayes.storage.custody import VARIABLE
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import open_site
from cipherbayes.typing import Integers
from cipherbayes_research.benchmarks.scans import (
    ROW_GROUP,
    SCANS,
    alone,
    cost_of,
    peak_megabytes,
)

LEAST, MOST = 100_000, 1_000_000
RANGES = {
    "age": (18.0, 110.0),
    "male": (0.0, 1.0),
    "days_before": (0.0, 60.0),
    "creatinine": (0.1, 20.0),
    "lactate": (0.1, 30.0),
    "bilirubin": (0.1, 50.0),
}
REPEATS, MANY = 5, 50_000_000
"""Measurements of each scan and each pass, and the number of rows from which on there
are three only."""
SLOW = 1.5
"""CPU time over that of the fastest scan, above which a way of scanning is measured
only once."""

Cost = tuple[float, float]


class Passes(TypedDict):
    """Scans and passes over one table, medians; seconds, by the clock and of CPU."""

    scan: str
    scan_s: float
    scan_cpu_s: float
    open_s: float
    open_cpu_s: float
    in_memory: bool
    pass_s: float
    pass_cpu_s: float
    dearest_s: float
    dearest_cpu_s: float
    scans: dict[str, Cost]
    passes: dict[str, Cost]


class StudyCost(TypedDict):
    """A whole private study, and its part before the posterior is drawn."""

    study_s: float
    rounds_s: float
    rounds_cpu_s: float
    study_rounds: int
    study_megabytes: float


class GrowthOfRows(Passes, StudyCost):
    """One number of rows.

    ``study_s`` is a whole study with its posterior, which does not depend on the rows;
    ``rounds_s`` is from opening the table to the last round. ``…_cpu_s`` is what all
    threads used together: on a machine that others use too it tells more. ``speed`` is
    a scan over a mean pass, and ``study_speed`` a scan over what a round of the study
    took with its share of everything before it; both by the clock and of CPU.
    """

    rows: int
    file_bytes: int
    speed: float
    cpu_speed: float
    dearest_speed: float
    dearest_cpu_speed: float
    study_speed: float
    study_cpu_speed: float
    cpu_ns_per_row_and_round: float


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
    passes: Passes = alone(compare, path, rows)
    study: StudyCost = alone(private_study, path, rows)
    rounds = study["study_rounds"]
    least_cpu = min(cpu for _, cpu in passes["scans"].values())
    return {
        **passes,
        **study,
        "rows": rows,
        "file_bytes": path.stat().st_size,
        "speed": passes["scan_s"] / passes["pass_s"],
        "cpu_speed": least_cpu / passes["pass_cpu_s"],
        "dearest_speed": passes["scan_s"] / passes["dearest_s"],
        "dearest_cpu_speed": least_cpu / passes["dearest_cpu_s"],
        "study_speed": passes["scan_s"] * rounds / study["rounds_s"],
        "study_cpu_speed": least_cpu * rounds / study["rounds_cpu_s"],
        "cpu_ns_per_row_and_round": study["rounds_cpu_s"] / rounds / rows * 1e9,
    }


def write_table(path: Path, rows: int) -> None:
    """A table as pyarrow writes it when it is asked for nothing special."""
    rng = np.random.default_rng(0)
    writer = None
    for start in range(0, rows, ROW_GROUP):
        size = min(ROW_GROUP, rows - start)
        age = np.round(rng.normal(64.0, 14.0, size)).clip(18, 110)
        male = rng.random(size) < 0.5
        values = [np.round(rng.lognormal(0.0, 0.5, size), 2) for _ in range(3)]
        eta = 0.05 * (age - 64.0) + 0.3 * male + 0.4 * (values[1] - 1.0) - 2.0
        death = rng.random(size) < 1.0 / (1.0 + np.exp(-eta))
        table = pa.table(
            {
                "age": age.astype(np.int8),
                "male": male.astype(np.int8),
                "days_before": rng.poisson(3.0, size).astype(np.int16),
                "creatinine": values[0].astype(np.float32),
                "lactate": values[1].astype(np.float32),
                "bilirubin": values[2].astype(np.float32),
                "death": death.astype(np.int8),
            }
        )
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def study_of(rows: int) -> Study:
    """A private study that says no more than it must."""
    return cb.Study(
        study={"protocol": "pooled"},
        model={"kind": "logistic", "outcome": "death"},
        features={name: {"low": a, "high": b} for name, (a, b) in RANGES.items()},
        privacy={"epsilon": 1.0, "delta": 1e-9, "records": rows},
        sites={"site": {}},
    )


def compare(path: Path, rows: int) -> Passes:
    """Scans and passes over the table in turn; slow ways of scanning once only."""
    study = study_of(rows)
    plan = plan_releases(study)
    opened: list[PreparedTable] = []
    open_cost = cost_of(lambda: opened.append(open_site(study, "site", path)))
    (table,) = opened
    phases, questions = kinds_of(plan), asked(plan, table)
    contributions = Contributions.of_site(study, "site", table)

    def one_pass(name: str) -> Callable[[], object]:
        return lambda: contributions.total(phases[name][0], questions[name])

    scans: dict[str, list[Cost]] = {name: [] for name in SCANS}
    passes: dict[str, list[Cost]] = {name: [] for name in phases}
    for _ in range(min(REPEATS, 3) if rows >= MANY else REPEATS):
        for name, costs in passes.items():
            costs.append(cost_of(one_pass(name)))
        for name, costs in scans.items():
            if not costs or costs[0][1] < SLOW * min(c[0][1] for c in scans.values()):
                costs.append(cost_of(lambda name=name: SCANS[name](path)))  # type: ignore[misc]
    usual = {name: medians(costs) for name, costs in scans.items()}
    fastest = min(usual, key=lambda name: usual[name][0])
    each = {name: medians(costs) for name, costs in passes.items()}
    weights = {name: times for name, (_, times) in phases.items()}
    rounds = sum(weights.values())
    mean = [sum(each[n][k] * weights[n] for n in each) / rounds for k in (0, 1)]
    return {
        "scan": fastest,
        "scan_s": usual[fastest][0],
        "scan_cpu_s": usual[fastest][1],
        "open_s": open_cost[0],
        "open_cpu_s": open_cost[1],
        "in_memory": table.in_memory,
        "pass_s": mean[0],
        "pass_cpu_s": mean[1],
        "dearest_s": max(seconds for seconds, _ in each.values()),
        "dearest_cpu_s": max(cpu for _, cpu in each.values()),
        "scans": usual,
        "passes": each,
    }


def kinds_of(plan: StudyPlan) -> dict[str, tuple[Phase, int]]:
    """Kinds of rounds: one phase of each, and how many rounds are of it."""
    rounds: Counter[str] = Counter()
    phases: dict[str, Phase] = {}
    for phase in plan.phases:
        name = phase.purpose + (", with information" if phase.information else "")
        rounds[name] += phase.rounds
        phases[name] = phase
    return {name: (phases[name], rounds[name]) for name in phases}


def asked(plan: StudyPlan, table: PreparedTable) -> dict[str, Question]:
    """A question of each kind, with the scales that the rounds before it tell."""
    contributions = Contributions.of_site(plan.study, "site", table)
    totals: list[Integers] = []
    for phase in plan.preparatory:
        question = Question(np.zeros(1), plan.scales(phase, plan.facts(totals)))
        totals.append(phase.on_grid(contributions.total(phase, question)))
    facts = plan.facts(totals)
    questions = {}
    for name, (phase, _) in kinds_of(plan).items():
        theta = np.zeros(1)
        if not phase.preparatory:
            theta = np.linspace(-0.3, 0.3, phase.sums.dimension)
        questions[name] = Question(theta, plan.scales(phase, facts))
    return questions


def medians(costs: Sequence[Cost]) -> Cost:
    """Median wall-clock seconds and median CPU seconds."""
    return (
        statistics.median(seconds for seconds, _ in costs),
        statistics.median(cpu for _, cpu in costs),
    )


def private_study(path: Path, rows: int) -> StudyCost:
    """A private study over the table, from opening it to its posterior."""
    study = study_of(rows)
    # The table is nobody's and is written again for every measurement.
    os.environ[VARIABLE] = str(path.parent / "state")
    rounds = plan_releases(study).rounds
    clocks = (time.perf_counter, time.process_time)
    ended = [0.0, 0.0]
    peak = [0.0]

    def progress(done: int, total: int) -> None:
        ended[:] = [clock() for clock in clocks]
        peak[0] = peak_megabytes()

    started, cpu = (clock() for clock in clocks)
    cb.run(study, {"site": path}, progress=progress)
    return {
        "study_s": time.perf_counter() - started,
        "rounds_s": ended[0] - started,
        "rounds_cpu_s": ended[1] - cpu,
        "study_rounds": rounds,
        "study_megabytes": peak[0],
    }

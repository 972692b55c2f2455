"""How often intervals of private checks hold what many more rows would say.

Held-out rows are drawn from a large table, counted in cells as a site counts them,
noised as a study's check is, and scored as a result scores them. A fit is not run: the
predictions are those of fixed parameters.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logit

from cipherbayes.models.held_out import LOG_ODDS, BinaryCheck, HeldOutCheck
from cipherbayes.models.held_out_numbers import (
    COUNT_EDGES,
    NUMBER_BINS,
    SUMMED_BINS,
    NumberCheck,
)
from cipherbayes.privacy.gaussian import mu_for
from cipherbayes.protocols.releases import CHECKS, QUESTION_DRAWS
from cipherbayes.protocols.rounds import Closing
from cipherbayes.results.checking import scores_of
from cipherbayes.results.record import PrivateMetrics, scores_by_name
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats
from cipherbayes_research.benchmarks.check_populations import Population

DELTA, TAIL, NORMAL = 1e-5, 0.05, 1.6449
GROUPS = {
    "lowest third": "low",
    "middle third": "middle",
    "highest third": "high",
    "all rows": "all",
}


@dataclass(frozen=True)
class Coverage:
    """How one score's private intervals did over many repetitions.

    Attributes
    ----------
    covered, width, off
        How often its interval held the truth; its mean width, and the mean error of
        its mean.
    plain, ratio
        How often the interval without privacy held the truth (the exact score of the
        same rows plus and minus 1.64 standard errors), and how many times as wide the
        private interval was.
    repetitions
        Number of intervals.
    """

    covered: float
    width: float
    off: float
    plain: float
    ratio: float
    repetitions: int


def coverage(
    population: Population, epsilon: float, rows: int, repetitions: int, seed: int
) -> dict[str, Coverage]:
    """Coverage of every score over repetitions of a check.

    Each table, number of rows and ε has random numbers of its own. With shared ones,
    standard errors of what is pooled over them would be too small.
    """
    outcome = next(iter(population.outcome.values()))
    table = zlib.crc32(outcome.tobytes())
    rng = np.random.default_rng([seed, table, rows, round(1000 * epsilon)])
    check = population.study.model.held_out_check
    assert check is not None
    noise = check.bound / (mu_for(epsilon, DELTA) * np.sqrt(CHECKS["check"]))
    intervals: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    plain: dict[str, list[float]] = defaultdict(list)
    for _ in range(repetitions):
        places = rng.integers(population.score.size, size=rng.poisson(rows))
        for name, value in population.exact(places).items():
            plain[name].append(value)
        found = _private(population, check, places, noise, rows, rng)
        for name, interval in _named(found, check):
            intervals[name].append(interval)
    return {
        name: _counted(np.array(intervals[name]), np.array(plain[name]), truth)
        for name, truth in population.truth.items()
        if len(intervals[name]) > 1
    }


def _private(
    population: Population,
    check: HeldOutCheck,
    places: Any,
    noise: float,
    rows: int,
    rng: np.random.Generator,
) -> PrivateMetrics:
    draws = np.tile(population.theta, (QUESTION_DRAWS, 1))
    total = check.sums(draws, population.rows(places))
    noised = Closing(total + rng.normal(0.0, noise, total.size), noise)
    design = preparation_of(population.study).design
    return scores_of(check, noised, draws, design, TAIL, float(rows))


def _counted(found: Floats, plain: Floats, truth: float) -> Coverage:
    mean, lower, upper = found.T
    inside = (lower <= truth) & (truth <= upper)
    width = float(np.mean(upper - lower))
    exact = plain[np.isfinite(plain)]
    reach = NORMAL * float(exact.std())
    return Coverage(
        float(inside.mean()),
        width,
        float(mean.mean()) - truth,
        float(np.mean(np.abs(exact - truth) <= reach)),
        width / (2.0 * reach) if reach > 0.0 else np.nan,
        len(found),
    )


def _named(
    metrics: PrivateMetrics, check: HeldOutCheck
) -> Iterator[tuple[str, tuple[float, float, float]]]:
    """Every interval of a check by the name of what it should hold."""
    for name, value in scores_by_name(metrics).items():
        yield name, (value["mean"], value["lower"], value["upper"])
    for auc in metrics.get("auc_at", []):
        interval = (auc["auc"], auc["lower"], auc["upper"])
        yield f"auc_at {auc['time']:g}", interval
    for brier in metrics.get("brier_at", []):
        interval = (brier["brier"], brier["lower"], brier["upper"])
        yield f"brier_at {brier['time']:g}", interval
    for group in metrics.get("observed_over_expected", []):
        name = f"o/e {GROUPS[group['group']]} {group['time']:g}"
        yield name, (group["mean"], group["lower"], group["upper"])
    for each in metrics.get("calibration_table", []):
        interval = (each["observed"], each["lower"], each["upper"])
        yield f"curve {_bin(check, each['predicted'])}", interval


def _bin(check: HeldOutCheck, predicted: float) -> int:
    if isinstance(check, BinaryCheck):
        return int(np.searchsorted(LOG_ODDS, logit(predicted)))
    if isinstance(check, NumberCheck):
        edges = np.linspace(*check.ends, NUMBER_BINS + 1)
        return int(np.searchsorted(edges[1:-1], predicted))
    return int(np.searchsorted(COUNT_EDGES, predicted)) // SUMMED_BINS

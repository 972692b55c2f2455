"""How often intervals of private checks hold what many more rows would say.

Predictions and outcomes of a large population are invented; held-out rows are drawn
from it, counted in cells, noised as a study's check would be, and scored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from cipherbayes.inference.recalibration import recalibrate
from cipherbayes.inference.survival_check import check_survival
from cipherbayes.models.held_out import INTERVALS, LOG_HAZARDS, LOG_ODDS
from cipherbayes.models.metrics import auc, brier
from cipherbayes.privacy.gaussian import mu_for
from cipherbayes.protocols.releases import CHECKS
from cipherbayes.typing import Floats, Integers

POPULATION = 200_000
DELTA, TAIL = 1e-5, 0.05


@dataclass(frozen=True)
class Population:
    """Cells of many rows, and the scores of all of them."""

    cells: Integers
    length: int
    truth: dict[str, float]


@dataclass(frozen=True)
class Coverage:
    """Of one score: how often its interval held the truth, its mean width and error."""

    covered: float
    width: float
    bias: float


def binary(kind: str, rng: np.random.Generator) -> Population:
    """Predicted log odds that are right, too narrow, or too sure of two groups."""
    if kind == "calibrated":
        score = rng.normal(-1.8, 1.2, POPULATION)
        chance = expit(score)
    elif kind == "narrow":
        score = rng.normal(-2.0, 0.6, POPULATION)
        chance = expit(0.8 + 1.3 * score)
    else:
        first = rng.random(POPULATION) < 0.7
        spread = rng.standard_normal(POPULATION)
        score = np.where(first, -2.2 + 0.7 * spread, 0.5 + spread)
        chance = expit(-0.2 + 0.7 * score)
    y = (rng.random(POPULATION) < chance).astype(np.float64)
    said = expit(score)
    logs = np.where(y == 1.0, np.log(said), np.log1p(-said))
    truth = {
        "auc": auc(y, score) or 0.0,
        "brier": brier(y, said) or 0.0,
        "log_score": float(logs.mean()),
    }
    cells = 2 * np.searchsorted(LOG_ODDS, score) + y.astype(np.int64)
    return Population(cells, 2 * (LOG_ODDS.size + 1), truth)


def survival(rng: np.random.Generator) -> Population:
    """Weibull times whose risk is predicted a little too extreme."""
    score = rng.normal(-1.2, 0.9, POPULATION)
    time = rng.exponential(size=POPULATION) / np.exp(-0.2 + 0.8 * score)
    censored = rng.uniform(0.2, 2.5, POPULATION)
    event, seen = time <= censored, np.minimum(time, censored)
    fate = np.clip(np.ceil(seen * INTERVALS) - 1, 0, INTERVALS - 1).astype(np.int64)
    fate = np.where(event, fate, fate + INTERVALS)
    fate = np.where(seen > 1.0, 2 * INTERVALS, fate)
    truth = {}
    for k in (1, INTERVALS - 1):
        at = (k + 1) / INTERVALS
        happened = (time <= at).astype(np.float64)
        said = 1.0 - np.exp(-np.exp(score) * at)
        truth[f"auc at {at:g}"] = auc(happened, score) or 0.0
        truth[f"brier at {at:g}"] = brier(happened, said) or 0.0
    cells = (2 * INTERVALS + 1) * np.searchsorted(LOG_HAZARDS, score) + fate
    return Population(cells, (2 * INTERVALS + 1) * (LOG_HAZARDS.size + 1), truth)


def coverage(
    kind: str, epsilon: float, rows: int, repetitions: int, seed: int
) -> dict[str, Coverage]:
    """Repeat a check and count; ``kind`` is one of binary predictions or "survival"."""
    rng = np.random.default_rng(seed)
    population = survival(rng) if kind == "survival" else binary(kind, rng)
    noise = 1.0 / (mu_for(epsilon, DELTA) * np.sqrt(CHECKS["check"]))
    scored = _survival_draws if kind == "survival" else _binary_draws
    found: dict[str, list[tuple[bool, float, float]]] = {}
    for _ in range(repetitions):
        taken = rng.integers(POPULATION, size=rng.poisson(rows))
        counts = np.bincount(population.cells[taken], minlength=population.length)
        noised = counts + rng.normal(0.0, noise, population.length)
        for name, draws in scored(noised, noise, float(rows)).items():
            truth = population.truth[name]
            low, high = np.quantile(draws, [TAIL, 1.0 - TAIL])
            inside = bool(low <= truth <= high)
            off = float(draws.mean()) - truth
            found.setdefault(name, []).append((inside, float(high - low), off))
    return {
        name: Coverage(*np.mean(np.array(each, dtype=float), axis=0).tolist())
        for name, each in found.items()
    }


def _binary_draws(counts: Floats, noise: float, rows: float) -> dict[str, Floats]:
    fit = recalibrate(counts, noise, tuple(LOG_ODDS.tolist()), rows)
    return {"auc": fit.auc, "brier": fit.brier, "log_score": fit.log_score}


def _survival_draws(counts: Floats, noise: float, rows: float) -> dict[str, Floats]:
    shares = np.full(INTERVALS, 1.0 / INTERVALS)
    fit = check_survival(counts, noise, tuple(LOG_HAZARDS.tolist()), shares, rows)
    return {
        f"{name} at {(k + 1) / INTERVALS:g}": draws[:, k]
        for name, draws in (("auc", fit.auc), ("brier", fit.brier))
        for k in (1, INTERVALS - 1)
    }


KINDS = ("calibrated", "narrow", "two groups", "survival")

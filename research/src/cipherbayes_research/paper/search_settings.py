"""Chooses the settings of :mod:`.ranked_columns` on simulated stays.

    python -m cipherbayes_research.paper.search_settings

No row of PhysioNet is read: the populations are those of
:mod:`cipherbayes_research.paper.icu_population`. For each budget the mean test AUC of
the ``averaged`` method (3,200 stays to learn from, seeded noise) is climbed over a
finite grid, one field of a setting after the other (and the norm with all that
depends on it) until none gets better, from the public map's setting of that budget
and from what the budget before it chose; the better of the two ends counts. A change
is taken only if it gains more than the standard error of that gain over the
populations; otherwise the map's value stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, TypeAlias

import numpy as np
from scipy.special import expit
from scipy.stats import rankdata

from cipherbayes.privacy.accountant import calibrate_noise
from cipherbayes.typing import Floats
from cipherbayes_research.datasets.physionet2012 import FEATURES
from cipherbayes_research.paper.icu_population import MORTALITY, Population, population
from cipherbayes_research.paper.physionet import CORE
from cipherbayes_research.paper.ranked_columns import (
    INTERCEPT,
    RankedSetting,
    column_scales,
)

POPULATIONS, TRAINING, TEST, DRAWS = 24, 3200, 4000, 6
DELTA = 1e-5

Move: TypeAlias = Callable[[RankedSetting], list[RankedSetting]]

GRID: dict[str, tuple[Any, ...]] = {
    "series": (0.0, 0.25, 0.5, 1.0),
    "others": (0.0, 0.25, 0.5, 1.0),
    "rest": (0.0, 0.25, 0.5, 1.0),
    "norm": (2.6, 3.6, 4.8, 7.0),
    "effect": (0.2, 0.4, 0.6, 0.8),
    "clip": (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0),
    "step": (2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0),
    "precision": (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0),
    "rounds": (10, 20, 40),
}
"""Values of each field that are tried, in this order."""

STARTS = {
    0.01: RankedSetting(0.0, 0.0, 0.0, 2.6, 0.4, 0.4, 10.0, 10.0, 20),
    0.1: RankedSetting(0.0, 0.0, 0.0, 2.6, 0.4, 0.4, 10.0, 10.0, 20),
    0.3: RankedSetting(0.0, 0.0, 0.0, 2.6, 0.4, 0.4, 20.0, 1.0, 20),
    1.0: RankedSetting(0.0, 1.0, 0.0, 4.8, 0.4, 0.4, 80.0, 1.0, 20),
    3.0: RankedSetting(1.0, 1.0, 1.0, 7.0, 0.4, 0.5, 20.0, 0.3, 40),
    10.0: RankedSetting(1.0, 1.0, 1.0, 7.0, 0.4, 1.0, 80.0, 0.3, 40),
}
"""The public map's settings, on this grid; it has none for ε = 0.01."""


def single(field: str) -> Move:
    """Every value of one field."""
    return lambda setting: [replace(setting, **{field: v}) for v in GRID[field]]


def rescaled(setting: RankedSetting) -> list[RankedSetting]:
    """Every norm, with clip, step and precision as they were in half-widths.

    Rows divided by f times the norm make θ f times as long: clip/f, step·f²,
    precision/f², each to the nearest of its values.
    """

    def nearest(field: str, wanted: float) -> float:
        return float(min(GRID[field], key=lambda v: abs(math.log(v / wanted))))

    found = []
    for norm in GRID["norm"]:
        f = norm / setting.norm
        found.append(
            replace(
                setting,
                norm=norm,
                clip=nearest("clip", setting.clip / f),
                step=nearest("step", setting.step * f**2),
                precision=nearest("precision", setting.precision / f**2),
            )
        )
    return found


MOVES: tuple[Move, ...] = (*map(single, GRID), rescaled)


@dataclass(frozen=True)
class Rows:
    """A population as a setting prepares it: rows divided by their norm bound."""

    x: Floats
    deaths: Floats
    held_out: Floats
    truth: Floats
    start: Floats


def prepared(stays: Population, setting: RankedSetting) -> Rows:
    """Columns scaled by rank, rows within the norm, a constant; the prior mean."""
    scales = column_scales(setting)
    x = _design(stays, tuple(scales.items()), setting.norm)
    start = np.zeros(x.shape[1])
    start[0] = math.log(MORTALITY / (1.0 - MORTALITY)) / INTERCEPT
    for place, name in enumerate(scales, start=1):
        start[place] = setting.effect * setting.norm * CORE.get(name, 0)
    train, test = slice(0, TRAINING), slice(TRAINING, None)
    return Rows(x[train], stays.deaths[train], x[test], stays.deaths[test], start)


@lru_cache(maxsize=2 * POPULATIONS)
def _design(
    stays: Population, scales: tuple[tuple[str, float], ...], norm: float
) -> Floats:
    """Single precision: enough to rank, and twice as fast."""
    names, factors = zip(*scales, strict=True)
    z = stays.z[:, [FEATURES.index(name) for name in names]] * np.array(factors) / norm
    z /= np.maximum(np.linalg.norm(z, axis=1), 1.0)[:, None]
    constant = np.full(len(z), INTERCEPT)
    return np.column_stack([constant, z]).astype(np.float32)


@cache
def _noise(epsilon: float, rounds: int) -> float:
    return calibrate_noise(epsilon, DELTA, rounds)


def averaged_thetas(
    rows: Rows, setting: RankedSetting, *, epsilon: float, draws: int, seed: int
) -> Floats:
    """The ``averaged`` method for several draws of noise at once, one a column.

    The recursion of :func:`cipherbayes_research.paper.fitting.simulate_averaged`.
    """
    rng = np.random.default_rng(seed)
    kind = rows.x.dtype
    spread = setting.clip * _noise(epsilon, setting.rounds)
    lengths = np.linalg.norm(rows.x, axis=1)[:, None]
    count, start = len(rows.x), rows.start[:, None].astype(kind)
    deaths = rows.deaths[:, None].astype(kind)
    theta = np.repeat(start, draws, axis=1)
    total, kept = np.zeros_like(theta), 0
    for number in range(1, setting.rounds + 1):
        score = deaths - expit(rows.x @ theta)
        score *= np.minimum(1.0, setting.clip / np.maximum(abs(score) * lengths, 1e-12))
        noise = spread * rng.standard_normal(theta.shape)
        released = rows.x.T @ score + noise.astype(kind)
        pull = setting.precision * (theta - start)
        theta = theta + setting.step * (released - pull) / count
        if number > setting.rounds // 2:
            total, kept = total + theta, kept + 1
    return np.asarray(total / kept)


def mean_auc(
    setting: RankedSetting, stays: Sequence[Population], epsilon: float
) -> Floats:
    """Test AUC in each population, mean over the draws of noise."""
    found = []
    for seed, each in enumerate(stays):
        rows = prepared(each, setting)
        thetas = averaged_thetas(rows, setting, epsilon=epsilon, draws=DRAWS, seed=seed)
        ranks = rankdata(rows.held_out @ thetas, axis=0)
        died = rows.truth == 1.0
        deaths = int(died.sum())
        wins = ranks[died].sum(axis=0) - deaths * (deaths + 1) / 2.0
        found.append(float(np.mean(wins / (deaths * (died.size - deaths)))))
    return np.array(found)


def climb(
    start: RankedSetting, value: Callable[[RankedSetting], Floats]
) -> RankedSetting:
    """From a setting to one that no move betters clearly."""
    best, before = start, None
    while best != before:
        before = best
        for move in MOVES:
            others = move(best)
            gains = [value(other) - value(best) for other in others]
            clear = [
                (gain.mean(), other)
                for gain, other in zip(gains, others, strict=True)
                if gain.mean() > gain.std(ddof=1) / math.sqrt(gain.size)
            ]
            best = max(clear, key=lambda pair: pair[0])[1] if clear else best
    return best


def chosen(
    epsilon: float, starts: Sequence[RankedSetting], stays: Sequence[Population]
) -> tuple[RankedSetting, float]:
    """The best end of the climbs from every start, and its mean AUC."""

    @cache
    def value(setting: RankedSetting) -> Floats:
        return mean_auc(setting, stays, epsilon)

    ends = [climb(start, value) for start in starts]
    best = max(ends, key=lambda end: value(end).mean())
    return best, float(value(best).mean())


def main() -> None:
    """Print the setting of each budget."""
    stays = [population(TRAINING + TEST, seed) for seed in range(POPULATIONS)]
    setting = STARTS[0.01]
    for epsilon, start in STARTS.items():
        setting, reached = chosen(epsilon, (start, setting), stays)
        print(f"{epsilon:g}: {setting}  AUC {reached:.4f}", flush=True)


if __name__ == "__main__":
    main()

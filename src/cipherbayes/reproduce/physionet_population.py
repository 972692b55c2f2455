"""Made-up intensive-care stays on which settings can be chosen; none is a real one.

A severity u ~ N(0, 1) moves every series, the eight core ones to the worse, the others
at random: v = 0.6 (0.4 s u + 0.9 e) half-widths. Its five statistics are v + 0.3 e; up
to half of the stays lack a series. Log-odds of death: core variables have the points of
SAPS II times U(0.5, 1.5), other series N(0, 0.2²); 13.5 % die, as in APACHE IV's cohort
(Zimmerman et al. 2006).

``python -m cipherbayes.reproduce.physionet_population`` chooses the settings again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from cipherbayes.data.physionet2012 import STATIC, STATISTICS
from cipherbayes.evaluation import auc
from cipherbayes.reproduce import physionet
from cipherbayes.reproduce.fitting import Averaging, simulate_averaged
from cipherbayes.typing import Floats

TRAINING, TEST, WARDS = 3200, 3200, 5
MORTALITY = 0.135
CLIPS, STEPS, PRECISIONS = (0.2, 0.4, 0.8), (8.0, 25.0, 80.0), (0.3, 1.0, 10.0)
ROUNDS, SIZES = (20, 60), (0.4, 1.0, 2.0)


def grid(epsilon: float) -> Iterator[tuple[physionet.Setting, float]]:
    """Settings and sizes of the prior mean, with the map's columns for this ε."""
    columns = physionet.SETTINGS[epsilon].columns
    for clip, step, precision, rounds, size in product(
        CLIPS, STEPS, PRECISIONS, ROUNDS, SIZES
    ):
        yield physionet.Setting(columns, clip, step, precision, rounds), size


def stays(count: int, seed: int) -> tuple[dict[str, Floats], Floats]:
    """Columns in half-widths, missing ones 0, and who died."""
    rng = np.random.default_rng([seed, 2012])
    severity = rng.standard_normal(count)
    columns: dict[str, Floats] = {}
    log_odds = np.zeros(count)

    def effect(column: str) -> float:
        if column not in physionet.CORE:
            return float(rng.normal(0.0, 0.2))
        points = physionet.SAPS_LOGIT * physionet.SAPS_POINTS[column]
        return float(physionet.CORE[column] * points * rng.uniform(0.5, 1.5))

    for column in physionet.COLUMN_SETS["last40"]:
        if column in STATIC:
            columns[column] = _within(0.6 * rng.standard_normal(count))
            log_odds += effect(column) * columns[column]
            continue
        series = column.partition("_")[0]
        sign = physionet.CORE.get(column, 0) or rng.choice([-1, 1])
        own = rng.standard_normal(count)
        value = 0.6 * (0.4 * sign * severity + 0.9 * own)
        absent = rng.random(count) < rng.uniform(0.0, 0.5)
        for statistic in STATISTICS:
            seen = _within(value + 0.3 * rng.standard_normal(count))
            columns[f"{series}_{statistic}"] = np.where(absent, 0.0, seen)
        log_odds += effect(column) * np.where(absent, 0.0, value)
    level = brentq(lambda b: expit(log_odds + b).mean() - MORTALITY, -10.0, 10.0)
    return columns, (rng.random(count) < expit(log_odds + level)).astype(np.float64)


def _within(values: Floats) -> Floats:
    return np.clip(values, -physionet.REACH, physionet.REACH)


def rows(columns: dict[str, Floats], names: tuple[str, ...], norm: float) -> Floats:
    """The map's rows: at most as long as ``norm``, divided by it; constant 0.3."""
    x = np.column_stack([columns[name] for name in names])
    x *= np.minimum(1.0, norm / np.linalg.norm(x, axis=1))[:, None] / norm
    return np.column_stack([np.full(len(x), 0.3), x])


def mean_auc(epsilon: float) -> dict[tuple[physionet.Setting, float], float]:
    """Test AUC of every choice, mean over the made-up wards."""
    chosen = physionet.SETTINGS[epsilon].columns
    names = physionet.COLUMN_SETS[chosen]
    signs = np.array([0.0, *(float(physionet.CORE.get(name, 0)) for name in names)])
    found: dict[tuple[physionet.Setting, float], list[float]] = {}
    for seed in range(WARDS):
        columns, y = stays(TRAINING + TEST, seed)
        x = rows(columns, names, physionet.ROW_NORMS[chosen])
        score = partial(_score, y[:TRAINING])
        for setting, size in grid(epsilon):
            plain = Averaging(
                setting.clip, setting.step, setting.precision, setting.rounds
            )
            theta = simulate_averaged(
                x[:TRAINING], score, size * signs, plain, epsilon=epsilon, seed=seed
            )
            value = auc(y[TRAINING:], x[TRAINING:] @ theta) or 0.5
            found.setdefault((setting, size), []).append(value)
    return {choice: float(np.mean(values)) for choice, values in found.items()}


def _score(y: Floats, eta: Floats) -> Floats:
    return np.asarray(y - expit(eta))


def main() -> None:
    """Print the best choice of each budget."""
    for epsilon in (0.1, 0.3, 1.0, 3.0, 10.0):
        means = mean_auc(epsilon)
        best = max(means, key=lambda choice: means[choice])
        known = (physionet.SETTINGS[epsilon], 0.4)
        print(
            f"{epsilon:g}: {best} AUC {means[best]:.4f}", means.get(known), flush=True
        )


if __name__ == "__main__":
    main()

"""How good a posterior's predictions are on rows it has not seen.

A metric that the rows cannot answer (one class only, no comparable pair, nobody
left at risk) is None.

Formal guarantees
-----------------
None: metrics are exact functions of the rows. Of private rows they are releases
like any other and belong on public or consented test rows, or behind a mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
from scipy.special import expit, logit, xlogy

from cipherbayes.typing import Floats, Integers

if TYPE_CHECKING:  # models say which of the metrics make sense for them
    from cipherbayes.models.base import Model
    from cipherbayes.models.rows import Rows

MOST_DRAWS = 200
"""Leaves a Monte Carlo error of 7 % of the posterior sd in a predictive mean."""

Metrics = dict[str, float | list[dict[str, float | None]] | None]


class HeldOutTable(Protocol):
    """Prepared rows in blocks."""

    def blocks(self) -> Iterator[Rows]: ...


def evaluate_each(
    model: Model,
    held_out: Iterable[tuple[Floats, HeldOutTable]],
    several: Callable[[Rows], Iterable[tuple[Rows, int]]] | None = None,
) -> Metrics:
    """Metrics of the posterior predictive distribution on all held-out rows.

    Every model gets ``rows`` and ``log_score``, the mean over rows of
    log (1/S) sum_s p(row | theta_s), and what its own ``metrics`` make of its mean
    ``score`` over the draws.

    Parameters
    ----------
    held_out
        Tables, each with the draws of theta that hold there, on the prepared scale,
        parameters on the last axis.
    several
        What a block becomes where missing values are drawn: rows, and how many of them,
        which stand together, are one record's. Such a record is predicted by the mean
        over its rows.
    """
    outcome: dict[str, list[Floats]] = {}
    densities: list[Floats] = []
    scores: list[Floats] = []
    pairs = (
        (_thinned(draws), rows, each)
        for draws, table in held_out
        for block in table.blocks()
        for rows, each in ([(block, 1)] if several is None else several(block))
    )
    for draws, rows, each in pairs:
        density = np.full(rows.count, -np.inf)
        total: Floats | None = np.zeros(rows.count)
        for theta in draws:
            density = np.logaddexp(density, model.log_likelihood(theta, rows))
            score = model.fitted(theta, rows)
            total = None if score is None or total is None else total + score
        density = np.logaddexp.reduce(density.reshape(-1, each), axis=1)
        densities.append(density - np.log(len(draws) * each))
        if total is not None:
            scores.append(total.reshape(-1, each).mean(axis=1) / len(draws))
        for role, values in rows.outcome.items():
            outcome.setdefault(role, []).append(values[::each])
    if not any(part.size for part in densities):
        return {"rows": 0, "log_score": None}
    density = np.concatenate(densities)
    with np.errstate(over="ignore"):  # a posterior can be certain and wrong
        mean = float(density.mean())
    metrics: Metrics = {
        "rows": density.size,
        "log_score": mean if np.isfinite(mean) else None,
    }
    if not scores:
        return metrics
    columns = {role: np.concatenate(parts) for role, parts in outcome.items()}
    return metrics | model.metrics(columns, np.concatenate(scores))


def binary_metrics(y: Floats, probability: Floats) -> Metrics:
    """Discrimination and calibration of predicted probabilities."""
    table = calibration_table(y, probability)
    recalibration = calibration_line(y, probability)
    return {
        "auc": auc(y, probability),
        "accuracy": accuracy(y, probability),
        "brier": brier(y, probability),
        "calibration_error": calibration_error(table),
        "calibration_intercept": recalibration[0] if recalibration else None,
        "calibration_slope": recalibration[1] if recalibration else None,
        "calibration_in_the_large": calibration_in_the_large(y, probability),
        "predicted_over_observed": predicted_over_observed(y, probability),
        "calibration_table": table,
    }


def survival_metrics(time: Floats, event: Floats, risk: Floats) -> Metrics:
    """Discrimination of a risk score."""
    at = time[event == 1.0]
    times = np.unique(np.quantile(at, [0.25, 0.5, 0.75])) if at.size else at
    return {
        "c_index": c_index(time, event, risk),
        "auc_at": [
            {"time": float(t), "auc": auc_at(float(t), time, event, risk)}
            for t in times
        ],
    }


def numeric_metrics(y: Floats, mean: Floats) -> Metrics:
    """Errors of a predicted mean, in the user's units."""
    if not y.size:
        return {"rmse": None, "mae": None, "r2": None}
    error, spread = y - mean, float(np.var(y))
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "mae": float(np.mean(np.abs(error))),
        "r2": 1.0 - float(np.mean(error**2)) / spread if spread > 0.0 else None,
    }


def count_metrics(y: Floats, mean: Floats) -> Metrics:
    """Errors of predicted counts, the mean Poisson deviance among them.

    2 mean(y log(y / m) - y + m); McCullagh and Nelder (1989), section 2.3.
    """
    deviance = None
    if y.size and np.all(mean > 0.0):
        deviance = float(2.0 * np.mean(xlogy(y, y / mean) - y + mean))
    return numeric_metrics(y, mean) | {
        "deviance": deviance,
        "predicted_over_observed": predicted_over_observed(y, mean),
    }


def predicted_over_observed(y: Floats, mean: Floats) -> float | None:
    """What is predicted of all rows over what happened; None where nothing did."""
    observed = float(y.mean()) if y.size else 0.0
    return float(mean.mean()) / observed if observed > 0.0 else None


def auc(y: Floats, score: Floats) -> float | None:
    """P(score of a positive > score of a negative) + half of P(equal)."""
    positive = y == 1.0
    positives = int(positive.sum())
    negatives = y.size - positives
    if not positives or not negatives:
        return None
    from scipy.stats import rankdata  # takes half a second to load

    wins = rankdata(score)[positive].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * negatives))


def accuracy(y: Floats, probability: Floats) -> float | None:
    """Share of rows whose likelier class, at probability one half, came true."""
    return float(((probability >= 0.5) == (y == 1.0)).mean()) if y.size else None


def brier(y: Floats, probability: Floats) -> float | None:
    """Mean squared difference between probability and outcome."""
    return float(np.mean((probability - y) ** 2)) if y.size else None


def calibration_table(
    y: Floats, probability: Floats, bins: int = 10
) -> list[dict[str, float | None]]:
    """Mean prediction and observed share in each tenth of the predictions.

    Equal predictions stay in one bin, so there may be fewer than ``bins``.
    """
    if not y.size:
        return []
    edges = np.quantile(probability, np.arange(1, bins) / bins)
    bin_of = np.searchsorted(edges, probability)
    return [
        {
            "rows": int(inside.sum()),
            "predicted": float(probability[inside].mean()),
            "observed": float(y[inside].mean()),
        }
        for inside in (bin_of == b for b in np.unique(bin_of))
    ]


def calibration_error(table: list[dict[str, float | None]]) -> float | None:
    """Expected calibration error: sum_b (n_b / n) |observed_b - predicted_b|."""
    if not table:
        return None
    columns = [[row[key] for row in table] for key in ("rows", "predicted", "observed")]
    rows, predicted, observed = np.array(columns, dtype=float)
    return float(np.average(np.abs(observed - predicted), weights=rows))


def calibration_line(y: Floats, probability: Floats) -> tuple[float, float] | None:
    """Intercept a and slope b of logit P(y = 1) = a + b logit(probability).

    Zero and one for a calibrated model; a slope below one means that the
    predictions are too extreme. None where the maximum does not exist (one class,
    equal or perfectly separating predictions). Cox (1958), Biometrika 45.
    """
    if y.size == 0 or y.min() == y.max() or probability.min() == probability.max():
        return None
    predictor = logit(np.clip(probability, 1e-12, 1.0 - 1e-12))
    design = np.stack([np.ones_like(predictor), predictor])
    line = np.zeros(2)
    for _ in range(50):
        p = expit(line @ design)
        information = (design * (p * expit(-(line @ design)))) @ design.T
        try:
            step = np.linalg.solve(information, design @ (y - p))
        except np.linalg.LinAlgError:
            return None
        line += step
        if np.abs(step).max() < 1e-9:
            return float(line[0]), float(line[1])
    return None


def calibration_in_the_large(y: Floats, probability: Floats) -> float | None:
    """a of logit P(y = 1) = a + logit(probability), the slope held at one.

    Zero where as many events are predicted as happen, positive where more happen. None
    for one class. Van Calster et al. (2019), BMC Medicine 17.
    """
    if y.size == 0 or y.min() == y.max():
        return None
    predictor = logit(np.clip(probability, 1e-12, 1.0 - 1e-12))
    # The predicted sum rises with a: where it crosses the observed one is found.
    low, high = -60.0, 60.0
    while high - low > 1e-10:
        middle = 0.5 * (low + high)
        if expit(middle + predictor).sum() < y.sum():
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def c_index(time: Floats, event: Floats, risk: Floats) -> float | None:
    """Harrell's C: among pairs of which it is known who had the event first, the
    share in which that one had the higher risk, equal risks counting one half.

    A pair is comparable where the earlier time is an event; of two equal times,
    where just one is an event (it came first). Harrell et al. (1996), Statistics
    in Medicine 15. O(n log² n).
    """
    at = time[event == 1.0]
    same_time_events = _count_equal(np.sort(at), at)
    not_before = time.size - np.searchsorted(np.sort(time), at)
    comparable = int((not_before - same_time_events).sum())
    if not comparable:
        return None
    concordant = _pairs_won(time, event, risk)
    discordant = _pairs_won(time, event, -risk)
    return (comparable + concordant - discordant) / (2 * comparable)


def auc_at(t: float, time: Floats, event: Floats, risk: Floats) -> float | None:
    """Cumulative/dynamic AUC: do those with an event by ``t`` have higher risks
    than those still event-free after it?

    AUC(t) = sum_i w_i P_j(risk_j < risk_i) / sum_i w_i over cases i (event at
    T_i <= t) and controls j (T_j > t), equal risks counting one half, with
    w_i = 1 / G(T_i-), G the Kaplan-Meier curve of censoring in the same rows.
    Uno et al. (2007), JASA 102; Hung and Chiang (2010), Canadian Journal of
    Statistics 38.
    """
    case = (event == 1.0) & (time <= t)
    controls = np.sort(risk[time > t])
    if not case.any() or not controls.size:
        return None
    below = np.searchsorted(controls, risk[case], side="left")
    equal = _count_equal(controls, risk[case])
    weight = 1.0 / _uncensored_before(time[case], time, event)
    wins = (below + 0.5 * equal) / controls.size
    return float(np.average(wins, weights=weight))


def _uncensored_before(at: Floats, time: Floats, event: Floats) -> Floats:
    """G(at-) = prod over times u < at of 1 - censored(u) / at risk(u).

    An event at u comes before a censoring at u, so it is not at risk of it.
    """
    distinct, inverse = np.unique(time, return_inverse=True)
    censored = np.bincount(inverse, weights=event == 0.0)
    events = np.bincount(inverse, weights=event == 1.0)
    leaving = censored + events
    at_risk = leaving[::-1].cumsum()[::-1] - events
    share = np.divide(censored, at_risk, out=np.zeros_like(censored), where=at_risk > 0)
    curve = np.concatenate([[1.0], np.cumprod(1.0 - share)])
    before: Floats = curve[np.searchsorted(distinct, at, side="left")]
    return before


def _pairs_won(time: Floats, event: Floats, risk: Floats) -> int:
    """Comparable pairs in which the earlier event has the strictly higher risk."""
    rank = np.unique(risk, return_inverse=True)[1].astype(np.int64)
    # Events before censorings of the same time, which are comparable; events of
    # one time, which are not, by rising risk, so that none beats a later one.
    order = np.lexsort((rank, -event, time))
    return int(_later_and_smaller(rank[order])[event[order] == 1.0].sum())


def _later_and_smaller(rank: Integers) -> Integers:
    """For each i the number of j > i with rank_j < rank_i, by merging halves."""
    position = np.arange(rank.size)
    count = np.zeros(rank.size, dtype=np.int64)
    width = 1
    while width < rank.size:
        block_key = position // (2 * width) * rank.size
        key = block_key + rank
        left = position // width % 2 == 0
        right = np.sort(key[~left])
        count[left] += np.searchsorted(right, key[left])
        count[left] -= np.searchsorted(right, block_key[left])
        width *= 2
    return count


def _count_equal(ordered: Floats, values: Floats) -> Integers:
    """How many of ``ordered`` equal each of ``values``."""
    after = np.searchsorted(ordered, values, side="right")
    count: Integers = after - np.searchsorted(ordered, values, side="left")
    return count


def _thinned(draws: Floats) -> Floats:
    flat = draws.reshape(-1, draws.shape[-1])
    if len(flat) <= MOST_DRAWS:
        return flat
    kept = np.linspace(0, len(flat) - 1, MOST_DRAWS).round().astype(np.int64)
    result: Floats = flat[kept]
    return result

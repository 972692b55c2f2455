"""Large tables whose predictions are scored: how they are made, and their scores.

Each has predictions that are somewhat wrong and the scores of all its rows, which are
what intervals from a few held-out rows should hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

import cipherbayes as cb
from cipherbayes.models.held_out import LOG_ODDS
from cipherbayes.models.held_out_numbers import COUNT_EDGES, NUMBER_BINS, SUMMED_BINS
from cipherbayes.models.metrics import (
    auc,
    brier,
    c_index,
    calibration_in_the_large,
    calibration_line,
)
from cipherbayes.models.rows import Rows
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats, Integers

Scores = dict[str, float]

INVENTED = 100_000
REACH = 10.0
"""Half-width of the public range around zero of the column that holds the scores."""
TIMES = (0.25, 0.5, 0.75, 1.0)
LEAST_SHARE = 0.03
"""Smallest share of the rows that a bin of a calibration curve must have to count."""
SMOOTHED = 2000
"""Number of rows below which a real table is smoothed. A few hundred rows drawn again
and again are only so many kinds of persons, of whom none may have died in some
quarter of the follow-up."""
COPIES = 30
"""Copies of each row of a smoothed table, each with a normal error in the score that is
as wide as a kernel density's (Silverman 1986)."""
TIME_JITTER = 0.2
"""sd of the normal error in the log of the copies' times."""
TENTHS = 10
"""Number of groups by predicted risk, each with its own probability of censoring."""
LEAST_FREE = 1e-3
"""Smallest probability of not being censored that is divided by."""


@dataclass(frozen=True)
class Population:
    """Predictions and outcomes of many rows.

    Attributes
    ----------
    study, theta
        A study whose model predicts so, and its parameters.
    score, outcome
        Of each row.
    exact
        The scores of rows at given places, as somebody sees them who sees the rows.
    truth
        What intervals should hold.
    """

    study: Study
    theta: Floats
    score: Floats
    outcome: Mapping[str, Floats]
    exact: Callable[[Integers], Scores]
    truth: Scores

    def rows(self, places: Integers) -> Rows:
        """The rows at given places, as a site prepares them."""
        design = preparation_of(self.study).design
        x = self.score[None, places] / REACH
        if design.intercept is not None:
            x = np.concatenate([np.ones((1, places.size)), x])
        outcome = {role: values[places] for role, values in self.outcome.items()}
        return Rows(design, x, outcome, (x**2).sum(axis=0))


def _study(model: Any) -> Study:
    return cb.Study(
        model=model,
        features={"score": {"low": -REACH, "high": REACH}},
        preparation={"method": "public-bounds"},
        privacy={"epsilon": 1.0, "records": 1000},
        evaluation={"holdout": 0.5},
    )


def copies(score: Floats) -> tuple[Integers, Floats]:
    """Which rows of a real table stand for its kind, and their scores."""
    if score.size >= SMOOTHED:
        return np.arange(score.size), score
    rows = np.repeat(np.arange(score.size), COPIES)
    width = 0.9 * float(score.std()) * score.size**-0.2
    error = np.random.default_rng(0).standard_normal(rows.size)
    return rows, score[rows] + width * error


# Binary outcomes


def binary(score: Floats, y: Floats) -> Population:
    """Predicted log odds, and what happened."""
    said = expit(score)
    logs = np.where(y == 1.0, np.log(said), np.log1p(-said))
    place = np.searchsorted(LOG_ODDS, score)

    def exact(rows: Integers) -> Scores:
        line = calibration_line(y[rows], said[rows]) or (np.nan, np.nan)
        level = calibration_in_the_large(y[rows], said[rows])
        found = {
            "auc": auc(y[rows], score[rows]) or np.nan,
            "brier": brier(y[rows], said[rows]) or np.nan,
            "log_score": float(logs[rows].mean()),
            "calibration_intercept": line[0],
            "calibration_slope": line[1],
            "calibration_in_the_large": np.nan if level is None else level,
            "predicted_over_observed": float(said[rows].sum() / max(y[rows].sum(), 1)),
        }
        return found | _by_bin(place, place[rows], y[rows])

    study = _study(cb.models.Logistic(outcome="y"))
    everything = exact(np.arange(y.size))
    theta = np.array([0.0, REACH])
    return Population(study, theta, score, {"y": y}, exact, everything)


def _by_bin(everywhere: Integers, place: Integers, value: Floats) -> Scores:
    """Means by bin, of bins that have enough of all rows."""
    shares = np.bincount(everywhere) / everywhere.size
    return {
        f"curve {j}": float(value[place == j].mean()) if np.any(place == j) else np.nan
        for j in np.flatnonzero(shares >= LEAST_SHARE)
    }


def invented_binary(kind: str, rng: np.random.Generator) -> Population:
    """Predicted log odds that are right, too narrow, too sure of two groups, skewed and
    shifted, or bent."""
    normal = rng.standard_normal(INVENTED)
    if kind == "calibrated":
        score = -1.8 + 1.2 * normal
        chance = expit(score)
    elif kind == "narrow":
        score = -2.0 + 0.6 * normal
        chance = expit(0.8 + 1.3 * score)
    elif kind == "two groups":
        score = np.where(rng.random(INVENTED) < 0.7, -2.2 + 0.7 * normal, 0.5 + normal)
        chance = expit(-0.2 + 0.7 * score)
    elif kind == "skewed":
        score = -2.8 + 0.8 * rng.gamma(1.5, 1.0, INVENTED)
        chance = expit(0.3 + 0.9 * score)
    else:
        score = 0.2 + 1.4 * normal
        chance = expit(0.8 * score - 0.12 * score**2)
    y = (rng.random(INVENTED) < chance).astype(np.float64)
    return binary(score, y)


def real_binary(frame: pd.DataFrame, y: Floats, fitted_on: int) -> Population:
    """Predictions of a logistic regression on the first rows, for the others."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    place = np.random.default_rng(0).permutation(y.size)
    first, rest = place[:fitted_on], place[fitted_on:]
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.3))
    model.fit(frame.iloc[first], y[first])
    rows, score = copies(model.decision_function(frame.iloc[rest]))
    return binary(np.clip(score, -REACH, REACH), y[rest][rows])


# Survival


@dataclass(frozen=True)
class Followed:
    """Log cumulative hazards that are predicted for the horizon, and follow-up in
    horizons."""

    score: Floats
    time: Floats
    event: Floats

    def scores(self, rows: Integers, shares: Floats) -> Scores:
        """Scores of some rows; censoring is weighted out (Uno et al. 2007, 2011), whose
        probability may differ between tenths of the predicted risk."""
        score, time, event = self.score[rows], self.time[rows], self.event[rows]
        order = np.argsort(score, kind="stable")
        part = np.empty(rows.size, dtype=np.int64)
        part[order] = TENTHS * np.arange(rows.size) // max(rows.size, 1)
        found = {"c_index": _uno(score, time, event, part)}
        groups = [*np.array_split(order, 3), order]
        for k, t in enumerate(TIMES):
            said = 1.0 - np.exp(-np.exp(score) * shares[: k + 1].sum())
            weight = _weights(t, time, event, part)
            happened = ((time <= t) & (event == 1.0)).astype(np.float64)
            found[f"auc_at {t:g}"] = _weighted_auc(score, happened, weight)
            error = (happened - said) ** 2
            found[f"brier_at {t:g}"] = float((weight * error).sum() / weight.sum())
            for name, own in zip(("low", "middle", "high", "all"), groups, strict=True):
                total, seen = weight[own].sum(), weight[own] @ happened[own]
                found[f"o/e {name} {t:g}"] = seen / total / float(said[own].mean())
        said = np.clip(said, 1e-9, 1.0 - 1e-9)
        log_said = np.where(happened == 1.0, np.log(said), np.log1p(-said))
        found["log_score"] = float((weight * log_said).sum() / weight.sum())
        return found


def _weighted_auc(score: Floats, happened: Floats, weight: Floats) -> float:
    """How often a case has the higher score than a control; ties count one half."""
    values, place = np.unique(score, return_inverse=True)
    cases = np.bincount(place, weight * happened, values.size)
    controls = np.bincount(place, weight * (1.0 - happened), values.size)
    won = cases @ (np.cumsum(controls) - 0.5 * controls)
    total = cases.sum() * controls.sum()
    return float(won / total) if total > 0.0 else np.nan


def _weights(t: float, time: Floats, event: Floats, part: Integers) -> Floats:
    """One over the probability of not being censored before it was known what
    happened by ``t``; zero where that is not known."""
    known = (time > t) | (event == 1.0)
    at = np.minimum(time, t)
    free = np.ones_like(time)
    for each in np.unique(part):
        own = part == each
        free[own] = _free(at[own], time[own], 1.0 - event[own])
    weight: Floats = np.where(known, 1.0 / np.maximum(free, LEAST_FREE), 0.0)
    return weight


def _free(at: Floats, time: Floats, event: Floats) -> Floats:
    """P(no event before ``at``), Kaplan-Meier."""
    distinct, inverse = np.unique(time, return_inverse=True)
    events = np.bincount(inverse, weights=event)
    leaving = np.bincount(inverse)
    at_risk = leaving[::-1].cumsum()[::-1]
    curve = np.concatenate([[1.0], np.cumprod(1.0 - events / at_risk)])
    found: Floats = curve[np.searchsorted(distinct, at, side="left")]
    return found


def _uno(score: Floats, time: Floats, event: Floats, part: Integers) -> float:
    """Concordance of pairs whose first event comes by the horizon."""
    if not np.any((event == 0.0) & (time < 1.0)):
        held = np.minimum(time, 1.0 + 1e-9)
        return c_index(held, np.where(time <= 1.0, event, 0.0), score) or np.nan
    (first,) = np.nonzero((event == 1.0) & (time <= 1.0))
    # P(not censored) before each event, in each part of the rows.
    free = np.array(
        [
            _free(time[first], time[part == each], 1.0 - event[part == each])
            for each in range(part.max() + 1)
        ]
    )
    weight = 1.0 / np.maximum(free, LEAST_FREE)
    won = total = 0.0
    for k, i in enumerate(first):
        later = time > time[i]
        theirs = weight[part[later], k]
        below = (score[later] < score[i]) + 0.5 * (score[later] == score[i])
        won += weight[part[i], k] * float(theirs @ below)
        total += weight[part[i], k] * float(theirs.sum())
    return won / total if total else np.nan


BASELINES: dict[str, tuple[Floats, Floats]] = {
    # Parameters beside intercept and score, and the shares of four intervals.
    "exponential": (np.array([]), np.full(4, 0.25)),
    "weibull": (np.array([0.3]), np.diff(np.array([0.0, *TIMES]) ** np.exp(0.3))),
    "piecewise": (np.log([1.4, 0.6]), np.array([0.35, 0.35, 0.15, 0.15])),
}


def survival(kind: str, seen: Followed, truth: Followed | None = None) -> Population:
    """A model's predictions; ``truth`` has nobody censored, where that is known."""
    model: Any
    times = {"time": "time", "event": "event", "horizon": 1.0}
    if kind == "exponential":
        model = cb.models.Exponential(**times)
    elif kind == "weibull":
        model = cb.models.Weibull(**times)
    else:
        model = cb.models.Piecewise(**times, cuts=(0.5,))
    extra, shares = BASELINES[kind]
    constant = [] if kind == "piecewise" else [0.0]
    theta = np.array([*constant, REACH, *extra])
    exact = partial(seen.scores, shares=shares)
    everybody = np.arange(seen.score.size)
    truths = exact(everybody) if truth is None else truth.scores(everybody, shares)
    outcome = {"time": seen.time, "event": seen.event}
    return Population(_study(model), theta, seen.score, outcome, exact, truths)


def invented_survival(kind: str, rng: np.random.Generator) -> Population:
    """Predicted risks that are a little too extreme, with or without another shape."""
    score = rng.normal(-1.2, 0.9, INVENTED)
    slope = 0.8
    if kind == "weibull":
        score = -1.6 + 0.7 * rng.gamma(2.0, 0.8, INVENTED)
        slope = 1.1
    shape = 1.3 if kind == "weibull" else 1.0
    unit = rng.exponential(size=INVENTED)
    time = (unit / np.exp(-0.2 + slope * score)) ** (1.0 / shape)
    censored = rng.uniform(0.2, 2.5, INVENTED)
    seen = Followed(
        score, np.minimum(time, censored), (time <= censored).astype(np.float64)
    )
    return survival(kind, seen, Followed(score, time, np.ones(INVENTED)))


def real_survival(
    kind: str, frame: pd.DataFrame, time: Floats, event: Floats, fitted_on: int
) -> Population:
    """Log hazard ratios of a Cox regression on the first rows, for the others, with a
    level that gives these as many events as the first rows had."""
    from sksurv.linear_model import CoxPHSurvivalAnalysis
    from sksurv.util import Surv

    place = np.random.default_rng(0).permutation(time.size)
    first, rest = place[:fitted_on], place[fitted_on:]
    spread = frame.iloc[first].std().replace(0.0, 1.0)
    z = (frame - frame.iloc[first].mean()) / spread
    model = CoxPHSurvivalAnalysis(alpha=3.0)
    model.fit(z.iloc[first], Surv.from_arrays(event[first] == 1.0, time[first]))
    risk = model.predict(z)
    _, shares = BASELINES[kind]
    ends = np.cumsum(shares)
    lived = np.interp(np.minimum(time[first], 1.0), [0.0, *TIMES], [0.0, *ends])
    events = np.sum(event[first] * (time[first] <= 1.0))
    level = np.log(events / np.sum(np.exp(risk[first]) * lived))
    rows, score = copies(np.clip(risk[rest] + level, -REACH, REACH))
    seen = time[rest][rows]
    if rows.size > rest.size:
        seen = seen * np.exp(
            TIME_JITTER * np.random.default_rng(1).standard_normal(rows.size)
        )
    return survival(kind, Followed(score, seen, event[rest][rows]))


# Numbers and counts


def number(mean: Floats, y: Floats) -> Population:
    """Predicted means within the public range from -5 to 5."""
    edges = np.linspace(-5.0, 5.0, NUMBER_BINS + 1)[1:-1]
    place = np.searchsorted(edges, np.clip(mean, -5.0, 5.0))
    held = np.clip(y, -5.0, 5.0)

    def exact(rows: Integers) -> Scores:
        found = {
            "rmse": float(np.sqrt(np.mean((held[rows] - mean[rows]) ** 2))),
            "mean_observed": float(held[rows].mean()),
            "mean_predicted": float(mean[rows].mean()),
        }
        return found | _by_bin(place, place[rows], held[rows])

    study = _study(cb.models.Linear(outcome="y", low=-5.0, high=5.0))
    theta = np.array([0.0, REACH / 5.0, 0.0])
    truth = exact(np.arange(y.size))
    return Population(study, theta, mean, {"y": held / 5.0}, exact, truth)


def count(mean: Floats, y: Floats, dispersion: float | None = None) -> Population:
    """Predicted counts, of a Poisson or of a negative binomial model."""
    place = np.searchsorted(COUNT_EDGES, mean) // SUMMED_BINS

    def exact(rows: Integers) -> Scores:
        found = {
            "mean_observed": float(y[rows].mean()),
            "mean_predicted": float(mean[rows].mean()),
            "predicted_over_observed": float(mean[rows].sum() / y[rows].sum()),
        }
        return found | _by_bin(place, place[rows], y[rows])

    model: Any = cb.models.Poisson(outcome="y")
    theta = np.array([0.0, REACH])
    if dispersion is not None:
        model = cb.models.NegativeBinomial(outcome="y")
        theta = np.append(theta, np.log(dispersion))
    study, score = _study(model), np.log(mean)
    outcome = {"y": y, "offset": np.zeros(y.size)}
    return Population(study, theta, score, outcome, exact, exact(np.arange(y.size)))


def invented_number(kind: str, rng: np.random.Generator) -> Population:
    """Means that are right or too extreme; normal, skewed, heavy-tailed or uneven
    errors."""
    mean = rng.normal(0.3, 1.5, INVENTED)
    if kind == "normal":
        return number(mean, mean + rng.normal(0.0, 0.8, INVENTED))
    if kind == "heavy tails":
        return number(mean, 0.1 + 0.9 * mean + 0.6 * rng.standard_t(3.0, INVENTED))
    if kind == "uneven":
        mean = -3.5 + 0.9 * rng.gamma(2.0, 1.0, INVENTED)
        error = rng.standard_normal(INVENTED) * np.exp(0.2 * mean)
        return number(np.clip(mean, -5.0, 5.0), mean - 0.2 + error)
    return number(mean, 0.2 + 0.8 * mean + rng.gamma(2.0, 0.6, INVENTED) - 1.2)


def invented_count(kind: str, rng: np.random.Generator) -> Population:
    """Counts that are Poisson, or vary by more than that, of predictions that are
    right or not."""
    mean = np.exp(rng.normal(0.3, 0.6, INVENTED))
    if kind == "poisson":
        return count(mean, rng.poisson(mean).astype(np.float64))
    if kind == "shrunk":
        mean = np.exp(0.8 - 0.5 * rng.gamma(2.0, 0.7, INVENTED))
        return count(mean, rng.poisson(1.3 * mean**1.3).astype(np.float64))
    if kind == "edge":
        mean = np.exp(1.0 - rng.exponential(0.7, INVENTED))
        return count(mean, rng.poisson(0.9 * mean).astype(np.float64))
    if kind == "two groups":
        few = rng.random(INVENTED) < 0.4
        low, high = rng.normal(-1.0, 0.3, INVENTED), rng.normal(0.9, 0.25, INVENTED)
        mean = np.exp(np.where(few, low, high))
        return count(mean, rng.poisson(mean).astype(np.float64))
    if kind == "abrupt":
        mean = np.exp(rng.uniform(-1.2, 0.9, INVENTED))
        return count(mean, rng.poisson(0.85 * mean**0.8).astype(np.float64))
    if kind == "too many":
        mean = np.exp(rng.normal(1.2, 0.7, INVENTED))
        true = 0.75 * mean * rng.gamma(1.25, 0.8, INVENTED)
        return count(mean, rng.poisson(true).astype(np.float64), dispersion=0.6)
    true = 0.9 * mean * rng.gamma(2.0, 0.5, INVENTED)
    return count(mean, rng.poisson(true).astype(np.float64), dispersion=0.5)

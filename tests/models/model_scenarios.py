"""Every model with random raw data, its prepared rows and a plain likelihood.

The plain likelihoods are written here a second time, on the user's own scale and
in autograd's numpy, so that they share nothing with the models they check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.scipy.special import gammaln

from cipherbayes.models import (
    Design,
    Exponential,
    GaussianMean,
    Gompertz,
    Linear,
    Logistic,
    Model,
    NegativeBinomial,
    Ordinal,
    Piecewise,
    Poisson,
    Rows,
    Survival,
    Weibull,
)
from cipherbayes.models.counts import CountModel
from cipherbayes.typing import Floats

HORIZON = 40.0
VARIANCE = 2.5
INTERCEPT = 0.3
LOW, HIGH = -10.0, 6.0
PER = 20.0
CUTS = (5.0, 12.5, 30.0)
CLASSES = 4


@dataclass(frozen=True)
class Scenario:
    """A model with raw data of the user's and the same data prepared."""

    model: Model
    raw_x: Floats
    raw_outcome: dict[str, Floats]
    rows: Rows
    plain: Callable[..., Any]

    @property
    def dimension(self) -> int:
        return len(self.model.parameters(self.rows.design))

    def to_user(self, theta: Any) -> Any:
        """The user's parameters by hand, for autodiff."""
        design, model = self.rows.design, self.model
        if isinstance(model, GaussianMean):
            return design.centre + design.half_width * theta
        linear, extra = theta[: design.width], theta[design.width :]
        if isinstance(model, Piecewise):
            slopes = linear / design.half_width
            start = -anp.sum(slopes * design.centre)
            return anp.concatenate([slopes, extra + start - np.log(HORIZON)])
        slopes = linear[1:] / design.half_width[1:]
        start = INTERCEPT * linear[0] - anp.sum(slopes * design.centre[1:])
        if isinstance(model, Linear):
            half, centre = (HIGH - LOW) / 2.0, (HIGH + LOW) / 2.0
            slopes, start = slopes * half, start * half + centre
            extra = extra + np.log(half)
        elif isinstance(model, CountModel):
            start = start - np.log(PER)
        elif isinstance(model, Weibull):
            start = start - anp.exp(extra[0]) * np.log(HORIZON)
        elif isinstance(model, Survival):
            start, extra = start - np.log(HORIZON), extra / HORIZON
        return anp.concatenate([anp.array([start]), slopes, extra])

    def plain_log_likelihood(self, theta: Any) -> Any:
        """Log-likelihood of each record from the raw data."""
        return self.plain(self.to_user(theta), self.raw_x, **self.raw_outcome)


def predictor(beta: Any, x: Floats) -> Any:
    return beta[0] + anp.dot(beta[1 : 1 + len(x)], x)


def plain_logistic(beta: Any, x: Floats, y: Floats) -> Any:
    eta = predictor(beta, x)
    return y * eta - anp.logaddexp(0.0, eta)


def plain_linear(beta: Any, x: Floats, y: Floats) -> Any:
    variance = anp.exp(2.0 * beta[-1]) if len(beta) > 1 + len(x) else VARIANCE
    squares = (y - predictor(beta, x)) ** 2 / variance
    return -0.5 * (squares + anp.log(2 * np.pi * variance))


def plain_poisson(beta: Any, x: Floats, y: Floats, offset: Any = 1.0) -> Any:
    log_mean = predictor(beta, x) + np.log(offset)
    return y * log_mean - anp.exp(log_mean) - gammaln(y + 1.0)


def plain_negative_binomial(beta: Any, x: Floats, y: Floats, offset: Any = 1.0) -> Any:
    mean, r = anp.exp(predictor(beta, x) + np.log(offset)), anp.exp(-beta[-1])
    smooth = gammaln(y + r) - gammaln(r) - gammaln(y + 1.0)
    return smooth + r * anp.log(r / (r + mean)) + y * anp.log(mean / (r + mean))


def plain_ordinal(beta: Any, x: Floats, y: Floats) -> Any:
    eta = predictor(beta, x)
    distance = anp.concatenate([np.zeros(1), anp.cumsum(anp.exp(beta[1 + len(x) :]))])
    above = [1.0 / (1.0 + anp.exp(distance[k] - eta)) for k in range(CLASSES - 1)]
    chances = [1.0, *above, 0.0]
    return sum((y == k) * anp.log(chances[k] - chances[k + 1]) for k in range(CLASSES))


def plain_exponential(beta: Any, x: Floats, time: Floats, event: Floats) -> Any:
    eta = predictor(beta, x)
    return event * eta - time * anp.exp(eta)


def plain_weibull(beta: Any, x: Floats, time: Floats, event: Floats) -> Any:
    shape, eta = anp.exp(beta[-1]), predictor(beta, x)
    log_hazard = beta[-1] + (shape - 1.0) * np.log(time) + eta
    return event * log_hazard - anp.exp(shape * np.log(time) + eta)


def plain_gompertz(beta: Any, x: Floats, time: Floats, event: Floats) -> Any:
    growth, eta = beta[-1], predictor(beta, x)
    cumulative = anp.exp(eta) * (anp.exp(growth * time) - 1.0) / growth
    return event * (eta + growth * time) - cumulative


def plain_piecewise(
    beta: Any, x: Floats, time: Floats, event: Floats, entry: Any = 0.0
) -> Any:
    eta = anp.dot(beta[: len(x)], x)
    baseline = beta[len(x) :]
    ends = np.array([0.0, *CUTS, np.inf])
    total = 0.0
    for j, (start, end) in enumerate(pairwise(ends)):
        inside = (time > start) & (time <= end)
        at_risk = np.clip(time, start, end) - np.clip(entry, start, end)
        log_hazard = baseline[j] + eta
        total = total + event * inside * log_hazard - at_risk * anp.exp(log_hazard)
    return total


def plain_gaussian(theta: Any, x: Floats) -> Any:
    squares = (x - theta[:, None]) ** 2 / VARIANCE
    return -0.5 * anp.sum(squares + np.log(2 * np.pi * VARIANCE), axis=0)


def prepared(
    model: Model, raw_x: Floats, low: Floats, high: Floats, raw: dict[str, Floats]
) -> Rows:
    """Rows whose columns are mapped to [-1, 1], with a constant one if needed."""
    centre, half_width = (low + high) / 2.0, (high - low) / 2.0
    x = (raw_x - centre[:, None]) / half_width[:, None]
    names = tuple(f"x{j}" for j in range(len(x)))
    if model.needs_intercept:
        x = np.vstack([np.full((1, x.shape[1]), INTERCEPT), x])
        centre, half_width = np.append(0.0, centre), np.append(1.0, half_width)
        names = ("intercept", *names)
    design = Design(
        names, centre, half_width, INTERCEPT if model.needs_intercept else None
    )
    return rows_of(x, model.prepare_outcome(raw), design)


def rows_of(
    x: Floats, outcome: dict[str, Floats], design: Design | None = None
) -> Rows:
    """Rows of an already prepared matrix."""
    if design is None:
        names = tuple(f"x{j}" for j in range(len(x)))
        design = Design(names, np.zeros(len(x)), np.ones(len(x)), None)
    return Rows(design, x, outcome, (x**2).sum(axis=0))


MODELS: dict[str, tuple[Model, Callable[..., Any]]] = {
    "gaussian": (GaussianMean(variance=VARIANCE), plain_gaussian),
    "linear": (Linear(outcome="died", low=LOW, high=HIGH), plain_linear),
    "linear-known": (
        Linear(outcome="died", low=LOW, high=HIGH, variance=VARIANCE),
        plain_linear,
    ),
    "logistic": (Logistic(outcome="died"), plain_logistic),
    "poisson": (Poisson(outcome="died", per=PER), plain_poisson),
    "poisson-exposure": (
        Poisson(outcome="died", exposure="days", per=PER),
        plain_poisson,
    ),
    "negative-binomial": (
        NegativeBinomial(outcome="died", exposure="days", per=PER),
        plain_negative_binomial,
    ),
    "ordinal": (Ordinal(outcome="died", classes=CLASSES), plain_ordinal),
    "exponential": (
        Exponential(time="days", event="died", horizon=HORIZON),
        plain_exponential,
    ),
    "weibull": (Weibull(time="days", event="died", horizon=HORIZON), plain_weibull),
    "gompertz": (Gompertz(time="days", event="died", horizon=HORIZON), plain_gompertz),
    "piecewise": (
        Piecewise(time="days", event="died", horizon=HORIZON, cuts=CUTS),
        plain_piecewise,
    ),
    "piecewise-entry": (
        Piecewise(
            time="days", event="died", horizon=HORIZON, cuts=CUTS, entry="enrolled"
        ),
        plain_piecewise,
    ),
}
KINDS = tuple(MODELS)
SURVIVAL_KINDS = tuple(k for k in KINDS if isinstance(MODELS[k][0], Survival))


def raw_outcomes(model: Model, rng: np.random.Generator, count: int) -> Any:
    """Random outcomes that the model accepts, by role."""
    binary = rng.integers(0, 2, count).astype(float)
    if isinstance(model, Survival):
        time = HORIZON * rng.uniform(0.01, 1.5, count)
        raw = {"time": time, "event": binary}
        if "entry" in model.outcome_columns():
            raw["entry"] = time * rng.uniform(0.0, 0.9, count)
        return raw
    if isinstance(model, Linear):
        return {"y": rng.uniform(LOW - 5.0, HIGH + 5.0, count)}
    if isinstance(model, Ordinal):
        return {"y": rng.integers(0, CLASSES, count).astype(float)}
    if isinstance(model, CountModel):
        raw = {"y": rng.poisson(3.0, count).astype(float)}
        if model.exposure is not None:
            raw["offset"] = rng.uniform(0.1, 60.0, count)
        return raw
    return {"y": binary} if model.roles else {}


def scenario(kind: str, seed: int, count: int = 7, columns: int = 3) -> Scenario:
    """A random scenario for the model of a kind."""
    rng = np.random.default_rng(seed)
    low = rng.normal(0.0, 20.0, columns)
    high = low + rng.uniform(0.5, 30.0, columns)
    raw_x = low[:, None] + (high - low)[:, None] * rng.random((columns, count))
    model, plain = MODELS[kind]
    raw = raw_outcomes(model, rng, count)
    return Scenario(model, raw_x, raw, prepared(model, raw_x, low, high, raw), plain)

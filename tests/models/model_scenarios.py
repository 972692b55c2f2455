"""Every model with random raw data, its prepared rows and a plain likelihood.

The plain likelihoods are written here a second time, on the user's own scale and
in autograd's numpy, so that they share nothing with the models they check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp
import numpy as np

from cipherbayes.models import Design, Exponential, GaussianMean, Logistic, Model, Rows
from cipherbayes.typing import Floats

HORIZON = 40.0
VARIANCE = 2.5
INTERCEPT = 0.3


@dataclass(frozen=True)
class Scenario:
    """A model with raw data of the user's and the same data prepared."""

    model: Model
    raw_x: Floats
    raw_outcome: dict[str, Floats]
    rows: Rows
    plain: Callable[..., Any]

    def to_user(self, theta: Any) -> Any:
        """The affine map of the columns, inverted by hand for autodiff."""
        design = self.rows.design
        if isinstance(self.model, GaussianMean):
            return design.centre + design.half_width * theta
        slopes = theta[1:] / design.half_width[1:]
        start = INTERCEPT * theta[0] - anp.sum(slopes * design.centre[1:])
        if isinstance(self.model, Exponential):
            start = start - np.log(HORIZON)
        return anp.concatenate([anp.array([start]), slopes])

    def plain_log_likelihood(self, theta: Any) -> Any:
        """Log-likelihood of each record from the raw data."""
        return self.plain(self.to_user(theta), self.raw_x, **self.raw_outcome)


def plain_logistic(beta: Any, x: Floats, y: Floats) -> Any:
    eta = beta[0] + anp.dot(beta[1:], x)
    return y * eta - anp.logaddexp(0.0, eta)


def plain_exponential(beta: Any, x: Floats, time: Floats, event: Floats) -> Any:
    eta = beta[0] + anp.dot(beta[1:], x)
    return event * eta - time * anp.exp(eta)


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


def scenario(kind: str, seed: int, count: int = 7, columns: int = 3) -> Scenario:
    """A random scenario for the model of a kind."""
    rng = np.random.default_rng(seed)
    low = rng.normal(0.0, 20.0, columns)
    high = low + rng.uniform(0.5, 30.0, columns)
    raw_x = low[:, None] + (high - low)[:, None] * rng.random((columns, count))
    if kind == "gaussian":
        model: Model = GaussianMean(variance=VARIANCE)
        raw: dict[str, Floats] = {}
        plain: Callable[..., Any] = plain_gaussian
    elif kind == "logistic":
        model, plain = Logistic(outcome="died"), plain_logistic
        raw = {"y": rng.integers(0, 2, count).astype(float)}
    else:
        model = Exponential(time="days", event="died", horizon=HORIZON)
        plain = plain_exponential
        raw = {
            "time": HORIZON * rng.uniform(0.01, 1.5, count),
            "event": rng.integers(0, 2, count).astype(float),
        }
    return Scenario(model, raw_x, raw, prepared(model, raw_x, low, high, raw), plain)


KINDS = ("gaussian", "logistic", "exponential")

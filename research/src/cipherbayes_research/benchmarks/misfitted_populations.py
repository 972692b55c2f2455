"""Large invented tables whose predictions are lumpy, or far out and wrong.

Laboratory values are skewed, and zero in many; effects bend, and depend on each other;
outcomes are rare. A plain regression is fitted to a small sample, so that its
predictions are few values or pile up at one, and are too extreme where a value is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from cipherbayes.typing import Floats
from cipherbayes_research.benchmarks.check_populations import (
    INVENTED,
    REACH,
    TIMES,
    Followed,
    Population,
    binary,
    survival,
)

FITTED_ON = 1500
"""Rows that predictions are fitted to."""
FOLLOWED = 40_000
"""Rows of a table of survival."""

Drawn = tuple[Floats, Floats]
"""Columns of the fit, ``(m, d)``, and the true linear predictor but for its level."""
Draw = Callable[[np.random.Generator, int], Drawn]


def two_binary(rng: np.random.Generator, m: int) -> Drawn:
    """Four kinds of persons, who are not told apart by sums of two effects."""
    a, b = rng.random(m) < 0.35, rng.random(m) < 0.5
    return _columns(a, b), 1.3 * a + 0.5 * b - 0.9 * a * b


def zero_inflated(rng: np.random.Generator, m: int) -> Drawn:
    """A value that a third of the persons have none of, entered as a line."""
    lab = np.where(rng.random(m) < 0.35, 0.0, rng.lognormal(0.0, 1.0, m))
    sex = rng.random(m) < 0.5
    return _columns(lab, sex), 1.2 * np.log1p(lab) + 0.4 * sex * (lab > 0.0)


def far_out(rng: np.random.Generator, m: int) -> Drawn:
    """A skewed value whose logarithm matters, entered as a line."""
    lab, age = rng.lognormal(0.0, 1.1, m), rng.standard_normal(m)
    return _columns(lab, age), 0.9 * np.log(lab) + 0.6 * age


def bent_effect(rng: np.random.Generator, m: int) -> Drawn:
    """The young and the old are at risk."""
    age, sex = rng.standard_normal(m), rng.random(m) < 0.4
    return _columns(age, sex), 0.5 * age + 0.45 * age**2 + 0.7 * sex


def skewed_value(rng: np.random.Generator, m: int) -> Drawn:
    """A skewed value, entered as a line."""
    lab, old = rng.lognormal(0.0, 0.8, m), rng.random(m) < 0.3
    return _columns(lab, old), np.log(lab) + 0.8 * old


def plain(rng: np.random.Generator, m: int) -> Drawn:
    """The model is right."""
    age, pressure = rng.standard_normal((2, m))
    sex = rng.random(m) < 0.4
    return _columns(age, pressure, sex), 0.8 * age + 0.5 * pressure + 0.6 * sex


def illnesses(rng: np.random.Generator, m: int) -> Drawn:
    """A small count whose root matters, and sex."""
    count, sex = rng.poisson(1.1, m), rng.random(m) < 0.5
    return _columns(count, sex), 1.2 * np.sqrt(count) + 0.5 * sex


def detection_limits(rng: np.random.Generator, m: int) -> Drawn:
    """Many values are at the lowest or at the highest that is measured."""
    lab = np.clip(rng.lognormal(0.0, 1.0, m), 0.4, 2.5)
    ill = rng.random(m) < 0.2
    return _columns(lab, ill), -np.log(lab) + 1.2 * ill


def wards(rng: np.random.Generator, m: int) -> Drawn:
    """A ward of four, and a stage from zero to four whose last two are worse."""
    ward, stage = rng.integers(4, size=m), rng.binomial(4, 0.35, m)
    levels = [ward == k for k in range(1, 4)]
    eta = np.array([0.0, 0.3, 0.9, -0.4])[ward] + 1.4 * (stage >= 3)
    return _columns(*levels, stage), eta


def troponin(rng: np.random.Generator, m: int) -> Drawn:
    """Half have none; the others have a very skewed value with an effect that ends."""
    there = rng.random(m) < 0.5
    value = np.where(there, rng.lognormal(0.5, 1.3, m), 0.0)
    age = rng.gamma(9.0, 1.0 / 3.0, m) - 3.0
    eta = 1.5 * value / (2.0 + value) + 0.4 * there + 0.5 * age
    return _columns(value, age), eta


def heavy_tails(rng: np.random.Generator, m: int) -> Drawn:
    """A number with heavy tails, and an effect that ends on either side."""
    base, smoker = rng.standard_t(3.0, m), rng.random(m) < 0.25
    return _columns(base, smoker), 1.3 * np.tanh(base) + 0.8 * smoker


def either_side(rng: np.random.Generator, m: int) -> Drawn:
    """Pressures far from the usual one are bad, more on one side, and in men."""
    pressure, man = rng.gamma(4.0, 0.5, m) - 2.0, rng.random(m) < 0.5
    eta = (0.5 + 0.5 * man) * np.abs(pressure) + 0.3 * pressure
    return _columns(pressure, man), eta


def three_signs(rng: np.random.Generator, m: int) -> Drawn:
    """Three signs, two of which together are worse than the sum of both."""
    a, b, c = (rng.random(m) < share for share in (0.15, 0.4, 0.6))
    return _columns(a, b, c), 0.7 * a + 0.4 * b - 0.6 * c + 1.1 * (a & b)


def misfitted_binary(draw: Draw, events: float, rng: np.random.Generator) -> Population:
    """Log odds of a logistic regression on a sample of its own, with so many events."""
    from sklearn.linear_model import LogisticRegression

    columns, eta = draw(rng, INVENTED)
    level = brentq(lambda a: expit(a + eta).mean() - events, -30.0, 30.0)
    y = (rng.random(INVENTED) < expit(level + eta)).astype(np.float64)
    first, truth = draw(rng, FITTED_ON)
    seen = rng.random(FITTED_ON) < expit(level + truth)
    centre, spread = first.mean(axis=0), first.std(axis=0)
    model = LogisticRegression(C=3.0).fit((first - centre) / spread, seen)
    score = model.decision_function((columns - centre) / spread)
    return binary(np.clip(score, -REACH, REACH), y)


def misfitted_survival(
    draw: Draw, events: float, rng: np.random.Generator
) -> Population:
    """Log cumulative hazards of a Cox regression on a sample of its own, with a
    constant hazard; so many have an event by the horizon, and some are lost before."""
    from sksurv.linear_model import CoxPHSurvivalAnalysis
    from sksurv.util import Surv

    columns, eta = draw(rng, FOLLOWED)
    level = brentq(lambda a: np.exp(-np.exp(a + eta)).mean() - 1.0 + events, -30.0, 9.0)
    time = rng.exponential(size=FOLLOWED) / np.exp(level + eta)
    lost = rng.exponential(3.0, FOLLOWED)
    own = slice(0, FITTED_ON)
    centre, spread = columns[own].mean(axis=0), columns[own].std(axis=0)
    z = (columns - centre) / spread
    seen, event = np.minimum(time, lost), time <= lost
    model = CoxPHSurvivalAnalysis(alpha=3.0)
    model.fit(z[own], Surv.from_arrays(event[own], seen[own]))
    risk = model.predict(z)
    lived = np.minimum(seen[own], TIMES[-1])
    happened = np.sum(event[own] & (seen[own] <= TIMES[-1]))
    risk += np.log(happened / np.sum(np.exp(risk[own]) * lived))
    score = np.clip(risk, -REACH, REACH)[FITTED_ON:]
    rest = slice(FITTED_ON, None)
    followed = Followed(score, seen[rest], event[rest].astype(np.float64))
    return survival(
        "exponential", followed, Followed(score, time[rest], np.ones(score.size))
    )


def _columns(*columns: NDArray[Any]) -> Floats:
    return np.stack(columns, axis=1).astype(np.float64)

"""Poisson regression of counts, with or without an exposure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from scipy.special import gammaln, pdtr

from cipherbayes.models.counts import CountModel, mean_of
from cipherbayes.models.held_out_numbers import CountCheck
from cipherbayes.models.influence import (
    InfluenceBound,
    LinearPredictorInfluence,
    normal_predictors,
)
from cipherbayes.models.registry import register
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.typing import Floats

COUNTS = 1.5
"""A count counts so far from its mean (times the stop c), corrected for that."""

INFORMATION = 2.0
"""The most information of a record (times the stop c)."""

LARGEST_MEAN = 1e6
"""Records with a larger mean are left out of bounded scores."""


@register
class Poisson(CountModel):
    """A count y with mean m = exp(eta + o), eta = x'beta, o a known offset.

    log p(y | x, beta) = y (eta + o) - exp(eta + o) - log y!; gradient x (y - m);
    second derivative in eta -m. Its keys are those of
    :class:`~cipherbayes.models.counts.CountModel`.
    """

    title: ClassVar[str | None] = "Poisson regression"
    kind: Literal["poisson"] = "poisson"

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        y, log_mean = rows.outcome["y"], self.log_mean(theta, rows)
        result: Floats = y * log_mean - mean_of(log_mean) - gammaln(y + 1.0)
        return result

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        score = rows.outcome["y"] - mean_of(self.log_mean(theta, rows))
        return RecordGradients(rows, score=score)

    def information_diagonal(self, theta: Floats, rows: Rows) -> Floats:
        result: Floats = rows.x**2 @ mean_of(self.log_mean(theta, rows))
        return result

    @property
    def held_out_check(self) -> CountCheck:
        return CountCheck(self)

    @property
    def bounded_influence(self) -> PoissonInfluence:
        return PoissonInfluence(self)


@dataclass(frozen=True)
class PoissonInfluence(LinearPredictorInfluence):
    """The count held near its mean, less the mean of that, weighted by the mean.

    With Y ~ Poisson(m), low = ⌊m - √m⌋ (or 0), high = ⌈m + √m⌉ and
    psi(y) = min(max(y, low), high),

        r = a (psi(y) - E psi(Y)),    v = a dE psi / d eta = a k,
        k = m P(low ≤ Y < high),

    as E psi = low + Σ P(Y ≥ j) over low < j ≤ high, and m P(Y = j - 1) is the
    derivative of P(Y ≥ j) in eta. a depends on m alone and is zero for means above a
    million. E r = 0 under the model, and Var r = a² Var psi ≤ v because
    a ≤ k / Var psi, which is one or more: k = Cov(psi, Y), and psi and y - psi both
    grow with y.

    Formal guarantees
    -----------------
    low ≤ psi ≤ high, so with b = 1.5 c and B = 2 c, |r| ≤ a max(high - E psi,
    E psi - low) ≤ b and v = a k ≤ B, by the choice
    a = min(k / Var psi, b / max(high - E psi, E psi - low), B / k).
    """

    model: Poisson

    multiplicative: ClassVar[bool] = True
    multilevel: ClassVar[bool] = True
    quiet_stop: ClassVar[float] = 2.0

    def residuals(
        self, theta: Floats, rows: Rows, stop: float
    ) -> tuple[Floats, Floats]:
        mean = mean_of(self.model.log_mean(theta, rows))
        share, slope, _, low, high, lifted = self._held(mean, stop)
        held = np.clip(rows.outcome["y"], low, high) - low
        return share * (held - lifted), share * slope

    def variance_shares(
        self, bound: InfluenceBound, mean: float, variance: float
    ) -> tuple[float, float]:
        """a² Var psi over a k, where means have no exposures of their own."""
        if self.model.offset_column is not None:
            return 1.0, 1.0
        predictors, weights = normal_predictors(mean, variance)
        means = mean_of(predictors) / self.model.per
        share, slope, spread, *_ = self._held(means, bound.stop)
        total = float(weights @ (share * slope))
        if not total > 0.0:
            return 1.0, 1.0
        return min(float(weights @ (share**2 * spread)) / total, 1.0), 1.0

    def kept_shares(
        self, bound: InfluenceBound, told: float, mean: float, variance: float
    ) -> tuple[float, float]:
        """a k over m, where means have no exposures of their own."""
        if self.model.offset_column is not None:
            return 1.0, 1.0
        predictors, weights = normal_predictors(mean, variance)
        means = mean_of(predictors) / self.model.per
        share, slope, *_ = self._held(means, bound.stop)
        return min(float(weights @ (share * slope) / (weights @ means)), 1.0), 1.0

    def _held(self, mean: Floats, stop: float) -> tuple[Floats, ...]:
        """a, k, Var psi, low, high and E psi - low, of counts with these means."""
        counted = mean <= LARGEST_MEAN
        mean = np.where(counted, mean, 1.0)
        low = np.floor(np.maximum(mean - np.sqrt(mean), 0.0))
        high = np.ceil(mean + np.sqrt(mean))
        up_to_low, up_to_high = _below(low + 1.0, mean), _below(high, mean)
        inside = np.maximum(up_to_high - up_to_low, 0.0)  # P(low < Y < high)
        # E[Y - low; low < Y < high], from m P(Y = j) = (j + 1) P(Y = j + 1).
        one_less = _below(high - 1.0, mean) - _below(low, mean)
        lifted = np.maximum(mean * one_less - low * inside, 0.0)
        # E[Y (Y - 1); low < Y < high] = m² P(low - 1 ≤ Y < high - 2).
        two_less = _below(high - 2.0, mean) - _below(low - 1.0, mean)
        squares = mean**2 * two_less + (1.0 - 2.0 * low) * mean * one_less
        squares = np.maximum(squares + low**2 * inside, 0.0)
        reach, beyond = high - low, 1.0 - up_to_high
        lifted = lifted + reach * beyond  # E psi - low
        variance = squares + reach**2 * beyond - lifted**2
        slope = mean * np.maximum(up_to_high - _below(low, mean), 0.0)
        share = slope / np.maximum(np.maximum(variance, 0.5 * slope), 1e-300)
        for most, size in zip(
            self.limits(stop), (np.maximum(reach - lifted, lifted), slope), strict=True
        ):
            share = np.minimum(share, most / np.maximum(size, 1e-9 * most))
        share = np.where(counted, share, 0.0)
        return share, slope, variance, low, high, lifted

    def limits(self, stop: float) -> tuple[float, float]:
        return COUNTS * stop, INFORMATION * stop


def _below(count: Floats, mean: Floats) -> Floats:
    """P(Y < count) of integers."""
    found: Floats = pdtr(np.maximum(count - 1.0, 0.0), mean)
    return np.where(count > 0.0, found, 0.0)

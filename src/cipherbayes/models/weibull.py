"""Weibull survival: a hazard that grows or falls as a power of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from cipherbayes.models import kernels
from cipherbayes.models.design import Design
from cipherbayes.models.hazard_influence import HazardInfluence, StoppedHazard
from cipherbayes.models.influence import Influence, InfluenceBound, Straightening
from cipherbayes.models.registry import register
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.models.survival import (
    LARGEST_LOG_HAZARD,
    Survival,
    bounded_exp,
    linear_predictors,
)
from cipherbayes.typing import Floats

LARGEST_LOG_SHAPE = 8.0
"""A shape of 3000 is a step."""

SHAPE_CENTRE, SHAPE_REACH = 2.0, 3.5
"""The shape's column 1 + k ln s is held within -2 ± 3.5: with k = 1 events of the
first 0.15 % of the horizon and times beyond 1.6 horizons count as if they
came there. Its middle is taken off, as a share of the constant column."""

SHAPE_SHARE = 1.0 / SHAPE_REACH
"""a: so much of it counts, within ±1."""

LARGEST_CHANGE = 1.5
"""Largest change of the log shape that the mean of a score sum is followed through."""


@register
class Weibull(Survival):
    """A survival time with hazard k t^(k-1) exp(eta), eta = x'beta, k = exp(kappa).

    With L = t^k exp(eta), log p(t, c | x, beta, kappa) = c (kappa + (k - 1) ln t +
    eta) - L; gradient x (c - L) in beta and c (1 + k ln t) - L k ln t in kappa, the
    parameter ``log_shape``; survival S(t | x) = exp(-L).

    A proportional-hazards model: exp(beta_j) is a hazard ratio, and
    exp(-beta_j / k) the ratio of times that accelerated-failure-time software
    reports. kappa = 0 is the exponential model. Past ln L = 600 or kappa = ±8 these
    stay at their values there, so that nothing overflows.
    """

    title: ClassVar[str | None] = "Weibull regression"
    kind: Literal["weibull"] = "weibull"

    def extra_parameters(self) -> tuple[str, ...]:
        return ("log_shape",)

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        log_time, power, hazard = self.powers(theta, rows)
        eta = kernels.linear_predictor(theta[:-1], rows.x)
        log_shape = _log_shape(theta)
        # The hazard per horizon is `horizon` times that per unit of the user's time.
        log_hazard = log_shape + power - log_time + eta - np.log(self.horizon)
        result: Floats = rows.outcome["event"] * log_hazard - hazard
        return result

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        _, power, hazard = self.powers(theta, rows)
        residual = rows.outcome["event"] - hazard
        shape = rows.outcome["event"] + power * residual
        return RecordGradients(rows, score=residual, extra=shape[None])

    def information_diagonal(self, theta: Floats, rows: Rows) -> Floats:
        _, power, hazard = self.powers(theta, rows)
        shape = power * (hazard * (1.0 + power) - rows.outcome["event"])
        return np.append(rows.x**2 @ hazard, shape.sum())

    def largest_curvature(self, design: Design) -> float:
        # Under the truth kappa has the information P(event) E(1 + ln L)² = 1.8 at
        # most, L a unit exponential.
        return super().largest_curvature(design) + 1.8 * self.curvature(design)

    @property
    def bounded_influence(self) -> WeibullInfluence:
        return WeibullInfluence(self)

    def cumulative_hazard(self, draws: Floats, rows: Rows, times: Floats) -> Floats:
        shape = np.exp(_log_shape(draws))[:, None, None]
        with np.errstate(divide="ignore"):  # t = 0: exp(-inf) = 0
            exponent = linear_predictors(draws, rows) + shape * np.log(times)
        return bounded_exp(exponent, LARGEST_LOG_HAZARD)

    def to_user_scale(self, draws: Floats, design: Design) -> Floats:
        """(t / horizon)^k exp(eta) = t^k exp(eta - k ln horizon)."""
        user = super().to_user_scale(draws, design)
        if design.intercept is not None:
            shape = np.exp(_log_shape(draws))
            user[..., 0] -= (shape - 1.0) * np.log(self.horizon)
        return user

    def powers(self, theta: Floats, rows: Rows) -> tuple[Floats, Floats, Floats]:
        """ln t, k ln t and the cumulative hazard L at t."""
        log_time: Floats = np.log(rows.outcome["time"])
        power: Floats = np.exp(_log_shape(theta)) * log_time
        eta = kernels.linear_predictor(theta[:-1], rows.x)
        return log_time, power, bounded_exp(power + eta, LARGEST_LOG_HAZARD)


@dataclass(frozen=True)
class WeibullInfluence(HazardInfluence):
    """∫ z dM stopped where the cumulative hazard L(s) reaches c.

    z = (x, u), u = a clip(h + k ln s, ±1/a), is the gradient of the log hazard in
    what :meth:`basis` says wherever u is not held; h = 1 + 2, or 1
    where no constant column can take the 2. L(s) = s^k exp(eta), so
    h + k ln s = h - eta + ln L. With l = min(L(t), c) and u
    held where ln L is outside [eta - h ± 1/a], the integrals are those of 1, u and
    u² over (0, l]. Predictable and bounded, so the mean is zero whatever the
    censoring.
    """

    model: Weibull

    quiet_stop: ClassVar[float] = 1.4

    def at(self, theta: Floats, rows: Rows, bound: InfluenceBound) -> Influence:
        _, power, cumulative = self.model.powers(theta, rows)
        eta = kernels.linear_predictor(theta[:-1], rows.x)
        height = 1.0 + _centre(rows.design)
        followed = np.minimum(cumulative, bound.stop)
        event = np.where(cumulative <= bound.stop, rows.outcome["event"], 0.0)
        column = np.clip(SHAPE_SHARE * (height + power), -1.0, 1.0)
        first, second = _moments(followed, eta - height)
        stopped = StoppedHazard(event, followed, first, second, column)
        return self.weighted(rows, stopped, bound)

    def sensitivities(self, bound: InfluenceBound) -> tuple[float, float]:
        """√(C² + 1) max(1, c, (1 + a) c - 1) and c (C² + 1).

        Let |u| ≤ 1 be the shape's column, which rises with L, and l ≤ c. Without an
        event the score is -l x and |∫ u dL| ≤ l. With one at l it is (1 - l) x and
        u(l) - ∫ u dL, which lies between (1 - l) u(l), because u rises, and
        (1 - l) u(l) + a l, because u(l) - u(L) ≤ a ln(l / L): at most |1 - l| + a l,
        which is largest at 0 or c. So a score is no longer than √(‖x‖² + 1) times the
        maximum above, and its weight is min(1, (C² + 1) / (‖x‖² + 1)).
        """
        stop, square = bound.stop, bound.clip**2 + 1.0
        longest = max(1.0, stop, (1.0 + SHAPE_SHARE) * stop - 1.0)
        return longest * float(np.sqrt(square)), stop * square

    def basis(self, design: Design) -> Floats:
        """kappa = a phi, and the constant's coefficient takes its middle's share.

        z'phi = x'beta + (1 + k ln s) kappa, u = a (1 + 2 + k ln s).
        """
        basis = super().basis(design)
        basis[-1, -1] = SHAPE_SHARE
        if design.intercept is not None:
            basis[0, -1] = SHAPE_SHARE * _centre(design) / design.intercept
        return basis

    def frame(self, theta: Floats, design: Design) -> Floats:
        """The shape's column is 1 + ln L − eta, of which eta is taken off again."""
        frame = np.eye(theta.size)
        frame[-1, :-1] = theta[:-1]
        return frame

    def skew(self, design: Design) -> Floats:
        """The shape's column is 1 + ln L - eta."""
        return np.append(np.zeros(design.width), 1.0)

    def straightening(self, design: Design) -> Straightening:
        """δ of the shape is e^Δ − 1 and the intercept takes what is left of Δ.

        The log-hazard grows by Δη + Δ + k (e^Δ − 1) ln s, Δ = Δκ, in which k ln s is
        the shape's column less one. Δ is held within ±1.5.
        """
        first, last = np.zeros((2, design.width + 1))
        first[0], last[-1] = 1.0 / design.constant, 1.0
        return Straightening(last, first, last, LARGEST_CHANGE)


def _log_shape(theta: Floats) -> Floats:
    log_shape: Floats = np.clip(theta[..., -1], -LARGEST_LOG_SHAPE, LARGEST_LOG_SHAPE)
    return log_shape


def _centre(design: Design) -> float:
    """What is taken off the shape's column: nothing where there is no constant."""
    return 0.0 if design.intercept is None else SHAPE_CENTRE


def _moments(followed: Floats, zero: Floats) -> tuple[Floats, Floats]:
    """∫ u dL and ∫ u² dL over (0, l], u = a clip(ln L - zero, ±1/a).

    With low and high where the clip starts and ends: -low up to low, then with
    F(L) = L (v - 1) and G(L) = L (1 + (v - 1)²), the antiderivatives of
    v = ln L - zero and of its square, and the rest at the upper bound.
    """
    reach = 1.0 / SHAPE_SHARE
    low = np.minimum(followed, bounded_exp(zero - reach))
    high = np.minimum(followed, bounded_exp(zero + reach))
    with np.errstate(divide="ignore", invalid="ignore"):
        low_log = np.where(low > 0.0, np.log(low) - zero - 1.0, 0.0)
        high_log = np.where(high > 0.0, np.log(high) - zero - 1.0, 0.0)
    first = high * high_log - low * low_log
    first += reach * (followed - high) - reach * low
    second = high * (1.0 + high_log**2) - low * (1.0 + low_log**2)
    second += reach**2 * (followed - high + low)
    return SHAPE_SHARE * first, SHAPE_SHARE**2 * np.maximum(second, 0.0)

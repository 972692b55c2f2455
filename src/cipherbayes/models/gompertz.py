"""Gompertz survival: a hazard that grows or falls exponentially with time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from cipherbayes.models import kernels
from cipherbayes.models.design import Design
from cipherbayes.models.hazard_influence import HazardInfluence, StoppedHazard
from cipherbayes.models.influence import Influence, InfluenceBound
from cipherbayes.models.registry import register
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.models.survival import (
    LARGEST_LOG_HAZARD,
    Survival,
    bounded_exp,
    linear_predictors,
)
from cipherbayes.typing import Floats

LARGEST_GROWTH = 300.0
"""The hazard changes by no more than exp(±300) over a horizon."""

FOLLOWED = 1.2
"""Horizons for which a bounded score follows a record: later it counts as censored."""


@register
class Gompertz(Survival):
    """A survival time with hazard exp(eta + a t), eta = x'beta.

    With u = a t and the cumulative hazard H = exp(eta) (exp(u) - 1) / a,
    log p(t, c | x, beta, a) = c (eta + u) - H; gradient x (c - H) in beta and
    t (c - H psi(u)) in a, the parameter ``growth``, with
    psi(u) = 1 / (1 - exp(-u)) - 1 / u; survival S(t | x) = exp(-H).

    H = t exp(eta) phi(u), phi(u) = (exp(u) - 1) / u, is smooth through a = 0, the
    exponential model. Where a < 0 the hazard dies out and the share
    exp(-exp(eta) / |a|) never has the event. ``growth`` is per horizon on the
    prepared scale and per unit of time on the user's. Past ln H = 600 or a = ±300
    these stay at their values there, so that nothing overflows.
    """

    title: ClassVar[str | None] = "Gompertz survival regression"
    kind: Literal["gompertz"] = "gompertz"

    def extra_parameters(self) -> tuple[str, ...]:
        return ("growth",)

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        growth, hazard = self.parts(theta, rows, rows.outcome["time"])
        eta = kernels.linear_predictor(theta[:-1], rows.x)
        # The hazard per horizon is `horizon` times that per unit of the user's time.
        log_hazard = eta + growth - np.log(self.horizon)
        result: Floats = rows.outcome["event"] * log_hazard - hazard
        return result

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        time, event = rows.outcome["time"], rows.outcome["event"]
        growth, hazard = self.parts(theta, rows, time)
        extra = time * (event - hazard * _psi(growth))
        return RecordGradients(rows, score=event - hazard, extra=extra[None])

    def information_diagonal(self, theta: Floats, rows: Rows) -> Floats:
        growth, hazard = self.parts(theta, rows, rows.outcome["time"])
        # d²H/da² = t² H (psi² + psi').
        bend = hazard * (_psi(growth) ** 2 + _psi_slope(growth))
        return np.append(rows.x**2 @ hazard, np.sum(rows.outcome["time"] ** 2 * bend))

    def largest_curvature(self, design: Design) -> float:
        # t is at most about one horizon, so a is another intercept at most.
        return super().largest_curvature(design) + self.curvature(design)

    @property
    def bounded_influence(self) -> GompertzInfluence:
        return GompertzInfluence(self)

    def cumulative_hazard(self, draws: Floats, rows: Rows, times: Floats) -> Floats:
        growth = _growth(draws)[:, None, None] * times
        with np.errstate(divide="ignore"):  # t = 0: exp(-inf) = 0
            log_time = np.log(times)
        exponent = linear_predictors(draws, rows) + log_time + _log_phi(growth)
        return bounded_exp(exponent, LARGEST_LOG_HAZARD)

    def to_user_scale(self, draws: Floats, design: Design) -> Floats:
        """The growth per unit of the user's time, too."""
        user = super().to_user_scale(draws, design)
        user[..., -1] /= self.horizon
        return user

    def parts(self, theta: Floats, rows: Rows, time: Floats) -> tuple[Floats, Floats]:
        """u = a t and the cumulative hazard H at t."""
        growth: Floats = _growth(theta) * time
        eta = kernels.linear_predictor(theta[:-1], rows.x)
        return growth, bounded_exp(
            eta + np.log(time) + _log_phi(growth), LARGEST_LOG_HAZARD
        )


@dataclass(frozen=True)
class GompertzInfluence(HazardInfluence):
    """∫ z dM stopped where the cumulative hazard L reaches c, or after 1.2 horizons.

    z = (x, u), u = b (s - m) with s the time in horizons, m = 0.6 and b = 1 / m, or
    m = 0 and b = 1 / 1.2 where no constant column can take the m: |u| ≤ 1. z is the
    gradient of the log hazard eta + a s in what :meth:`basis` says, everywhere; so
    scores are unbiased whatever the censoring, and A = w ∫ z z' dL is their slope and
    (times w) their variance. With T the time at which a record is left and l = L(T),

        ∫ s dL = T l psi(aT),    ∫ s² dL = T² l (psi² + psi')(aT),

    the derivatives of L(T) in a.

    Formal guarantees
    -----------------
    Let n = ‖x‖², S = C² + 1 and w = min(1, S / (n + 1)). Without an event the score is
    -∫ z dL, of length at most l √(n + 1) ≤ c √(n + 1), because |u| ≤ 1. With one it is
    (1 - l) x and u(T) - ∫ u dL, at most 1 + l in size: the square
    n (1 - l)² + (1 + l)² is convex in l, hence at most n + 1 or
    n (1 - c)² + (1 + c)². Times w² the first is at most S, and so is c² (n + 1)
    at most c² S; the second is (n + 1) (1 - c)² + 4 c, which times w² falls for n > C²
    and is largest at n = C². So

        ‖g‖ ≤ max(√S, c √S, √(C² (1 - c)² + (1 + c)²)),
        ‖A‖_F ≤ w ∫ ‖z‖² dL ≤ w (n + 1) c ≤ c S,

    for every record, time, event and theta.
    """

    model: Gompertz

    def at(self, theta: Floats, rows: Rows, bound: InfluenceBound) -> Influence:
        eta = kernels.linear_predictor(theta[:-1], rows.x)
        time = rows.outcome["time"]
        reached = np.minimum(_reached(bound.stop, eta, _growth(theta)), FOLLOWED)
        until = np.maximum(np.minimum(time, reached), np.finfo(np.float64).tiny)
        growth, cumulative = self.model.parts(theta, rows, until)
        followed = np.minimum(cumulative, bound.stop)
        event = np.where(time <= reached, rows.outcome["event"], 0.0)
        middle, share = _column(rows.design)
        mean = _psi(growth)
        first = share * followed * (until * mean - middle)
        spread = until**2 * np.maximum(_psi_slope(growth), 0.0)
        second = share**2 * followed * (spread + (until * mean - middle) ** 2)
        column = share * (until - middle)
        stopped = StoppedHazard(event, followed, first, second, column)
        return self.weighted(rows, stopped, bound)

    def sensitivities(self, bound: InfluenceBound) -> tuple[float, float]:
        stop, square = bound.stop, bound.clip**2
        late = square * (1.0 - stop) ** 2 + (1.0 + stop) ** 2
        most = max(square + 1.0, stop**2 * (square + 1.0), late)
        return float(np.sqrt(most)), stop * (square + 1.0)

    def basis(self, design: Design) -> Floats:
        """a = b phi, and the constant's coefficient gives what the middle takes.

        z'phi = x'beta + a s, u = b (s - m).
        """
        middle, share = _column(design)
        basis = super().basis(design)
        basis[-1, -1] = share
        if design.intercept is not None:
            basis[0, -1] = -share * middle / design.intercept
        return basis


def _column(design: Design) -> tuple[float, float]:
    """m and b of the growth's column."""
    if design.intercept is None:
        return 0.0, 1.0 / FOLLOWED
    return 0.5 * FOLLOWED, 2.0 / FOLLOWED


def _reached(stop: float, eta: Floats, growth: Floats) -> Floats:
    """When the cumulative hazard is c: log(1 + v) / a, v = a c exp(-eta).

    Infinite where it never is; c exp(-eta) at a = 0.
    """
    alone = stop * bounded_exp(-eta, LARGEST_LOG_HAZARD)
    grown = growth * alone
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(np.abs(grown) < 1e-8, 1.0, np.log1p(grown) / grown)
    reached: Floats = np.where(grown > -1.0, alone * ratio, np.inf)
    return reached


def _growth(theta: Floats) -> Floats:
    growth: Floats = np.clip(theta[..., -1], -LARGEST_GROWTH, LARGEST_GROWTH)
    return growth


def _log_phi(u: Floats) -> Floats:
    """log((exp(u) - 1) / u) = max(u, 0) + log((1 - exp(-|u|)) / |u|); 0 at u = 0."""
    size = np.maximum(np.abs(u), np.finfo(np.float64).tiny)
    result: Floats = np.maximum(u, 0.0) + np.log(-np.expm1(-size) / size)
    return result


def _psi(u: Floats) -> Floats:
    """d log phi / du = 1 / (1 - exp(-u)) - 1 / u, from 0 to 1, by series near 0."""
    near = np.abs(u) < 0.03
    # expm1 overflows at -u = 710, where 1 / inf = 0 is right.
    with np.errstate(over="ignore"):
        safe = np.where(near, 1.0, u)
        far = -1.0 / np.expm1(-safe) - 1.0 / safe
    series = 0.5 + u * (1.0 / 12.0 - u**2 * (1.0 / 720.0 - u**2 / 30240.0))
    return np.where(near, series, far)


def _psi_slope(u: Floats) -> Floats:
    """d psi / du = 1 / u² - 1 / (4 sinh²(u / 2)), by series near 0."""
    near = np.abs(u) < 0.03
    safe = np.where(near, 1.0, u)
    far = 1.0 / safe**2 - 0.25 / np.sinh(np.clip(0.5 * safe, -350.0, 350.0)) ** 2
    series = 1.0 / 12.0 - u**2 * (1.0 / 240.0 - u**2 / 6048.0)
    return np.where(near, series, far)

"""Gompertz survival: a hazard that grows or falls exponentially with time."""

from __future__ import annotations

from typing import Literal

import numpy as np

from cipherbayes.models import kernels
from cipherbayes.models.base import Design, RecordGradients, Rows
from cipherbayes.models.registry import register
from cipherbayes.models.survival import (
    LARGEST_LOG_HAZARD,
    Survival,
    bounded_exp,
    linear_predictors,
)
from cipherbayes.typing import Floats

LARGEST_GROWTH = 300.0
"""The hazard changes by no more than exp(±300) over a horizon."""


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

    kind: Literal["gompertz"] = "gompertz"

    def extra_parameters(self) -> tuple[str, ...]:
        return ("growth",)

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        growth, hazard = self._parts(theta, rows)
        eta = kernels.linear_predictor(theta[:-1], rows.x)
        # The hazard per horizon is `horizon` times that per unit of the user's time.
        log_hazard = eta + growth - np.log(self.horizon)
        result: Floats = rows.outcome["event"] * log_hazard - hazard
        return result

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        growth, hazard = self._parts(theta, rows)
        time, event = rows.outcome["time"], rows.outcome["event"]
        extra = time * (event - hazard * _psi(growth))
        return RecordGradients(rows, score=event - hazard, extra=extra[None])

    def information_diagonal(self, theta: Floats, rows: Rows) -> Floats:
        growth, hazard = self._parts(theta, rows)
        # d²H/da² = t² H (psi² + psi').
        bend = hazard * (_psi(growth) ** 2 + _psi_slope(growth))
        return np.append(rows.x**2 @ hazard, np.sum(rows.outcome["time"] ** 2 * bend))

    def largest_curvature(self, design: Design) -> float:
        # t is at most about one horizon, so a is another intercept at most.
        return super().largest_curvature(design) + self.curvature(design)

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

    def _parts(self, theta: Floats, rows: Rows) -> tuple[Floats, Floats]:
        """u = a t and the cumulative hazard H at t."""
        time = rows.outcome["time"]
        growth: Floats = _growth(theta) * time
        eta = kernels.linear_predictor(theta[:-1], rows.x)
        return growth, bounded_exp(
            eta + np.log(time) + _log_phi(growth), LARGEST_LOG_HAZARD
        )


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

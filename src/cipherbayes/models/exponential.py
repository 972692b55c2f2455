"""Exponential survival: a constant hazard for each record."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from cipherbayes.models import kernels
from cipherbayes.models.hazard_influence import followed_share
from cipherbayes.models.influence import InfluenceBound, LinearPredictorInfluence
from cipherbayes.models.registry import register
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.models.survival import Survival, bounded_exp, linear_predictors
from cipherbayes.typing import Floats


@register
class Exponential(Survival):
    """A survival time with hazard exp(eta), eta = x'beta.

    log p(t, c | x, beta) = c eta - t exp(eta); gradient x (c - t exp(eta));
    second derivative in eta -t exp(eta); survival S(t | x) = exp(-t exp(eta)).

    The paper's model with mean alpha exp(eta') is this one with beta = -beta' and
    intercept -log(alpha). Past eta = 700 the hazard stays at exp(700), so that
    nothing overflows.
    """

    title: ClassVar[str | None] = "exponential survival regression"
    kind: Literal["exponential"] = "exponential"

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        eta = kernels.linear_predictor(theta, rows.x)
        # The hazard per horizon is `horizon` times that per unit of the user's time.
        log_hazard = eta - np.log(self.horizon)
        result: Floats = rows.outcome["event"] * log_hazard
        result -= rows.outcome["time"] * bounded_exp(eta)
        return result

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        hazard = bounded_exp(kernels.linear_predictor(theta, rows.x))
        score = rows.outcome["event"] - rows.outcome["time"] * hazard
        return RecordGradients(rows, score=score)

    def information_diagonal(self, theta: Floats, rows: Rows) -> Floats:
        hazard = bounded_exp(kernels.linear_predictor(theta, rows.x))
        result: Floats = rows.x**2 @ (rows.outcome["time"] * hazard)
        return result

    @property
    def bounded_influence(self) -> ExponentialInfluence:
        return ExponentialInfluence(self)

    def cumulative_hazard(self, draws: Floats, rows: Rows, times: Floats) -> Floats:
        hazards: Floats = bounded_exp(linear_predictors(draws, rows)) * times
        return hazards


class ExponentialInfluence(LinearPredictorInfluence):
    """The martingale residual, stopped when the cumulative hazard reaches c.

    With Λ = t exp(eta): r = event − Λ where Λ ≤ c, else −c; v = min(Λ, c). A stopped
    martingale still has mean zero and variance E[v], whatever the censoring; a clipped
    residual has not.
    """

    multiplicative: ClassVar[bool] = True
    multilevel: ClassVar[bool] = True
    quiet_stop: ClassVar[float] = 1.5

    def residuals(
        self, theta: Floats, rows: Rows, stop: float
    ) -> tuple[Floats, Floats]:
        hazard = bounded_exp(kernels.linear_predictor(theta, rows.x))
        cumulative = rows.outcome["time"] * hazard
        followed = np.minimum(cumulative, stop)
        event = np.where(cumulative <= stop, rows.outcome["event"], 0.0)
        return event - followed, followed

    def kept_shares(
        self, bound: InfluenceBound, told: float, mean: float, variance: float
    ) -> tuple[float, float]:
        share = followed_share(told, variance, bound.stop)
        return share, share

    def limits(self, stop: float) -> tuple[float, float]:
        """|r| ≤ max(1, c) and v ≤ c."""
        return max(1.0, stop), stop

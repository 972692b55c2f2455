"""Linear regression with a known or a learnt variance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from scipy.special import ndtr

from cipherbayes.models import kernels
from cipherbayes.models.base import Model, refuse_times
from cipherbayes.models.design import Design
from cipherbayes.models.held_out_numbers import NumberCheck
from cipherbayes.models.influence import (
    BoundedInfluence,
    Influence,
    InfluenceBound,
    LinearPredictorInfluence,
    Weighting,
    mallows_weights,
)
from cipherbayes.models.metrics import Metrics, numeric_metrics
from cipherbayes.models.outcomes import OutcomeRange, between, require_finite
from cipherbayes.models.registry import register
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.typing import Floats

FARTHEST = 10.0
"""A value so many half widths from the centre of its range is a mistake of units."""

LARGEST_LOG_SD = 300.0
"""exp(-2 log sd) and the squares that multiply it stay far from overflow."""

RESIDUAL_STOP = 2.0
"""A residual counts up to so many standard deviations (times the stop c)."""

SCALE_SHARE = 0.5
"""a: so much of the score of a learnt log sd counts, beside that of the coefficients:
a record's largest is then about as large as that of one column at one."""

TYPICAL_SD = 0.5
"""A public guess of a learnt residual sd, as a share of the half width."""


@register
class Linear(Model):
    """A number y ~ N(eta, v), eta = x'beta.

    log p(y | x, beta) = -(y - eta)² / 2v - log(2 pi v) / 2; gradient x (y - eta) / v.
    A learnt variance is v = exp(2 tau) with the parameter tau = ``log_sd``: gradient
    (y - eta)² / v - 1.

    The model sees (y - c) / h, c and h the centre and half width of the outcome's
    public range, so that priors mean the same whatever the unit. The range is a
    scale, nothing is clipped to it. Past log_sd = ±300 the variance stays at its
    value there, so that nothing overflows.

    Parameters
    ----------
    outcome
        Column of numbers.
    low, high
        The outcome's public range. Values more than ten half widths from its centre
        are refused; in a private study they count as ten half widths.
    variance
        The known variance, in the user's units squared; learnt where left out.
    """

    roles: ClassVar[Mapping[str, str]] = {"y": "outcome"}
    family: ClassVar[str] = "number"
    measure: ClassVar[str | None] = "difference"
    title: ClassVar[str | None] = "linear regression"
    kind: Literal["linear"] = "linear"
    outcome: str
    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)
    variance: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _has_a_range(self) -> Self:
        if not self.low < self.high:
            raise ValueError("low must be below high")
        return self

    @property
    def centre(self) -> float:
        """The middle of the outcome's public range."""
        return self.low + (self.high - self.low) / 2.0

    @property
    def half_width(self) -> float:
        """Half the width of the outcome's public range."""
        return (self.high - self.low) / 2.0

    @property
    def outcome_ranges(self) -> Mapping[str, OutcomeRange]:
        return {"y": between(self.low, self.high)}

    def prepare_outcome(self, raw: Mapping[str, Floats]) -> dict[str, Floats]:
        require_finite(raw["y"], self.outcome)
        return {"y": np.clip(self._scaled(raw["y"]), -FARTHEST, FARTHEST)}

    def out_of_range(self, raw: Mapping[str, Floats]) -> str | None:
        if np.all(np.abs(self._scaled(raw["y"])) <= FARTHEST):
            return None
        return (
            f"outcome column '{self.outcome}' has values far outside low to high: "
            "state the range in the unit of the column"
        )

    def check_outcomes(self, outcome: Mapping[str, Floats]) -> None:
        if outcome["y"].size == 0 or np.ptp(outcome["y"]) == 0.0:
            raise ValueError(
                f"outcome column '{self.outcome}' has the same value in every row: "
                "there is nothing to learn"
            )

    def extra_parameters(self) -> tuple[str, ...]:
        return ("log_sd",) if self.variance is None else ()

    def log_sd(self, theta: Floats) -> Floats:
        """Log of the residual sd on the prepared scale, theta on the last axis."""
        if self.variance is None:
            learnt: Floats = np.clip(theta[..., -1], -LARGEST_LOG_SD, LARGEST_LOG_SD)
            return learnt
        known = 0.5 * np.log(self.variance) - np.log(self.half_width)
        return np.full(theta.shape[:-1], known)

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        residual, log_sd = self.residual(theta, rows), self.log_sd(theta)
        squares = (residual * np.exp(-log_sd)) ** 2
        constant = 0.5 * np.log(2.0 * np.pi) + np.log(self.half_width)
        result: Floats = -0.5 * squares - log_sd - constant
        return result

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        residual, precision = self.residual(theta, rows), self._precision(theta)
        score = residual * precision
        if self.variance is not None:
            return RecordGradients(rows, score=score)
        return RecordGradients(rows, score=score, extra=(residual * score - 1.0)[None])

    def information_diagonal(self, theta: Floats, rows: Rows) -> Floats:
        precision = self._precision(theta)
        linear: Floats = rows.x**2 @ np.full(rows.count, precision)
        if self.variance is not None:
            return linear
        squares = 2.0 * precision * self.residual(theta, rows) ** 2
        return np.append(linear, squares.sum())

    @property
    def held_out_check(self) -> NumberCheck:
        return NumberCheck(self)

    @property
    def bounded_influence(self) -> LinearInfluence | LearntScaleInfluence:
        if self.variance is None:
            return LearntScaleInfluence(self)
        return LinearInfluence(self, self.variance)

    def curvature(self, design: Design) -> float:
        if self.variance is None:
            return 1.0 / TYPICAL_SD**2
        return self.half_width**2 / self.variance

    def predict(self, draws: Floats, rows: Rows, times: Floats | None = None) -> Floats:
        refuse_times(self, times)
        eta: Floats = draws[:, : rows.design.width] @ rows.x
        return self.centre + self.half_width * eta

    def fitted(self, theta: Floats, rows: Rows) -> Floats:
        eta = kernels.linear_predictor(theta[: rows.design.width], rows.x)
        return self.centre + self.half_width * eta

    def metrics(self, outcome: Mapping[str, Floats], fitted: Floats) -> Metrics:
        return numeric_metrics(self.centre + self.half_width * outcome["y"], fitted)

    def effect(self, change: Floats) -> Floats:
        return change

    def to_user_scale(self, draws: Floats, design: Design) -> Floats:
        """Coefficients in units of the outcome; the log of the sd in its unit."""
        user = super().to_user_scale(draws, design)
        user[..., : design.width] *= self.half_width
        if design.intercept is not None:
            user[..., 0] += self.centre
        if self.variance is None:
            user[..., -1] += np.log(self.half_width)
        return user

    def _scaled(self, y: Floats) -> Floats:
        scaled: Floats = (y - self.centre) / self.half_width
        return scaled

    def residual(self, theta: Floats, rows: Rows) -> Floats:
        """y - eta of each record on the prepared scale, shape ``(m,)``."""
        eta = kernels.linear_predictor(theta[: rows.design.width], rows.x)
        residual: Floats = rows.outcome["y"] - eta
        return residual

    def _precision(self, theta: Floats) -> float:
        return float(np.exp(-2.0 * self.log_sd(theta)))


@dataclass(frozen=True)
class LinearInfluence(LinearPredictorInfluence):
    """Huber's score for a known variance.

    With u = (y - eta) / sd and b = 2 c: r = clip(u, ±b) and v = P(|u| < b), of the
    parameters beta / sd. r is odd in u, hence unbiased under the model, and
    E[r²] ≤ E[r u] = E[dr / du] = v (Stein).
    """

    model: Linear
    variance: float

    def residuals(
        self, theta: Floats, rows: Rows, stop: float
    ) -> tuple[Floats, Floats]:
        sd = float(np.exp(self.model.log_sd(theta)))
        limit = RESIDUAL_STOP * stop
        residual = np.clip(self.model.residual(theta, rows) / sd, -limit, limit)
        return residual, np.asarray(2.0 * ndtr(limit) - 1.0)

    def variance_shares(
        self, bound: InfluenceBound, mean: float, variance: float
    ) -> tuple[float, float]:
        straight, square, _ = _huber(RESIDUAL_STOP * bound.stop)
        return square / straight, 1.0

    def kept_shares(
        self, bound: InfluenceBound, told: float, mean: float, variance: float
    ) -> tuple[float, float]:
        """v, where all residuals together would tell one."""
        return _huber(RESIDUAL_STOP * bound.stop)[0], 1.0

    def limits(self, stop: float) -> tuple[float, float]:
        """|r| ≤ b and v ≤ 1."""
        return RESIDUAL_STOP * stop, 1.0

    def basis(self, design: Design) -> Floats:
        """The score above is the gradient in beta / sd."""
        basis = super().basis(design)
        basis *= np.sqrt(self.variance) / self.model.half_width
        return basis


@dataclass(frozen=True)
class LearntScaleInfluence(BoundedInfluence):
    """Huber's proposal 2: scores of the coefficients and of the log sd tau.

    With u = (y - eta) / sd at theta, b = 2 c, psi = clip(u, ±b) and
    chi = psi² - e, e = E psi(Z)² for a standard normal Z,

        g = w (x psi, a chi),    A = w diag(v x x', a² k),
        v = P(|Z| < b),          k = 2 E[Z²; |Z| < b].

    g is the gradient in beta / sd and tau / a: *sd that of theta itself*, so that the
    scores of every round are bounded alike (:meth:`scale`).

    *Unbiased.* psi is odd and chi has mean zero. With y = eta* + sd* Z the derivatives
    of E g at the truth are v w x x' in beta* / sd and a k w in tau*, the others zero,
    because psi' u is odd. Var psi ≤ v and Var chi ≤ Cov(chi, Z²) = k (Stein; chi and
    Z² - chi both grow with |Z|), and psi and chi are uncorrelated: E g g' ≤ E A.

    Formal guarantees
    -----------------
    Let n = ‖x‖², h = max(e, b² - e), q = (a h / b)² and w = min(1, (C² + q) / (n + q)).
    As |psi| ≤ b and -e ≤ chi ≤ b² - e,

        ‖g‖ ≤ w √(n b² + a² h²) = w b √(n + q) ≤ b √(C² + q),
        ‖A‖_F ≤ w (v n + a² k) ≤ max(v, a² k / q) w (n + q)
              ≤ max(v, a² k / q) (C² + q),

    for every record, outcome and theta; neither depends on the sd.

    References
    ----------
    Huber (1964), Robust estimation of a location parameter, section 9. Huber and
    Ronchetti (2009), Robust statistics, chapter 7.
    """

    model: Linear

    def at(self, theta: Floats, rows: Rows, bound: InfluenceBound) -> Influence:
        limit = RESIDUAL_STOP * bound.stop
        straight, square, slope = _huber(limit)
        beside = _beside(limit)
        residual = self.model.residual(theta, rows) / self.scale(theta)
        held = np.clip(residual, -limit, limit)
        weights = mallows_weights(
            rows.squared_norms + beside, float(np.sqrt(bound.clip**2 + beside))
        )
        return Influence(
            rows,
            score=weights * held,
            information=weights * straight,
            extra=(SCALE_SHARE * weights * (held**2 - square))[None],
            cross=np.zeros((1, rows.count)),
            corner=(SCALE_SHARE**2 * slope * weights)[None, None],
        )

    def weighting(self, bound: InfluenceBound) -> Weighting:
        beside = _beside(RESIDUAL_STOP * bound.stop)
        return Weighting(bound.clip**2 + beside, beside)

    def variance_shares(
        self, bound: InfluenceBound, mean: float, variance: float
    ) -> tuple[float, float]:
        """Var psi = e over v, and Var chi over k."""
        limit = RESIDUAL_STOP * bound.stop
        straight, square, slope = _huber(limit)
        return square / straight, (_fourth(limit) - square**2) / slope

    def kept_shares(
        self, bound: InfluenceBound, told: float, mean: float, variance: float
    ) -> tuple[float, float]:
        """v over one, and k over the two that all residuals tell of a log sd."""
        straight, _, slope = _huber(RESIDUAL_STOP * bound.stop)
        return straight, slope / 2.0

    def sensitivities(self, bound: InfluenceBound) -> tuple[float, float]:
        """b √(C² + q) and max(v, a² k / q) (C² + q)."""
        limit = RESIDUAL_STOP * bound.stop
        straight, _, slope = _huber(limit)
        beside = _beside(limit)
        square = bound.clip**2 + beside
        most = max(straight, SCALE_SHARE**2 * slope / beside)
        return limit * float(np.sqrt(square)), most * square

    def basis(self, design: Design) -> Floats:
        """tau = a phi."""
        basis = super().basis(design)
        basis[-1, -1] = SCALE_SHARE
        return basis

    def unit(self, design: Design) -> float:
        return TYPICAL_SD

    def scale(self, theta: Floats) -> float:
        return float(np.exp(self.model.log_sd(theta)))


def _huber(limit: float) -> tuple[float, float, float]:
    """P(|Z| < b), E min(Z², b²) and 2 E[Z²; |Z| < b]."""
    inside = float(2.0 * ndtr(limit) - 1.0)
    density = float(np.exp(-0.5 * limit**2) / np.sqrt(2.0 * np.pi))
    squares = inside - 2.0 * limit * density
    return inside, squares + limit**2 * (1.0 - inside), 2.0 * squares


def _fourth(limit: float) -> float:
    """E min(Z⁴, b⁴) = E[Z⁴; |Z| < b] + b⁴ P(|Z| > b)."""
    inside, _, twice = _huber(limit)
    density = float(np.exp(-0.5 * limit**2) / np.sqrt(2.0 * np.pi))
    inner = 1.5 * twice - 2.0 * limit**3 * density
    return inner + limit**4 * (1.0 - inside)


def _beside(limit: float) -> float:
    """q: what the log sd adds to a record's squared length."""
    square = _huber(limit)[1]
    return (SCALE_SHARE * max(square, limit**2 - square) / limit) ** 2

"""Poisson regression of counts, with or without an exposure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from scipy.special import gammaln, pdtr

from cipherbayes.models import kernels
from cipherbayes.models.base import (
    Design,
    Model,
    RecordGradients,
    Rows,
    refuse_times,
    require_finite,
)
from cipherbayes.models.held_out import CountCheck
from cipherbayes.models.influence import LinearPredictorInfluence
from cipherbayes.models.metrics import Metrics, count_metrics
from cipherbayes.models.registry import register
from cipherbayes.typing import Floats

LARGEST_LOG_MEAN = 700.0
"""exp is evaluated at most here, where it is still far from overflow."""

COUNTS = 1.5
"""A count counts so far from its mean (times the stop c), corrected for that."""

INFORMATION = 2.0
"""The most information of a record (times the stop c)."""

LARGEST_MEAN = 1e6
"""Records with a larger mean are left out of bounded scores."""


@register
class Poisson(Model):
    """A count y with mean m = exp(eta + o), eta = x'beta, o a known offset.

    log p(y | x, beta) = y (eta + o) - exp(eta + o) - log y!; gradient x (y - m);
    second derivative in eta -m. The offset is the log of an exposure such as
    person-years, so that exp(eta) is a rate. Past eta + o = 700 the mean stays at
    exp(700), so that nothing overflows.

    Parameters
    ----------
    outcome
        Column of counts.
    exposure, offset
        Column of positive exposures, or of their natural logs; at most one of them.
    per
        The public exposure that the model's rates are for, e.g. 1000 for events per
        1000 days where exposures are in days: a scale on which the prior of the
        intercept makes sense. Rates are reported per unit of the exposure.
    """

    roles: ClassVar[Mapping[str, str]] = {
        "y": "outcome",
        "offset": "offset_column",
    }
    family: ClassVar[str] = "count"
    measure: ClassVar[str | None] = "rate ratio"
    kind: Literal["poisson"] = "poisson"
    outcome: str
    exposure: str | None = None
    offset: str | None = None
    per: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one_offset(self) -> Self:
        if self.exposure is not None and self.offset is not None:
            raise ValueError(
                "exposure and offset say the same thing twice: remove one of them"
            )
        return self

    @property
    def offset_column(self) -> str | None:
        """The column that exposures come from, if there is one."""
        return self.exposure or self.offset

    def prepare_outcome(self, raw: Mapping[str, Floats]) -> dict[str, Floats]:
        y = raw["y"]
        require_finite(y, self.outcome)
        if not np.all(y >= 0.0):
            raise ValueError(
                f"outcome column '{self.outcome}' has negative counts: "
                "correct or remove those rows"
            )
        if not np.all(y == np.floor(y)):
            raise ValueError(
                f"outcome column '{self.outcome}' has counts that are not whole "
                "numbers: give counts, and their exposure in a column of its own"
            )
        return {"y": y, "offset": self._prepared_offset(raw, y.size)}

    def check_outcomes(self, outcome: Mapping[str, Floats]) -> None:
        if not np.any(outcome["y"] > 0.0):
            raise ValueError(
                f"no events at all, every count in column '{self.outcome}' is zero: "
                "follow up longer"
            )

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        y, log_mean = rows.outcome["y"], self.log_mean(theta, rows)
        result: Floats = y * log_mean - _mean(log_mean) - gammaln(y + 1.0)
        return result

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        score = rows.outcome["y"] - _mean(self.log_mean(theta, rows))
        return RecordGradients(rows, score=score)

    def information_diagonal(self, theta: Floats, rows: Rows) -> Floats:
        result: Floats = rows.x**2 @ _mean(self.log_mean(theta, rows))
        return result

    @property
    def held_out_check(self) -> CountCheck:
        return CountCheck(self)

    @property
    def bounded_influence(self) -> PoissonInfluence:
        return PoissonInfluence(self)

    def curvature(self, design: Design) -> float:
        # The mean count per ``per``, of which nothing is known but that the study
        # chose ``per`` for it to be about one.
        return 1.0

    def predict(self, draws: Floats, rows: Rows, times: Floats | None = None) -> Floats:
        """The rate per unit of the exposure, or the mean count without one."""
        refuse_times(self, times)
        rate: Floats = _mean(draws @ rows.x - np.log(self.per))
        return rate

    def fitted(self, theta: Floats, rows: Rows) -> Floats:
        return _mean(self.log_mean(theta, rows))

    def metrics(self, outcome: Mapping[str, Floats], fitted: Floats) -> Metrics:
        return count_metrics(outcome["y"], fitted)

    def to_user_scale(self, draws: Floats, design: Design) -> Floats:
        """Log rates per unit of the exposure: the intercept less log(per)."""
        user = super().to_user_scale(draws, design)
        if design.intercept is not None:
            user[..., 0] -= np.log(self.per)
        return user

    def _prepared_offset(self, raw: Mapping[str, Floats], count: int) -> Floats:
        if self.offset_column is None:
            return np.full(count, -np.log(self.per))
        values = raw["offset"]
        require_finite(values, self.offset_column)
        if self.exposure is not None:
            if not np.all(values > 0.0):
                raise ValueError(
                    f"exposure column '{self.exposure}' has zero or negative "
                    "exposures: remove those rows"
                )
            values = np.log(values)
        offset: Floats = values - np.log(self.per)
        return np.clip(offset, -LARGEST_LOG_MEAN, LARGEST_LOG_MEAN)

    def out_of_range(self, raw: Mapping[str, Floats]) -> str | None:
        # An exposure is a positive float64, so its log is always within reason.
        if self.offset is None or np.all(
            np.abs(raw["offset"] - np.log(self.per)) <= LARGEST_LOG_MEAN
        ):
            return None
        return (
            f"offset column '{self.offset}' has offsets beyond reason: "
            "an offset is the natural log of an exposure"
        )

    def log_mean(self, theta: Floats, rows: Rows) -> Floats:
        """eta + o of each record, shape ``(m,)``."""
        eta = kernels.linear_predictor(theta, rows.x)
        log_mean: Floats = eta + rows.outcome["offset"]
        return log_mean


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
    quiet_stop: ClassVar[float] = 2.0

    def residuals(
        self, theta: Floats, rows: Rows, stop: float
    ) -> tuple[Floats, Floats]:
        mean = _mean(self.model.log_mean(theta, rows))
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
        held = np.clip(rows.outcome["y"], low, high) - low
        return share * (held - lifted), share * slope

    def limits(self, stop: float) -> tuple[float, float]:
        return COUNTS * stop, INFORMATION * stop


def _below(count: Floats, mean: Floats) -> Floats:
    """P(Y < count) of integers."""
    found: Floats = pdtr(np.maximum(count - 1.0, 0.0), mean)
    return np.where(count > 0.0, found, 0.0)


def _mean(log_mean: Floats) -> Floats:
    result: Floats = np.exp(np.minimum(log_mean, LARGEST_LOG_MEAN))
    return result

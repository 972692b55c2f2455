"""What models of counts share: the count, and its exposure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from cipherbayes.models import kernels
from cipherbayes.models.base import Model, refuse_times
from cipherbayes.models.design import Design
from cipherbayes.models.metrics import Metrics, count_metrics
from cipherbayes.models.outcomes import (
    FAMILY_RANGES,
    OutcomeRange,
    between,
    require_finite,
)
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Floats

LARGEST_LOG_MEAN = 700.0
"""exp is evaluated at most here, where it is still far from overflow."""


class CountModel(Model):
    """A count y with mean m = exp(eta + o), eta = x'beta, o a known offset.

    The offset is the log of an exposure such as person-years, so that exp(eta) is a
    rate. Past eta + o = 700 the mean stays at exp(700), so that nothing overflows.

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

    @property
    def outcome_ranges(self) -> Mapping[str, OutcomeRange]:
        return {"y": FAMILY_RANGES[self.family], "offset": between(1.0, 2.0)}

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

    def curvature_of(self, events: float, design: Design) -> float:
        return events

    def curvature(self, design: Design) -> float:
        # The mean count per ``per``, of which nothing is known but that the study
        # chose ``per`` for it to be about one.
        return 1.0

    def predict(self, draws: Floats, rows: Rows, times: Floats | None = None) -> Floats:
        """The rate per unit of the exposure, or the mean count without one."""
        refuse_times(self, times)
        eta = draws[:, : rows.design.width] @ rows.x
        return mean_of(eta - np.log(self.per))

    def fitted(self, theta: Floats, rows: Rows) -> Floats:
        return mean_of(self.log_mean(theta, rows))

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
        eta = kernels.linear_predictor(theta[: rows.design.width], rows.x)
        log_mean: Floats = eta + rows.outcome["offset"]
        return log_mean


def mean_of(log_mean: Floats, most: float = LARGEST_LOG_MEAN) -> Floats:
    """exp, held at exp(most)."""
    result: Floats = np.exp(np.minimum(log_mean, most))
    return result

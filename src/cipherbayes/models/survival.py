"""What every survival model shares: right-censored times on a public horizon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from cipherbayes.models.base import (
    Design,
    Family,
    Model,
    require_binary,
    require_finite,
)
from cipherbayes.typing import Floats

LARGEST_ETA = 700.0
"""exp is evaluated at most here, where it is still far from overflow."""

LARGEST_HORIZONS = 10.0
"""A time so many horizons long is a mistake of units, not a long follow-up."""


class Survival(Model):
    """Times t > 0 with events c ∈ {0, 1}, c = 0 meaning still event-free at t.

    The model sees t / horizon: log hazards are per horizon on the prepared scale
    and per unit of the time column on the user's. The horizon is a scale, nothing
    is truncated at it.

    Parameters
    ----------
    time, event
        Columns of the time and of the event indicator.
    horizon
        The public length of the follow-up, in the unit of the time column.
        Times beyond it are used as they are; beyond ten times it they are
        refused.
    """

    roles: ClassVar[Mapping[str, str]] = {"time": "time", "event": "event"}
    family: ClassVar[Family] = "survival"
    time: str
    event: str
    horizon: float = Field(gt=0.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _two_columns(self) -> Self:
        if self.time == self.event:
            raise ValueError("time and event name the same column: name one for each")
        return self

    def prepare_outcome(self, raw: Mapping[str, Floats]) -> dict[str, Floats]:
        time, event = raw["time"], raw["event"]
        require_binary(event, self.event)
        require_finite(time, self.time)
        if not np.all(time > 0.0):
            raise ValueError(
                f"time column '{self.time}' has zero or negative times: "
                "remove those rows or give them a small positive time"
            )
        if not np.all(time <= LARGEST_HORIZONS * self.horizon):
            raise ValueError(
                f"time column '{self.time}' has times beyond ten horizons: "
                "state the horizon in the unit of the column"
            )
        return {"time": time / self.horizon, "event": event}

    def check_outcomes(self, outcome: Mapping[str, Floats]) -> None:
        if not np.any(outcome["event"] == 1.0):
            raise ValueError(
                f"no events at all, every row is censored in column '{self.event}': "
                "code an event as 1 and follow up longer"
            )

    def curvature(self, design: Design) -> float:
        # t exp(eta) has the mean P(event) under the truth.
        return 0.5

    def scaled_times(self, times: Floats | None) -> Floats:
        """The user's times for a prediction, divided by the horizon."""
        if times is None:
            raise ValueError(
                f"a model of kind '{self.kind}' predicts survival at given times: "
                "name at least one"
            )
        if not (np.isfinite(times).all() and np.all(times >= 0.0)):
            raise ValueError("times to predict at must be finite and not negative")
        scaled: Floats = times / self.horizon
        return scaled

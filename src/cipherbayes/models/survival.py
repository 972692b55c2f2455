"""What every survival model shares: right-censored times on a public horizon."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from cipherbayes.models import kernels
from cipherbayes.models.base import Model
from cipherbayes.models.design import Design
from cipherbayes.models.held_out import SurvivalCheck
from cipherbayes.models.metrics import Metrics, survival_metrics
from cipherbayes.models.outcomes import OutcomeRange, require_binary, require_finite
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Floats

LARGEST_ETA = 700.0
"""exp is evaluated at most here, where it is still far from overflow."""

LARGEST_LOG_HAZARD = 600.0
"""exp is evaluated at most here where gradients multiply it with powers of time."""

SMALLEST_HORIZONS = 1e-12
"""A shorter time counts as this one, whose logarithm is harmless."""

LARGEST_HORIZONS = 10.0
"""A time so many horizons long is a mistake of units, not a long follow-up."""


class SurvivalCurves(ABC):
    """What a model that predicts survival over time offers besides curves."""

    @abstractmethod
    def reference_times(self) -> Floats:
        """Times in the user's unit at which a baseline curve is shown."""

    @abstractmethod
    def median(self, draws: Floats, rows: Rows) -> Floats:
        """Median survival time of each draw and record in the user's unit, infinite
        where it is not reached by the horizon, shape ``(s, m)``."""

    def parameters_after(self, time: float) -> set[str]:
        """Parameters that are only about what comes after a time in the user's unit."""
        return set()


def require_survival_curves(model: Model) -> SurvivalCurves:
    """A model that predicts survival over time; ValueError for any other."""
    if not isinstance(model, SurvivalCurves):
        raise ValueError(f"a model of kind '{model.kind}' has no survival times")
    return model


def horizon_of(model: Model) -> float | None:
    """The public length of a survival model's follow-up, in the unit of its times."""
    return getattr(model, "horizon", None)


def cause_of(model: Model) -> int | None:
    """Code of the competing cause that is modelled; None where there is no other."""
    return getattr(model, "cause", None)


class Survival(Model, SurvivalCurves):
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
        Times beyond it are used as they are. Times beyond ten horizons are
        refused; in a private study they count as ten horizons.
    cause
        Where the event column holds codes of competing causes (0 for none): the code
        whose cause-specific hazard is modelled. Records with another one are censored
        there, which is all that the likelihood of this cause needs.
    """

    roles: ClassVar[Mapping[str, str]] = {"time": "time", "event": "event"}
    family: ClassVar[str] = "survival"
    measure: ClassVar[str | None] = "hazard ratio"
    predicts_over_time: ClassVar[bool] = True
    response: ClassVar[tuple[str, ...]] = ("time", "event")
    time: str
    event: str
    horizon: float = Field(gt=0.0, allow_inf_nan=False)
    cause: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _two_columns(self) -> Self:
        if self.time == self.event:
            raise ValueError("time and event name the same column: name one for each")
        return self

    @property
    def outcome_ranges(self) -> Mapping[str, OutcomeRange]:
        whole = self.horizon
        return {
            "time": OutcomeRange(
                (0.2 * whole, whole), (1e-3 * whole, LARGEST_HORIZONS * whole)
            ),
            "event": OutcomeRange((0, 1), (1.0, 0.0), whole=True),
        }

    def prepare_outcome(self, raw: Mapping[str, Floats]) -> dict[str, Floats]:
        time, event = raw["time"], raw["event"]
        if self.cause is None:
            require_binary(event, self.event)
        else:
            require_finite(event, self.event)
            if not np.all((event >= 0.0) & (event == np.floor(event))):
                raise ValueError(
                    f"event column '{self.event}' has codes that are no whole numbers: "
                    "code causes as 1, 2 and so on, and no event as 0"
                )
            event = (event == self.cause).astype(np.float64)
        require_finite(time, self.time)
        if not np.all(time > 0.0):
            raise ValueError(
                f"time column '{self.time}' has zero or negative times: "
                "remove those rows or give them a small positive time"
            )
        held = np.clip(time / self.horizon, SMALLEST_HORIZONS, LARGEST_HORIZONS)
        return {"time": held, "event": event}

    def out_of_range(self, raw: Mapping[str, Floats]) -> str | None:
        if np.all(raw["time"] <= LARGEST_HORIZONS * self.horizon):
            return None
        return (
            f"time column '{self.time}' has times beyond ten horizons: "
            "state the horizon in the unit of the column"
        )

    def check_outcomes(self, outcome: Mapping[str, Floats]) -> None:
        if not np.any(outcome["event"] == 1.0):
            raise ValueError(
                f"no events at all, every row is censored in column '{self.event}': "
                "code an event as 1 and follow up longer"
            )

    @property
    def held_out_check(self) -> SurvivalCheck | None:
        return SurvivalCheck(self)

    def curvature_of(self, events: float, design: Design) -> float:
        return events

    def curvature(self, design: Design) -> float:
        # t exp(eta) has the mean P(event) under the truth.
        return 0.5

    @abstractmethod
    def cumulative_hazard(self, draws: Floats, rows: Rows, times: Floats) -> Floats:
        """-log S(t | x) of each draw and record, shape ``(s, m, k)``.

        Parameters
        ----------
        times
            In horizons; any shape that broadcasts to ``(s, m, k)``.
        """

    def fitted(self, theta: Floats, rows: Rows) -> Floats:
        """The risk, which is eta: larger means that the event comes sooner."""
        return kernels.linear_predictor(theta[: rows.design.width], rows.x)

    def metrics(self, outcome: Mapping[str, Floats], fitted: Floats) -> Metrics:
        time = outcome["time"] * self.horizon
        return survival_metrics(time, outcome["event"], fitted)

    def predict(self, draws: Floats, rows: Rows, times: Floats | None = None) -> Floats:
        """S(t | x) at ``times`` in the user's unit, shape ``(s, m, k)``."""
        scaled = self.scaled_times(times)
        with np.errstate(over="ignore"):  # an infinite cumulative hazard: S = 0
            survival: Floats = np.exp(-self.cumulative_hazard(draws, rows, scaled))
        return survival

    def reference_times(self) -> Floats:
        return tenths_of(self.horizon)

    def median(self, draws: Floats, rows: Rows) -> Floats:
        """Time at which S(t | x) falls to one half, in the user's unit, by bisection.

        Infinite where it is not reached by the horizon: beyond the follow-up there
        is nothing but the model. Shape ``(s, m)``.
        """
        low = np.zeros((len(draws), rows.count, 1))
        high = np.ones_like(low)
        with np.errstate(over="ignore"):
            reached = self.cumulative_hazard(draws, rows, high) >= np.log(2.0)
            for _ in range(52):
                middle = 0.5 * (low + high)
                past = self.cumulative_hazard(draws, rows, middle) >= np.log(2.0)
                high = np.where(past, middle, high)
                low = np.where(past, low, middle)
        found: Floats = np.where(reached, self.horizon * high, np.inf)[:, :, 0]
        return found

    def to_user_scale(self, draws: Floats, design: Design) -> Floats:
        """Log hazards per unit of the user's time: the intercept less log(horizon)."""
        user = super().to_user_scale(draws, design)
        if design.intercept is not None:
            user[..., 0] -= np.log(self.horizon)
        return user

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


def tenths_of(horizon: float) -> Floats:
    """A tenth of the horizon, two tenths, and so on up to the horizon."""
    tenths: Floats = horizon * np.arange(1.0, 11.0) / 10.0
    return tenths


def linear_predictors(draws: Floats, rows: Rows) -> Floats:
    """eta of each draw and record with a last axis for times, shape ``(s, m, 1)``."""
    eta: Floats = draws[:, : rows.design.width] @ rows.x
    return eta[:, :, None]


def bounded_exp(exponent: Floats, most: float = LARGEST_ETA) -> Floats:
    """exp, held at exp(most)."""
    result: Floats = np.exp(np.minimum(exponent, most))
    return result

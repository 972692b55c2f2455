"""How outcomes of each kind of model are invented, for studies that are simulated.

One draw a kind, registered here with :func:`add_draw`: the calibration on invented
columns and the trials on the columns of a table then know it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from scipy.stats import poisson

from cipherbayes.models import (
    Exponential,
    Gompertz,
    Linear,
    Logistic,
    Model,
    Piecewise,
    Poisson,
    Weibull,
)
from cipherbayes.typing import Floats, JsonObject

INTERVALS = 3
"""Intervals of a piecewise-constant baseline."""
SPARE = 5
"""Normal numbers that a trial draws beside its effects, of which a draw makes the
parameters that multiply no column."""
EARLIEST = 1e-9
"""The earliest time of a table, in horizons."""

_DRAWS: dict[str, OutcomeDraw] = {}


class OutcomeDraw(ABC):
    """Outcomes of one kind of model, at a known truth.

    Attributes
    ----------
    model
        Its class.
    settings
        Keys of its ``[model]`` table beside the outcome's columns.
    share_of
        The outcome whose mean is the share of events (of counts, their mean), which
        grows with the constant; None where there are no events.
    in_trials
        Whether trials on the columns of a table have it.
    """

    model: ClassVar[type[Model]]
    settings: ClassVar[JsonObject] = {}
    share_of: ClassVar[str | None] = "y"
    in_trials: ClassVar[bool] = True

    @property
    def kind(self) -> str:
        """The model's name in study files."""
        return str(self.model.model_fields["kind"].default)

    def model_table(self, columns: Mapping[str, str], half_range: float) -> JsonObject:
        """The ``[model]`` table of a study with these outcome columns, by role.

        Parameters
        ----------
        half_range
            Half of the public range of an outcome that is a number.
        """
        fields = self.model.roles.items()
        named = {field: columns[role] for role, field in fields if role in columns}
        return {"kind": self.kind, **named, **self.settings}

    def truth(
        self, effects: Floats, half_range: float, rng: np.random.Generator
    ) -> Floats:
        """All parameters: effects for a standard deviation of a column, then others."""
        return np.append(effects, self.other_parameters(rng.standard_normal(SPARE)))

    def other_parameters(self, normal: Floats) -> Floats:
        """Those that multiply no column, made of normal numbers; none as a rule."""
        return normal[:0]

    @abstractmethod
    def outcome(
        self, eta: Floats, others: Floats, rng: np.random.Generator
    ) -> dict[str, Floats]:
        """Prepared outcomes by role.

        Parameters
        ----------
        eta
            The linear predictor of each record.
        others
            Parameters that multiply no column.
        """

    def growing_outcome(
        self, eta: Floats, others: Floats, rng: np.random.Generator
    ) -> dict[str, Floats]:
        """The same, such that ``share_of`` grows with eta at equal random numbers."""
        return self.outcome(eta, others, rng)

    def as_in_a_table(self, values: Floats, role: str, half_range: float) -> Floats:
        """A prepared outcome as the column of a table has it."""
        return values


def add_draw(draw: OutcomeDraw, name: str | None = None) -> None:
    """Let simulations invent outcomes of another kind, by its name or another."""
    name = name or draw.kind
    if name in _DRAWS:
        raise ValueError(f"there is a draw called '{name}' already")
    _DRAWS[name] = draw


def draws() -> Mapping[str, OutcomeDraw]:
    """All draws, by the names that simulations give them."""
    return _DRAWS


def trial_draws() -> dict[str, OutcomeDraw]:
    """Draws that trials on the columns of a table have, by kind of model."""
    return {draw.kind: draw for draw in _DRAWS.values() if draw.in_trials}


class LogisticDraw(OutcomeDraw):
    """A binary outcome."""

    model = Logistic

    def outcome(
        self, eta: Floats, others: Floats, rng: np.random.Generator
    ) -> dict[str, Floats]:
        chance = 0.5 * (1.0 + np.tanh(0.5 * eta))
        return {"y": (rng.random(eta.size) < chance).astype(np.float64)}


class SurvivalDraw(OutcomeDraw):
    """Times to an event and whether it was seen, censored between a fifth of the
    horizon, which is one, and all of it."""

    settings: ClassVar[JsonObject] = {"horizon": 1.0}
    share_of = "event"

    @abstractmethod
    def time(self, gathered: Floats, others: Floats) -> Floats:
        """Times at which the baseline's log cumulative hazard is ``gathered``."""

    def outcome(
        self, eta: Floats, others: Floats, rng: np.random.Generator
    ) -> dict[str, Floats]:
        gathered = np.log(rng.exponential(size=eta.size)) - eta
        time = np.maximum(self.time(gathered, others), 1e-300)
        censored = rng.uniform(0.2, 1.0, eta.size)
        seen = (time <= censored).astype(np.float64)
        return {"time": np.minimum(time, censored), "event": seen}

    def as_in_a_table(self, values: Floats, role: str, half_range: float) -> Floats:
        return np.maximum(values, EARLIEST) if role == "time" else values


class ExponentialDraw(SurvivalDraw):
    """A constant hazard."""

    model = Exponential

    def time(self, gathered: Floats, others: Floats) -> Floats:
        return np.asarray(np.exp(np.minimum(gathered, 5.0)))


class WeibullDraw(SurvivalDraw):
    """A hazard that grows or falls as a power of time; its log shape is drawn."""

    model = Weibull

    def other_parameters(self, normal: Floats) -> Floats:
        return 0.3 * normal[:1]

    def time(self, gathered: Floats, others: Floats) -> Floats:
        return np.asarray(np.exp(np.minimum(gathered * math.exp(-others[0]), 5.0)))


class GompertzDraw(SurvivalDraw):
    """A hazard that grows or falls exponentially; its growth is drawn."""

    model = Gompertz

    def other_parameters(self, normal: Floats) -> Floats:
        return normal[1:2]

    def time(self, gathered: Floats, others: Floats) -> Floats:
        grown = others[0] * np.exp(gathered)
        time = np.log1p(np.maximum(grown, -1.0 + 1e-12)) / others[0]
        # Where the hazard dies out before, the event never comes.
        return np.where(grown > -1.0, time, np.inf)


class PiecewiseDraw(SurvivalDraw):
    """A hazard of its own in each interval; their logs are drawn."""

    model = Piecewise
    settings: ClassVar[JsonObject] = {**SurvivalDraw.settings, "intervals": INTERVALS}

    def other_parameters(self, normal: Floats) -> Floats:
        return 0.5 * normal[2:]

    def time(self, gathered: Floats, others: Floats) -> Floats:
        hazards = np.exp(others)
        ends = np.concatenate([[0.0], np.cumsum(hazards) / INTERVALS])
        target = np.exp(gathered)
        where = np.clip(np.searchsorted(ends, target) - 1, 0, INTERVALS - 1)
        return np.asarray(where / INTERVALS + (target - ends[where]) / hazards[where])

    def outcome(
        self, eta: Floats, others: Floats, rng: np.random.Generator
    ) -> dict[str, Floats]:
        return {**super().outcome(eta, others, rng), "entry": np.zeros(eta.size)}


class PoissonDraw(OutcomeDraw):
    """Counts, all over the same time."""

    model = Poisson

    def outcome(
        self, eta: Floats, others: Floats, rng: np.random.Generator
    ) -> dict[str, Floats]:
        counts = rng.poisson(np.exp(np.minimum(eta, 20.0))).astype(np.float64)
        return {"y": counts, "offset": np.zeros(eta.size)}

    def growing_outcome(
        self, eta: Floats, others: Floats, rng: np.random.Generator
    ) -> dict[str, Floats]:
        # Inverse cumulative probabilities: counts then grow with the constant.
        chance = rng.random(eta.size)
        return {"y": poisson.ppf(chance, np.exp(np.clip(eta, -30.0, 10.0)))}


class LinearDraw(OutcomeDraw):
    """A residual sd that is learnt: last of the parameters, its log."""

    model = Linear
    share_of = None

    def model_table(self, columns: Mapping[str, str], half_range: float) -> JsonObject:
        ends = {"low": -half_range, "high": half_range}
        return {**super().model_table(columns, half_range), **ends}

    def truth(
        self, effects: Floats, half_range: float, rng: np.random.Generator
    ) -> Floats:
        # Of an outcome that its public range maps to [-1, 1], with a residual sd of
        # one in the table.
        return np.append(effects / half_range, -math.log(half_range))

    def outcome(
        self, eta: Floats, others: Floats, rng: np.random.Generator
    ) -> dict[str, Floats]:
        return {"y": eta + math.exp(others[0]) * rng.standard_normal(eta.size)}

    def as_in_a_table(self, values: Floats, role: str, half_range: float) -> Floats:
        return half_range * values


class KnownVarianceDraw(LinearDraw):
    """A residual sd of one that the study states."""

    settings: ClassVar[JsonObject] = {"variance": 1.0}
    in_trials = False

    def outcome(
        self, eta: Floats, others: Floats, rng: np.random.Generator
    ) -> dict[str, Floats]:
        return {"y": eta + rng.standard_normal(eta.size)}


add_draw(LogisticDraw())
add_draw(ExponentialDraw())
add_draw(WeibullDraw())
add_draw(KnownVarianceDraw())
add_draw(LinearDraw(), "learnt-variance")
add_draw(PoissonDraw())
add_draw(GompertzDraw())
add_draw(PiecewiseDraw())

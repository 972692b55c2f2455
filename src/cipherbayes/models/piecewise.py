"""Piecewise-exponential survival: the Cox model on a public time grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from cipherbayes.models import kernels
from cipherbayes.models.design import Design
from cipherbayes.models.hazard_influence import followed_share
from cipherbayes.models.held_out import SurvivalCheck
from cipherbayes.models.influence import (
    BoundedInfluence,
    Influence,
    InfluenceBound,
    Weighting,
    mallows_weights,
)
from cipherbayes.models.outcomes import OutcomeRange, require_finite
from cipherbayes.models.registry import register
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.models.survival import LARGEST_HORIZONS, Survival
from cipherbayes.typing import Floats

LARGEST_HALF = 350.0
"""eta and the log baseline hazards are held within ± this, each: their sum is a
hazard of at most exp(700)."""


@register
class Piecewise(Survival):
    """A survival time with hazard exp(b_j + eta) in interval j, eta = x'beta.

    With d_j the time at risk in interval j and c_j whether the event is in it,
    log p = sum_j c_j (b_j + eta) - d_j exp(b_j + eta); gradient x (c - L) in beta,
    L = sum_j d_j exp(b_j + eta), and c_j - d_j exp(b_j + eta) in b_j.

    Cox's partial likelihood is not a sum over records, so it cannot be clipped
    record by record; this is its full likelihood with the baseline hazard constant
    between public cuts, and its hazard ratios tend to Cox's as the grid refines
    (Holford 1980, Biometrics 36; Laird and Olivier 1981, JASA 76). Tied times need
    no correction. The baseline takes the place of an intercept.

    Parameters
    ----------
    cuts
        Where the baseline hazard may change, rising, in the unit of the time column,
        between 0 and the horizon; the last interval is open.
    intervals
        Instead of ``cuts``: so many intervals of equal length up to the horizon.
    entry
        Column of the times from which records are at risk (left truncation); all
        from 0 where left out.
    """

    roles: ClassVar[Mapping[str, str]] = {
        "time": "time",
        "event": "event",
        "entry": "entry",
    }
    needs_intercept: ClassVar[bool] = False
    title: ClassVar[str | None] = (
        "proportional-hazards regression with a piecewise-constant baseline"
    )
    kind: Literal["piecewise"] = "piecewise"
    cuts: tuple[float, ...] | None = Field(default=None, min_length=1, max_length=1000)
    intervals: int | None = Field(default=None, ge=2, le=1000)
    entry: str | None = None

    @model_validator(mode="after")
    def _has_a_grid(self) -> Self:
        if (self.cuts is None) == (self.intervals is None):
            raise ValueError("needs either cuts or intervals")
        ends = (0.0, *(self.cuts or ()), self.horizon)
        if not all(a < b for a, b in pairwise(ends)):
            raise ValueError("cuts must rise, from above 0 to below the horizon")
        if self.entry in (self.time, self.event):
            raise ValueError("entry names the column of the time or of the event")
        return self

    @cached_property
    def starts(self) -> tuple[float, ...]:
        """Where each interval starts, in the user's unit."""
        if self.intervals is None:
            return (0.0, *(self.cuts or ()))
        return tuple(self.horizon * j / self.intervals for j in range(self.intervals))

    @property
    def outcome_ranges(self) -> Mapping[str, OutcomeRange]:
        entry = OutcomeRange((0.0, 0.1 * self.horizon), (0.0, 0.0))
        return {**super().outcome_ranges, "entry": entry}

    def parameters_after(self, time: float) -> set[str]:
        pairs = zip(self.extra_parameters(), self.starts, strict=True)
        return {name for name, start in pairs if start >= time}

    def prepare_outcome(self, raw: Mapping[str, Floats]) -> dict[str, Floats]:
        prepared = super().prepare_outcome(raw)
        entry = np.zeros_like(prepared["time"])
        if self.entry is not None:
            require_finite(raw["entry"], self.entry)
            entry = np.minimum(raw["entry"] / self.horizon, LARGEST_HORIZONS)
            if not np.all(entry >= 0.0):
                raise ValueError(
                    f"entry column '{self.entry}' has negative times: "
                    "count time from the same origin as the time column"
                )
            if not np.all(raw["entry"] < raw["time"]):
                raise ValueError(
                    f"entry column '{self.entry}' has entries at or after the time in "
                    f"'{self.time}': remove rows that were never at risk"
                )
        return {**prepared, "entry": entry}

    def check_outcomes(self, outcome: Mapping[str, Floats]) -> None:
        super().check_outcomes(outcome)
        used = np.unique(self.interval(outcome["time"][outcome["event"] == 1.0]))
        if used.size == 1:
            raise ValueError(
                "the grid misses the events, which are all in one of its intervals: "
                f"place cuts among the event times of column '{self.time}'"
            )

    @property
    def held_out_check(self) -> SurvivalCheck | None:
        # Those who enter late are not a sample of everybody's survival.
        return super().held_out_check if self.entry is None else None

    def extra_parameters(self) -> tuple[str, ...]:
        ends = [f"{start:g}" for start in self.starts]
        closed = [f"log_hazard[{a}-{b}]" for a, b in pairwise(ends)]
        return (*closed, f"log_hazard[{ends[-1]}-]")

    def parameters(self, design: Design) -> tuple[str, ...]:
        if design.intercept is not None:
            raise ValueError(
                "a model of kind 'piecewise' has a baseline, not an intercept: "
                "prepare its columns without the constant one"
            )
        return super().parameters(design)

    def constants(self, design: Design) -> tuple[int, ...]:
        return tuple(range(design.width, design.width + len(self.starts)))

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        eta, baseline = self._eta(theta, rows), self._baseline(theta)
        at_event = baseline[self.interval(rows.outcome["time"])]
        # The hazard per horizon is `horizon` times that per unit of the user's time.
        log_hazard = eta + at_event - np.log(self.horizon)
        result: Floats = rows.outcome["event"] * log_hazard
        # Not a matrix product, whose last digits depend on where a record stands.
        lived = kernels.add_rows(np.exp(baseline)[:, None] * self._at_risk(rows))
        result -= np.exp(eta) * lived
        return result

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        hazards = self.hazards(theta, rows)
        score = rows.outcome["event"] - kernels.add_rows(hazards)
        event_in = self.interval(rows.outcome["time"])
        extra = np.negative(hazards, out=hazards)
        extra[event_in, np.arange(rows.count)] += rows.outcome["event"]
        return RecordGradients(rows, score=score, extra=extra)

    def information_diagonal(self, theta: Floats, rows: Rows) -> Floats:
        hazards = self.hazards(theta, rows)
        return np.append(rows.x**2 @ hazards.sum(axis=0), hazards.sum(axis=1))

    def largest_curvature(self, design: Design) -> float:
        # The baseline does what an intercept would, its events in several parameters.
        return self.curvature(design) * (1.0 + design.width / 10.0)

    @property
    def bounded_influence(self) -> PiecewiseInfluence:
        return PiecewiseInfluence(self)

    def cumulative_hazard(self, draws: Floats, rows: Rows, times: Floats) -> Floats:
        eta = np.clip(
            draws[:, : rows.design.width] @ rows.x, -LARGEST_HALF, LARGEST_HALF
        )
        baseline = np.exp(self._baseline(draws))
        starts, widths = self._grid()
        total = np.zeros(np.broadcast_shapes((len(draws), 1, 1), times.shape))
        for j, (start, width) in enumerate(zip(starts, widths, strict=True)):
            total = total + baseline[:, j, None, None] * np.clip(
                times - start, 0.0, width
            )
        hazards: Floats = np.exp(eta)[:, :, None] * total
        return hazards

    def to_user_scale(self, draws: Floats, design: Design) -> Floats:
        """Log baseline hazards per unit of the user's time, all features at zero."""
        user = super().to_user_scale(draws, design)
        shift = design.shift(draws[..., : design.width])
        user[..., design.width :] -= shift[..., None] + np.log(self.horizon)
        return user

    def _grid(self) -> tuple[Floats, Floats]:
        """Starts and widths of the intervals, in horizons."""
        return _in_horizons(self.starts, self.horizon)

    def interval(self, time: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """In which interval (start, end] a time lies."""
        found = np.searchsorted(self._grid()[0], time, side="left") - 1
        return found.astype(np.int64)

    def _at_risk(self, rows: Rows) -> Floats:
        """d_j of each record, shape ``(J, m)``."""
        starts, widths = self._grid()
        time, low = rows.outcome["time"], starts[:, None]
        if self.entry is not None:  # records of another study may have no such role
            low = np.maximum(rows.outcome["entry"], low)
        high = np.minimum(time, (starts + widths)[:, None])
        at_risk: Floats = np.maximum(high - low, 0.0)
        return at_risk

    def _eta(self, theta: Floats, rows: Rows) -> Floats:
        eta = kernels.linear_predictor(theta[: rows.design.width], rows.x)
        held: Floats = np.clip(eta, -LARGEST_HALF, LARGEST_HALF)
        return held

    def _baseline(self, theta: Floats) -> Floats:
        held: Floats = np.clip(
            theta[..., -len(self.starts) :], -LARGEST_HALF, LARGEST_HALF
        )
        return held

    def hazards(self, theta: Floats, rows: Rows) -> Floats:
        """d_j exp(b_j + eta) of each record, shape ``(J, m)``."""
        hazards = self._at_risk(rows)
        hazards *= np.exp(self._baseline(theta))[:, None]
        hazards *= np.exp(self._eta(theta, rows))
        return hazards


@lru_cache
def _in_horizons(starts: tuple[float, ...], horizon: float) -> tuple[Floats, Floats]:
    """Asked for in every pass: twice for each block of records."""
    scaled = np.array(starts) / horizon
    widths = np.append(np.diff(scaled), np.inf)
    scaled.setflags(write=False)
    widths.setflags(write=False)
    return scaled, widths


@dataclass(frozen=True)
class PiecewiseInfluence(BoundedInfluence):
    """∫ z dM stopped where the cumulative hazard reaches c; z = (x, interval).

    L_j is the hazard gathered in interval j, cut where Σ_j L_j reaches c; the
    event counts where that is not before it. g = w (x (c - L), c_j - L_j), and
    A = w Σ_j L_j z_j z_j'.
    """

    model: Piecewise

    multiplicative: ClassVar[bool] = True
    multilevel: ClassVar[bool] = True
    quiet_stop: ClassVar[float] = 1.5

    def at(self, theta: Floats, rows: Rows, bound: InfluenceBound) -> Influence:
        hazards = self.model.hazards(theta, rows)
        after = np.cumsum(hazards, axis=0)
        gathered = np.minimum(after, bound.stop)
        # Differences of what is cut already: those of huge hazards would lose digits.
        followed = np.diff(gathered, axis=0, prepend=0.0)
        event = np.where(after[-1] <= bound.stop, rows.outcome["event"], 0.0)
        weights = mallows_weights(rows.squared_norms + 1.0, bound.clip)
        total = gathered[-1]
        extra = -followed
        extra[self.model.interval(rows.outcome["time"]), np.arange(rows.count)] += event
        corner = np.zeros((len(followed), len(followed), rows.count))
        index = np.arange(len(followed))
        corner[index, index] = weights * followed
        return Influence(
            rows,
            score=weights * (event - total),
            information=weights * total,
            extra=weights * extra,
            cross=weights * followed,
            corner=corner,
        )

    def weighting(self, bound: InfluenceBound) -> Weighting:
        return Weighting(bound.clip**2, 1.0)

    def kept_shares(
        self, bound: InfluenceBound, told: float, mean: float, variance: float
    ) -> tuple[float, float]:
        share = followed_share(told, variance, bound.stop)
        return share, share

    def sensitivities(self, bound: InfluenceBound) -> tuple[float, float]:
        """w² max(n, c² n, (1 - c)² (n - 1) + 1 + c²) and w c n, n = ‖x‖² + 1.

        w = min(1, C² / n). With l ≤ c the hazard gathered, the score is -l x and -L_j
        without an event, ‖L‖ ≤ l; with one (1 - l) x and at most 1 + l² for the square
        of the baseline's part, all hazard gathered before the interval of the event.
        That is convex in l: largest at 0 or c.
        """
        stop, square = bound.stop, max(bound.clip**2, 1.0)
        weight = min(1.0, bound.clip**2)
        late = (1.0 - stop) ** 2 * (square - 1.0) + 1.0 + stop**2
        most = max(square, stop**2 * square, late)
        return weight * float(np.sqrt(most)), stop * bound.clip**2

    def constants(self, design: Design) -> tuple[int, ...]:
        return self.model.constants(design)

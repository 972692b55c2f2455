"""What held-out rows say of predicted numbers, classes and counts.

Like :mod:`~cipherbayes.models.held_out`: sums that bound every record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cipherbayes.models.held_out import (
    FARTHEST,
    HeldOutCheck,
    OutcomeColumn,
    bin_of,
    gridded,
    mean_prediction,
    record_shares,
    weighted_sums,
)
from cipherbayes.models.influence import LinearPredictorInfluence
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Floats

if TYPE_CHECKING:  # which say how they are checked
    from cipherbayes.models.counts import CountModel
    from cipherbayes.models.linear import Linear
    from cipherbayes.models.negative_binomial import NegativeBinomial
    from cipherbayes.models.ordinal import Ordinal

NUMBER_BINS = 10
COUNT_EDGES = np.geomspace(1.0 / 16.0, 16.0, 17)
"""Edges of 18 bins of predicted counts."""
SUMMED_BINS = 3
"""How many neighbouring bins share one sum of outcomes: each sum has the same noise,
however many bins it is of."""
RESIDUAL_SDS = 3.0
"""A number's residual counts up to so many standard deviations."""


@dataclass(frozen=True)
class NumberCheck(HeldOutCheck):
    """Sums of a number and of its prediction by predicted bin, and squared errors.

    A record adds 1, u(y) and u(m) to its bin, u the place within the public range held
    within [-1, 1], and its squared error in ``error_reach`` half widths, held at one:
    norm 2 or less.

    Residual (y - m) / 3 sd held within [-1, 1], its variance at most 1/9.
    """

    model: Linear
    error_reach: ClassVar[float] = 1.0

    bound = 2.0
    residual_bound = 1.01
    cells = 3 * NUMBER_BINS + 1

    @property
    def outcomes(self) -> tuple[OutcomeColumn, ...]:  # type: ignore[override]
        return (
            OutcomeColumn(
                "y",
                self.model.outcome,
                tuple(np.linspace(-1.0, 1.0, 17)[1:-1]),
                self.model.centre,
                self.model.half_width,
            ),
        )

    @property
    def ends(self) -> tuple[float, float]:
        """The range within which numbers count."""
        return self.model.low, self.model.high

    @property
    def unit(self) -> float:
        return self.model.half_width

    def sums(self, draws: Floats, rows: Rows, several: int = 1) -> Floats:
        mean = self._place(mean_prediction(self.model.fitted, draws, rows, several))
        seen, shares = self._seen(rows)[::several], record_shares(rows, several)
        place = bin_of(np.linspace(-1.0, 1.0, NUMBER_BINS + 1)[1:-1], mean)
        error = np.clip((seen - mean) / self.error_reach, -1.0, 1.0) ** 2
        parts = [
            weighted_sums(place, weights, NUMBER_BINS, shares)
            for weights in (np.ones(mean.size), np.clip(seen, -1.0, 1.0), mean)
        ]
        everywhere = np.zeros(mean.size, dtype=np.int64)
        squares = weighted_sums(everywhere, error, 1, shares)
        return np.concatenate([*parts, squares])

    def residuals(self, theta: Floats, rows: Rows) -> tuple[Floats, Floats]:
        mean = self._place(self.model.fitted(theta, rows))
        sd = float(np.exp(np.clip(self.model.log_sd(theta), -FARTHEST / 10, 10.0)))
        scaled = np.nan_to_num((rows.outcome["y"] - mean) / (RESIDUAL_SDS * sd))
        residual = np.clip(scaled, -1.0, 1.0)
        # Of a normal variable held at three standard deviations: 0.995.
        variance = np.full(rows.count, 0.995 / RESIDUAL_SDS**2)
        return gridded(residual)[None], gridded(variance)[None]

    def slope(self, draws: Floats) -> float:
        # A residual moves by 1 / 3 sd, and its variance is 1 / 9.
        sd = np.exp(np.clip(self.model.log_sd(draws), -FARTHEST / 10, 10.0))
        return float((RESIDUAL_SDS / sd).mean())

    def _seen(self, rows: Rows) -> Floats:
        """Where outcomes are in the range."""
        return rows.outcome["y"]

    def _place(self, mean: Floats) -> Floats:
        low, high = self.ends
        place = (mean - 0.5 * (low + high)) / (0.5 * (high - low))
        return np.clip(np.nan_to_num(place), -1.0, 1.0)


@dataclass(frozen=True)
class OrdinalCheck(NumberCheck):
    """A check by the mean class, from the lowest class to the highest.

    Residual s, the derivative of log p in eta, |s| ≤ 1, of variance E s² ≤ 1/3: norm
    1.06 or less.
    """

    model: Ordinal  # type: ignore[assignment]
    error_reach: ClassVar[float] = 2.0

    residual_bound = 1.06

    @property
    def outcomes(self) -> tuple[OutcomeColumn, ...]:  # type: ignore[override]
        classes = self.model.classes
        edges = tuple(np.arange(1.0, classes) - 0.5)
        names = tuple(str(k) for k in range(classes))
        return (OutcomeColumn("y", self.model.outcome, edges, levels=names),)

    @property
    def ends(self) -> tuple[float, float]:
        return 0.0, self.model.classes - 1.0

    @property
    def unit(self) -> float:
        return 1.0  # of log odds

    def residuals(self, theta: Floats, rows: Rows) -> tuple[Floats, Floats]:
        score, variance = self.model.bounded_influence.scores(theta, rows)
        residual = np.clip(np.nan_to_num(score), -1.0, 1.0)
        spread = np.clip(np.nan_to_num(variance), 0.0, 1.0 / 3.0)
        return gridded(residual)[None], gridded(spread)[None]

    def slope(self, draws: Floats) -> float:
        return 1.0

    def _seen(self, rows: Rows) -> Floats:
        return self._place(rows.outcome["y"])


@dataclass(frozen=True)
class CountCheck(HeldOutCheck):
    """Sums of a count by predicted bin.

    A record adds 1 to its bin, and y / cap, held within [0, 1], to a sum of its bin and
    the two next to it, the cap known for each bin (``reach`` times its upper edge, and
    four): norm √2 or less.

    Residual: that of the noise-aware method, |r| ≤ 1.5 and variance at most 2, divided
    by 1.5: norm √(1 + (8/9)²) or less, which is below 1.35.
    """

    model: CountModel
    reach: ClassVar[float] = 3.0

    bound = float(np.sqrt(2.0))
    residual_bound = 1.35
    cells = (COUNT_EDGES.size + 1) * (SUMMED_BINS + 1) // SUMMED_BINS

    @property
    def outcomes(self) -> tuple[OutcomeColumn, ...]:  # type: ignore[override]
        names = ("0", "1", "2", "3", "4", "5 to 9", "10 or more")
        edges = (0.5, 1.5, 2.5, 3.5, 4.5, 9.5)
        return (OutcomeColumn("y", self.model.outcome, edges, levels=names),)

    @property
    def caps(self) -> Floats:
        """The most that a count of each bin counts."""
        return self.reach * np.append(COUNT_EDGES, 2.0 * COUNT_EDGES[-1]) + 4.0

    def sums(self, draws: Floats, rows: Rows, several: int = 1) -> Floats:
        mean = np.minimum(
            mean_prediction(self.model.fitted, draws, rows, several), 1e300
        )
        place, bins = bin_of(COUNT_EDGES, mean), COUNT_EDGES.size + 1
        counted = np.clip(rows.outcome["y"][::several] / self.caps[place], 0.0, 1.0)
        shares = record_shares(rows, several)
        ones = weighted_sums(place, np.ones(mean.size), bins, shares)
        together = place // SUMMED_BINS
        outcomes = weighted_sums(together, counted, bins // SUMMED_BINS, shares)
        return np.concatenate([ones, outcomes])

    def residuals(self, theta: Floats, rows: Rows) -> tuple[Floats, Floats]:
        score, variance = self._scores(theta, rows)
        residual = np.clip(np.nan_to_num(score) / 1.5, -1.0, 1.0)
        spread = np.clip(np.nan_to_num(variance) / 1.5**2, 0.0, 2.0 / 1.5**2)
        return gridded(residual)[None], gridded(spread)[None]

    def slope(self, draws: Floats) -> float:
        # A residual and its slope are divided by 1.5, its variance by the square.
        return 1.5

    def dispersion(self, draws: Floats) -> float:
        """alpha, where a count with mean m has the variance m + alpha m²."""
        return 0.0

    def _scores(self, theta: Floats, rows: Rows) -> tuple[Floats, Floats]:
        influence = self.model.bounded_influence
        assert isinstance(influence, LinearPredictorInfluence)
        return influence.residuals(theta, rows, 1.0)


@dataclass(frozen=True)
class OverdispersedCheck(CountCheck):
    """A check of counts that vary by more than Poisson counts: they count farther.

    Residual a s, s the derivative in eta of the log probability of the count held at
    its cap and a = min(1, 0.45 / √v, 2 / v) with v = E s², of the slope a v.
    """

    model: NegativeBinomial
    reach: ClassVar[float] = 8.0

    def dispersion(self, draws: Floats) -> float:
        return float(np.exp(np.clip(draws[:, -1], -12.0, 12.0)).mean())

    def _scores(self, theta: Floats, rows: Rows) -> tuple[Floats, Floats]:
        with np.errstate(all="ignore"):
            score, variance = self.model.bounded_influence.scores(theta, rows)
            held = np.maximum(np.nan_to_num(variance), 1e-12)
            share = np.minimum(np.minimum(1.0, 0.45 / np.sqrt(held)), 2.0 / held)
        return share * score, share * held

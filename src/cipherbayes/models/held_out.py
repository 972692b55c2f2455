"""What held-out rows say of a fit, in sums that bound every record.

Two kinds of sums. *Cells*: a record counts as one in cells of predicted bin × what
happened to it, shared between three neighbouring bins by where its prediction is
(:mod:`~cipherbayes.models.shared_bins`), so that how well predictions rank and fit can
be told from the noised cells. *Residuals*: what happened less what was expected, within
[-1, 1], and its variance under the model; a fit whose residuals do not add up to zero
in some group of records misses something there.

Formal guarantees
-----------------
A record's bins and weights have the same bits wherever it stands in a block:
predictions come from one vector of parameters at a time, and are added in one order.
Everything added is a multiple of 2⁻²⁰ of at most one, so sums are exact and do not
depend on their order.
Where a record is a person, its rows count by their shares
(:mod:`~cipherbayes.data.persons`), and a release leaves room for the roundings of sums.
A record whose missing values are drawn has several rows, which stand together: it is
one record, with the mean of what is predicted for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logit

from cipherbayes.models import kernels
from cipherbayes.models.rows import Rows
from cipherbayes.models.shared_bins import SHARED_NORM, shared_bins
from cipherbayes.typing import Floats, Integers

if TYPE_CHECKING:  # which say how they are checked
    from cipherbayes.models.logistic import Logistic
    from cipherbayes.models.survival import Survival

GRID = 2.0**20
"""Contributions are multiples of its inverse."""
LOG_ODDS = np.linspace(-5.0, 5.0, 16)
"""Edges of 17 bins of predicted log odds: fixed, so that they tell nothing."""
LOG_HAZARDS = np.linspace(-4.0, 2.0, 13)
"""Edges of 14 bins of the log cumulative hazard predicted for the horizon."""
INTERVALS = 4
"""Equal intervals of the horizon, at whose ends survival is checked."""
MOST_HAZARD = 0.75
"""A record is followed until so much cumulative hazard was predicted for it."""
FARTHEST = 700.0


@dataclass(frozen=True)
class OutcomeColumn:
    """An outcome as a table of baseline characteristics shows it.

    Attributes
    ----------
    role, column
        Its role in the model, and the user's name for it.
    edges
        Rising edges between its bins, in the units of the prepared outcome.
    centre, scale
        The user's value is ``centre + scale * prepared``.
    levels
        Names of the bins, where they are levels and not ranges of a number.
    """

    role: str
    column: str
    edges: tuple[float, ...]
    centre: float = 0.0
    scale: float = 1.0
    levels: tuple[str, ...] | None = None

    def bins(self, outcome: Mapping[str, Floats]) -> Integers:
        """The bin of each record."""
        found: Integers = np.searchsorted(
            np.array(self.edges), outcome[self.role], side="left"
        ).astype(np.int64)
        return found

    def window(self) -> tuple[float, float]:
        """Middle and half width of a number's ranges, which are alike."""
        step = self.edges[1] - self.edges[0]
        middle = 0.5 * (self.edges[0] + self.edges[-1])
        return middle, self.edges[-1] - middle + step

    def places(self, outcome: Mapping[str, Floats]) -> Floats:
        """Where among a number's ranges each record is, from -1 to 1."""
        middle, half = self.window()
        away = np.nan_to_num((outcome[self.role] - middle) / half)
        place: Floats = np.clip(away, -1.0, 1.0)
        return place


class HeldOutCheck(ABC):
    """How a model's predictions are compared with held-out rows.

    Attributes
    ----------
    cells
        Length of :meth:`sums`.
    bound
        Largest norm of what a record adds to it.
    kinds
        Residuals of a record.
    residual_bound
        Largest norm of a record's residuals together with their variances.
    variance_weight
        What variances are multiplied by before they are added up.
    outcomes
        The outcome columns, for a table of baseline characteristics.
    unit
        What one of the linear predictor is in the user's own units.
    """

    cells: int
    bound: float
    kinds: int = 1
    residual_bound: float
    variance_weight: float = 1.0
    outcomes: tuple[OutcomeColumn, ...]

    @property
    def unit(self) -> float:
        return 1.0

    @abstractmethod
    def sums(self, draws: Floats, rows: Rows, several: int = 1) -> Floats:
        """Sums over the records, predictions averaged over ``draws`` (s, d).

        Parameters
        ----------
        several
            Rows of each record, alike in outcomes: what was drawn for its gaps.
        """

    @abstractmethod
    def residuals(self, theta: Floats, rows: Rows) -> tuple[Floats, Floats]:
        """Residuals and their weighted variances under the model, shape
        ``(kinds, m)``."""

    def slope(self, draws: Floats) -> float:
        """By how much the mean of a residual moves with the linear predictor, in units
        of its variance."""
        return 1.0

    def log_baselines(self, draws: Floats, rows: Rows) -> Floats:
        """What every linear predictor has besides its columns, for each draw and kind
        of residual: ``(s, kinds)``."""
        return np.zeros((len(draws), self.kinds))

    def events(self, sums: Floats) -> Floats:
        """Those of the sums that count events; none where there are no events."""
        return np.zeros(0)


@dataclass(frozen=True)
class BinaryCheck(HeldOutCheck):
    """Bins of predicted log odds × outcome: a record is one, shared between three
    neighbouring bins, norm 0.7706.

    Residual y - p of variance p (1 - p): (1 - p)² (1 + p²) ≤ 1, and the same with p
    and 1 - p exchanged.
    """

    model: Logistic

    bound = SHARED_NORM
    residual_bound = 1.0
    cells = 2 * (LOG_ODDS.size + 1)

    @property
    def outcomes(self) -> tuple[OutcomeColumn, ...]:  # type: ignore[override]
        return (_binary("y", self.model.outcome),)

    def sums(self, draws: Floats, rows: Rows, several: int = 1) -> Floats:
        probability = mean_prediction(self.model.fitted, draws, rows, several)
        log_odds = logit(np.clip(probability, 1e-12, 1.0 - 1e-12))
        happened = _flag(rows, "y")[::several]
        shares = record_shares(rows, several)
        return _counted(LOG_ODDS, log_odds, happened, 2, shares)

    def events(self, sums: Floats) -> Floats:
        return sums[1::2]

    def residuals(self, theta: Floats, rows: Rows) -> tuple[Floats, Floats]:
        probability = np.clip(self.model.fitted(theta, rows), 0.0, 1.0)
        residual = _flag(rows, "y") - probability
        variance = probability * (1.0 - probability)
        return gridded(residual)[None], gridded(variance)[None]


@dataclass(frozen=True)
class SurvivalCheck(HeldOutCheck):
    """Bins of predicted risk × what happened: a record is one, shared between three
    neighbouring bins, norm 0.7706.

    What happened: an event in one of four intervals of the horizon, censored in one of
    them, or event-free at the horizon.

    Residuals: those of the martingale events less cumulative hazard L, stopped where
    L = c = ¾, in the first and in the second half of the horizon; their variances are
    the parts of the cumulative hazard, L₁ + L₂ ≤ c, and count half. An event in the
    first half gives (1 - L₁)² + L₁² / 4 ≤ 1, none 1¼ (L₁² + L₂²) ≤ 1¼ c², and one in
    the second half 1¼ L₁² + (1 - L₂)² + L₂² / 4, convex and at its largest where L₁ = c
    and L₂ = 0: 1 + 1¼ c² < 1.306², with room for the grid.
    """

    model: Survival

    bound = SHARED_NORM
    kinds = 2
    residual_bound = 1.306
    variance_weight = 0.5
    cells = (LOG_HAZARDS.size + 1) * (2 * INTERVALS + 1)

    @property
    def outcomes(self) -> tuple[OutcomeColumn, ...]:  # type: ignore[override]
        edges = tuple(np.arange(1, 10) / 10.0)
        return (
            OutcomeColumn(
                "time", self.model.time, edges, scale=self.model.horizon, centre=0.0
            ),
            _binary("event", self.model.event),
        )

    def sums(self, draws: Floats, rows: Rows, several: int = 1) -> Floats:
        # The mean probability, as predictions have it, and not that of a mean hazard.
        chance = mean_prediction(self._chance, draws, rows, several)
        with np.errstate(all="ignore"):
            risk = np.log(-np.log1p(-chance))
        risk = np.clip(risk, -FARTHEST, FARTHEST)
        time = rows.outcome["time"][::several]
        event = _flag(rows, "event")[::several]
        inside = np.clip(np.ceil(time * INTERVALS) - 1.0, 0, INTERVALS - 1)
        fate = inside.astype(np.int64) + np.where(event == 1, 0, INTERVALS)
        free = (time > 1.0) | ((time == 1.0) & (event == 0))
        fate = np.where(free, 2 * INTERVALS, fate)
        shares = record_shares(rows, several)
        return _counted(LOG_HAZARDS, risk, fate, 2 * INTERVALS + 1, shares)

    def events(self, sums: Floats) -> Floats:
        return sums.reshape(-1, 2 * INTERVALS + 1)[:, :INTERVALS].ravel()

    def residuals(self, theta: Floats, rows: Rows) -> tuple[Floats, Floats]:
        time, event = rows.outcome["time"], _flag(rows, "event")
        ratio = np.exp(np.clip(self._risk(theta, rows), -FARTHEST, FARTHEST))
        whole = _product(ratio, self._baseline(theta, rows, np.minimum(time, 1.0)))
        early = _product(ratio, self._baseline(theta, rows, np.minimum(time, 0.5)))
        seen = np.where((whole <= MOST_HAZARD) & (time <= 1.0), event, 0)
        followed, first = np.minimum(whole, MOST_HAZARD), np.minimum(early, MOST_HAZARD)
        second = np.maximum(followed - first, 0.0)
        sooner = time <= 0.5
        expected = np.stack([first, second])
        counted = np.stack([np.where(sooner, seen, 0), np.where(sooner, 0, seen)])
        variance = gridded(self.variance_weight * expected)
        return counted - gridded(expected), variance

    def _risk(self, theta: Floats, rows: Rows) -> Floats:
        risk: Floats = self.model.fitted(theta, rows)
        return np.clip(np.nan_to_num(risk), -FARTHEST, FARTHEST)

    def _chance(self, theta: Floats, rows: Rows) -> Floats:
        """Probability of an event by the horizon."""
        risk = self._risk(theta, rows) + self.log_baseline(theta, rows)
        # Beyond these, events are never or always expected.
        chance: Floats = -np.expm1(-np.exp(np.clip(risk, -30.0, 3.0)))
        return chance

    def log_baseline(self, theta: Floats, rows: Rows) -> float:
        """Log of the cumulative hazard at the horizon where eta is zero."""
        at_horizon = self._baseline(theta, rows, np.ones(1))[0]
        return float(np.log(np.clip(at_horizon, 1e-300, 1e300)))

    def log_baselines(self, draws: Floats, rows: Rows) -> Floats:
        times = np.array([0.5, 1.0])
        upto = np.stack([self._baseline(theta, rows, times) for theta in draws])
        parts = np.diff(upto, axis=1, prepend=0.0)
        logs: Floats = np.log(np.clip(parts, 1e-300, 1e300))
        return logs

    def _baseline(self, theta: Floats, rows: Rows, times: Floats) -> Floats:
        """Cumulative hazard where eta is zero at each of ``times``, in horizons."""
        width = rows.design.width
        zero = Rows(rows.design, np.zeros((width, 1)), {}, np.zeros(1))
        with np.errstate(all="ignore"):
            hazard = self.model.cumulative_hazard(
                theta[None], zero, times[None, None, :]
            )
        held: Floats = np.clip(np.nan_to_num(hazard[0, 0]), 0.0, 1e300)
        return held


def _binary(role: str, column: str) -> OutcomeColumn:
    return OutcomeColumn(role, column, (0.5,), levels=("0", "1"))


def mean_prediction(
    fitted: Callable[[Floats, Rows], Floats],
    draws: Floats,
    rows: Rows,
    several: int = 1,
) -> Floats:
    """The mean of predictions over draws, added one draw after the other, and over the
    rows of each record."""
    with np.errstate(all="ignore"):
        total = kernels.add_rows(np.stack([fitted(theta, rows) for theta in draws]))
        return kernels.mean_by_record(np.nan_to_num(total / len(draws)), several)


def record_shares(rows: Rows, several: int) -> Floats | None:
    """The share by which each record counts; None where it is one."""
    return None if rows.shares is None else rows.shares[::several]


def bin_of(edges: Floats, values: Floats) -> Integers:
    """The bin of each value."""
    place: Integers = np.searchsorted(edges, values, side="left").astype(np.int64)
    return place


def _flag(rows: Rows, role: str) -> Integers:
    """A 0/1 outcome as integers."""
    flag: Integers = (rows.outcome[role] > 0.5).astype(np.int64)
    return flag


def _product(ratio: Floats, hazard: Floats) -> Floats:
    with np.errstate(over="ignore"):
        product: Floats = np.minimum(ratio * hazard, 1e300)
    return product


def _counted(
    edges: Floats, values: Floats, kind: Integers, kinds: int, shares: Floats | None
) -> Floats:
    """Sums by bin of the values and kind of what happened, the kind fastest."""
    nearest, weights = shared_bins(edges, values)
    if shares is not None:
        weights = weights * shares
    places = kinds * (nearest + np.array([[-1], [0], [1]])) + kind
    length = kinds * (edges.size + 1)
    return np.bincount(places.ravel(), weights.ravel(), length).astype(np.float64)


def weighted_sums(
    place: Integers, weights: Floats, length: int, shares: Floats | None
) -> Floats:
    """Sums of weights on the grid by place, of records that count by ``shares``."""
    weights = gridded(weights)
    if shares is not None:
        weights = weights * shares
    sums: Floats = np.bincount(place, weights, length).astype(np.float64)
    return sums


def gridded(values: Floats) -> Floats:
    """Values as multiples of the grid; those within [-1, 1] stay there."""
    rounded: Floats = np.rint(np.clip(values, -2.0, 2.0) * GRID) / GRID
    return rounded

"""Smooth functions of predicted scores, from counts in bins of them.

The log density of scores is a cubic spline through values at the bins' centres, which
can be exactly that of a normal; beyond the outer centres it goes on as a straight line.
Another such spline is the difference between what happened at a score and what was
predicted. Both are evaluated on a fine grid, over which everything else is a sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cipherbayes.inference.noised_counts import (
    Pull,
    Smooth,
    likeliest_rates,
    second_differences,
)
from cipherbayes.models.shared_bins import shared_weights
from cipherbayes.typing import Floats

POINTS = 3
"""Number of grid points in each bin."""
OUTER = 4
"""Width that the open outer bins are taken to have, in bins."""
BEND = -1.0
"""Default prior mean of the second difference of the log density from bin to bin: that
of a normal density whose standard deviation is one bin. Nearer zero, bins that only
noise fills would be taken for rows far from all others."""
BEND_SD = 0.8
"""Default prior sd of that second difference."""
LEVEL_SD = 20.0
"""Default prior sd of each value of the log density by itself."""


@dataclass(frozen=True)
class ScoreGrid:
    """Bins of a score, and the grid on which its density is evaluated.

    Attributes
    ----------
    edges
        Equally spaced edges between bins; the outer bins are open.
    bend, bend_sd
        Prior mean and standard deviation of the second difference of the log density
        from bin to bin.
    level_sd
        Prior standard deviation of each value of the log density by itself. Where
        scores may lie far from the middle bin it must be large: their density is
        tilted by many bins' worth at the other end.
    """

    edges: tuple[float, ...]
    bend: float = BEND
    bend_sd: float = BEND_SD
    level_sd: float = LEVEL_SD

    @property
    def bins(self) -> int:
        """Number of bins, the open ones included."""
        return len(self.edges) + 1

    @property
    def width(self) -> float:
        """Width of a bin."""
        return self.edges[1] - self.edges[0]

    @property
    def centres(self) -> Floats:
        """Centres of the bins, the outer ones taken to be as wide as the others."""
        first = self.edges[0] - 0.5 * self.width
        centres: Floats = first + self.width * np.arange(float(self.bins))
        return centres

    @cached_property
    def points(self) -> Floats:
        """The scores of the grid."""
        step = self.width / POINTS
        count = POINTS * (self.bins - 2 + 2 * OUTER)
        start = self.edges[0] - OUTER * self.width
        points: Floats = start + step * (np.arange(float(count)) + 0.5)
        return points

    @cached_property
    def bin_of(self) -> Floats:
        """Which bin each point is in, as a 0/1 matrix ``(points, bins)``."""
        place = np.searchsorted(np.array(self.edges), self.points)
        return np.eye(self.bins)[place]

    @cached_property
    def weights(self) -> Floats:
        """How much a row at each point counts in each bin where it is shared between
        bins, ``(points, bins)``."""
        return shared_weights(np.array(self.edges), self.points)

    @cached_property
    def basis(self) -> Floats:
        """Matrix from log densities at the centres to those on the grid."""
        from scipy.interpolate import CubicSpline  # takes half a second to load

        spline = CubicSpline(self.centres, np.eye(self.bins), bc_type="natural")
        first, last = self.centres[[0, -1]]
        inside = np.clip(self.points, first, last)
        beyond = (self.points - inside)[:, None]
        slope = np.where(beyond < 0.0, spline(first, 1), spline(last, 1))
        result: Floats = spline(inside) + beyond * slope
        return result

    def prior(self, rows: float | None) -> tuple[Floats, Floats]:
        """Prior mean and R of the log densities at the centres, for so many rows; the
        first rows of R are those of second differences."""
        level = np.log(max(rows or 1000.0, 1.0) / self.bins)
        away = np.arange(float(self.bins)) - 0.5 * (self.bins - 1)
        root = second_differences(self.bins, self.bend_sd, self.level_sd)
        return level + 0.5 * self.bend * (away**2 - np.mean(away**2)), root

    def departures(self, level_sd: float, slope_sd: float, bend_sd: float) -> Floats:
        """R of the prior of a spline's values at the centres.

        Its mean, its slope and its second differences have these standard deviations.
        """
        away = self.centres - self.centres.mean()
        level = np.full((1, self.bins), 1.0 / (self.bins * level_sd))
        slope = (away / (away @ away) / slope_sd)[None]
        bends = np.diff(np.eye(self.bins), n=2, axis=0) / bend_sd
        return np.concatenate([level, slope, bends])

    def masses(self, phi: Floats) -> Floats:
        """Expected rows at each point of the grid, for rows of log densities."""
        logs = np.clip(phi @ self.basis.T, -60.0, 30.0)
        return np.exp(logs) / POINTS

    def likeliest(self, counts: Floats, noise: float, rows: float | None) -> Floats:
        """Expected rows at each grid point, at the mode of their posterior.

        Parameters
        ----------
        counts, noise
            Noised numbers of rows in each bin, rows shared between bins, and the
            standard deviation of the noise.
        rows
            Number of rows to expect; None where that is not known.
        """
        known = np.array([]) if rows is None else np.array([rows])
        cells = _RowCells(self, bool(known.size))
        prior = Smooth(*self.prior(rows))
        mode, _ = likeliest_rates(np.append(counts, known), noise, cells, prior)
        masses: Floats = self.masses(mode[None])[0]
        return masses


@dataclass(frozen=True)
class _RowCells:
    """Cells with the rows of each bin, shared between bins; with ``total`` a last cell
    of all rows."""

    grid: ScoreGrid
    total: bool

    def __call__(self, phi: Floats) -> tuple[Floats, Pull]:
        mass = self.grid.masses(phi)
        into = self.grid.weights
        if self.total:
            into = np.concatenate([into, np.ones((len(into), 1))], axis=1)

        def pull(weights: Floats) -> Floats:
            gradient: Floats = (mass * (weights @ into.T)) @ self.grid.basis
            return gradient

        return mass @ into, pull

"""Smooth functions of predicted scores, from counts in bins of them.

The log density of scores is a cubic spline through values at the bins' centres, so that
a normal density is one exactly; beyond the outer centres it goes on straight. What
happened at a score departs from what was predicted by such a spline too. Both are kept
on a fine grid, on which everything else is a sum.
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
from cipherbayes.typing import Floats

POINTS = 2
"""Points of the grid in each bin."""
OUTER = 4
"""The open outer bins are taken to be so many bins wide."""
BEND, BEND_SD, LEVEL_SD = -1.0, 0.8, 20.0
"""Prior of the log density where nothing else is said: mean of its second difference
from bin to bin (that of a normal density with a standard deviation of one bin), and
standard deviations of this difference and of its values. With less of a bend,
bins that noise alone fills would have rows far from all others."""


@dataclass(frozen=True)
class ScoreGrid:
    """Bins of a score and the grid behind them.

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
        return len(self.edges) + 1

    @property
    def width(self) -> float:
        return self.edges[1] - self.edges[0]

    @property
    def centres(self) -> Floats:
        first = self.edges[0] - 0.5 * self.width
        centres: Floats = first + self.width * np.arange(float(self.bins))
        return centres

    @cached_property
    def points(self) -> Floats:
        """The grid."""
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
    def basis(self) -> Floats:
        """From log densities at the centres to those on the grid."""
        from scipy.interpolate import CubicSpline  # takes half a second to load

        spline = CubicSpline(self.centres, np.eye(self.bins), bc_type="natural")
        first, last = self.centres[[0, -1]]
        inside = np.clip(self.points, first, last)
        beyond = (self.points - inside)[:, None]
        slope = np.where(beyond < 0.0, spline(first, 1), spline(last, 1))
        result: Floats = spline(inside) + beyond * slope
        return result

    def prior(self, rows: float | None) -> tuple[Floats, Floats]:
        """Prior mean of the log densities at the centres, for about so many rows, and
        the rows of R for them."""
        level = np.log(max(rows or 1000.0, 1.0) / self.bins)
        away = np.arange(float(self.bins)) - 0.5 * (self.bins - 1)
        root = second_differences(self.bins, self.bend_sd, self.level_sd)
        return level + 0.5 * self.bend * (away**2 - np.mean(away**2)), root

    def departures(self, level_sd: float, slope_sd: float, bend_sd: float) -> Floats:
        """Rows of R for a spline through values at the centres: prior standard
        deviations of its mean, of its slope and of its second differences."""
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
        """Likeliest masses on the grid.

        Parameters
        ----------
        counts, noise
            Of the rows in each bin, and the standard deviation of their noise.
        rows
            Rows to be expected; None where that is not known.
        """
        known = np.array([]) if rows is None else np.array([rows])
        cells = _RowCells(self, bool(known.size))
        prior = Smooth(*self.prior(rows))
        mode, _ = likeliest_rates(np.append(counts, known), noise, cells, prior)
        masses: Floats = self.masses(mode[None])[0]
        return masses


@dataclass(frozen=True)
class _RowCells:
    """Rows of each bin; then all of them, where ``total``."""

    grid: ScoreGrid
    total: bool

    def __call__(self, phi: Floats) -> tuple[Floats, Pull]:
        mass = self.grid.masses(phi)
        into = self.grid.bin_of
        if self.total:
            into = np.concatenate([into, np.ones((len(into), 1))], axis=1)

        def pull(weights: Floats) -> Floats:
            gradient: Floats = (mass * (weights @ into.T)) @ self.grid.basis
            return gradient

        return mass @ into, pull

"""How good predicted counts are, from noised sums by predicted bin.

The logs s of predicted counts have a smooth density, and a count has the mean
exp(s + f(s) + g), f a smooth function and g a level of its own wherever outcomes have a
sum of their own: zero if predictions are calibrated. In each bin there is a noised
number of rows, and in a few bins together a noised sum of outcomes over their bins'
caps, so that means are told of these together. Bins without records say little by
themselves, and outcomes in them would be lost in noise times a large cap: the density
says that they are empty. It may end at an edge: its log bends little in most places and
much in a few, as second differences with a Cauchy distribution do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cipherbayes.inference.noised_counts import (
    Pull,
    Smooth,
    about_the_mode,
    block_diag,
    sample_normal,
)
from cipherbayes.inference.number_check import MeanFit
from cipherbayes.inference.score_density import ScoreGrid
from cipherbayes.typing import Floats

LEVEL_SD, SLOPE_SD, BEND_SD = 0.4, 0.5, 0.1
"""Prior standard deviations of f: its mean, its slope, and its second differences from
bin to bin."""
OWN_SD = 0.15
"""Prior standard deviation of g."""
PLACE_SD = 0.05
"""How far the mean place of a bin's rows may be from where the smooth density has it,
in widths of a bin: one standard deviation."""
DENSITY = (-0.3, 0.5, 25.0)
"""Prior mean and scale of the second difference of the log density, and standard
deviation of its values."""
FREEDOM = 1.0
"""Degrees of freedom of the t distribution that second differences of the log density
follow."""
LEAST_ROWS = 1.0
"""Rows that bins must be expected to have to be shown."""


def check_counts(
    sums: Floats,
    noise: float,
    edges: Floats,
    caps: Floats,
    rows: float | None,
    dispersion: float,
) -> MeanFit:
    """What the noised sums say of predicted counts.

    Parameters
    ----------
    sums
        Rows of each bin, then outcomes over their bin's cap, of a few bins together.
    noise
        Standard deviation of the noise of each.
    edges
        Of the bins, equal ratios apart.
    caps
        The most that a count of each bin counts.
    rows
        Held-out rows to be expected; None where the study does not know.
    dispersion
        A count with mean m has the variance m + dispersion m².
    """
    grid = ScoreGrid(tuple(np.log(edges).tolist()), *DENSITY)
    known = np.array([]) if rows is None else np.array([rows])
    summed = grid.bins // (sums.size - grid.bins)
    together = np.repeat(np.eye(grid.bins // summed), summed, axis=0)
    cells = _CountCells(grid, caps, together, bool(known.size))
    departure = grid.departures(LEVEL_SD, SLOPE_SD, BEND_SD)
    own = np.eye(together.shape[1]) / OWN_SD

    mean, density = grid.prior(rows)
    root = block_diag(density, departure, own)
    freedom = np.full(len(root), np.inf)
    freedom[: grid.bins - 2] = FREEDOM
    zeros = np.zeros(grid.bins + len(own))
    prior = Smooth(np.concatenate([mean, zeros]), root, freedom)
    released = np.append(sums, known)
    noised = np.diag(np.append(np.full(sums.size, noise**2), np.zeros(known.size)))

    def covariance(phi: Floats) -> Floats:
        return noised + cells.varying(phi, dispersion)

    phi = sample_normal(released, cells, prior, covariance)
    mass, happened = cells.on_grid(phi)
    moved = np.random.default_rng(2).standard_normal((len(phi), grid.bins))
    moved[0] = 0.0
    places = grid.points + PLACE_SD * grid.width * moved @ grid.bin_of.T
    said = np.exp(places)
    inside = np.maximum(mass @ cells.summed, 1e-9)
    total = mass.sum(axis=1)
    # Noise in bins of large counts pushes the likeliest density upwards, and draws have
    # both fewer and more rows there; outcomes depend on much that is hardly known, and
    # draws of them are moved.
    return MeanFit(
        everybody=about_the_mode(total),
        rows=about_the_mode(inside),
        predicted=(((mass * said) @ cells.summed) / inside)[1:],
        observed=about_the_mode(((mass * happened) @ cells.summed) / inside),
        shown=(inside.mean(axis=0) >= LEAST_ROWS).tolist(),
        mean_predicted=((mass * said).sum(axis=1) / total)[1:],
        mean_observed=about_the_mode((mass * happened).sum(axis=1) / total),
    )


@dataclass(frozen=True)
class _CountCells:
    """Rows of each bin, outcomes over the cap in the bins that are ``together``; then
    all rows, where ``total``."""

    grid: ScoreGrid
    caps: Floats
    together: Floats
    total: bool

    @cached_property
    def summed(self) -> Floats:
        """Which sum of outcomes each point is in, as a 0/1 matrix."""
        return self.grid.bin_of @ self.together

    @cached_property
    def by_mean(self) -> Floats:
        """From f and g to logs of means on the grid."""
        return np.concatenate([self.grid.basis, self.summed], axis=1)

    def on_grid(self, phi: Floats) -> tuple[Floats, Floats]:
        """Expected rows at each point, and the mean count there."""
        grid = self.grid
        logs = grid.points + phi[:, grid.bins :] @ self.by_mean.T
        return grid.masses(phi[:, : grid.bins]), np.exp(np.clip(logs, -30.0, 12.0))

    def varying(self, phi: Floats, dispersion: float) -> Floats:
        """Covariance of the sums of a sample: a row adds one and its outcome, of
        variance m + dispersion m², at a time. That of all rows is what a sample of a
        known size varies by."""
        grid = self.grid
        mass, mean = (each[0] for each in self.on_grid(phi[None]))
        by_cap = mean * (grid.bin_of @ (1.0 / self.caps))
        square = (mean + (1.0 + dispersion) * mean**2) * (by_cap / mean) ** 2
        rows = mass @ grid.bin_of
        both = (grid.bin_of * (mass * by_cap)[:, None]).T @ self.summed
        found = np.block(
            [[np.diag(rows), both], [both.T, np.diag((mass * square) @ self.summed)]]
        )
        if self.total:
            found = block_diag(found, np.array([[rows.sum()]]))
        return found

    def __call__(self, phi: Floats) -> tuple[Floats, Pull]:
        grid = self.grid
        mass, happened = self.on_grid(phi)
        events = mass * happened
        by_bin = (events @ grid.bin_of) / self.caps
        parts = [mass @ grid.bin_of, by_bin @ self.together]
        if self.total:
            parts.append(mass.sum(axis=1, keepdims=True))

        def pull(weights: Floats) -> Floats:
            row = weights[:, : grid.bins] @ grid.bin_of.T
            if self.total:
                row = row + weights[:, -1:]
            end = grid.bins + self.together.shape[1]
            own = weights[:, grid.bins : end] @ self.together.T / self.caps
            by_mean = events * (own @ grid.bin_of.T)
            by_mass = mass * row + by_mean
            parts = [by_mass @ grid.basis, by_mean @ self.by_mean]
            return np.concatenate(parts, axis=1)

        return np.concatenate(parts, axis=1), pull

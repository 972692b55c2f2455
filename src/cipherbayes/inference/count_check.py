"""How good predicted counts are, from noised sums by predicted bin.

The logs s of predicted counts have a smooth density, and a count has the mean
exp(s + f(s)), f a smooth function: zero if predictions are calibrated. In each bin
there are noised sums of ones and of outcomes over a cap. Bins without records say
little by themselves, and outcomes in them would be lost in noise times a large cap: the
density says that they are empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cipherbayes.inference.noised_counts import (
    Pull,
    Smooth,
    block_diag,
    sample_rates,
)
from cipherbayes.inference.score_density import ScoreGrid
from cipherbayes.typing import Floats

LEVEL_SD, SLOPE_SD, BEND_SD = 0.4, 0.5, 0.1
"""Prior standard deviations of f: its mean, its slope, and its second differences from
bin to bin."""
DENSITY = (-0.3, 0.5, 25.0)
"""Prior mean and standard deviation of the second difference of the log density, and
standard deviation of its values."""
UNEVEN = 0.3
"""Variance of predicted counts in units of their squared mean. That a bin has more rows
by chance moves its sum of outcomes, but not what a row has: of all rows together, as
many as are known, sums vary by this much only."""
LEAST_ROWS = 1.0
"""Rows that a bin must be expected to have to be shown."""


class CountFit(NamedTuple):
    """Draws of measures of held-out rows; of bins on the last axis."""

    rows: Floats
    predicted: Floats
    observed: Floats
    shown: list[bool]
    mean_predicted: Floats
    mean_observed: Floats


def check_counts(
    sums: Floats,
    noise: float,
    edges: Floats,
    caps: Floats,
    rows: float | None,
    dispersion: float,
) -> CountFit:
    """What the noised sums say of predicted counts.

    Parameters
    ----------
    sums
        Rows of each bin, then outcomes over the bin's cap.
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
    cells = _CountCells(grid, caps, bool(known.size))
    mean, density = grid.prior(rows)
    departure = grid.departures(LEVEL_SD, SLOPE_SD, BEND_SD)
    prior = Smooth(
        np.concatenate([mean, np.zeros(grid.bins)]), block_diag(density, departure)
    )
    # A sum of y / cap over about r cap / m rows varies by 1 + dispersion m itself.
    usual = np.exp(grid.centres)
    scatter = (1.0 + (UNEVEN + dispersion) * usual) / caps
    varies = np.concatenate([np.ones(grid.bins), scatter, np.ones(known.size)])
    phi = sample_rates(np.append(sums, known), noise, cells, prior, varies)
    mass, happened = cells.on_grid(phi)
    said = np.exp(grid.points)
    inside = np.maximum(mass @ grid.bin_of, 1e-9)
    total = mass.sum(axis=1)
    return CountFit(
        rows=inside,
        predicted=((mass * said) @ grid.bin_of) / inside,
        observed=((mass * happened) @ grid.bin_of) / inside,
        shown=(inside.mean(axis=0) >= LEAST_ROWS).tolist(),
        mean_predicted=mass @ said / total,
        mean_observed=(mass * happened).sum(axis=1) / total,
    )


@dataclass(frozen=True)
class _CountCells:
    """Rows of each bin, outcomes over the cap; then all rows, where ``total``."""

    grid: ScoreGrid
    caps: Floats
    total: bool

    def on_grid(self, phi: Floats) -> tuple[Floats, Floats]:
        """Expected rows at each point, and the mean count there."""
        grid = self.grid
        logs = grid.points + phi[:, grid.bins :] @ grid.basis.T
        return grid.masses(phi[:, : grid.bins]), np.exp(np.clip(logs, -30.0, 12.0))

    def __call__(self, phi: Floats) -> tuple[Floats, Pull]:
        grid = self.grid
        mass, happened = self.on_grid(phi)
        events = mass * happened
        parts = [mass @ grid.bin_of, (events @ grid.bin_of) / self.caps]
        if self.total:
            parts.append(mass.sum(axis=1, keepdims=True))

        def pull(weights: Floats) -> Floats:
            row = weights[:, : grid.bins] @ grid.bin_of.T
            if self.total:
                row = row + weights[:, -1:]
            own = weights[:, grid.bins : 2 * grid.bins] / self.caps
            by_mean = events * (own @ grid.bin_of.T)
            by_mass = mass * row + by_mean
            return np.concatenate([by_mass @ grid.basis, by_mean @ grid.basis], axis=1)

        return np.concatenate(parts, axis=1), pull

"""How good predicted probabilities are, from noised counts of bin × outcome.

The scores s (predicted log odds) of held-out rows have a smooth density, and
P(y = 1 | s) = expit(s + f(s)), f a smooth function: zero if predictions are
calibrated. Every measure is a function of the two, so that their joint posterior gives
its interval.

A row is shared between three bins by weights w_k(s) that add up to one
(:mod:`~cipherbayes.models.shared_bins`), so that counts n_k tell the mean and the
variance of scores, and nearly all measures, whatever the density is inside a bin: many
rows may have the same score. Shared counts are taken for independent Poisson ones.
The variance of Σ g_k n_k is Σ_k w_k g_k² for each row then, and truly (Σ_k w_k g_k)²:
the same where g is one number, and more by h²/4 where it rises by one with s, h the
width of a bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit, log_expit

from cipherbayes.inference.noised_counts import (
    Pull,
    Smooth,
    about_the_mode,
    block_diag,
    sample_rates,
)
from cipherbayes.inference.score_density import ScoreGrid
from cipherbayes.typing import Floats

LEVEL_SD = 1.0
"""Prior sd of the mean of f over the bins, in log odds."""
SLOPE_SD = 1.0
"""Prior sd of the slope of f, in log odds per unit of score."""
BEND_SD = 0.8
"""Prior sd of the second difference of f from bin to bin, in log odds."""
FREEDOM = 1.0
"""Degrees of freedom of the t distribution that second differences of the log density
follow: it bends little in most places, and much where many scores are alike or none are
beyond."""


class BinaryFit(NamedTuple):
    """Draws of measures of held-out rows, with bins on the last axis."""

    auc: Floats
    brier: Floats
    log_score: Floats
    calibration_intercept: Floats
    calibration_slope: Floats
    calibration_in_the_large: Floats
    predicted_over_observed: Floats
    events: Floats
    rows: Floats
    predicted: Floats
    observed: Floats


def recalibrate(
    counts: Floats, noise: float, edges: tuple[float, ...], rows: float | None
) -> BinaryFit:
    """Draws of all measures of predicted probabilities, from noised counts.

    Parameters
    ----------
    counts
        Counts by bin and outcome, rows shared between bins, the outcome changing
        fastest.
    noise
        Standard deviation of the noise of each count.
    rows
        Number of held-out rows to expect; None where the study does not know.
    """
    grid = ScoreGrid(edges)
    # The expected number of rows is one more count, because a hash decides which rows
    # are held out. It has no privacy noise, but is given that of a cell.
    known = np.array([]) if rows is None else np.array([rows])
    cells = _BinaryCells(grid, bool(known.size))
    phi = sample_rates(np.append(counts, known), noise, cells, _prior(grid, rows))
    return BinaryFit(*map(about_the_mode, _measures(phi, grid)))


@dataclass(frozen=True)
class _BinaryCells:
    """Cells by bin and outcome, the outcome changing fastest.

    With ``total`` there is a last cell of all rows.
    """

    grid: ScoreGrid
    total: bool

    def __call__(self, phi: Floats) -> tuple[Floats, Pull]:
        grid = self.grid
        mass, happened = grid.masses(phi[:, : grid.bins]), _happened(phi, grid)
        ones = mass * happened
        sums = np.stack([mass - ones, ones], axis=1) @ grid.weights
        cells = sums.transpose(0, 2, 1).reshape(len(phi), -1)
        if self.total:
            cells = np.concatenate([cells, mass.sum(axis=1, keepdims=True)], axis=1)

        def pull(weights: Floats) -> Floats:
            zero = weights[:, 0 : 2 * grid.bins : 2] @ grid.weights.T
            one = weights[:, 1 : 2 * grid.bins : 2] @ grid.weights.T
            if self.total:
                zero, one = zero + weights[:, -1:], one + weights[:, -1:]
            by_mass = mass * zero + ones * (one - zero)
            by_odds = ones * (1.0 - happened) * (one - zero)
            return np.concatenate([by_mass @ grid.basis, by_odds @ grid.basis], axis=1)

        return cells, pull


def _prior(grid: ScoreGrid, rows: float | None) -> Smooth:
    """The prior of the log density of scores and of f, at the bins' centres."""
    mean, density = grid.prior(rows)
    departure = grid.departures(LEVEL_SD, SLOPE_SD, BEND_SD)
    root = block_diag(density, departure)
    freedom = np.full(len(root), np.inf)
    freedom[: grid.bins - 2] = FREEDOM
    return Smooth(np.concatenate([mean, np.zeros(grid.bins)]), root, freedom)


def _happened(phi: Floats, grid: ScoreGrid) -> Floats:
    """P(y = 1) on the grid."""
    share: Floats = expit(grid.points + phi[:, grid.bins :] @ grid.basis.T)
    return share


def _measures(phi: Floats, grid: ScoreGrid) -> BinaryFit:
    """All measures for every row of parameters."""
    mass, happened = grid.masses(phi[:, : grid.bins]), _happened(phi, grid)
    total = mass.sum(axis=1, keepdims=True)
    weight = mass / total
    predicted = expit(grid.points)
    ones, zeros = weight * happened, weight * (1.0 - happened)
    below = np.cumsum(zeros, axis=1) - 0.5 * zeros
    auc = (ones * below).sum(axis=1) / (ones.sum(axis=1) * zeros.sum(axis=1))
    brier = ones @ (1.0 - predicted) ** 2 + zeros @ predicted**2
    score = ones @ log_expit(grid.points) + zeros @ log_expit(-grid.points)
    line = _line(weight, happened, grid.points)
    inside = np.maximum(mass @ grid.bin_of, 1e-9)
    return BinaryFit(
        auc=auc,
        brier=brier,
        log_score=score,
        calibration_intercept=line[:, 0],
        calibration_slope=line[:, 1],
        calibration_in_the_large=_level(weight, happened, grid.points),
        predicted_over_observed=weight @ predicted / ones.sum(axis=1),
        events=total[:, 0] * ones.sum(axis=1),
        rows=inside,
        predicted=((mass * predicted) @ grid.bin_of) / inside,
        observed=((mass * happened) @ grid.bin_of) / inside,
    )


def _line(weight: Floats, happened: Floats, score: Floats) -> Floats:
    """Calibration intercept and slope of each draw (Cox 1958), by Newton's method."""
    line = np.tile([0.0, 1.0], (len(weight), 1))
    basis = np.stack([np.ones_like(score), score])
    for _ in range(12):
        p = expit(line @ basis)
        gradient = (weight * (happened - p)) @ basis.T
        information = np.einsum("kg,ig,jg->kij", weight * p * (1.0 - p), basis, basis)
        information += 1e-9 * np.eye(2)
        step = np.linalg.solve(information, gradient[:, :, None])[:, :, 0]
        line = line + np.clip(step, -1.0, 1.0)
    return line


def _level(weight: Floats, happened: Floats, score: Floats) -> Floats:
    """Calibration in the large of each draw: the intercept where the slope is one.

    Shifted by it, all log odds predict as many events as there are.
    """
    level = np.zeros((len(weight), 1))
    for _ in range(12):
        p = expit(level + score)
        missing = (weight * (happened - p)).sum(axis=1, keepdims=True)
        information = (weight * p * (1.0 - p)).sum(axis=1, keepdims=True) + 1e-9
        level = level + np.clip(missing / information, -1.0, 1.0)
    return level[:, 0]

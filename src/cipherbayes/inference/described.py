"""Shares of the bins of many columns, from noised counts.

Each column is a problem of its own: counts n = exp(φ) that are not negative, released
with noise of standard deviation s. The log counts of a number's ranges bend little from
one to the next; those of levels have priors of their own. All problems of one shape are
sampled together. What is estimated are the counts of these very records, so intervals
count the noise alone.
"""

from __future__ import annotations

import numpy as np

from cipherbayes.inference.noised_counts import second_differences
from cipherbayes.typing import Floats

CHAINS, BURN_IN, STEPS, THIN = 16, 300, 600, 6
BEND_SD, RANGE_SD, LEVEL_SD = 0.7, 5.0, 5.0
"""Prior standard deviations: of the bend of log counts, of the log count of a range,
and of that of a level. Around a mean that is its square higher the last one is flat in
the count itself, and an interval of a level's count that of its noise."""
MISSING, MISSING_SD = 0.02, 2.0
"""Prior median of the share of missing values, and standard deviation of its log."""


def bin_shares(
    counts: Floats,
    noise: Floats,
    rows: Floats,
    *,
    ranges: bool,
    missing: bool,
    spread: float | None,
) -> Floats:
    """Draws of the shares of bins, shape ``(problems, s, bins)``; they add up to one.

    Parameters
    ----------
    counts, noise
        Released counts, one problem a row, and the standard deviation of its noise.
    rows
        How many records each problem has, about.
    ranges
        Whether bins are ranges of a number, else levels.
    missing
        Whether the last bin is that of missing values.
    spread
        Standard deviation of a number in bins, where it is known about.
    """
    problems, bins = counts.shape
    inner = bins - missing
    mean = np.log(np.maximum(rows, 1.0))[:, None] - np.full(bins, np.log(inner))
    root = np.eye(inner) / LEVEL_SD
    if not ranges:
        mean += LEVEL_SD**2
    if ranges and inner > 2:
        root = second_differences(inner, BEND_SD, RANGE_SD)
        if spread is not None:
            away = (np.arange(inner) - 0.5 * (inner - 1)) / spread
            mean[:, :inner] += -0.5 * away**2 + 0.5 * np.mean(away**2)
    if missing:
        mean[:, -1] = np.log(np.maximum(rows, 1.0) * MISSING)
        root = np.block(
            [
                [root, np.zeros((len(root), 1))],
                [np.zeros((1, inner)), np.full((1, 1), 1.0 / MISSING_SD)],
            ]
        )
    precision = root.T @ root
    mode, whiten = _mode(counts, noise, mean, precision)
    rng = np.random.default_rng(1)
    size = np.full((problems, 1, 1), 2.38 / np.sqrt(bins))
    shape = (problems, CHAINS, bins)

    def moved() -> Floats:
        step: Floats = np.einsum("pij,pcj->pci", whiten, rng.standard_normal(shape))
        return step

    def log_density(phi: Floats) -> Floats:
        there = np.exp(np.clip(phi, -30.0, 30.0))
        fit = ((counts[:, None] - there) ** 2).sum(axis=2) / noise[:, None] ** 2
        away = (phi - mean[:, None]) @ root.T
        density: Floats = -0.5 * (fit + (away**2).sum(axis=2))
        return density

    phi = mode[:, None] + 0.5 * moved()
    density = log_density(phi)
    kept = []
    for step in range(BURN_IN + STEPS):
        proposed = phi + size * moved()
        there = log_density(proposed)
        taken = np.log(rng.random(there.shape)) < there - density
        phi = np.where(taken[:, :, None], proposed, phi)
        density = np.where(taken, there, density)
        if step < BURN_IN:
            change = (taken.mean(axis=1) - 0.25) / np.sqrt(1.0 + step / 10.0)
            size = size * np.exp(change)[:, None, None]
        elif step % THIN == 0:
            kept.append(np.exp(np.clip(phi, -30.0, 30.0)))
    drawn = np.concatenate(kept, axis=1)
    shares: Floats = drawn / drawn.sum(axis=2, keepdims=True)
    return shares


def _mode(
    counts: Floats, noise: Floats, mean: Floats, precision: Floats
) -> tuple[Floats, Floats]:
    """Each problem's mode, and the matrix that makes it round, by damped steps."""
    noise = noise[:, None]
    phi = np.log(np.maximum(counts, 0.5 * noise))
    for _ in range(80):
        there = np.exp(np.clip(phi, -30.0, 30.0))
        pull = np.einsum("ij,pj->pi", precision, phi - mean)
        gradient = (counts - there) * there / noise**2 - pull
        step = np.linalg.solve(
            _curvature(there, noise, precision), gradient[:, :, None]
        )
        phi = phi + np.clip(step[:, :, 0], -0.5, 0.5)
    there = np.exp(np.clip(phi, -30.0, 30.0))
    lower = np.linalg.cholesky(_curvature(there, noise, precision))
    return phi, np.transpose(np.linalg.inv(lower), (0, 2, 1))


def _curvature(there: Floats, noise: Floats, precision: Floats) -> Floats:
    diagonal = np.einsum("pi,ij->pij", (there / noise) ** 2, np.eye(there.shape[1]))
    result: Floats = diagonal + precision
    return result

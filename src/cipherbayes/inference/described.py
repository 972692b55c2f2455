"""Shares of the bins of many columns, from noised counts.

Each column is a problem of its own: counts n = exp(φ) that are not negative, released
with noise of standard deviation s. The log counts of a number's ranges bend little or
more from one to the next, or each is a matter of its own: a column may be smooth, or
have few values. Released counts say which is likelier (Laplace approximation of each
one's evidence), and draws are of all in that proportion: where noise tells little of
how smooth a column is, intervals count that. Levels have priors of their own.
All problems of one shape are sampled together. What is estimated are the counts of
these very records, so intervals count the noise alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from cipherbayes.inference.noised_counts import second_differences
from cipherbayes.typing import Bools, Floats

CHAINS, BURN_IN, STEPS, THIN = 16, 300, 600, 6
BEND_SDS, RANGE_SD, ROUGH_SD, LEVEL_SD = (0.2, 0.7), 5.0, 6.0, 5.0
"""Prior standard deviations: of the bend of log counts (little, or more), of the log
count of a range beside it, of that of a range by itself, and of that of a level. Around
a mean that is its square higher the last one is flat in the count itself, and an
interval of a level's count that of its noise."""
LEAST_NOISE = 0.3
"""Least standard deviation of all records, in that of the noise of a count."""


class BinShares(NamedTuple):
    """Draws of the shares of bins, ``(problems, s, bins)``, which add up to one;
    whether a draw takes its column to be smooth, ``(problems, s)``; and the likeliest
    shares, ``(problems, bins)``."""

    shares: Floats
    smooth: Bools
    likeliest: Floats


def bin_shares(
    counts: Floats,
    noise: Floats,
    rows: tuple[Floats, Floats],
    *,
    ranges: bool,
    spread: tuple[float, float] | None,
    widths: tuple[float, ...] | None = None,
) -> BinShares:
    """Draws of the shares of bins.

    Parameters
    ----------
    counts, noise
        Released counts, one problem a row, and the standard deviation of its noise.
    rows
        How many records each problem has, and the standard deviation of that.
    ranges
        Whether bins are ranges of a number, else levels.
    spread
        Mean and standard deviation of a number in bins, where they are known about.
    widths
        Of a number's ranges, the whole ones one wide: some are cut off by the end of
        the public range.
    """
    bins = counts.shape[1]
    records = np.maximum(rows[0], 1.0)
    # All records are one more count; a sum that is known exactly cannot be drawn.
    total = records, np.maximum(rows[1], LEAST_NOISE * noise)
    mean = np.log(records)[:, None] - np.full(bins, np.log(bins))
    if not ranges:
        mean += LEVEL_SD**2
    bent = ranges and bins > 2
    if bent and spread is not None:
        away = (np.arange(bins) - spread[0]) / spread[1]
        mean += -0.5 * away**2 + 0.5 * np.mean(away**2)
    if bent and widths is not None:
        mean += np.log(widths)
    priors = [np.eye(bins) / LEVEL_SD]
    if bent:
        priors = [second_differences(bins, sd, RANGE_SD) for sd in BEND_SDS]
        priors.append(np.eye(bins) / ROUGH_SD)
    noised = _Noised(counts, noise[:, None], *total)
    fits = [_drawn(noised, mean, root) for root in priors]
    shares, modes, evidence = (np.stack(each) for each in zip(*fits, strict=True))
    # Draw k is of the prior in whose part of the unit interval its place is.
    ends = np.cumsum(softmax(evidence, axis=0), axis=0)[:-1]
    draws = shares.shape[2]
    places = (np.random.default_rng(2).permutation(draws) + 0.5) / draws
    chosen = (places > ends[:, :, None]).sum(axis=0)
    problem = np.arange(len(counts))
    return BinShares(
        shares[chosen, problem[:, None], np.arange(draws)],
        chosen < len(priors) - 1,
        modes[np.argmax(evidence, axis=0), problem],
    )


class _Noised(NamedTuple):
    """Counts and their noise, ``(problems, 1)``; their total and its noise."""

    counts: Floats
    noise: Floats
    records: Floats
    unsure: Floats

    def misfit(self, there: Floats) -> Floats:
        """Sum of squares of what counts ``(problems, ..., bins)`` are off by, in
        standard deviations."""
        shape = (len(self.counts),) + (1,) * (there.ndim - 2)
        own = (there - self.counts.reshape(*shape, -1)) / self.noise.reshape(*shape, 1)
        away = there.sum(axis=-1) - self.records.reshape(shape)
        off: Floats = (own**2).sum(axis=-1) + (away / self.unsure.reshape(shape)) ** 2
        return off


def _drawn(
    noised: _Noised, mean: Floats, root: Floats
) -> tuple[Floats, Floats, Floats]:
    """Draws of the shares under one prior, the likeliest shares, and the log evidence
    of each problem."""
    problems, bins = noised.counts.shape
    mode, whiten, evidence = _mode(noised, mean, root)
    rng = np.random.default_rng(1)
    size = np.full((problems, 1, 1), 2.38 / np.sqrt(bins))
    shape = (problems, CHAINS, bins)

    def moved() -> Floats:
        step: Floats = np.einsum("pij,pcj->pci", whiten, rng.standard_normal(shape))
        return step

    def log_density(phi: Floats) -> Floats:
        fit = noised.misfit(np.exp(np.clip(phi, -30.0, 30.0)))
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
    top = np.exp(np.clip(mode, -30.0, 30.0))
    return shares, top / top.sum(axis=1, keepdims=True), evidence


def _mode(noised: _Noised, mean: Floats, root: Floats) -> tuple[Floats, Floats, Floats]:
    """Each problem's mode by damped steps, the matrix that makes it round, and the log
    evidence."""
    counts, noise, precision = noised.counts, noised.noise, root.T @ root
    phi = np.log(np.maximum(counts, 0.5 * noise))
    for _ in range(80):
        there = np.exp(np.clip(phi, -30.0, 30.0))
        pull = np.einsum("ij,pj->pi", precision, phi - mean)
        lacking = (noised.records - there.sum(axis=1)) / noised.unsure**2
        gradient = ((counts - there) / noise**2 + lacking[:, None]) * there - pull
        curvature = _curvature(there, noised, precision)
        step = np.linalg.solve(curvature, gradient[:, :, None])
        phi = phi + np.clip(step[:, :, 0], -0.5, 0.5)
    there = np.exp(np.clip(phi, -30.0, 30.0))
    lower = np.linalg.cholesky(_curvature(there, noised, precision))
    fit = noised.misfit(there) + (((phi - mean) @ root.T) ** 2).sum(axis=1)
    roundness = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    evidence = 0.5 * (np.linalg.slogdet(precision)[1] - fit) - roundness
    return phi, np.transpose(np.linalg.inv(lower), (0, 2, 1)), evidence


def _curvature(there: Floats, noised: _Noised, precision: Floats) -> Floats:
    own = np.einsum("pi,ij->pij", (there / noised.noise) ** 2, np.eye(there.shape[1]))
    scaled = there / noised.unsure[:, None]
    together = np.einsum("pi,pj->pij", scaled, scaled)
    result: Floats = own + together + precision
    return result

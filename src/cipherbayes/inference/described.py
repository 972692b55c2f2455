"""Shares of the bins of many columns in groups of records, from noised counts.

Each column is a problem of its own. Its bin b has in group g

    n_gb = exp(α_g + φ_b + δ_gb)

records, released with noise of standard deviation s; α_g is the logarithm of the part
of all records that the group has. Groups are alike but for δ_g, normal about zero: a
level that is rare among all records is likely to be rare in each group, where noise
hides it. Rarer levels may differ by more; a number may be shifted, or spread, as a
whole. The values φ of a number's ranges bend little or more from one to the next, or
each is a matter of its own: a column may be smooth, or have few values. Those of levels
are flat in the count itself. Released counts say which bend and which size of δ are
likelier (Laplace approximation of the evidence of each pair), and chains are of all in
that proportion: where noise tells little, intervals count that.

Draws are made by Hamiltonian Monte Carlo, all problems of one shape together, in
coordinates in which the posterior around each pair's mode is a standard normal. What
is estimated are the counts of these very records, so intervals count the noise alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from cipherbayes.inference.noised_counts import second_differences
from cipherbayes.typing import Bools, Floats, Integers

CHAINS, BURN_IN, KEPT, LEAPS, ACCEPTED = 64, 30, 25, 6, 0.8
"""Chains, trajectories of each that are discarded and kept, most steps of one, and the
share of trajectories to accept."""
BLOCKS = 16
"""Blocks of chains, each of one pair of bend and size of δ."""
BEND_SDS, RANGE_SD, ROUGH_SD, LEVEL_SD = (0.2, 0.7), 5.0, 6.0, 5.0
"""Prior standard deviations: of the bend of φ (little, or more), of a value of φ beside
it, of one by itself, and of that of a level. Around a mean that is its square higher
the last one is flat in the count itself."""
APART = (0.2, 0.5, 1.2)
"""Standard deviations of δ of the most frequent level."""
RARER = 1.0 / 3.0
"""Power of the frequency of the most frequent level over that of another, by which
that of the other is larger."""
RANGES_APART = ((0.1, 0.25), (0.3, 0.5), (1.0, 1.0))
"""The same of a range by itself, and of what a shift by one standard deviation adds
one standard deviation from the mean; of a wider spread half of that."""
ALONE = 0.01
"""That of a single group, which is all records."""
TOGETHER, RANGES_TOGETHER = 1.0, 0.5
"""Standard deviation of what all δ of a group's levels, or of its ranges, have in
common, whatever groups are apart by: that the number of its records is known about says
nothing of how far its shares differ."""
FARTHEST_RANGE = 3.0
"""Standard deviations from the mean up to which shift and spread add more and more."""
MOST_NUMBERS = 4_000_000
"""Of the draws of all problems that are sampled together."""
LEAST_NOISE = 0.3
"""Least standard deviation of all records of a group, in that of the noise of a
count."""
STEPS, FARTHEST, NEAR, LEAST_CURVED = 60, 2.0, 1e-4, 0.01
"""Steps to a mode, how far one goes, one so short that it is the last, and the least
that the posterior is taken to be curved."""
GRID = (-40.0, 12.0, 521)
"""Where a count by itself may be, as a coordinate: in standard deviations of its noise
above it, in their logarithm below; and in how many steps."""


class BinShares(NamedTuple):
    """Draws of the shares of bins in each group, ``(problems, groups, s, bins)``, which
    add up to one; and whether a draw takes its column to be smooth, ``(problems, s)``.
    """

    shares: Floats
    smooth: Bools


def bin_shares(
    counts: Floats,
    noise: Floats,
    rows: tuple[Floats, Floats],
    *,
    ranges: bool,
    profile: Floats | None = None,
) -> BinShares:
    """Draws of the shares of bins in every group of records.

    Parameters
    ----------
    counts, noise
        Released counts, ``(problems, groups, bins)``, and the standard deviations of
        their noise, for each bin.
    rows
        How many records each problem has in each group, ``(problems, groups)``, and the
        standard deviation of that.
    ranges
        Whether bins are ranges of a number, else levels.
    profile
        Logarithms of counts that a number's ranges may be expected to have, but for a
        constant, ``(problems, bins)``.
    """
    problems, groups, bins = counts.shape
    most = max(MOST_NUMBERS // (CHAINS * KEPT * groups * bins), 1)
    if problems > most:
        parts = [slice(start, start + most) for start in range(0, problems, most)]
        found = [
            bin_shares(
                counts[part],
                noise,
                (rows[0][part], rows[1][part]),
                ranges=ranges,
                profile=None if profile is None else profile[part],
            )
            for part in parts
        ]
        return BinShares(*(np.concatenate(each) for each in zip(*found, strict=True)))
    records = np.maximum(rows[0], 1.0)
    everybody = records.sum(axis=1)
    mean = np.log(everybody)[:, None] - np.full(bins, np.log(bins))
    bent = ranges and bins > 2
    if not ranges:
        mean += LEVEL_SD**2
    if bent and profile is not None:
        mean += profile
    roots = [np.eye(bins) / LEVEL_SD]
    if bent:
        roots = [second_differences(bins, sd, RANGE_SD) for sd in BEND_SDS]
        roots.append(np.eye(bins) / ROUGH_SD)
    noised = _Noised(
        counts,
        noise,
        records,
        np.maximum(rows[1], LEAST_NOISE * noise.min()),
        np.log(records / everybody[:, None]),
        mean,
        noise.min() * everybody[:, None] / np.linalg.norm(records, axis=1)[:, None],
    )
    kinds = product(range(len(roots)), _groups_apart(noised, ranges=bent))
    pairs = [(root, _Mode.of(noised, roots[root], apart)) for root, apart in kinds]
    modes = [mode for _, mode in pairs]
    # A block is of the pair in whose part of the unit interval its place is.
    ends = np.cumsum(softmax([mode.evidence for mode in modes], axis=0), axis=0)[:-1]
    places = (np.random.default_rng(2).permutation(BLOCKS) + 0.5) / BLOCKS
    chosen = (places > ends[:, :, None]).sum(axis=0)
    drawn = _drawn(noised, modes, chosen)
    shares = drawn / drawn.sum(axis=-1, keepdims=True)
    smooth = np.array([bent and root < len(roots) - 1 for root, _ in pairs])[chosen]
    # Draws of one chain stand apart, so that any few are of many chains.
    return BinShares(
        shares.transpose(1, 3, 0, 2, 4).reshape(problems, groups, -1, bins),
        np.tile(np.repeat(smooth, CHAINS // BLOCKS, axis=1), KEPT),
    )


def _groups_apart(noised: _Noised, *, ranges: bool) -> list[Floats]:
    """Precisions of δ_g that are tried, ``(problems, bins, bins)`` each."""
    problems, groups, bins = noised.counts.shape
    identity = np.eye(bins)
    if groups == 1:
        return [np.tile(identity / ALONE**2, (problems, 1, 1))]
    there = np.maximum(noised.whole(), 1.0)
    share = there / there.sum(axis=1, keepdims=True)
    if not ranges:
        larger = (share.max(axis=1, keepdims=True) / share) ** RARER
        own = identity * larger[:, :, None] ** 2
        return [np.linalg.inv(apart**2 * own + TOGETHER**2) for apart in APART]
    place = np.arange(float(bins))
    mean = share @ place
    sd = np.sqrt(np.maximum(share @ place**2 - mean**2, 1.0))
    away = (place - mean[:, None]) / sd[:, None]
    away = np.clip(away, -FARTHEST_RANGE, FARTHEST_RANGE)
    wider = 0.5 * (away**2 - 1.0)
    smooth = away[:, :, None] * away[:, None] + wider[:, :, None] * wider[:, None]
    found = []
    for own, shift in RANGES_APART:
        covariance = own**2 * identity + shift**2 * smooth + RANGES_TOGETHER**2
        found.append(np.linalg.inv(covariance).astype(np.float64))
    return found


class _Noised(NamedTuple):
    """Counts ``(problems, groups, bins)`` and their noise; the records of each group
    and how unsure these are; α; the prior mean of φ, ``(problems, bins)``; and the
    noise of what all groups say of exp(φ), ``(problems, 1)``."""

    counts: Floats
    noise: Floats
    records: Floats
    unsure: Floats
    parts: Floats
    mean: Floats
    unit: Floats

    def misfit(self, there: Floats) -> tuple[Floats, Floats]:
        """Half the sum of squares of what counts ``(problems, ..., groups, bins)`` are
        off by, in standard deviations; and its slope along each count."""
        more = (slice(None),) + (None,) * (there.ndim - 3)
        own = (there - self.counts[more]) / self.noise
        away = (there.sum(axis=-1) - self.records[more]) / self.unsure[more]
        off: Floats = 0.5 * ((own**2).sum(axis=-1) + away**2)
        return off, own / self.noise + (away / self.unsure[more])[..., None]

    def whole(self) -> Floats:
        """What all groups say of exp(φ), over its noise."""
        part = np.exp(self.parts)
        counted = np.einsum("pg,pgb->pb", part, self.counts)
        found: Floats = counted / (part**2).sum(axis=1)[:, None] / self.unit
        return found


class _Log(NamedTuple):
    """φ of coordinates x: exp(φ) = unit log(1 + exp(x)), x where it is clear of the
    noise and its logarithm where it is not; slope, and the logarithm of the slope and
    its own slope."""

    phi: Floats
    slope: Floats
    log_slope: Floats
    bend: Floats

    @classmethod
    def at(cls, x: Floats, unit: Floats) -> _Log:
        log = np.log(np.maximum(np.logaddexp(0.0, x), 1e-300))
        sure = -np.logaddexp(0.0, -x)
        slope = np.exp(sure - log)
        return cls(np.log(unit) + log, slope, sure - log, 1.0 - np.exp(sure) - slope)


@dataclass(frozen=True)
class _Mode:
    """The mode of every problem under one prior, and coordinates around it.

    The curvature of φ and δ_g is an arrow: D_g, that of the logarithms of the counts of
    a group, is its own block (with the precision of δ_g), what it shares with φ, and
    its part of φ's.

    Attributes
    ----------
    root, apart
        R with R'R the precision of φ, and the precision of δ_g of each problem.
    x, delta
        The mode: ``(problems, bins)``, ``(problems, groups, bins)``.
    whole, own, joined
        x - mode = whole z, and δ_g - mode = own_g z_g - joined_g (x - mode), for
        standard normal z.
    evidence
        Log evidence of each problem, but for a constant.
    """

    root: Floats
    apart: Floats
    x: Floats
    delta: Floats
    whole: Floats
    own: Floats
    joined: Floats
    evidence: Floats

    @classmethod
    def of(cls, noised: _Noised, root: Floats, apart: Floats) -> _Mode:
        """Found by damped steps."""
        precision, groups = root.T @ root, noised.counts.shape[1]
        x, delta = np.maximum(noised.whole(), 0.0), np.zeros_like(noised.counts)
        identity = np.eye(root.shape[1])
        arrived = False
        for step in range(STEPS + 1):
            log = _Log.at(x, noised.unit)
            there = _counts(noised.parts[..., None] + log.phi[:, None] + delta)
            off, slope = noised.misfit(there)
            away = (log.phi - noised.mean) @ root.T
            curved = _curvature(there, noised)
            block = curved + apart[:, None]
            joined = np.linalg.solve(block, curved) * log.slope[:, None, None]
            schur = curved.sum(axis=1) + precision
            schur = log.slope[..., None] * schur * log.slope[:, None]
            schur -= log.slope[..., None] * (curved @ joined).sum(axis=1)
            schur += LEAST_CURVED * identity
            if arrived or step == STEPS:
                break
            by_group = -slope * there
            by_delta = by_group - delta @ apart
            by_x = log.slope * (by_group.sum(axis=1) - away @ root) + log.bend
            by_x -= np.einsum("pgij,pgi->pj", joined, by_delta)
            moved = np.linalg.solve(schur, by_x[..., None])[..., 0]
            own = np.linalg.solve(block, by_delta[..., None])[..., 0]
            own -= np.einsum("pgij,pj->pgi", joined, moved)
            size = np.maximum(np.abs(moved).max(1), np.abs(own).max(axis=(1, 2)))
            shorter = np.minimum(1.0, FARTHEST / np.maximum(size, 1e-9))
            x = x + shorter[:, None] * moved
            delta = delta + shorter[:, None, None] * own
            arrived = float(size.max()) < NEAR
        lower, of_whole = np.linalg.cholesky(block), np.linalg.cholesky(schur)
        fit = off.sum(axis=1) + 0.5 * (away**2).sum(axis=1) - log.log_slope.sum(axis=1)
        fit += 0.5 * (delta * (delta @ apart)).sum(axis=(1, 2))
        evidence = 0.5 * np.linalg.slogdet(precision)[1] - fit
        evidence += 0.5 * groups * np.linalg.slogdet(apart)[1]
        evidence -= _log_diagonal(lower).sum(axis=1) + _log_diagonal(of_whole)
        whole = np.linalg.inv(of_whole).swapaxes(-1, -2)
        inverse = np.linalg.inv(lower).swapaxes(-1, -2)
        return cls(root, apart, x, delta, whole, inverse, joined, evidence)


def _counts(logs: Floats) -> Floats:
    found: Floats = np.exp(np.clip(logs, -30.0, 30.0))
    return found


def _curvature(there: Floats, noised: _Noised) -> Floats:
    """That of the logarithms of counts, leaving out what bends less near the mode."""
    own = (there / noised.noise) ** 2
    scaled = there / noised.unsure[..., None]
    result: Floats = scaled[..., None] * scaled[..., None, :]
    place = np.arange(there.shape[-1])
    result[..., place, place] += own
    return result


def _log_diagonal(lower: Any) -> Floats:
    found: Floats = np.log(np.diagonal(lower, axis1=-2, axis2=-1)).sum(axis=-1)
    return found


def _by_itself(noised: _Noised, sd: float, chains: int) -> Floats:
    """Draws of x where every bin is a matter of its own and groups are alike,
    ``(problems, chains, bins)``: by its distribution function on a grid."""
    rng = np.random.default_rng(5)
    seen = noised.whole()
    grid = np.linspace(*GRID)
    log = _Log.at(grid[:, None, None], noised.unit)
    away = (log.phi - noised.mean) / sd
    value = -0.5 * (np.logaddexp(0.0, grid)[:, None, None] - seen) ** 2
    value += log.log_slope - 0.5 * away**2
    upto = np.cumsum(np.exp(value - value.max(axis=0)), axis=0)
    place = rng.random((chains, *seen.shape)) * upto[-1]
    nth = (upto[None] < place[:, None]).sum(axis=1)
    near = grid[np.minimum(nth, grid.size - 1)]
    clear = seen + rng.standard_normal(near.shape)
    drawn: Floats = np.where(seen > GRID[1] / 2.0, clear, near)
    return drawn.swapaxes(0, 1)


def _drawn(noised: _Noised, modes: list[_Mode], chosen: Integers) -> Floats:
    """Draws of the counts, ``(kept, problems, chains, groups, bins)``; ``chosen`` says
    which mode's prior each problem's blocks of chains are of."""
    rng = np.random.default_rng(1)
    problem = np.arange(len(chosen))[:, None]

    def each(name: str) -> Floats:
        """Of every block, ``(problems, blocks, ...)``."""
        stacked = np.stack([getattr(mode, name) for mode in modes])
        found: Floats = stacked[chosen, problem]
        return found

    def by_group(values: Floats, matrices: Floats) -> Floats:
        """Values ``(problems, blocks, chains, groups, bins)`` of each group through its
        own matrix, which all chains of a block share."""
        found: Floats = values.swapaxes(2, 3) @ matrices
        return found.swapaxes(2, 3)

    x0, delta0 = each("x")[:, :, None], each("delta")[:, :, None]
    whole, own, joined = each("whole"), each("own"), each("joined")
    to_whole, to_own, to_joined = (m.swapaxes(-1, -2) for m in (whole, own, joined))
    # R'R of every block: their R may have rows of different numbers.
    precision = np.stack([mode.root.T @ mode.root for mode in modes])[chosen]
    apart = each("apart")[:, :, None]
    parts = noised.parts[:, None, None, :, None]
    mean, unit = noised.mean[:, None, None], noised.unit[:, None, None]

    def density(z: Floats, y: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Log density at coordinates of x and δ, its slopes, and the counts there."""
        moved = z @ to_whole
        log = _Log.at(x0 + moved, unit)
        delta = delta0 + by_group(y, to_own)
        delta -= (moved[:, :, None] @ to_joined).swapaxes(2, 3)
        there = _counts(parts + log.phi[:, :, :, None] + delta)
        off, slope = noised.misfit(there)
        away = (log.phi - mean) @ precision
        value = log.log_slope.sum(axis=3) - off.sum(axis=3)
        value -= 0.5 * ((log.phi - mean) * away).sum(axis=3)
        pulled = delta @ apart
        value -= 0.5 * (delta * pulled).sum(axis=(3, 4))
        by_log = -slope * there
        by_delta = by_log - pulled
        by_x = log.slope * (by_log.sum(axis=3) - away) + log.bend
        by_x -= by_group(by_delta, joined).sum(axis=3)
        return value, by_x @ whole, by_group(by_delta, own), there

    blocks = *chosen.shape, CHAINS // chosen.shape[1]
    z = rng.standard_normal((*blocks, x0.shape[-1]))
    # Where bins are matters of their own, far below the noise too.
    diagonal = np.array([len(mode.root) == mode.root.shape[1] for mode in modes])
    first = modes[int(np.argmax(diagonal))].root[0, 0]
    alone = _by_itself(noised, 1.0 / first, CHAINS).reshape(z.shape) - x0
    moved = np.linalg.solve(whole, alone.swapaxes(2, 3)).swapaxes(2, 3)
    z = np.where(diagonal[chosen][:, :, None, None], moved, z)
    y = rng.standard_normal((*blocks, *delta0.shape[-2:]))
    value, by_z, by_y, there = density(z, y)
    size = np.full((len(chosen), 1, 1, 1), 0.3)
    kept = []
    for step in range(BURN_IN + KEPT):
        speed, its = rng.standard_normal(z.shape), rng.standard_normal(y.shape)
        before = value - 0.5 * ((speed**2).sum(axis=3) + (its**2).sum(axis=(3, 4)))
        at = z, y, by_z, by_y
        for _ in range(int(rng.integers(LEAPS // 2, LEAPS + 1))):
            speed = speed + 0.5 * size * at[2]
            its = its + 0.5 * size[..., None] * at[3]
            place = at[0] + size * speed, at[1] + size[..., None] * its
            reached, to_z, to_y, counts = density(*place)
            at = (*place, to_z, to_y)
            speed = speed + 0.5 * size * to_z
            its = its + 0.5 * size[..., None] * to_y
        gain = reached - 0.5 * ((speed**2).sum(axis=3) + (its**2).sum(axis=(3, 4)))
        gain = np.where(np.isfinite(gain), gain - before, -np.inf)
        taken = np.log(rng.random(gain.shape)) < gain
        z, by_z = (
            np.where(taken[..., None], new, old)
            for new, old in ((at[0], z), (at[2], by_z))
        )
        y, by_y, there = (
            np.where(taken[..., None, None], new, old)
            for new, old in ((at[1], y), (at[3], by_y), (counts, there))
        )
        value = np.where(taken, reached, value)
        if step < BURN_IN:
            share = np.exp(np.minimum(gain, 0.0)).mean(axis=(1, 2))
            size = size * np.exp(share - ACCEPTED)[:, None, None, None]
            size = np.clip(size, 1e-3, 1.0)
        else:
            kept.append(there.reshape(len(there), CHAINS, *there.shape[3:]))
    return np.stack(kept)

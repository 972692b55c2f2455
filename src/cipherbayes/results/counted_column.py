"""A column of a group of records, as it was counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit, ndtr, ndtri

from cipherbayes.data.characteristics import WEIGHTS
from cipherbayes.typing import Bools, Floats

EVEN_SD = 0.1
"""How far the mean of a range of a smooth column is from its middle, in widths of the
range: one standard deviation."""
OUTER_SD = 1.0
"""The same of the log odds of where it is in an outer range."""
STEEPEST, HALVED = 30.0, 40
"""Steepest density that is looked for, in its logarithm from one range to the next; and
how often the interval that it is in is halved."""


@dataclass(frozen=True)
class CountedColumn:
    """A column in a group: released counts and sums, their noise, draws of shares,
    which of them take the column to be smooth, and the likeliest shares."""

    counts: Floats
    sums: Floats
    noise: float
    possible: tuple[int, int]
    shares: Floats
    smooth: Bools
    likeliest: Floats

    def moments(
        self, shares: Floats, ends: Floats, present: Floats
    ) -> tuple[Floats, Floats]:
        """Draws of the mean place within the window, and of its mean square.

        Those of the counts are moved by as much as the sums are surer of them. Within
        the ranges of a smooth column the density goes on as it does from range to
        range, all but what an inner range has beyond its neighbours, which may be a
        single value that many records have. That one, and the values of other columns,
        are anywhere within their ranges, near either end as likely as in the middle
        half (sin² of an even angle).

        Parameters
        ----------
        shares
            Of the ranges: the likeliest, then one row for each draw.
        ends
            Of the ranges, as places.
        present
            How many records have a value, for the same rows.
        """
        rng = np.random.default_rng(3)
        lows, highs = ends[:-1], ends[1:]
        place = np.sin(0.5 * np.pi * rng.random(shares.shape)) ** 2
        even = self._even_places(shares, ends, rng)
        smooth = np.append(True, self.smooth)[:, None]
        place = np.where(smooth, even, place)
        own = rng.random(shares.shape)
        place[0] = own[0] = 0.5
        mean = lows + (highs - lows) * place
        # Around the mean of a range at most what its ends leave, evenly about a third.
        square = mean**2 + (mean - lows) * (highs - mean) * own / 1.5
        counted = np.stack([(shares * mean).sum(1), (shares * square).sum(1)], axis=1)
        weights = np.array(WEIGHTS)
        sd = self.noise / weights / present.mean()
        error = rng.standard_normal(counted.shape)
        error[0] = 0.0
        summed = (self.sums + self.noise * error) / weights / present[:, None]
        spread = np.cov(counted[1:].T)
        gain = np.linalg.solve(spread + np.diag(sd**2), spread).T
        first, second = (counted + (summed - counted) @ gain.T).T
        return np.clip(first, -1.0, 1.0), np.clip(second, first**2, 1.0)

    def _even_places(
        self, shares: Floats, ends: Floats, rng: np.random.Generator
    ) -> Floats:
        """Draws of where the mean of each range of a smooth column is, from its lower
        to its upper end."""
        first, last = self.possible[0], min(self.possible[1], shares.shape[1])
        logs = np.log(np.maximum(shares, 1e-12))
        error = rng.standard_normal(shares.shape)
        place = np.full(shares.shape, 0.5)
        # A density that rises by exp(b) has its mean b / 12 above the middle.
        place[:, 1:-1] += (logs[:, 2:] - logs[:, :-2]) / 24.0
        place = np.clip(place + EVEN_SD * error, 0.0, 1.0)
        anywhere = np.sin(0.5 * np.pi * rng.random(shares.shape)) ** 2
        place += _beyond_neighbours(shares) * (anywhere - place)
        if last - first < 2:
            return anywhere
        widths = np.diff(ends)
        width = max(float(np.median(widths[first:last])), 1e-12)
        for outer, inner, upper in (
            (first, first + 1, False),
            (last - 1, last - 2, True),
        ):
            reach = max(float(widths[outer]) / width, 1e-3)
            away = outward(shares[:, outer], shares[:, inner], reach)
            away = expit(logit(away) + OUTER_SD * error[:, outer])
            place[:, outer] = away if upper else 1.0 - away
        return place

    def absent(self, rows: Floats) -> Floats:
        """Draws of the share of missing values, the last bin: its count and noise, not
        negative, whatever the other bins are."""
        rng = np.random.default_rng(4)
        least = ndtr(-self.counts[-1] / self.noise)
        place = least + (1.0 - least) * rng.random(rows.size)
        count = self.counts[-1] + self.noise * ndtri(np.minimum(place, 1.0 - 1e-12))
        share: Floats = np.clip(count / np.maximum(rows, 1.0), 0.0, 1.0)
        return share

    def may_be_alike(self, ranges: int, records: float, reach: float) -> bool:
        """Whether all values may be the same one: nothing in any other range than the
        fullest, and sums (where there are any) that leave no variance, as far as
        ``reach`` standard deviations of their noise go."""
        first, last = self.possible
        counts = self.counts[first : min(last, ranges)]
        others = counts.sum() - counts.max()
        if others > reach * self.noise * np.sqrt(max(counts.size - 1, 0)):
            return False
        mean, square = self.sums / np.array(WEIGHTS) / records
        error = np.hypot(1.0 / WEIGHTS[1], 2.0 * mean / WEIGHTS[0])
        return bool(square - mean**2 <= reach * error * self.noise / records)

    def single(self, ranges: int) -> Floats:
        """How likely it is that most records of each range have the same value: the
        column is not smooth, or more than half are beyond the range's neighbours."""
        most = _beyond_neighbours(self.shares[:, :ranges]) > 0.5
        found: Floats = (most | ~self.smooth[:, None]).mean(axis=0)
        return found

    def upto(self, share: float, bins: int) -> Floats:
        """How likely it is that a quantile is in one of the first k ranges, for each k.

        With n_k records up to range k, n_k - share n is not negative from the
        quantile's range on and negative before it: by the counts alone, whatever the
        records are. Draws of shares, of which none is zero, would put records into
        ranges that are empty.
        """
        place = np.arange(bins)
        known = (self.possible[0] <= place) & (place < self.possible[1])
        upto = np.cumsum(np.where(known, self.counts[:bins], 0.0))
        balance = (upto - share * upto[-1])[:-1]
        k, noisy = np.cumsum(known)[:-1], float(known.sum())
        sd = self.noise * np.sqrt((1.0 - share) ** 2 * k + share**2 * (noisy - k))
        inner = np.where(k == 0, 0.0, np.where(k == noisy, 1.0, ndtr(balance / sd)))
        chance = np.concatenate([[0.0], inner, [1.0]])
        # Noise may make a later one smaller; half of the way from either side.
        up, down = np.maximum.accumulate(chance), np.minimum.accumulate(chance[::-1])
        found: Floats = 0.5 * (up + down[::-1])
        return found


def _beyond_neighbours(shares: Floats) -> Floats:
    """What part of each range is more than its two neighbours have on average (of
    their logarithms); nothing in the outer ranges."""
    found = np.zeros_like(shares)
    around = np.sqrt(shares[:, :-2] * shares[:, 2:])
    found[:, 1:-1] = 1.0 - np.minimum(around / np.maximum(shares[:, 1:-1], 1e-300), 1.0)
    return found


def outward(outer: Floats, inner: Floats, reach: float) -> Floats:
    """How far from its inner edge the mean of an outer range is, in its own widths.

    The density is exponential in the outer range, ``reach`` = L widths of the inner one
    wide, and in the inner one: exp(-tx), x from -1 to L, t such that the ranges have
    the shares that they have,

        outer / inner = (1 - exp(-tL)) / (exp(t) - 1).

    The mean of the outer one is then at 1 / t - L / (exp(tL) - 1).
    """
    ratio = np.log(np.maximum(outer, 1e-12)) - np.log(np.maximum(inner, 1e-12))
    low, high = np.full(ratio.shape, -STEEPEST), np.full(ratio.shape, STEEPEST)

    def mass(t: Floats, width: float) -> Floats:
        """Log of the integral of exp(-tx) from 0 to a width."""
        y = np.where(np.abs(t * width) < 1e-6, 1e-6, t * width)
        found: Floats = np.log(width * -np.expm1(-y) / y)
        return found

    for _ in range(HALVED):
        t = 0.5 * (low + high)
        # The inner range is passed the other way round.
        above = mass(t, reach) - mass(-t, 1.0) > ratio
        low, high = np.where(above, t, low), np.where(above, high, t)
    y = np.where(np.abs(t * reach) < 1e-3, 1e-3, t * reach)
    mean: Floats = np.clip(1.0 / y - 1.0 / np.expm1(y), 1e-3, 1.0 - 1e-3)
    return mean

"""A number in a group of records: where within its ranges its values are.

A draw is a distribution: the share of each range, and within the ranges either values
that are spread out or a few that many records have. Mean, standard deviation and
quartiles of a draw are those of one distribution, so that they agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, logit

from cipherbayes.data.characteristics import WEIGHTS
from cipherbayes.typing import Bools, Floats

EVEN_SD = 0.1
"""How far the mean of a range of a smooth column is from where its neighbours say, in
widths of the range: one standard deviation."""
PLACE_SD = 0.03
"""How far a quantile may be from where a draw has it within its range, in widths of the
range, since draws are moved by sums as if all were normal: one standard deviation."""
PILED = 0.7
"""How likely it is that records beyond those of a range's neighbours have one value."""
OUTER_SD = 1.0
"""Standard deviation of the log odds of where the mean of an outer range is."""
ATOMS, LIKELY, ROUGH = (0, 4, 2, 1), (0.9, 0.1, 0.0, 0.0), (0.35, 0.15, 0.2, 0.3)
"""How many values the records of a range have (0: any), how likely each is in a smooth
column, and in another one: numbers are rounded."""
SURE = 2.0
"""Standard deviations of its noise that a count surely is not too high by."""
STEEPEST, HALVED = 30.0, 24
"""Steepest density that is looked for, in its logarithm from one range to the next; and
how often the interval that it is in is halved."""


@dataclass(frozen=True)
class Rounding:
    """Draws of how a column's values are rounded, which all groups have in common.

    Attributes
    ----------
    atoms
        How many values a range has, ``(s,)``; 0 for any.
    error
        How far its mean is from where neighbours say, ``(s, ranges)``.
    anywhere
        Where a value is that most records of a range have.
    piled
        Whether a range that has many more records than its neighbours has one such
        value.
    """

    atoms: Floats
    error: Floats
    anywhere: Floats
    piled: Bools

    @classmethod
    def drawn(cls, smooth: Bools, ranges: int) -> Rounding:
        """Draws for each draw of a column's shares."""
        rng = np.random.default_rng(3)
        size = smooth.size, ranges
        likely = np.where(smooth[:, None], LIKELY, ROUGH)
        chosen = (rng.random(size[0])[:, None] > np.cumsum(likely, axis=1)).sum(axis=1)
        atoms = np.array(ATOMS)[np.minimum(chosen, len(ATOMS) - 1)]
        # Some value is next to the middle, as likely near an end as in the middle half.
        anywhere = np.sin(0.5 * np.pi * rng.random(size)) ** 2
        several = np.maximum(atoms, 1)[:, None]
        error = np.where(
            (atoms == 0)[:, None] & smooth[:, None],
            EVEN_SD * rng.standard_normal(size),
            (anywhere - 0.5) / several,
        )
        piled = rng.random(size) < PILED
        return cls(atoms.astype(np.float64), error, anywhere, piled)


@dataclass(frozen=True)
class CountedNumber:
    """Draws of a number's distribution in a group.

    Attributes
    ----------
    shares
        Of the ranges, ``(s, ranges)``.
    places
        Where the mean of each range is, from its lower end (0) to its upper one (1).
    moments
        Mean place within the window, and mean square of the place, ``(s, 2)``; as sums
        have them, which noise may have made impossible (see :meth:`possible_moments`).
    apart
        Least variance of places, by ranges that surely have records.
    atoms
        How many values each range has, ``(s, ranges)``; 0 for any.
    single, aside
        Share of the records of a range that have one value, and how far from the
        range's mean it would be if the mean were where the counts alone say,
        ``counted``.
    counted
        Places by the counts alone.
    """

    shares: Floats
    places: Floats
    moments: Floats
    atoms: Floats
    single: Floats
    aside: Floats
    counted: Floats
    apart: Floats

    @classmethod
    def drawn(
        cls,
        shares: Floats,
        ends: Floats,
        possible: tuple[int, int],
        smooth: Bools,
        rounding: Rounding,
    ) -> CountedNumber:
        """From draws of shares, before sums tell more.

        Parameters
        ----------
        ends
            Of the ranges, as places within the window.
        possible
            First and last plus one of the ranges that may have records.
        """
        single = _beyond_neighbours(shares) * smooth[:, None]
        places = _places(shares, ends, possible, smooth, rounding)
        mostly = (single > 0.5) & rounding.piled
        aside = np.where(mostly, rounding.anywhere - places, 0.0)
        atoms = np.where(mostly, 1.0, rounding.atoms[:, None])
        single = np.where(mostly, single, 1.0)
        empty = np.zeros((len(shares), len(WEIGHTS)))
        nothing = np.zeros(len(shares))
        found = cls(shares, places, empty, atoms, single, aside, places, nothing)
        return replace(found, moments=found.moments_at(ends))

    def moments_at(self, ends: Floats) -> Floats:
        """Mean place and mean square of places, by ranges alone."""
        widths = np.diff(ends)
        mean = ends[:-1] + widths * self.places
        # Around its mean a range has at most what its ends leave, evenly a third.
        left = widths**2 * self.places * (1.0 - self.places) / 3.0
        several = np.where(self.atoms > 0.0, self.atoms, np.inf)
        square = mean**2 + left * (1.0 - 1.0 / several**2)
        parts = [(self.shares * mean).sum(axis=1), (self.shares * square).sum(axis=1)]
        return np.stack(parts, axis=1)

    def with_sums(
        self,
        counts: Floats,
        sums: Floats,
        noise: float,
        present: Floats,
        ends: Floats,
        rng: np.random.Generator,
    ) -> CountedNumber:
        """The same with what sums of places and of their squares say.

        Shares, where ranges have their means, and both moments move together, by as
        much as sums are surer of the moments than ranges are.

        Parameters
        ----------
        counts, sums, noise
            As they were released.
        present
            How many records have a value, ``(s,)``.
        """
        weights = np.array(WEIGHTS)
        records = np.maximum(present, 1.0)[:, None]
        error = rng.standard_normal(self.moments.shape)
        seen = (sums + noise * error) / weights / records
        sd = noise / weights / float(records.mean())
        by_range = self.shares * self.places
        state = np.concatenate([self.moments, self.shares, by_range], axis=1)
        away = state - state.mean(axis=0)
        together = away.T @ away[:, :2] / max(len(state) - 1, 1)
        gain = np.linalg.solve(together[:2] + np.diag(sd**2), together.T).T
        moved = state + (seen - self.moments) @ gain.T
        ranges = self.shares.shape[1]
        shares = np.maximum(moved[:, 2 : 2 + ranges], 0.0)
        places = np.clip(moved[:, 2 + ranges :] / np.maximum(shares, 1e-12), 0.0, 1.0)
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-12)
        # Ranges that surely have records are apart, whatever sums say.
        first = np.clip(moved[:, :1], -1.0, 1.0)
        sure = np.maximum(counts - SURE * noise, 0.0) / records
        nearest = np.clip(first, ends[:-1], ends[1:])
        apart = (sure * (nearest - first) ** 2).sum(axis=1)
        return replace(
            self, shares=shares, places=places, moments=moved[:, :2], apart=apart
        )

    def possible_moments(self) -> tuple[Floats, Floats]:
        """Both moments as those of some records.

        Only what is told is made possible: moments of groups that were each held to it
        would add up to too wide a distribution of all records.
        """
        first = np.clip(self.moments[:, 0], -1.0, 1.0)
        return first, np.clip(self.moments[:, 1], first**2 + self.apart, 1.0)

    def quantile(self, share: float, ends: Floats) -> Floats:
        """Draws of a quantile, for ranges with these ends."""
        upto = np.cumsum(self.shares, axis=1)
        place = np.minimum((upto < share - 1e-12).sum(axis=1), upto.shape[1] - 1)
        draw = np.arange(len(place))
        own = np.maximum(self.shares[draw, place], 1e-12)
        part = np.clip((share - upto[draw, place] + own) / own, 0.0, 1.0)
        mean = np.clip(self.places[draw, place], 1e-3, 1.0 - 1e-3)
        atoms = self.atoms[draw, place]
        # What sums move the mean of a range by, its single value moves by more.
        before = self.counted[draw, place]
        value = before + self.aside[draw, place]
        value += (mean - before) / self.single[draw, place]
        several = np.maximum(atoms, 1.0)
        nth = np.minimum(np.floor(part * several), several - 1.0)
        at = np.where(
            atoms > 0.0,
            np.clip((nth + 0.5) / several - 0.5 + value, 0.0, 1.0),
            # Rising from 0 to 1, with this mean.
            part ** ((1.0 - mean) / mean),
        )
        # The same error wherever it is: quantiles stay in order.
        error = PLACE_SD * np.random.default_rng(6).standard_normal(len(at))
        at = np.clip(at + error, 0.0, 1.0)
        found: Floats = ends[place] + (ends[place + 1] - ends[place]) * at
        return found


def together(groups: list[CountedNumber], present: Floats) -> CountedNumber:
    """Records of several groups, which have ``present`` of them, ``(groups, s)``."""
    part = present / np.maximum(present.sum(axis=0), 1e-12)
    shares = sum(p[:, None] * g.shares for p, g in zip(part, groups, strict=True))
    by_range = sum(
        p[:, None] * g.shares * g.places for p, g in zip(part, groups, strict=True)
    )
    moments = sum(p[:, None] * g.moments for p, g in zip(part, groups, strict=True))
    apart = sum(p * g.apart for p, g in zip(part, groups, strict=True))
    largest = groups[int(np.argmax(present.mean(axis=1)))]
    places = np.asarray(by_range) / np.maximum(np.asarray(shares), 1e-12)
    return replace(
        largest,
        shares=np.asarray(shares),
        places=np.clip(places, 0.0, 1.0),
        moments=np.asarray(moments),
        apart=np.asarray(apart),
    )


def _places(
    shares: Floats,
    ends: Floats,
    possible: tuple[int, int],
    smooth: Bools,
    rounding: Rounding,
) -> Floats:
    """Draws of where the mean of each range is.

    The density of a smooth column goes on within a range as it does from range to
    range, all but what an inner range has beyond its neighbours, which may be a single
    value that many records have. That one, and the values of other columns, are
    anywhere within their ranges.
    """
    first, last = possible[0], min(possible[1], shares.shape[1])
    logs = np.log(np.maximum(shares, 1e-12))
    tilt = np.zeros(shares.shape)
    # A density that rises by exp(b) has its mean b / 12 above the middle.
    tilt[:, 1:-1] = (logs[:, 2:] - logs[:, :-2]) / 24.0
    tilt = np.where(smooth[:, None], np.clip(tilt, -0.4, 0.4), 0.0)
    places = np.clip(0.5 + tilt + rounding.error, 0.0, 1.0)
    single = _beyond_neighbours(shares) * smooth[:, None]
    places += single * (rounding.anywhere - places)
    if last - first < 2:
        return rounding.anywhere
    widths = np.diff(ends)
    width = max(float(np.median(widths[first:last])), 1e-12)
    for outer, inner, upper in ((first, first + 1, False), (last - 1, last - 2, True)):
        reach = max(float(widths[outer]) / width, 1e-3)
        away = outward(shares[:, outer], shares[:, inner], reach)
        error = OUTER_SD * rounding.error[:, outer] / EVEN_SD
        away = expit(logit(away) + np.clip(error, -3.0, 3.0))
        even = away if upper else 1.0 - away
        places[:, outer] = np.where(smooth, even, places[:, outer])
    return places


def _beyond_neighbours(shares: Floats) -> Floats:
    """What part of each range is more than its two neighbours have on average (of
    their logarithms); nothing in the outer ranges."""
    found = np.zeros_like(shares)
    around = np.sqrt(shares[:, :-2] * shares[:, 2:])
    found[:, 1:-1] = 1.0 - np.minimum(around / np.maximum(shares[:, 1:-1], 1e-300), 1.0)
    return found


def may_be_alike(
    counts: Floats,
    sums: Floats,
    noise: float,
    records: float,
    reach: float,
) -> bool:
    """Whether all values may be the same one: nothing in any other range than the
    fullest, and sums (where there are any) that leave no variance, as far as ``reach``
    standard deviations of their noise go."""
    others = counts.sum() - counts.max()
    if others > reach * noise * np.sqrt(max(counts.size - 1, 0)):
        return False
    mean, square = sums / np.array(WEIGHTS) / records
    error = np.hypot(1.0 / WEIGHTS[1], 2.0 * mean / WEIGHTS[0])
    return bool(square - mean**2 <= reach * error * noise / records)


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

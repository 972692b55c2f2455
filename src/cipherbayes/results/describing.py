"""The table of the records' characteristics, from noised counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from cipherbayes.data.characteristics import WEIGHTS, Characteristics
from cipherbayes.protocols.rounds import Closing
from cipherbayes.results.counted_column import (
    CountedNumber,
    Rounding,
    may_be_alike,
    together,
)
from cipherbayes.results.described_columns import DescribedColumn, described_columns
from cipherbayes.results.described_groups import (
    CountedGroups,
    SiteCounts,
    column_draws,
    counted_groups,
    raked,
)
from cipherbayes.results.record import DescribeRow
from cipherbayes.study.schema import PrivateStudy
from cipherbayes.typing import Bools, Floats

QUANTILES = {"q1": 0.25, "median": 0.5, "q3": 0.75}
TRIED, SHORTER = 21, 0.05
"""Intervals of which the shortest is taken, and by how much it must be shorter than the
one with equal tails to be taken in its place."""
NEAR_ZERO = 0.1
"""An interval that begins at the least of all draws reaches to zero, if that is below
this share of its end."""
LEAST_RECORDS = 1.0
"""That a group must surely have to be described."""
EMPTY = 1e-9
"""Records of a group, in a draw, below which it has none to take shares of."""
STEPS = 50
"""Of repeated averaging, each of which leaves the share of one range of the error."""


@dataclass(frozen=True)
class _Grouping:
    """What was released of a grouping; draws of how many records of its groups are in
    each bin of each column, ``(groups, s, bins)``; and whether each draw takes a number
    to be smooth."""

    counted: CountedGroups
    bins: dict[str, Floats]
    smooth: dict[str, Bools]

    @property
    def told(self) -> float:
        """How much it tells of all records, with the noise of its groups together."""
        return 1.0 / len(self.counted.groups)


@dataclass(frozen=True)
class _Group:
    """A group of records: draws of how many it has, and of them in each bin of each
    column, ``(s, bins)``; and the noise of what was released of it."""

    label: str
    rows: Floats
    bins: dict[str, Floats]
    noise: float


class _Number(NamedTuple):
    """A number's distributions in a group, and what was released of it: counts and
    sums."""

    drawn: CountedNumber
    counts: Floats
    sums: Floats


def describe_rows(
    study: PrivateStudy,
    table: Characteristics,
    released: Closing,
    moments: Floats | None,
    tail: float,
    sites: SiteCounts | None = None,
) -> list[DescribeRow]:
    """Rows of the table: all records, then every group.

    Counts of a column's levels add up to the records of their group, groups add up to
    all records, and nothing is negative.

    Parameters
    ----------
    sites
        How many records the sites have, where that was released before.
    """
    columns = list(described_columns(table, moments))
    counted = counted_groups(table, columns, released, study.privacy.records, sites)
    groupings, groups = _drawn(columns, counted)
    sizes = [_row("", "rows", group.label, group.rows, tail) for group in groups]
    told: list[list[DescribeRow]] = [[size] for size in sizes]
    # Column by column: the distributions of all numbers would fill the memory.
    for place, column in enumerate(columns):
        numbers = _numbers(column, groupings, place) if column.levels is None else None
        for k, group in enumerate(groups):
            if sizes[k]["lower"] < LEAST_RECORDS:
                continue  # there may be nobody to describe
            # A column by its own levels says nothing but what its groups are.
            if group.label.partition(": ")[0] != column.name:
                number = None if numbers is None else numbers[k]
                told[k] += _statistics(column, group, number, tail)
    return [row for of_group in told for row in of_group]


def _drawn(
    columns: list[DescribedColumn], counted: list[CountedGroups]
) -> tuple[list[_Grouping], list[_Group]]:
    """Draws of every grouping; and all records, then the groups of every grouping."""
    groupings = []
    for each in counted:
        drawn = column_draws(columns, each)
        smooth = {name: of_column.smooth for name, of_column in drawn.items()}
        bins = {
            name: of_column.shares * each.rows[:, :, None]
            for name, of_column in drawn.items()
        }
        groupings.append(_Grouping(each, bins, smooth))
    everybody = {column.name: _of_all(column, groupings) for column in columns}
    if len(groupings) > 1:
        for grouping in groupings:
            for name, counts in grouping.bins.items():
                rows = grouping.counted.rows
                grouping.bins[name] = raked(counts, everybody[name], rows)
    first = counted[0]
    wider = first.noise * float(np.sqrt(len(first.groups)))
    groups = [_Group("all", first.rows.sum(axis=0), everybody, wider)]
    for grouping in groupings:
        own = grouping.counted
        for g, label in enumerate(own.labels if own.name else []):
            bins = {name: counts[g] for name, counts in grouping.bins.items()}
            groups.append(_Group(label, own.rows[g], bins, own.noise))
    return groupings, groups


def _of_all(column: DescribedColumn, groupings: list[_Grouping]) -> Floats:
    """Draws of how many of all records are in each bin of a column."""
    for grouping in groupings:
        if grouping.counted.name == column.name:
            # Groups by the levels of a column have as many records as the levels.
            return grouping.counted.rows.T
    told = np.array([grouping.told for grouping in groupings])
    every = np.array([each.bins[column.name].sum(axis=0) for each in groupings])
    total: Floats = np.einsum("a,asb->sb", told / told.sum(), every)
    return total


def _present(column: DescribedColumn, counts: Floats) -> Floats:
    """How many records have a value, from counts of bins along the last axis."""
    there = counts[..., :-1] if column.missing else counts
    total: Floats = there.sum(axis=-1)
    return total


def _shares(counts: Floats, total: Floats) -> Floats:
    """Draws of a share, of those in which there is anybody: shares add up to one."""
    there = total > EMPTY
    if not there.any():
        return np.zeros(1)
    return np.asarray(counts[there] / total[there])


def _sums(counted: CountedGroups, column: DescribedColumn) -> Floats:
    nothing = np.zeros((len(counted.groups), len(WEIGHTS)))
    return counted.sums.get(column.name, nothing)


def _ends(column: DescribedColumn) -> Floats:
    """Of a number's ranges, as places within its window, or from first to last."""
    ends = column.number.ends
    low, high = ends[[0, -1]].tolist()
    middle, half = column.window or (0.5 * (low + high), 0.5 * (high - low))
    places: Floats = np.clip((ends - middle) / half, -1.0, 1.0)
    return places


def _numbers(
    column: DescribedColumn, groupings: list[_Grouping], place: int
) -> list[_Number]:
    """A number among all records, then in the groups of every grouping; ``place`` among
    the columns gives it random numbers of its own."""
    of_groups = [_in_groups(column, grouping, place) for grouping in groupings]
    present = [_present(column, each.bins[column.name]) for each in groupings]
    wholes = [together(*each) for each in zip(of_groups, present, strict=True)]
    told = np.array([grouping.told for grouping in groupings])
    of_all = together(wholes, np.repeat(told[:, None], present[0].shape[1], axis=1))
    first = groupings[0].counted
    counts, sums = first.bins[column.name].sum(axis=0), _sums(first, column).sum(axis=0)
    found = [_Number(of_all, counts, sums)]
    for grouping, numbers, whole in zip(groupings, of_groups, wholes, strict=True):
        counted = grouping.counted
        released = counted.bins[column.name], _sums(counted, column)
        if counted.name:
            found += [
                _Number(_moved(number, whole, of_all), counts, sums)
                for number, counts, sums in zip(numbers, *released, strict=True)
            ]
    return found


def _in_groups(
    column: DescribedColumn, grouping: _Grouping, place: int
) -> list[CountedNumber]:
    """A number in every group of a grouping."""
    rng = np.random.default_rng([4, place])
    counted = grouping.counted
    ends, smooth = _ends(column), grouping.smooth[column.name]
    rounding = Rounding.drawn(smooth, ends.size - 1)
    found = []
    for g, sums in enumerate(_sums(counted, column)):
        counts = grouping.bins[column.name][g]
        present = _present(column, counts)
        there = counts[:, : ends.size - 1]
        shares = there / np.maximum(present, 1e-12)[:, None]
        number = CountedNumber.drawn(shares, ends, column.possible, smooth, rounding)
        if column.window is not None:
            told = counted.bins[column.name][g, : ends.size - 1]
            number = number.with_sums(told, sums, counted.noise, present, ends, rng)
        found.append(number)
    return found


def _moved(
    number: CountedNumber, whole: CountedNumber, everybody: CountedNumber
) -> CountedNumber:
    """A number in one of the groups, whose means add up to that of all records; these
    are told by its grouping alone (``whole``) and by all groupings."""
    moved = number.moments + everybody.moments - whole.moments
    return replace(number, moments=moved)


def _statistics(
    column: DescribedColumn, group: _Group, number: _Number | None, tail: float
) -> Iterator[DescribeRow]:
    counts, label = group.bins[column.name], group.label
    present = _present(column, counts)
    if column.missing:
        absent = _shares(counts[:, -1], group.rows)
        yield _row(column.name, "missing share", label, absent, tail)
    if column.levels is not None:
        for level, count in zip(column.levels, counts.T, strict=False):
            share = _shares(count, present)
            yield _row(column.name, f"count: {level}", label, count, tail)
            yield _row(column.name, f"share: {level}", label, share, tail)
        return
    assert number is not None
    yield from _mean_and_sd(column, group, number, present, tail)
    for quantile in QUANTILES.items():
        yield _quantile(column, number.drawn, label, quantile, tail)


def _mean_and_sd(
    column: DescribedColumn,
    group: _Group,
    told: _Number,
    present: Floats,
    tail: float,
) -> Iterator[DescribeRow]:
    number, counts, sums = told
    shares, label, ends = number.shares, group.label, column.number.ends
    lows, highs = ends[:-1], ends[1:]
    if column.window is None:
        inside = lows + (highs - lows) * number.places
        mean = (shares * inside).sum(axis=1)
        square = (shares * (inside - mean[:, None]) ** 2).sum(axis=1)
        left = (highs - lows) ** 2 * number.places * (1.0 - number.places) / 3.0
        sd = np.sqrt(square + (shares * left).sum(axis=1))
        yield _row(
            column.name, "mean", label, mean, tail, (shares @ lows, shares @ highs)
        )
        least, most = sd_bounds(shares, lows, highs)
    else:
        middle, half = column.window
        first, second = number.possible_moments()
        mean = np.clip(middle + half * first, lows[0], highs[-1])
        sd = half * np.sqrt(np.maximum(second - first**2, 0.0))
        # Values of the outer ranges may lie beyond the window.
        below = shares[:, 0] * max(middle - half - lows[0], 0.0)
        above = shares[:, -1] * max(highs[-1] - middle - half, 0.0)
        yield _row(column.name, "mean", label, mean, tail, (mean - below, mean + above))
        farthest = below * (middle - lows[0]) + above * (highs[-1] - middle)
        least, most = sd, np.sqrt(sd**2 + farthest)
    first_range, last_range = column.possible
    reach = float(-ndtri(tail))
    records = max(float(present.mean()), 1.0)
    counts = counts[first_range:last_range]
    if may_be_alike(counts, sums, group.noise, records, reach):
        least = np.zeros_like(least)
    yield _row(column.name, "sd", label, sd, tail, (least, most))


def _quantile(
    column: DescribedColumn,
    number: CountedNumber,
    label: str,
    which: tuple[str, float],
    tail: float,
) -> DescribeRow:
    """A quantile and its interval.

    Rounded values may all be at the ends of public ranges: an interval goes a little
    farther than places that are evenly likely would have it. Ranges made of released
    scales end anywhere. In the outer ranges many values may be at the very end of the
    public range, which it holds then.
    """
    name, share = which
    ranges = column.number
    ends = ranges.ends
    draws = number.quantile(share, np.clip(ranges.edges, ends[0], ends[-1]))
    lower, upper = np.quantile(draws, [tail, 1.0 - tail])
    inner = ends[(ends > ends[0]) & (ends < ends[-1])]
    if inner.size:
        farther = 0.0
        if column.spread is None and inner.size > 1:
            farther = tail * float(np.median(np.diff(inner)))
        lower = ends[0] if lower <= inner[0] else lower - farther
        upper = ends[-1] if upper >= inner[-1] else upper + farther
    return {
        "column": column.name,
        "statistic": name,
        "group": label,
        "mean": float(np.clip(draws.mean(), lower, upper)),
        "lower": float(lower),
        "upper": float(upper),
    }


def sd_bounds(shares: Floats, lows: Floats, highs: Floats) -> tuple[Floats, Floats]:
    """Least and largest standard deviation of values that lie anywhere in their ranges.

    A variance is the least mean square distance from a point c. The least one has
    values of every range at the place next to c, their mean, which repeated averaging
    finds (the sum of squares is convex in places and c). Distances of the farthest
    places from any c bound it from above; c is the mean of the middles.
    """
    centre = shares @ (0.5 * (lows + highs))
    farthest = np.maximum(centre[:, None] - lows, highs - centre[:, None])
    most = np.sqrt(np.einsum("sb,sb->s", shares, farthest**2))
    for _ in range(STEPS):
        nearest = np.clip(centre[:, None], lows, highs)
        centre = np.einsum("sb,sb->s", shares, nearest)
    nearest = np.clip(centre[:, None], lows, highs) - centre[:, None]
    return np.sqrt(np.einsum("sb,sb->s", shares, nearest**2)), most


def _row(
    column: str,
    statistic: str,
    group: str,
    draws: Floats,
    tail: float,
    bounds: tuple[Floats, Floats] | None = None,
) -> DescribeRow:
    """A statistic with its interval: the shortest of its draws, which reaches to zero
    where a count may be nothing; or from the lower to the upper bound of each where a
    draw of the counts leaves it open between ``bounds``."""
    if bounds is None:
        below = 2.0 * tail * np.linspace(0.0, 1.0, TRIED)
        starts, ends = np.quantile(draws, [below, below + 1.0 - 2.0 * tail])
        # The middle one unless another one is clearly shorter.
        lengths = (ends - starts) * (1.0 + SHORTER * np.abs(below / tail - 1.0))
        chosen = int(np.argmin(lengths))
        lower, upper = starts[chosen], ends[chosen]
        if chosen == 0 and lower < NEAR_ZERO * upper:
            lower = 0.0
    else:
        lower = np.quantile(bounds[0], tail)
        upper = np.quantile(bounds[1], 1.0 - tail)
    return {
        "column": column,
        "statistic": statistic,
        "group": group,
        "mean": float(draws.mean()),
        "lower": float(lower),
        "upper": float(upper),
    }

"""The table of the records' characteristics, from noised counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from cipherbayes.data.characteristics import WEIGHTS, Characteristics
from cipherbayes.inference.described import bin_shares
from cipherbayes.protocols.rounds import Closing
from cipherbayes.results.record import DescribeRow
from cipherbayes.results.user_values import user_values
from cipherbayes.study.schema import PrivateStudy
from cipherbayes.typing import Floats

QUANTILES = {"q1": 0.25, "median": 0.5, "q3": 0.75}
RANGE_SPREAD = 16.0 / 6.0
"""A released standard deviation in bins: sixteen of them span six."""
TRIED, SHORTER = 21, 0.05
"""Intervals of which the shortest is taken, and by how much it must be shorter than the
one with equal tails to be taken in its place."""
STEPS = 50
"""Of repeated averaging, each of which leaves the share of one range of the error."""


@dataclass(frozen=True)
class _Column:
    """A column's bins.

    Attributes
    ----------
    levels
        Names, where bins are levels.
    edges, ends
        Outer and inner edges of a number's ranges in the user's units, the outer
        ranges as wide as the others; and the same with outer ranges that reach to the
        ends of the public range, as far as values do.
    missing
        Whether the last bin is that of missing values.
    spread
        Standard deviation in bins, where it is known about.
    window
        Middle and half width of where a number's sums tell values apart, in the user's
        units; None where there are no sums.
    """

    name: str
    size: int
    levels: tuple[str, ...] | None
    edges: Floats | None
    ends: Floats | None
    missing: bool
    spread: float | None
    window: tuple[float, float] | None


@dataclass(frozen=True)
class _Counted:
    """A column in a group: released counts and sums, their noise, and draws of
    shares."""

    counts: Floats
    sums: Floats
    noise: float
    shares: Floats

    def moments(
        self, shares: Floats, ends: Floats, present: Floats
    ) -> tuple[Floats, Floats]:
        """Draws of the mean place within the window, and of its mean square.

        Those of the counts, values anywhere within their ranges, are moved by as much
        as the sums are surer of them.

        Parameters
        ----------
        shares
            Of the ranges, for each draw.
        ends
            Of the ranges, as places.
        present
            Draws of how many records have a value.
        """
        rng = np.random.default_rng(3)
        lows, highs = ends[:-1], ends[1:]
        mean = lows + (highs - lows) * rng.random(shares.shape)
        # Around the mean of a range at most what its ends leave, evenly about a third.
        square = mean**2 + (mean - lows) * (highs - mean) * rng.random(mean.shape) / 1.5
        counted = np.stack([(shares * mean).sum(1), (shares * square).sum(1)], axis=1)
        weights = np.array(WEIGHTS)
        sd = self.noise / weights / present.mean()
        noised = self.sums + self.noise * rng.standard_normal(counted.shape)
        summed = noised / weights / present[:, None]
        spread = np.cov(counted.T)
        gain = np.linalg.solve(spread + np.diag(sd**2), spread).T
        first, second = (counted + (summed - counted) @ gain.T).T
        return np.clip(first, -1.0, 1.0), np.clip(second, first**2, 1.0)

    def upto(self, share: float, bins: int) -> Floats:
        """How likely it is that a quantile is in one of the first k ranges, for each k.

        With n_k records up to range k, n_k - share n is not negative from the
        quantile's range on and negative before it: by the counts alone, whatever the
        records are. Draws of shares, of which none is zero, would put records into
        ranges that are empty.
        """
        upto = np.cumsum(self.counts[:bins])
        balance = upto - share * upto[-1]
        k = np.arange(1.0, bins)
        sd = self.noise * np.sqrt((1.0 - share) ** 2 * k + share**2 * (bins - k))
        chance = np.concatenate([[0.0], ndtr(balance[:-1] / sd), [1.0]])
        # Noise may make a later one smaller; half of the way from either side.
        up, down = np.maximum.accumulate(chance), np.minimum.accumulate(chance[::-1])
        found: Floats = 0.5 * (up + down[::-1])
        return found


def describe_rows(
    study: PrivateStudy,
    table: Characteristics,
    released: Closing,
    moments: Floats | None,
    tail: float,
) -> list[DescribeRow]:
    """Rows of the table: all records, then every group.

    Counts of a column's levels add up to the records of their group, groups add up to
    all records, and nothing is negative.
    """
    columns = list(_columns(table, moments))
    blocks, labels, noises = _blocks(table, released)
    rows = _group_sizes(study, table, blocks, noises, labels)
    found: list[DescribeRow] = []
    results = _sampled(table, columns, blocks, np.array(noises), rows.mean(axis=1))
    for g, label in enumerate(labels):
        found.append(_row("", "rows", label, rows[g], tail))
        for column in columns:
            # A column by its own levels says nothing but what its groups are.
            if label.partition(": ")[0] != column.name:
                counted = results[g, column.name]
                found += _statistics(column, label, counted, rows[g], tail)
    return found


def _sampled(
    table: Characteristics,
    columns: list[_Column],
    blocks: Floats,
    noises: Floats,
    rows: Floats,
) -> dict[tuple[int, str], _Counted]:
    """Every column in every group, by group and name; columns alike in shape are
    sampled together."""
    ends = np.cumsum([column.size for column in columns])
    pairs = blocks[:, table.bins :].reshape(len(blocks), -1, len(WEIGHTS))
    sums = dict(zip(table.numbers, pairs.transpose(1, 0, 2), strict=True))
    nothing = np.zeros((len(blocks), len(WEIGHTS)))
    alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, column in enumerate(columns):
        shape = (column.size, column.levels is None, column.missing, column.spread)
        alike[shape].append(place)
    groups = len(blocks)
    found: dict[tuple[int, str], _Counted] = {}
    for (size, ranges, missing, spread), places in alike.items():
        own = [blocks[:, ends[place] - size : ends[place]] for place in places]
        shares = bin_shares(
            np.concatenate(own),
            np.tile(noises, len(places)),
            np.tile(rows, len(places)),
            ranges=ranges,
            missing=missing,
            spread=spread,
        )
        for k, place in enumerate(places):
            for g in range(groups):
                name, part = columns[place].name, shares[k * groups + g]
                released = own[k][g], sums.get(name, nothing)[g]
                found[g, name] = _Counted(*released, float(noises[g]), part)
    return found


def _columns(table: Characteristics, moments: Floats | None) -> Iterator[_Column]:
    for column in table.features:
        edges = ends = window = None
        if column.has_sums:
            middle, half = column.window(moments)
            scale = column.half_width
            window = (column.centre + scale * middle, scale * half)
        if column.levels is None:
            inner = column.edges(moments)
            step = inner[1] - inner[0]
            edges = user_values(
                column, np.array([inner[0] - step, *inner, inner[-1] + step])
            )
            assert column.feature is not None
            low, high = column.feature.low, column.feature.high
            ends = np.array([low, *edges[1:-1], high], dtype=np.float64)
        known = moments is not None and column.levels is None
        yield _Column(
            column.column,
            column.size,
            column.levels,
            edges,
            ends,
            column.tells_missing,
            RANGE_SPREAD if known else None,
            window,
        )
    for outcome in table.outcomes:
        inner = np.array(outcome.edges)
        edges = window = None
        if outcome.levels is None:
            middle, half = outcome.window()
            window = (outcome.centre + outcome.scale * middle, outcome.scale * half)
            step = inner[1] - inner[0]
            outer = np.array([inner[0] - step, *inner, inner[-1] + step])
            edges = outcome.centre + outcome.scale * outer
        size = inner.size + 1
        # Values beyond the outer edges count as these.
        yield _Column(
            outcome.column, size, outcome.levels, edges, edges, False, None, window
        )


def _blocks(
    table: Characteristics, released: Closing
) -> tuple[Floats, list[str], list[float]]:
    """Counts of all records and of every group, their names, and their noise.

    All records are the groups of the first grouping together.
    """
    counts: list[Floats] = []
    labels, noises = ["all"], []
    start = 0
    for number, (name, groups) in enumerate(table.groupings()):
        size = table.width * len(groups)
        part = released.total[start : start + size].reshape(len(groups), table.width)
        start += size
        if number == 0:
            counts.append(part.sum(axis=0))
            noises.append(released.noise * float(np.sqrt(len(groups))))
        if name:
            counts += list(part)
            labels += [f"{name}: {group}" for group in groups]
            noises += [released.noise] * len(groups)
    return np.array(counts), labels, noises


def _group_sizes(
    study: PrivateStudy,
    table: Characteristics,
    blocks: Floats,
    noises: list[float],
    labels: list[str],
) -> Floats:
    """Draws of the number of records of each group; groups add up to all of them."""
    rng = np.random.default_rng(2)
    columns = len(table.sizes)
    # Every column counts each record once, so the columns' sums are repeated counts.
    means = blocks[:, : table.bins].sum(axis=1) / columns
    sds = np.array(noises) * np.sqrt(table.bins) / columns
    drawn = means[:, None] + sds[:, None] * rng.standard_normal((len(means), 1600))
    draws: Floats = np.maximum(drawn, 0.0)
    if study.privacy.records is not None:
        draws[0] = study.privacy.records
    start = 1
    for name, groups in table.groupings():
        if name:
            part = draws[start : start + len(groups)]
            part *= draws[0] / np.maximum(part.sum(axis=0), 1e-9)
            start += len(groups)
    return draws


def _statistics(
    column: _Column, label: str, counted: _Counted, rows: Floats, tail: float
) -> Iterator[DescribeRow]:
    shares, present = counted.shares, rows[: len(counted.shares)]
    if column.missing:
        absent = shares[:, -1]
        yield _row(column.name, "missing share", label, absent, tail)
        shares = shares[:, :-1] / np.maximum(1.0 - absent, 1e-9)[:, None]
        present = present * (1.0 - absent)
    if column.levels is not None:
        for level, share in zip(column.levels, shares.T, strict=True):
            yield _row(column.name, f"count: {level}", label, share * present, tail)
            yield _row(column.name, f"share: {level}", label, share, tail)
        return
    assert column.edges is not None
    assert column.ends is not None
    lows, highs = column.ends[:-1], column.ends[1:]
    if column.window is None:
        # Values lie evenly within a range.
        middles = 0.5 * (column.edges[1:] + column.edges[:-1])
        square = shares @ (middles**2 + np.diff(column.edges) ** 2 / 12.0)
        mean = shares @ middles
        sd = np.sqrt(np.maximum(square - mean**2, 0.0))
        ranges = shares @ lows, shares @ highs
        yield _row(column.name, "mean", label, mean, tail, ranges)
        spreads = sd_bounds(shares, lows, highs)
        yield _row(column.name, "sd", label, sd, tail, spreads)
    else:
        middle, half = column.window
        places = np.clip((column.ends - middle) / half, -1.0, 1.0)
        first, second = counted.moments(shares, places, np.maximum(present, 1.0))
        mean = np.clip(middle + half * first, lows[0], highs[-1])
        sd = half * np.sqrt(np.maximum(second - first**2, 0.0))
        # Values of the outer ranges may lie beyond the window.
        below = shares[:, 0] * max(middle - half - lows[0], 0.0)
        above = shares[:, -1] * max(highs[-1] - middle - half, 0.0)
        bounds = mean - below, mean + above
        yield _row(column.name, "mean", label, mean, tail, bounds)
        farthest = below * (middle - lows[0]) + above * (highs[-1] - middle)
        bounds = sd, np.sqrt(sd**2 + farthest)
        yield _row(column.name, "sd", label, sd, tail, bounds)
    below = np.concatenate([np.zeros((len(shares), 1)), np.cumsum(shares, axis=1)], 1)
    found = []
    for share_below in QUANTILES.values():
        lower, upper = _quantile(
            counted.upto(share_below, lows.size), column.ends, tail
        )
        values = [np.interp(share_below, each, column.edges) for each in below]
        middle = min(max(float(np.mean(values)), lower), upper)
        found.append((middle, lower, upper))
    # Each by itself noise may bring out of order.
    ordered = np.maximum.accumulate(np.array(found)).tolist()
    for name, (middle, lower, upper) in zip(QUANTILES, ordered, strict=True):
        yield {
            "column": column.name,
            "statistic": name,
            "group": label,
            "mean": middle,
            "lower": lower,
            "upper": upper,
        }


def _quantile(upto: Floats, ends: Floats, tail: float) -> tuple[float, float]:
    """The interval of a quantile that is in one of the first ranges with probabilities
    ``upto``, anywhere in its range.

    Rounded values may all be at the ends of ranges: an interval goes a little farther
    than places that are evenly likely would have it. In the outer ranges many values
    may be at the very end of the public range, which it holds then.
    """
    # Rising by a little, so that a range that it is surely not in is skipped.
    rising = upto + 1e-9 * np.arange(upto.size)
    lower, upper = np.interp([tail, 1.0 - tail], rising, ends)
    inner = ends[(ends > ends[0]) & (ends < ends[-1])]
    if inner.size:
        farther = tail * float(np.median(np.diff(inner))) if inner.size > 1 else 0.0
        lower = ends[0] if lower <= inner[0] else lower - farther
        upper = ends[-1] if upper >= inner[-1] else upper + farther
    return float(lower), float(upper)


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

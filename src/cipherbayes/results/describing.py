"""The table of the records' characteristics, from noised counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import ndtri

from cipherbayes.data.characteristics import SITE, WEIGHTS, Characteristics
from cipherbayes.inference.described import bin_shares
from cipherbayes.inference.noised_counts import about_the_mode
from cipherbayes.protocols.rounds import Closing
from cipherbayes.results.counted_column import CountedColumn
from cipherbayes.results.described_columns import DescribedColumn, described_columns
from cipherbayes.results.record import DescribeRow
from cipherbayes.study.schema import PrivateStudy
from cipherbayes.typing import Floats

QUANTILES = {"q1": 0.25, "median": 0.5, "q3": 0.75}
TRIED, SHORTER = 21, 0.05
"""Intervals of which the shortest is taken, and by how much it must be shorter than the
one with equal tails to be taken in its place."""
NEAR_ZERO = 0.1
"""An interval that begins at the least of all draws reaches to zero, if that is below
this share of its end."""
LEAST_RECORDS = 1.0
"""That a group must surely have to be described."""
STEPS = 50
"""Of repeated averaging, each of which leaves the share of one range of the error."""


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
    columns = list(described_columns(table, moments))
    blocks, labels, noises = _blocks(table, released)
    rows = _group_sizes(study, table, blocks, noises, labels)
    found: list[DescribeRow] = []
    results = _sampled(table, columns, blocks, np.array(noises), rows)
    _by_levels(columns, labels, results, rows)
    for g, label in enumerate(labels):
        size = _row("", "rows", label, rows[g], tail)
        found.append(size)
        if size["lower"] < LEAST_RECORDS:
            continue  # there may be nobody to describe
        for column in columns:
            # A column by its own levels says nothing but what its groups are.
            if label.partition(": ")[0] != column.name:
                counted = results[g, column.name]
                found += _statistics(column, label, counted, rows[g], tail)
    return found


def _sampled(
    table: Characteristics,
    columns: list[DescribedColumn],
    blocks: Floats,
    noises: Floats,
    rows: Floats,
) -> dict[tuple[int, str], CountedColumn]:
    """Every column in every group, by group and name; columns alike in shape are
    sampled together."""
    ends = np.cumsum([column.size for column in columns])
    pairs = blocks[:, table.bins :].reshape(len(blocks), -1, len(WEIGHTS))
    sums = dict(zip(table.numbers, pairs.transpose(1, 0, 2), strict=True))
    nothing = np.zeros((len(blocks), len(WEIGHTS)))
    alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, column in enumerate(columns):
        kind = column.levels is None, column.missing, column.spread
        alike[(column.size, column.possible, column.widths, *kind)].append(place)
    groups = len(blocks)
    found: dict[tuple[int, str], CountedColumn] = {}
    for (size, possible, widths, ranges, missing, spread), places in alike.items():
        own = [blocks[:, ends[place] - size : ends[place]] for place in places]
        first, last = possible
        kept = list(range(first, last))
        middle = 0.5 * (size - missing - 1) - first
        counts, noise = np.concatenate(own), np.tile(noises, len(places))
        records = np.tile(rows.mean(axis=1), len(places))
        unsure = np.tile(rows.std(axis=1), len(places))
        if missing and ranges:
            # A number's ranges have the others, whose count has noise of its own.
            records, unsure = records - counts[:, -1], np.hypot(unsure, noise)
        elif missing:
            kept.append(size - 1)
        drawn = bin_shares(
            counts[:, kept],
            noise,
            (records, unsure),
            ranges=ranges,
            spread=None if spread is None else (middle, spread),
            widths=widths,
        )
        shares = np.zeros((*drawn.shares.shape[:2], size))
        shares[:, :, kept] = drawn.shares
        likeliest = np.zeros((len(shares), size))
        likeliest[:, kept] = drawn.likeliest
        for k, place in enumerate(places):
            for g in range(groups):
                name, problem = columns[place].name, k * groups + g
                found[g, name] = CountedColumn(
                    own[k][g],
                    sums.get(name, nothing)[g],
                    float(noises[g]),
                    possible,
                    shares[problem],
                    drawn.smooth[problem],
                    likeliest[problem],
                )
    return found


def _blocks(
    table: Characteristics, released: Closing
) -> tuple[Floats, list[str], list[float]]:
    """Counts of all records and of every group, their names, and their noise.

    The groups of every grouping are all records between them. Several groupings tell of
    them several times, each with the noise of its groups together; the groups of each
    are moved so that they add up to what all groupings say.
    """
    parts: list[Floats] = []
    labels = ["all"]
    start = 0
    for name, groups in table.groupings():
        size = table.width * len(groups)
        part = released.total[start : start + size].reshape(len(groups), table.width)
        start += size
        parts.append(part)
        if name:
            labels += [f"{name}: {group}" for group in groups]
    sizes = np.array([len(part) for part in parts], dtype=np.float64)
    told = 1.0 / sizes
    totals = np.array([part.sum(axis=0) for part in parts])
    everybody = told @ totals / told.sum()
    counts, noises = [everybody], [1.0 / np.sqrt(told.sum())]
    if table.by:
        for part, size in zip(parts, sizes.tolist(), strict=True):
            counts += list(part + (everybody - part.sum(axis=0)) / size)
            left = 1.0 - 1.0 / size + 1.0 / (told.sum() * size**2)
            noises += [np.sqrt(left)] * len(part)
    return np.array(counts), labels, [released.noise * float(n) for n in noises]


def _by_levels(
    columns: list[DescribedColumn],
    labels: list[str],
    results: dict[tuple[int, str], CountedColumn],
    rows: Floats,
) -> None:
    """Groups by the levels of a column have as many records as the levels have."""
    for column in columns:
        if column.levels is None:
            continue
        shares = results[0, column.name].shares
        names = [*column.levels, "missing"][: shares.shape[1]]
        for name, share in zip(names, shares.T, strict=True):
            label = f"{column.name}: {name}"
            if label in labels[1:] and column.name != SITE:
                rows[labels.index(label), : len(share)] = share * rows[0, : len(share)]


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
    column: DescribedColumn,
    label: str,
    counted: CountedColumn,
    rows: Floats,
    tail: float,
) -> Iterator[DescribeRow]:
    shares, present = counted.shares, rows[: len(counted.shares)]
    if column.missing:
        absent = counted.absent(present)
        if column.levels is not None:
            absent, shares = shares[:, -1], shares[:, :-1]
            shares = shares / np.maximum(1.0 - absent, 1e-9)[:, None]
        yield _row(column.name, "missing share", label, absent, tail)
        present = present * (1.0 - absent)
    if column.levels is not None:
        for level, share in zip(column.levels, shares.T, strict=True):
            yield _row(column.name, f"count: {level}", label, share * present, tail)
            yield _row(column.name, f"share: {level}", label, share, tail)
        return
    assert column.edges is not None
    assert column.ends is not None
    # Ranges reach as far as the public range does.
    ends = np.clip(column.ends, column.ends[0], column.ends[-1])
    edges = np.clip(column.edges, ends[0], ends[-1])
    shares = np.concatenate([counted.likeliest[None], shares])[:, : ends.size - 1]
    present = np.append(present.mean(), present)
    lows, highs = ends[:-1], ends[1:]
    if column.window is None:
        # Values lie evenly within a range.
        middles = 0.5 * (edges[1:] + edges[:-1])
        square = shares @ (middles**2 + np.diff(edges) ** 2 / 12.0)
        mean = shares @ middles
        sd = about_the_mode(np.sqrt(np.maximum(square - mean**2, 0.0)))
        mean = about_the_mode(mean)
        bounds = about_the_mode(shares @ lows), about_the_mode(shares @ highs)
        yield _row(column.name, "mean", label, mean, tail, bounds)
        least, most = map(about_the_mode, sd_bounds(shares, lows, highs))
    else:
        middle, half = column.window
        places = np.clip((ends - middle) / half, -1.0, 1.0)
        first, second = counted.moments(shares, places, np.maximum(present, 1.0))
        mean = np.clip(middle + half * first[1:], lows[0], highs[-1])
        sd = about_the_mode(half * np.sqrt(np.maximum(second - first**2, 0.0)))
        # Values of the outer ranges may lie beyond the window.
        below = shares[1:, 0] * max(middle - half - lows[0], 0.0)
        above = shares[1:, -1] * max(highs[-1] - middle - half, 0.0)
        bounds = mean - below, mean + above
        yield _row(column.name, "mean", label, mean, tail, bounds)
        farthest = below * (middle - lows[0]) + above * (highs[-1] - middle)
        least, most = sd, np.sqrt(sd**2 + farthest)
    if counted.may_be_alike(lows.size, max(present[0], 1.0), float(-ndtri(tail))):
        least = np.zeros_like(least)
    yield _row(column.name, "sd", label, sd, tail, (least, most))
    shares = shares[1:]
    below = np.concatenate([np.zeros((len(shares), 1)), np.cumsum(shares, axis=1)], 1)
    found = []
    single = counted.single(lows.size)
    for share_below in QUANTILES.values():
        upto = counted.upto(share_below, lows.size)
        lower, upper = _quantile(upto, single, column, tail)
        values = [np.interp(share_below, each, edges) for each in below]
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


def _quantile(
    upto: Floats, single: Floats, column: DescribedColumn, tail: float
) -> tuple[float, float]:
    """The interval of a quantile that is in one of the first ranges with probabilities
    ``upto``, anywhere in its range.

    Where values of a range may be a ``single`` one (with that probability), it is as
    likely to be at one of the ends as anywhere, so that the interval holds it wherever
    it is. Rounded values may all be at the ends of public ranges: an interval goes a
    little farther than places that are evenly likely would have it. Ranges made of
    released scales end anywhere. In the outer ranges many values may be at the very end
    of the public range, which it holds then.
    """
    assert column.ends is not None
    ends = np.clip(column.ends, column.ends[0], column.ends[-1])
    at_end = 0.5 * single * np.diff(upto)
    steps = np.stack([upto[:-1], upto[:-1] + at_end, upto[1:] - at_end, upto[1:]], 1)
    places = np.repeat(np.stack([ends[:-1], ends[1:]], 1), 2, axis=1)
    # Rising by a little, so that a range that it is surely not in is skipped.
    rising = steps.ravel() + 1e-9 * np.arange(steps.size)
    lower, upper = np.interp([tail, 1.0 - tail], rising, places.ravel())
    inner = ends[(ends > ends[0]) & (ends < ends[-1])]
    if inner.size:
        farther = 0.0
        if column.spread is None and inner.size > 1:
            farther = tail * float(np.median(np.diff(inner)))
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

"""The table of the records' characteristics, from noised counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from cipherbayes.data.characteristics import Characteristics
from cipherbayes.inference.described import bin_shares
from cipherbayes.protocols.rounds import Closing
from cipherbayes.results.record import DescribeRow
from cipherbayes.results.user_values import user_values
from cipherbayes.study.schema import PrivateStudy
from cipherbayes.typing import Floats

QUANTILES = {"q1": 0.25, "median": 0.5, "q3": 0.75}
RANGE_SPREAD = 16.0 / 6.0
"""A released standard deviation in bins: sixteen of them span six."""
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
    """

    name: str
    size: int
    levels: tuple[str, ...] | None
    edges: Floats | None
    ends: Floats | None
    missing: bool
    spread: float | None


@dataclass(frozen=True)
class _Counted:
    """A column in a group: released counts, their noise, and draws of shares."""

    counts: Floats
    noise: float
    shares: Floats

    def sd_ends(self, lows: Floats, highs: Floats, tail: float) -> tuple[float, float]:
        """Ends of the interval of a standard deviation, by the counts.

        The mean square distance of values from a point is linear in the counts, so its
        noise is normal, whatever the records are: of the farthest places from the mean
        of the middles it is at least the variance; of the nearest places, at the point
        where it is least, at most. Draws of shares, of which none is zero, would put
        rows into empty tails, which a standard deviation feels most.
        """
        counts = self.counts[: lows.size]
        total = max(float(counts.sum()), 1.0)
        middles, step = 0.5 * (lows + highs), float(np.median(highs - lows))
        held = np.clip(counts, 0.0, None)
        centre = float(held @ middles) / max(float(held.sum()), 1.0)
        reach = float(ndtri(1.0 - tail)) * self.noise

        def end(squares: Floats, sign: float) -> float:
            mean = float(counts @ squares) / total
            # Of a ratio: its own value is taken off.
            noise = reach * float(np.linalg.norm(squares - mean)) / total
            return float(np.sqrt(max(mean + sign * noise, 0.0)))

        points = centre + step * np.linspace(-0.5, 0.5, 5)
        nearest = [np.clip(c, lows, highs) - c for c in points]
        farthest = np.maximum(centre - lows, highs - centre)
        return min(end(each**2, -1.0) for each in nearest), end(farthest**2, 1.0)

    def places(self, share: float, bins: int, tail: float) -> tuple[int, int]:
        """First and last of ``bins`` ranges in which a quantile may be, by the counts.

        With n_k records up to range k, n_k - share n is not negative from the
        quantile's range on and negative before it. The first range is where it may not
        be negative, the last one that after the last where it may be: each leaves out
        the quantile's range with probability ``tail`` or less, whatever the records
        are. Draws of shares, of which none is zero, do not promise it where ranges
        are empty.
        """
        upto = np.cumsum(self.counts[:bins])
        balance = upto - share * upto[-1]
        k = np.arange(1.0, bins + 1.0)
        sd = self.noise * np.sqrt((1.0 - share) ** 2 * k + share**2 * (bins - k))
        reach = ndtri(1.0 - tail) * sd
        first = np.append(balance + reach >= 0.0, True).argmax()
        (unsure,) = np.nonzero(balance - reach < 0.0)
        last = unsure[-1] + 1 if unsure.size else 0
        return min(int(first), bins - 1), min(int(last), bins - 1)


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
    results = _sampled(columns, blocks, np.array(noises), rows.mean(axis=1))
    for g, label in enumerate(labels):
        found.append(_row("", "rows", label, rows[g], tail))
        for column in columns:
            # A column by its own levels says nothing but what its groups are.
            if label.partition(": ")[0] != column.name:
                counted = results[g, column.name]
                found += _statistics(column, label, counted, rows[g], tail)
    return found


def _sampled(
    columns: list[_Column], blocks: Floats, noises: Floats, rows: Floats
) -> dict[tuple[int, str], _Counted]:
    """Every column in every group, by group and name; columns alike in shape are
    sampled together."""
    ends = np.cumsum([column.size for column in columns])
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
                part = shares[k * groups + g]
                counted = _Counted(own[k][g], float(noises[g]), part)
                found[g, columns[place].name] = counted
    return found


def _columns(table: Characteristics, moments: Floats | None) -> Iterator[_Column]:
    for column in table.features:
        edges = ends = None
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
        )
    for outcome in table.outcomes:
        inner = np.array(outcome.edges)
        edges = None
        if outcome.levels is None:
            step = inner[1] - inner[0]
            outer = np.array([inner[0] - step, *inner, inner[-1] + step])
            edges = outcome.centre + outcome.scale * outer
        size = inner.size + 1
        # Values beyond the outer edges count as these.
        yield _Column(outcome.column, size, outcome.levels, edges, edges, False, None)


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
    means = blocks.sum(axis=1) / columns
    sds = np.array(noises) * np.sqrt(table.width) / columns
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
    shares = counted.shares
    if column.missing:
        absent = shares[:, -1]
        yield _row(column.name, "missing share", label, absent, tail)
        shares = shares[:, :-1] / np.maximum(1.0 - absent, 1e-9)[:, None]
    if column.levels is not None:
        present = rows[: len(shares)]
        if column.missing:
            present = present * (1.0 - absent)
        for level, share in zip(column.levels, shares.T, strict=True):
            yield _row(column.name, f"count: {level}", label, share * present, tail)
            yield _row(column.name, f"share: {level}", label, share, tail)
        return
    assert column.edges is not None
    assert column.ends is not None
    middles = 0.5 * (column.edges[1:] + column.edges[:-1])
    widths = np.diff(column.edges)
    lows, highs = column.ends[:-1], column.ends[1:]
    mean = shares @ middles
    yield _row(column.name, "mean", label, mean, tail, (shares @ lows, shares @ highs))
    # Values lie evenly within a range.
    square = shares @ (middles**2 + widths**2 / 12.0)
    sd = np.sqrt(np.maximum(square - mean**2, 0.0))
    least, most = sd_bounds(shares, lows, highs)
    first_end, last_end = counted.sd_ends(lows, highs, tail)
    most = np.maximum(np.minimum(most, last_end), sd)
    yield _row(column.name, "sd", label, sd, tail, (np.minimum(least, first_end), most))
    below = np.concatenate([np.zeros((len(shares), 1)), np.cumsum(shares, axis=1)], 1)
    for name, share_below in QUANTILES.items():
        place = np.argmax(below[:, 1:] >= share_below, axis=1)
        drawn = np.arange(len(shares))
        inside = (share_below - below[drawn, place]) / shares[drawn, place]
        values = column.edges[place] + inside * widths[place]
        first, last = counted.places(share_below, lows.size, tail)
        bounds = (
            np.minimum(lows[place], lows[first]),
            np.maximum(highs[place], highs[last]),
        )
        yield _row(column.name, name, label, values, tail, bounds)


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
    """A statistic with its interval: of its draws, or from the lower to the upper bound
    of each where a draw of the counts leaves it open between ``bounds``."""
    least, most = (draws, draws) if bounds is None else bounds
    lower = np.quantile(least, tail)
    upper = np.quantile(most, 1.0 - tail)
    return {
        "column": column,
        "statistic": statistic,
        "group": group,
        "mean": float(draws.mean()),
        "lower": float(lower),
        "upper": float(upper),
    }

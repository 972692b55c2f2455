"""The bins of a table's columns, as the user knows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cipherbayes.data.characteristics import Characteristics
from cipherbayes.results.user_values import user_values
from cipherbayes.typing import Floats

RANGE_SPREAD = 16.0 / 6.0
"""A released standard deviation in bins: sixteen of them span six."""
LEAST_WIDTH = 0.05
"""Least width of a range that is nearly wholly beyond the public one, in widths of
the others."""


@dataclass(frozen=True)
class NumberRanges:
    """A number's ranges, in the user's units.

    Attributes
    ----------
    edges
        Outer and inner edges, the outer ranges as wide as the others.
    ends
        The same with outer ranges that reach to the ends of the public range, as far
        as values do.
    """

    edges: Floats
    ends: Floats


@dataclass(frozen=True)
class DescribedColumn:
    """A column's bins.

    Attributes
    ----------
    levels
        Names, where bins are levels.
    ranges
        Of a number; None for levels.
    possible
        First and last plus one of the bins that are not wholly beyond the public range:
        the others have no records, and what is released of them is noise.
    missing
        Whether the last bin is that of missing values.
    spread
        Standard deviation in bins, where it is known about.
    window
        Middle and half width of where a number's sums tell values apart, in the user's
        units; None where there are no sums.
    widths
        How much of each possible range is within the public range.
    """

    name: str
    size: int
    levels: tuple[str, ...] | None
    ranges: NumberRanges | None
    possible: tuple[int, int]
    missing: bool
    spread: float | None
    window: tuple[float, float] | None
    widths: tuple[float, ...] | None = None

    @property
    def number(self) -> NumberRanges:
        """A number's ranges; TypeError for levels."""
        if self.ranges is None:
            raise TypeError(f"{self.name} has levels")
        return self.ranges


def described_columns(
    table: Characteristics, moments: Floats | None
) -> Iterator[DescribedColumn]:
    """Features, then outcomes.

    Parameters
    ----------
    moments
        Released means and standard deviations, where the study has them.
    """
    for column in table.features:
        ranges = window = widths = None
        possible = (0, column.count)
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
            low, high = column.number.ends
            ends = np.clip([low, *edges[1:-1], high], low, high).astype(np.float64)
            ranges = NumberRanges(edges, ends)
            possible, widths = _within(inner)
        known = moments is not None and column.levels is None
        yield DescribedColumn(
            column.column,
            column.size,
            column.levels,
            ranges,
            possible,
            column.tells_missing,
            RANGE_SPREAD if known else None,
            window,
            widths,
        )
    for outcome in table.outcomes:
        inner = np.array(outcome.edges)
        ranges = window = None
        if outcome.levels is None:
            middle, half = outcome.window()
            window = (outcome.centre + outcome.scale * middle, outcome.scale * half)
            step = inner[1] - inner[0]
            outer = np.array([inner[0] - step, *inner, inner[-1] + step])
            edges = outcome.centre + outcome.scale * outer
            # Values beyond the outer edges count as these.
            ranges = NumberRanges(edges, edges)
        size = inner.size + 1
        yield DescribedColumn(
            outcome.column,
            size,
            outcome.levels,
            ranges,
            (0, size),
            False,
            None,
            window,
        )


def _within(inner: Floats) -> tuple[tuple[int, int], tuple[float, ...]]:
    """First and last plus one of the ranges between edges that are not wholly beyond
    the public range, which is prepared to lie from -1 to 1; and how much of them is
    within it. The outer ones are open."""
    step = inner[1] - inner[0]
    edges = np.array([inner[0] - step, *inner, inner[-1] + step])
    edges[0], edges[-1] = min(edges[0], -1.0), max(edges[-1], 1.0)
    (reached,) = np.nonzero((edges[1:] >= -1.0) & (edges[:-1] < 1.0))
    first, last = int(reached[0]), int(reached[-1]) + 1
    share = np.diff(np.clip(edges, -1.0, 1.0))[first:last] / step
    return (first, last), tuple(np.clip(share, LEAST_WIDTH, 1.0).round(3).tolist())

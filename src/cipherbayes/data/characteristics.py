"""Counts of the records' characteristics, overall or by group: a first table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cipherbayes.data.column_bins import ColumnBins
from cipherbayes.models.held_out import OutcomeColumn, weighted_sums
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Floats, Integers

SITE = "site"
"""What groups records by where they are."""
WEIGHTS = (0.75, 0.5)
"""By how much a number's place and its square count beside its bin."""


@dataclass(frozen=True)
class Characteristics:
    """Which counts are made of every record.

    Attributes
    ----------
    features, outcomes
        The columns, in bins.
    by
        What records are grouped by: :data:`SITE`, or a feature with levels. Nothing
        groups all of them together.
    sites
        The study's sites, in order.
    """

    features: tuple[ColumnBins, ...]
    outcomes: tuple[OutcomeColumn, ...]
    by: tuple[str, ...]
    sites: tuple[str, ...]

    @property
    def sizes(self) -> list[int]:
        """Bins of each column, features first."""
        outcomes = [len(column.edges) + 1 for column in self.outcomes]
        return [column.size for column in self.features] + outcomes

    @property
    def bins(self) -> int:
        """Bins of all columns."""
        return sum(self.sizes)

    @property
    def numbers(self) -> list[str]:
        """Columns of which there are sums, features first."""
        outcomes = [each.column for each in self.outcomes if each.levels is None]
        return [each.column for each in self.features if each.has_sums] + outcomes

    @property
    def width(self) -> int:
        """What a group has: bins of all columns, then two sums of each number."""
        return self.bins + len(WEIGHTS) * len(self.numbers)

    @property
    def bound(self) -> float:
        """Largest norm of what a record adds to :meth:`sums`."""
        of_numbers = len(self.numbers) * sum(weight**2 for weight in WEIGHTS)
        return math.sqrt((len(self.sizes) + of_numbers) * max(len(self.by), 1))

    @property
    def dimension(self) -> int:
        """Length of :meth:`sums`."""
        return self.width * sum(len(names) for _, names in self.groupings())

    def groupings(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """What records are grouped by, and the groups' names; one of all where there
        is nothing to group by."""
        if not self.by:
            yield "", ("",)
        for name in self.by:
            if name == SITE:
                yield name, self.sites
            else:
                yield name, self._feature(name).level_names

    def sums(self, rows: Rows, site: str, scales: Floats | None) -> Floats:
        """Counts of the bins of every column, then sums of places of numbers and of
        their squares, in every group, one after the other.

        Parameters
        ----------
        rows
            Records as they are prepared.
        site
            Where they are.
        scales
            Released means, then standard deviations, of the columns; None for public
            ranges.

        Formal guarantees
        -----------------
        A record adds, in one group of each grouping, one to one bin of each column, and
        for each number ¾ u and ½ u², |u| ≤ 1: norm √((columns + 13/16 numbers) ×
        groupings) or less, whatever the scales are. What is added are multiples of 2⁻²⁰
        of at most one, so that sums are exact. Where a record is a person, its rows
        count by their shares, which add up to one or less.
        """
        bins = [column.bins(rows, scales) for column in self.features]
        bins += [column.bins(rows.outcome) for column in self.outcomes]
        starts = np.cumsum([0, *self.sizes[:-1]])
        places = [each.places(rows, scales) for each in self.features if each.has_sums]
        places += [
            each.places(rows.outcome) for each in self.outcomes if each.levels is None
        ]
        parts = [
            weight * place**power
            for place in places
            for power, weight in enumerate(WEIGHTS, start=1)
        ]
        found = []
        for name, names in self.groupings():
            group = self._group(name, rows, site)
            counts = np.zeros(self.width * len(names))
            for start, place in zip(starts.tolist(), bins, strict=True):
                cells = group * self.width + start + place
                counts += np.bincount(cells, rows.shares, counts.size)
            for column, values in enumerate(parts, start=self.bins):
                cells = group * self.width + column
                counts += weighted_sums(cells, values, counts.size, rows.shares)
            found.append(counts)
        return np.concatenate(found)

    def _group(self, name: str, rows: Rows, site: str) -> Integers:
        if name in ("", SITE):
            place = self.sites.index(site) if name else 0
            return np.full(rows.count, place, dtype=np.int64)
        return self._feature(name).bins(rows, None)

    def _feature(self, name: str) -> ColumnBins:
        return next(column for column in self.features if column.column == name)

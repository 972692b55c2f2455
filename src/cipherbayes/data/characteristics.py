"""Counts of the records' characteristics, overall or by group: a first table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cipherbayes.data.column_bins import ColumnBins
from cipherbayes.models.base import Rows
from cipherbayes.models.held_out import OutcomeColumn
from cipherbayes.typing import Floats, Integers

SITE = "site"
"""What groups records by where they are."""


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
    def width(self) -> int:
        """Bins of all columns."""
        return sum(self.sizes)

    @property
    def bound(self) -> float:
        """Largest norm of what a record adds to :meth:`sums`."""
        return math.sqrt(len(self.sizes) * max(len(self.by), 1))

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
                column = self._feature(name)
                assert column.levels is not None
                missing = ("missing",) if column.tells_missing else ()
                yield name, (*column.levels, *missing)

    def sums(self, rows: Rows, site: str, scales: Floats | None) -> Floats:
        """Counts of the bins of every column in every group, one after the other.

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
        A record adds one to one bin of each column in one group of each grouping: norm
        √(columns × groupings), whatever the scales are. Counts are exact. Where a
        record is a person, its rows count by their shares, which add up to one or less.
        """
        bins = [column.bins(rows, scales) for column in self.features]
        bins += [column.bins(rows.outcome) for column in self.outcomes]
        starts = np.cumsum([0, *self.sizes[:-1]])
        found = []
        for name, names in self.groupings():
            group = self._group(name, rows, site)
            counts = np.zeros(self.width * len(names))
            for start, place in zip(starts.tolist(), bins, strict=True):
                cells = group * self.width + start + place
                counts += np.bincount(cells, rows.shares, counts.size)
            found.append(counts)
        return np.concatenate(found)

    def _group(self, name: str, rows: Rows, site: str) -> Integers:
        if name in ("", SITE):
            place = self.sites.index(site) if name else 0
            return np.full(rows.count, place, dtype=np.int64)
        return self._feature(name).bins(rows, None)

    def _feature(self, name: str) -> ColumnBins:
        return next(column for column in self.features if column.column == name)

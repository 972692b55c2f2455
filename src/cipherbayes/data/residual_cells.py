"""Residuals of held-out records by feature and by site: where does a fit miss?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cipherbayes.data.column_bins import ColumnBins
from cipherbayes.models.held_out import GRID, HeldOutCheck
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Floats, Integers


@dataclass(frozen=True)
class ResidualCells:
    """Groups of records whose residuals are added up.

    Attributes
    ----------
    check
        How the model makes residuals.
    features
        Its groups: the bins of every feature.
    sites
        The study's sites, each a group of its own.
    """

    check: HeldOutCheck
    features: tuple[ColumnBins, ...]
    sites: tuple[str, ...]

    @property
    def cells(self) -> int:
        """Groups in all."""
        return sum(column.size for column in self.features) + len(self.sites)

    @property
    def dimension(self) -> int:
        """Length of :meth:`sums`: residuals of each kind, then their variances."""
        return 2 * self.check.kinds * self.cells

    @property
    def bound(self) -> float:
        """Largest norm of what a record adds to :meth:`sums`."""
        return self.check.residual_bound * math.sqrt(len(self.features) + 1)

    def sums(
        self,
        theta: Floats,
        rows: Rows,
        seen: Rows,
        site: str,
        scales: Floats | None,
        share: Floats | None = None,
    ) -> Floats:
        """Sums of residuals in every group, then of their variances.

        Parameters
        ----------
        rows, seen
            The records as they are prepared, and as the model sees them.
        site
            Where they are.
        scales
            Released means, then standard deviations, of the columns; None for public
            ranges.
        share
            Where each record has several rows, which stand together because its missing
            values are drawn: by how much each counts, shape ``(records, rows)``. None
            is negative, and those of a record are below one together.

        Formal guarantees
        -----------------
        A record is in one group of each feature and in that of its site, with
        residuals and variances of norm ``check.residual_bound`` or less: the norm of
        all is at most that times √(features + 1), whatever is asked. What is added are
        multiples of 2⁻²⁰ of at most one, so that sums are exact. Where a record is a
        person, its rows count by their shares, which add up to one or less. A record
        with several rows adds a mean of what each would have added, and every number of
        it is rounded towards zero to a multiple of 2⁻²⁰: the norm keeps its bound.
        """
        groups = [column.bins(rows, scales) for column in self.features]
        groups.append(np.full(rows.count, self.sites.index(site), dtype=np.int64))
        sizes = [*(column.size for column in self.features), len(self.sites)]
        residuals, variances = self.check.residuals(theta, seen)
        return np.concatenate(
            [
                _added(values, place, size, share, rows.shares)
                for all_kinds in (residuals, variances)
                for values in all_kinds
                for place, size in zip(groups, sizes, strict=True)
            ]
        )


def _added(
    values: Floats,
    place: Integers,
    size: int,
    share: Floats | None,
    persons: Floats | None,
) -> Floats:
    """Sums of values in each of ``size`` groups."""
    if share is None:
        values = values if persons is None else values * persons
        return np.bincount(place, values, size).astype(np.float64)
    several = share.shape[1]
    record = np.repeat(np.arange(len(share)), several)
    weighted = values * share.ravel()
    cells = np.bincount(record * size + place, weighted, len(share) * size)
    exact = np.trunc(cells.reshape(-1, size) * GRID) / GRID
    if persons is not None:
        exact = exact * persons[::several, None]
    return np.asarray(exact.sum(axis=0))

"""Residuals of held-out records by feature and by site: where does a fit miss?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cipherbayes.data.column_bins import ColumnBins
from cipherbayes.models.base import Rows
from cipherbayes.models.held_out import HeldOutCheck
from cipherbayes.typing import Floats


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
        self, theta: Floats, rows: Rows, seen: Rows, site: str, scales: Floats | None
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

        Formal guarantees
        -----------------
        A record is in one group of each feature and in that of its site, with
        residuals and variances of norm ``check.residual_bound`` or less: the norm of
        all is at most that times √(features + 1), whatever is asked. What is added are
        multiples of 2⁻²⁰ of at most one, so that sums are exact. Where a record is a
        person, its rows count by their shares, which add up to one or less.
        """
        groups = [column.bins(rows.x, scales) for column in self.features]
        groups.append(np.full(rows.count, self.sites.index(site), dtype=np.int64))
        starts = np.cumsum([0, *(column.size for column in self.features)]).tolist()
        residuals, variances = self.check.residuals(theta, seen)
        if rows.shares is not None:
            residuals, variances = residuals * rows.shares, variances * rows.shares
        total = np.zeros((2, self.check.kinds, self.cells))
        pairs = zip(total, (residuals, variances), strict=True)
        for sums, values in pairs:
            for kind, weights in enumerate(values):
                for start, place in zip(starts, groups, strict=True):
                    sums[kind] += np.bincount(start + place, weights, self.cells)
        return total.ravel()

"""Prepared records on a second, released scale.

Public bounds can be wide against the data. Released moments (a mean m and a
standard deviation s for each column) move column j once more,

    x_j = (z_j - m_j) / s_j,

and the design remembers it, so that the posterior still comes out in the user's
units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.models import kernels
from cipherbayes.models.base import Design, Rows
from cipherbayes.typing import Floats, Integers

T = TypeVar("T")


def rescaled_design(design: Design, mean: Floats, sd: Floats) -> Design:
    """The design of the moved columns; the intercept stays as it is."""
    first = 0 if design.intercept is None else 1
    centre, half_width = design.centre.copy(), design.half_width.copy()
    centre[first:] += half_width[first:] * mean
    half_width[first:] *= sd
    return Design(design.names, centre, half_width, design.intercept)


def rescaled(table: PreparedTable, moments: Floats | None) -> PreparedTable:
    """The table seen through moments (means, then deviations), if there are any."""
    if moments is None:
        return table
    half = moments.size // 2
    return RescaledTable(table, moments[:half], moments[half:])


def seen_through(design: Design, moments: Floats | None) -> Callable[[Rows], Rows]:
    """How blocks of a design look through moments, if there are any."""
    if moments is None:
        return lambda block: block
    mean, sd = np.split(moments, 2)
    moved = rescaled_design(design, mean, sd)
    return lambda block: _moved(block, moved, mean[:, None], 1.0 / sd[:, None])


def _moved(block: Rows, design: Design, mean: Floats, scale: Floats) -> Rows:
    first = 0 if design.intercept is None else 1
    x = np.array(block.x)
    x[first:] -= mean
    x[first:] *= scale
    return Rows(design, x, block.outcome, kernels.squared_norms(x))


class RescaledTable(PreparedTable):
    """A prepared table seen through released moments; nothing is copied."""

    def __init__(self, table: PreparedTable, mean: Floats, sd: Floats) -> None:
        self._table = table
        self._mean = mean[:, None]
        self._scale = 1.0 / sd[:, None]
        self._rescaled = rescaled_design(table.design, mean, sd)

    @property
    def count(self) -> int:
        return self._table.count

    @property
    def design(self) -> Design:
        return self._rescaled

    def blocks(self, rows: Integers | None = None) -> Iterator[Rows]:
        return map(self._move, self._table.blocks(rows))

    def map(
        self, function: Callable[[Rows], T], rows: Integers | None = None
    ) -> Iterator[T]:
        return self._table.map(lambda block: function(self._move(block)), rows)

    def _move(self, block: Rows) -> Rows:
        return _moved(block, self.design, self._mean, self._scale)

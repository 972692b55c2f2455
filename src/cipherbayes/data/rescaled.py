"""Prepared records on a second, released scale.

Public bounds can be wide against the data. Released moments (a mean m and a
standard deviation s for each column) move column j once more,

    x_j = (z_j - m_j) / s_j,

and the design remembers it, so that the posterior still comes out in the user's
units. Products are those of the moved columns: around the data's middle they do not
repeat what the columns say themselves. The bends of a curve have no moments of their
own: they are made orthogonal again, to the constant, to the line and to each other,
over about a normal distribution with the line's mean and standard deviation. They
were orthogonal over the whole public range; over the part of it where the data lie they
may be almost collinear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.scratch import Reused
from cipherbayes.models import kernels
from cipherbayes.models.design import Design, fill_products
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Floats, Integers

T = TypeVar("T")


EVEN, EVERYWHERE = 1e-2, 1e-5
"""Parts of the distribution that bends are orthogonal over which are even over
``REACH`` standard deviations on either side, and over the public range: tails, and no
bend that vanishes wherever the data are."""
REACH = 4.0
NARROWEST = 0.01
"""Least standard deviation of that distribution, in half widths of the public range."""


def rescaled_design(design: Design, mean: Floats, sd: Floats) -> Design:
    """The design of the moved columns; the intercept stays as it is."""
    own = design.moved_places
    centre, half_width = design.centre.copy(), design.half_width.copy()
    centre[own] += half_width[own] * mean
    half_width[own] *= sd
    bends = tuple(
        orthogonal_bends(
            curve.values, float(centre[curve.first]), float(half_width[curve.first])
        )
        for curve in design.curves
    )
    return replace(design, centre=centre, half_width=half_width, bends=bends)


def orthogonal_bends(values: Floats, mean: float, sd: float) -> Floats:
    """Weights of bends that are orthonormal where the data are.

    Parameters
    ----------
    values
        Columns of the curve on an even grid over [-1, 1], the line first.
    mean, sd
        Released, of the line.

    Returns
    -------
    Floats
        For each bend the weights of the constant and of the columns.
    """
    line = values[0]
    away = (line - mean) / max(sd, NARROWEST)
    normal = np.exp(-0.5 * away**2)
    near = (np.abs(away) <= REACH).astype(np.float64)
    mass = normal / normal.sum() + EVEN * near / near.sum() + EVERYWHERE / line.size
    columns = np.vstack([np.ones_like(line), values])
    lower = np.linalg.cholesky((columns * mass) @ columns.T)
    weights: Floats = np.linalg.inv(lower)[2:]
    return weights


def rescaled(table: PreparedTable, moments: Floats | None) -> PreparedTable:
    """The table seen through moments (means, then deviations), if there are any."""
    if moments is None:
        return table
    mean, sd = np.split(moments, 2)
    if not (table.design.curves or table.design.products):
        shift = _Shift.of(table.design, mean, sd)
        design = rescaled_design(table.design, mean, sd)
        if (read := table.moved(design, shift.mean, shift.scale)) is not None:
            return read
    return RescaledTable(table, mean, sd)


def seen_through(design: Design, moments: Floats | None) -> Callable[[Rows], Rows]:
    """How blocks of a design look through moments, if there are any."""
    if moments is None:
        return lambda block: block
    mean, sd = np.split(moments, 2)
    moved = rescaled_design(design, mean, sd)
    shift = _Shift.of(design, mean, sd)
    return lambda block: _moved(block, moved, shift)


@dataclass(frozen=True)
class _Shift:
    """What is taken from every column, and what it is then multiplied by; nothing and
    one where released moments do not move it."""

    mean: Floats
    scale: Floats

    @classmethod
    def of(cls, design: Design, mean: Floats, sd: Floats) -> _Shift:
        whole = cls(np.zeros(design.width), np.ones(design.width))
        whole.mean[design.moved_places] = mean
        whole.scale[design.moved_places] = 1.0 / sd
        return whole


def _moved(
    block: Rows, design: Design, shift: _Shift, out: Floats | None = None
) -> Rows:
    x, norms = kernels.move_columns(block.x, shift.mean, shift.scale, out)
    for curve, weights in zip(design.curves, design.bends, strict=True):
        public = block.x[curve.first : curve.first + len(curve.values)]
        for place, (constant, *row) in zip(curve.bends, weights, strict=True):
            x[place] = constant
            for weight, column in zip(row, public, strict=True):
                x[place] += weight * column
    if design.curves or design.products:
        fill_products(design, x)
        norms = kernels.squared_norms(x)
    return Rows(design, x, block.outcome, norms)


class RescaledTable(PreparedTable):
    """A prepared table seen through released moments; nothing is copied."""

    def __init__(self, table: PreparedTable, mean: Floats, sd: Floats) -> None:
        self._table = table
        self._shift = _Shift.of(table.design, mean, sd)
        self._rescaled = rescaled_design(table.design, mean, sd)

    @property
    def count(self) -> int:
        return self._table.count

    @property
    def records(self) -> int:
        return self._table.records

    @property
    def design(self) -> Design:
        return self._rescaled

    def blocks(self, rows: Integers | None = None) -> Iterator[Rows]:
        return map(self._move, self._table.blocks(rows))

    def map(
        self, function: Callable[[Rows], T], rows: Integers | None = None
    ) -> Iterator[T]:
        space = Reused("moved")

        def of_moved(block: Rows) -> T:
            with space.borrow(self.design.width, block.count) as x:
                return function(self._move(block, x))

        return self._table.map(of_moved, rows)

    def _move(self, block: Rows, out: Floats | None = None) -> Rows:
        return _moved(block, self.design, self._shift, out)

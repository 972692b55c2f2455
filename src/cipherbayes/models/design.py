"""The columns of the design matrix, and the way back to the user's units."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from cipherbayes.typing import Floats


@dataclass(frozen=True)
class CurveColumns:
    """The columns of a curve: a straight line, then bends.

    Attributes
    ----------
    first
        Place of the line; the bends follow it.
    values
        The columns on an even grid over the public range, [-1, 1] for the line, shape
        ``(columns, points)``.
    """

    first: int
    values: Floats

    @property
    def bends(self) -> range:
        """Places of the bends."""
        return range(self.first + 1, self.first + len(self.values))


@dataclass(frozen=True)
class Design:
    """The columns of the design matrix and how they relate to the user's units.

    Column j holds z_j = (f_j(x_j) - centre_j) / half_width_j, where f_j is the
    identity or the study's transform; the intercept is a constant column. A product
    is one of columns as they are here, moved and scaled: z_j = z_k z_l.

    Attributes
    ----------
    names
        One name per column, e.g. ``("intercept", "age", "sex[M]")``.
    centre, half_width
        The public affine map of each column (0 and 1 for 0/1 columns).
    intercept
        Value of the constant first column, or None if there is none.
    products
        Of which columns each of the last columns is the product, their places rising.
        What is left of a product without some of its columns is a column too.
    curves
        Columns that belong together.
    bends
        For each curve, where its line has been moved, the weights that make its bends
        of the public columns, the constant first; empty where they are as in public.
    """

    names: tuple[str, ...]
    centre: Floats
    half_width: Floats
    intercept: float | None
    products: tuple[tuple[int, ...], ...] = ()
    curves: tuple[CurveColumns, ...] = ()
    bends: tuple[Floats, ...] = ()

    @property
    def width(self) -> int:
        return len(self.names)

    @property
    def constant(self) -> float:
        """Value of the constant column; TypeError where there is none."""
        if self.intercept is None:
            raise TypeError("the design has no constant column")
        return self.intercept

    @property
    def moved(self) -> int:
        """Columns that have a centre and a width of their own: no constant, no
        product, no bend of a curve."""
        bends = sum(len(curve.bends) for curve in self.curves)
        return self._own - (self.intercept is not None) - bends

    @property
    def moved_places(self) -> slice | list[int]:
        """Where these columns are."""
        first = 0 if self.intercept is None else 1
        if not self.curves:
            return slice(first, self._own)
        bends = {place for curve in self.curves for place in curve.bends}
        return [place for place in range(first, self._own) if place not in bends]

    @property
    def _own(self) -> int:
        """Columns that are no products."""
        return self.width - len(self.products)

    def to_user_scale(self, coefficients: Floats) -> Floats:
        """Coefficients of z turned into coefficients of f(x), last axis = columns.

        beta_j = b_j / h_j and intercept = v b_0 - sum_j b_j c_j / h_j, with v the
        value of the constant column. Of a product, each part of
        b_kl (f_k - c_k) (f_l - c_l) / h_k h_l goes to the coefficient that it
        multiplies.
        """
        user, shift = self._expanded(coefficients)
        if self.intercept is not None:
            user[..., 0] = coefficients[..., 0] * self.intercept - shift
        return user

    def shift(self, coefficients: Floats) -> Floats:
        """What the linear predictor of z loses where every f(x) is zero."""
        return self._expanded(coefficients)[1]

    def _expanded(self, coefficients: Floats) -> tuple[Floats, Floats]:
        user: Floats = coefficients / self.half_width
        first, last = 0 if self.intercept is None else 1, self._own
        if not self.products and not self.bends:
            shift: Floats = user[..., first:last] @ self.centre[first:last]
            return user, shift
        forms = self._forms()
        places: dict[tuple[int, ...], int] = {(j,): j for j in range(last)}
        places |= {parts: last + k for k, parts in enumerate(self.products)}
        user[..., first:] = 0.0
        shift = np.zeros(coefficients.shape[:-1])
        for column in range(first, self.width):
            parents = self.products[column - last] if column >= last else (column,)
            for parts in product(*(forms[parent] for parent in parents)):
                weight = float(np.prod([part[1] for part in parts]))
                if weight == 0.0:
                    continue
                kept = tuple(sorted(part[0] for part in parts if part[0] is not None))
                share = weight * coefficients[..., column]
                if kept:
                    user[..., places[kept]] += share
                else:
                    shift -= share
        return user, shift

    def _forms(self) -> dict[int, list[tuple[int | None, float]]]:
        """Each column, no product, as a sum of weights times public columns (None for
        the constant one)."""
        forms: dict[int, list[tuple[int | None, float]]] = {
            j: [
                (j, 1.0 / float(self.half_width[j])),
                (None, -float(self.centre[j] / self.half_width[j])),
            ]
            for j in range(self._own)
        }
        for curve, weights in zip(self.curves, self.bends, strict=False):
            sources = [None, curve.first, *curve.bends]
            for place, row in zip(curve.bends, weights.tolist(), strict=True):
                forms[place] = list(zip(sources, row, strict=True))
        return forms


def fill_products(design: Design, x: Floats) -> None:
    """Write the products of a block's columns, record by record, to its last rows."""
    first = design.width - len(design.products)
    for row, (one, *others) in enumerate(design.products, start=first):
        x[row] = x[one]
        for other in others:
            x[row] *= x[other]

"""Preparation from public knowledge: raw columns become the design matrix.

The study names each feature with its public range or its levels. A number v is
clipped to [low, high], transformed by f, and mapped to

    z = (f(v) - c) / h in [-1, 1],  c = (f(high) + f(low)) / 2,
                                    h = (f(high) - f(low)) / 2;

a level becomes 0/1 columns, one for each level but the first; a formula adds curves
(:mod:`~cipherbayes.data.curves`) and products of columns. Nothing is learnt from the
rows: a record is prepared alike whatever else the table holds, so that
preparation releases nothing and adding or removing a record changes no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from cipherbayes.data.column_bins import ColumnBins
from cipherbayes.data.encoders import Curved, Levels, Number
from cipherbayes.data.features import Feature
from cipherbayes.data.tables import Chunk, Kind
from cipherbayes.data.terms import Encoder, compile_terms
from cipherbayes.data.windows import Numbers
from cipherbayes.models import kernels
from cipherbayes.models.design import CurveColumns, Design, fill_products
from cipherbayes.models.formula import Formula
from cipherbayes.models.rows import absent_role
from cipherbayes.typing import Floats

__all__ = ["Feature", "Preparation"]


@dataclass(frozen=True)
class Preparation:
    """The whole map from raw columns to the design matrix.

    Parameters
    ----------
    features
        Raw column -> what is known of it, in the order of the design's columns.
    intercept
        Value of a constant first column, None for no such column.
    row_norm
        Rows are shortened to this Euclidean norm, the intercept not counted.
    formula
        Which columns the features make; left out, the main effect of each.
    baseline
        Whether the model has a constant of its own, so that it needs no intercept.
    """

    features: Mapping[str, Feature]
    intercept: float | None = None
    row_norm: float | None = None
    formula: Formula | None = None
    baseline: bool = False
    design: Design = field(init=False, compare=False, repr=False)
    _encoders: tuple[Encoder, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        first = 0 if self.intercept is None else 1
        names = ["intercept"] * first
        encoders: list[Encoder] = []
        products: tuple[tuple[int, ...], ...] = ()
        if self.formula is not None:
            constant = self.baseline or self.intercept is not None
            terms = compile_terms(self.formula, self.features, first, constant=constant)
            encoders, products = list(terms.encoders), terms.products
            names += [name for each in encoders for name in each.names]
            names += terms.names
        else:
            for column, feature in self.features.items():
                encode = Number if feature.levels is None else Levels
                encoders.append(encode(column, feature, first=len(names)))
                names += encoders[-1].names
        for name, count in Counter(names).items():
            if count > 1:
                raise ValueError(
                    f"two columns of the design are called '{name}': rename a feature"
                )
        centre, half_width = np.zeros(len(names)), np.ones(len(names))
        for encoder in encoders:
            if isinstance(encoder, Number):
                for row, affine in enumerate(encoder.affine, start=encoder.first):
                    centre[row], half_width[row] = affine
        curves = tuple(
            CurveColumns(each.first, each.basis.on_grid())
            for each in encoders
            if isinstance(each, Curved)
        )
        design = Design(
            tuple(names), centre, half_width, self.intercept, products, curves
        )
        object.__setattr__(self, "design", design)
        object.__setattr__(self, "_encoders", tuple(encoders))

    @property
    def columns(self) -> dict[str, Kind]:
        """Raw columns that are read, and how."""
        return {name: feature.kind for name, feature in self.features.items()}

    def encoders_of(self, name: str) -> tuple[Encoder, ...]:
        """What writes the main effects of a feature."""
        return tuple(each for each in self._encoders if each.column == name)

    @property
    def imputed(self) -> tuple[str, ...]:
        """Features whose missing values are drawn."""
        return tuple(name for name, known in self.features.items() if known.imputed)

    def absent(self, chunk: Chunk) -> dict[str, Floats]:
        """Of each of these features, which records have no value: ones and zeros."""
        return {
            absent_role(name): self.encoders_of(name)[0].absent(chunk.column(name))
            for name in self.imputed
        }

    def line(self, name: str) -> tuple[int, Feature]:
        """Where a number's straight line is in the design, and how it is prepared."""
        for each in self._encoders:
            if isinstance(each, Number) and each.column == name:
                return each.first, each.feature
        raise KeyError(name)

    @property
    def owners(self) -> dict[str, list[int]]:
        """Columns of the main effects of every feature, no indicators among them."""
        places: dict[str, list[int]] = {}
        for each in self._encoders:
            start = each.first + each.unpaired
            places.setdefault(each.column, []).extend(
                range(each.first, start + each.paired)
            )
        return places

    @property
    def mean_squares(self) -> Floats:
        """A guess of the mean square of each column, the intercept aside."""
        own = [square for each in self._encoders for square in each.mean_squares]
        first = 0 if self.intercept is None else 1
        products = [
            float(np.prod([own[place - first] for place in parents]))
            for parents in self.design.products
        ]
        return np.array([*own, *products])

    def numbers(self, bins: int) -> Numbers:
        """Which columns are numbers, for histograms of so many bins."""
        found = [each for each in self._encoders if isinstance(each, Number)]
        order = {place: k for k, place in enumerate(self.moved)}
        return Numbers(
            columns=self.design.moved,
            places=tuple(order[each.first] for each in found),
            stand_ins=tuple(each.prepared_stand_in for each in found),
            bins=bins,
            drawn=tuple(self.features[each.column].imputed for each in found),
        )

    def column_bins(
        self, ranges: int, reach: float, *, gaps: bool
    ) -> tuple[ColumnBins, ...]:
        """Every feature in bins, numbers in so many ranges over ``reach`` released
        standard deviations on each side; of several columns of a feature the first.

        Parameters
        ----------
        gaps
            Whether missing values that are drawn have a bin.
        """
        order = {place: k for k, place in enumerate(self.moved)}
        first: dict[str, Encoder] = {}
        for each in self._encoders:
            first.setdefault(each.column, each)
        bins = [
            each.column_bins(ranges, reach, order[each.first])
            for each in first.values()
        ]
        return tuple(
            replace(each, gap=absent_role(each.column))
            if gaps and each.column in self.imputed
            else each
            for each in bins
        )

    @property
    def moved(self) -> list[int]:
        """Places of the columns that released moments move."""
        places = self.design.moved_places
        if isinstance(places, slice):
            return list(range(self.design.width))[places]
        return places

    @property
    def plain(self) -> dict[int, tuple[float, float]]:
        """Columns (v - centre) * scale held within [-1, 1], and these two numbers."""
        if self.row_norm is not None:
            return {}
        return {
            each.first: each.line
            for each in self._encoders
            if isinstance(each, Number) and each.line is not None
        }

    def fill(self, chunk: Chunk, x: Floats, where: str = "") -> dict[int, Floats]:
        """Write the raw records of a chunk into ``x`` (shape ``(p, m)``).

        Rows are not shortened yet: that is :meth:`finish`. Returns the v of the columns
        that are :attr:`plain`.

        Raises
        ------
        DataError
            For a missing value without a stand-in, an infinite value, or a level
            that the study does not name; the column is named, never the value.
        """
        if self.intercept is not None:
            x[0] = self.intercept
        numbers = {}
        for encoder in self._encoders:
            raw = chunk.column(encoder.column)
            values = encoder.fill(raw, x[encoder.first :], where)
            if values is not None and self.row_norm is None:
                numbers[encoder.first] = values
        fill_products(self.design, x)
        return numbers

    def finish(self, x: Floats) -> Floats:
        """Shorten rows to ``row_norm`` in place; the rows' squared norms."""
        if self.row_norm is not None:
            features = x if self.intercept is None else x[1:]
            norms = np.sqrt(kernels.squared_norms(features))
            (long,) = np.nonzero(norms > self.row_norm)
            features[:, long] *= self.row_norm / norms[long]
        return kernels.squared_norms(x)

"""Preparation from public knowledge: raw columns become the design matrix.

The study names each feature with its public range or its levels. A number v is
clipped to [low, high], transformed by f, and mapped to

    z = (f(v) - c) / h in [-1, 1],  c = (f(high) + f(low)) / 2,
                                    h = (f(high) - f(low)) / 2;

a level becomes 0/1 columns, one for each level but the first. Nothing is learnt
from the rows: a record is prepared alike whatever else the table holds, so that
preparation releases nothing and adding or removing a record changes no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cipherbayes.data.column_bins import ColumnBins
from cipherbayes.data.features import Feature, level_name, spellings
from cipherbayes.data.tables import MISSING, Chunk, Kind
from cipherbayes.data.windows import Numbers
from cipherbayes.errors import DataError
from cipherbayes.models import kernels
from cipherbayes.models.base import Design
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
    """

    features: Mapping[str, Feature]
    intercept: float | None = None
    row_norm: float | None = None
    design: Design = field(init=False, compare=False, repr=False)
    _encoders: tuple[_Number | _Levels, ...] = field(
        init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        first = 0 if self.intercept is None else 1
        names = ["intercept"] * first
        encoders: list[_Number | _Levels] = []
        for column, feature in self.features.items():
            encode = _Number if feature.levels is None else _Levels
            encoders.append(encode(column, feature, first=len(names)))
            names += encoders[-1].names
        for name, count in Counter(names).items():
            if count > 1:
                raise ValueError(
                    f"two columns of the design are called '{name}': rename a feature"
                )
        centre, half_width = np.zeros(len(names)), np.ones(len(names))
        for encoder in encoders:
            if isinstance(encoder, _Number):
                row = encoder.first
                centre[row], half_width[row] = encoder.feature.affine()
        design = Design(tuple(names), centre, half_width, self.intercept)
        object.__setattr__(self, "design", design)
        object.__setattr__(self, "_encoders", tuple(encoders))

    @property
    def columns(self) -> dict[str, Kind]:
        """Raw columns that are read, and how."""
        return {name: feature.kind for name, feature in self.features.items()}

    def numbers(self, bins: int) -> Numbers:
        """Which columns are numbers, for histograms of so many bins."""
        first = 0 if self.intercept is None else 1
        found = [each for each in self._encoders if isinstance(each, _Number)]
        return Numbers(
            columns=self.design.width - first,
            places=tuple(each.first - first for each in found),
            stand_ins=tuple(each.prepared_stand_in for each in found),
            bins=bins,
        )

    def column_bins(self, ranges: int, reach: float) -> tuple[ColumnBins, ...]:
        """Every feature in bins, numbers in so many ranges over ``reach`` released
        standard deviations on each side."""
        first = 0 if self.intercept is None else 1
        return tuple(each.column_bins(ranges, reach, first) for each in self._encoders)

    def fill(self, chunk: Chunk, x: Floats, where: str = "") -> None:
        """Write the raw records of a chunk into ``x`` (shape ``(p, m)``).

        Rows are not shortened yet: that is :meth:`finish`.

        Raises
        ------
        DataError
            For a missing value without a stand-in, an infinite value, or a level
            that the study does not name; the column is named, never the value.
        """
        if self.intercept is not None:
            x[0] = self.intercept
        for encoder in self._encoders:
            raw = chunk.column(encoder.column)
            encoder.fill(raw, x[encoder.first :], where)

    def finish(self, x: Floats) -> Floats:
        """Shorten rows to ``row_norm`` in place; the rows' squared norms."""
        if self.row_norm is not None:
            features = x if self.intercept is None else x[1:]
            norms = np.sqrt(kernels.squared_norms(features))
            (long,) = np.nonzero(norms > self.row_norm)
            features[:, long] *= self.row_norm / norms[long]
        return kernels.squared_norms(x)


class _Number:
    """A number: one column, and perhaps an indicator of missing values."""

    def __init__(self, column: str, feature: Feature, first: int) -> None:
        self.column = column
        self.feature = feature
        self.first = first
        self.names = [column, *_indicator(column, feature)]
        self._centre, half_width = feature.affine()
        self._scale = 1.0 / half_width
        self._stand_in = None if feature.missing is None else float(feature.missing)

    @property
    def prepared_stand_in(self) -> float:
        """What stands in for a missing value, as it is prepared; NaN for nothing."""
        if self._stand_in is None:
            return np.nan
        value = self.feature.transformed(np.array(self._stand_in))
        return float((value - self._centre) * self._scale)

    def column_bins(self, ranges: int, reach: float, constants: int) -> ColumnBins:
        """Its bins, so many columns before it being constant."""
        first = self.first - constants
        return ColumnBins(
            self.column,
            first,
            None,
            ranges,
            reach,
            self.prepared_stand_in,
            first + 1 if self.feature.indicator else None,
        )

    def fill(self, raw: pa.Array, out: Floats, where: str) -> None:
        """Write the design columns of a raw column to the first rows of ``out``."""
        feature = self.feature
        if raw.null_count:
            raw = pc.fill_null(raw, np.nan)
        values: Floats = raw.to_numpy()
        if self._stand_in is not None:
            absent = np.isnan(values)
            values = np.where(absent, self._stand_in, values)
            if feature.indicator:
                out[1] = absent
        if feature.transform is not None:
            self._require_finite(values, where)
            values = feature.transformed(np.clip(values, feature.low, feature.high))
        if kernels.prepare_column(values, self._centre, self._scale, out[0]):
            self._require_finite(values, where)

    def _require_finite(self, values: Floats, where: str) -> None:
        if np.isinf(values).any():
            raise DataError(
                f"column '{self.column}' has an infinite value",
                where=where,
                remedy="correct it or leave it empty",
            )
        if np.isnan(values).any():
            _refuse_missing(self.column, where)


class _Levels:
    """A category: a 0/1 column for each level but the first."""

    def __init__(self, column: str, feature: Feature, first: int) -> None:
        assert feature.levels is not None
        self.column = column
        self.first = first
        self._known = [level_name(level) for level in feature.levels]
        self.names = [f"{column}[{name}]" for name in self._known[1:]]
        self.names += _indicator(column, feature)
        self._indicator = feature.indicator
        self._stand_in = None
        if feature.missing is not None:
            self._stand_in = self._known.index(level_name(feature.missing))
        texts = {
            text: code
            for code, level in enumerate(feature.levels)
            for text in spellings(level)
        }
        self._texts = pa.array(texts, type=pa.string())
        self._codes = np.array(list(texts.values()))
        self._gaps = pa.array(sorted(MISSING - texts.keys()), type=pa.string())

    def column_bins(self, ranges: int, reach: float, constants: int) -> ColumnBins:
        """Its bins, one a level, so many columns before it being constant."""
        first, levels = self.first - constants, tuple(self._known)
        indicator = first + len(levels) - 1 if self._indicator else None
        return ColumnBins(
            self.column, first, levels, len(levels), reach, indicator=indicator
        )

    def fill(self, raw: pa.Array, out: Floats, where: str) -> None:
        """Write the design columns of a raw column to the first rows of ``out``."""
        raw = pc.utf8_trim_whitespace(raw)
        found = pc.index_in(raw, value_set=self._texts)
        codes = self._codes[pc.fill_null(found, 0).to_numpy()]
        absent = np.zeros(len(raw), dtype=bool)
        if found.null_count:
            absent = pc.is_null(found).to_numpy(zero_copy_only=False)
            unnamed = pc.filter(raw, pc.is_null(found)).drop_null()
            gaps = pc.is_in(unnamed, value_set=self._gaps)
            if not pc.all(gaps, min_count=0).as_py():
                raise DataError(
                    f"column '{self.column}' has a value that is none of its levels "
                    f"({', '.join(self._known)})",
                    where=where,
                    remedy=f"add it to features.{self.column}.levels or correct it",
                )
            if self._stand_in is None:
                _refuse_missing(self.column, where)
            codes[absent] = self._stand_in
        for code in range(1, len(self._known)):
            out[code - 1] = codes == code
        if self._indicator:
            out[len(self._known) - 1] = absent


def _indicator(column: str, feature: Feature) -> list[str]:
    return [f"{column}[missing]"] if feature.indicator else []


def _refuse_missing(column: str, where: str) -> NoReturn:
    raise DataError(
        f"column '{column}' has missing values",
        where=where,
        remedy=f"state what stands in for them: features.{column}.missing",
    )

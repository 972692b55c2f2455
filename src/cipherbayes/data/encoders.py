"""How one raw column becomes columns of the design.

Each encoder reads a column by itself and, record by record, writes values within
[-1, 1]; nothing is learnt from the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cipherbayes.data.column_bins import ColumnBins
from cipherbayes.data.curves import Basis
from cipherbayes.data.features import Feature, Level, level_name, spellings
from cipherbayes.data.tables import MISSING
from cipherbayes.errors import DataError, MissingValuesError
from cipherbayes.models import kernels
from cipherbayes.typing import Floats, Integers

MEAN_SQUARES = {"number": 0.25, "text": 0.5}
"""What a feature is guessed to add to a prepared row's squared norm: a number that
fills half of its range, a category whose reference level is as common as the rest."""


class Number:
    """A number: one column, and perhaps an indicator of missing values.

    Parameters
    ----------
    name
        Of the column of the design; left out, that of the raw column.
    centred
        Whether the middle of the public range becomes zero; else zero stays zero.
    """

    def __init__(
        self,
        column: str,
        feature: Feature,
        first: int,
        *,
        name: str | None = None,
        centred: bool = True,
    ) -> None:
        self.column = column
        self.feature = feature
        self.first = first
        self.names = [name or column, *_indicator(column, feature)]
        self.centre, self.half_width = feature.affine()
        if not centred:
            farthest = max(abs(self.centre - self.half_width), abs(self.centre))
            farthest = max(farthest, abs(self.centre + self.half_width))
            self.centre, self.half_width = 0.0, farthest
        self._centred = centred
        self._scale = 1.0 / self.half_width
        stand_in = feature.stand_in
        self._stand_in = None if stand_in is None else float(stand_in)

    unpaired = 0

    @property
    def paired(self) -> int:
        """How many columns enter products."""
        return len(self.affine)

    @property
    def affine(self) -> tuple[tuple[float, float], ...]:
        """Centre and half width of each column that is a number."""
        return ((self.centre, self.half_width),)

    @property
    def prepared_stand_in(self) -> float:
        """What stands in for a missing value, as it is prepared; NaN for nothing."""
        if self._stand_in is None:
            return np.nan
        value = self.feature.transformed(np.array(self._stand_in))
        return float((value - self.centre) * self._scale)

    @property
    def mean_squares(self) -> tuple[float, ...]:
        """What each column is guessed to have as its mean square."""
        return (MEAN_SQUARES["number"], *[0.0] * (len(self.names) - 1))

    def column_bins(self, ranges: int, reach: float, moment: int) -> ColumnBins:
        """Its ranges, as wide as its place among the moved columns says."""
        indicator = self.first + len(self.names) - 1 if self.feature.indicator else None
        return ColumnBins(
            self.column,
            self.first,
            moment,
            ranges,
            feature=self.feature,
            centre=self.centre,
            half_width=self.half_width,
            reach=reach,
            indicator=indicator,
        )

    @property
    def line(self) -> tuple[float, float] | None:
        """Centre and scale of a column that is (v - centre) * scale held within
        [-1, 1]; None where it is another function of v."""
        plain = self.feature.transform is None and self._centred
        return (self.centre, self._scale) if plain else None

    def fill(self, raw: pa.Array, out: Floats, where: str) -> Floats | None:
        """Write the design columns of a raw column to the first rows of ``out``.

        Returns the v of :attr:`line`.
        """
        feature = self.feature
        if raw.null_count:
            raw = pc.fill_null(raw, np.nan)
        values: Floats = raw.to_numpy()
        if self._stand_in is not None:
            absent = np.isnan(values)
            values = np.where(absent, self._stand_in, values)
            if feature.indicator:
                out[1] = absent
        if feature.transform is not None or not self._centred:
            self._require_finite(values, where)
            values = feature.transformed(np.clip(values, feature.low, feature.high))
        if kernels.prepare_column(values, self.centre, self._scale, out[0]):
            self._require_finite(values, where)
        return None if self.line is None else values

    def absent(self, raw: pa.Array) -> Floats:
        """Which records have no value: ones and zeros."""
        values: Floats = pc.fill_null(raw, np.nan).to_numpy()
        return np.isnan(values).astype(np.float64)

    def _require_finite(self, values: Floats, where: str) -> None:
        if np.isinf(values).any():
            raise DataError(
                f"column '{self.column}' has an infinite value",
                where=where,
                remedy="correct it or leave it empty",
            )
        if np.isnan(values).any():
            raise MissingValuesError(self.column, where)


class Curved(Number):
    """A number as the columns of a curve, and perhaps an indicator of missing values.

    In the user's units a coefficient is one of a column of the curve, which is public.
    """

    def __init__(
        self, column: str, feature: Feature, first: int, *, name: str, basis: Basis
    ) -> None:
        super().__init__(column, feature, first, name=name)
        self.basis = basis
        self.names[:1] = [f"{name}.{k + 1}" for k in range(basis.width)]

    @property
    def affine(self) -> tuple[tuple[float, float], ...]:
        return ((0.0, 1.0),) * self.basis.width

    @property
    def line(self) -> None:
        return None

    @property
    def mean_squares(self) -> tuple[float, ...]:
        usual = (MEAN_SQUARES["number"],) * self.basis.width
        return (*usual, *[0.0] * (len(self.names) - self.basis.width))

    def fill(self, raw: pa.Array, out: Floats, where: str) -> None:
        line = np.empty((len(self.names) - self.basis.width + 1, len(raw)))
        super().fill(raw, line, where)
        self.basis.fill(line[0], out)
        out[self.basis.width : len(self.names)] = line[1:]


class Levels:
    """A category: a 0/1 column for each level but the first.

    ``full`` gives the first level a column too: in the place of a constant. A refusal
    lists the levels in the order of ``stated``, the study's; left out, in their own.
    """

    def __init__(
        self,
        column: str,
        feature: Feature,
        first: int,
        *,
        full: bool = False,
        stated: Sequence[Level] | None = None,
    ) -> None:
        self._stated = ", ".join(map(level_name, stated or feature.levels or ()))
        self.column = column
        self.first = first
        self.known = feature.level_names
        self._start = 0 if full else 1
        # The reference level's own column enters no product.
        self.unpaired, self.paired = 1 - self._start, len(self.known) - 1
        self.names = [f"{column}[{name}]" for name in self.known[self._start :]]
        self.names += _indicator(column, feature)
        self._indicator = feature.indicator
        self._stand_in = None
        if feature.stand_in is not None:
            self._stand_in = self.known.index(level_name(feature.stand_in))
        texts = {
            text: code
            for code, level in enumerate(feature.levels or ())
            for text in spellings(level)
        }
        self._texts = pa.array(texts, type=pa.string())
        self._codes = np.array(list(texts.values()))
        self._gaps = pa.array(sorted(MISSING - texts.keys()), type=pa.string())

    def column_bins(self, ranges: int, reach: float, moment: int) -> ColumnBins:
        """Its bins, one a level."""
        indicator = self.first + len(self.names) - 1 if self._indicator else None
        return ColumnBins(
            self.column,
            self.first,
            moment,
            len(self.known),
            levels=tuple(self.known),
            reference=self._start == 0,
            indicator=indicator,
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
                    f"({self._stated})",
                    where=where,
                    remedy=f"add it to features.{self.column}.levels or correct it",
                )
            if self._stand_in is None:
                raise MissingValuesError(self.column, where)
            codes[absent] = self._stand_in
        self._fill_codes(codes, out)
        if self._indicator:
            out[len(self.known) - self._start] = absent

    def fill_drawn(self, drawn: pa.DictionaryArray, out: Floats) -> None:
        """As :meth:`fill`, of levels that were drawn and not read.

        Formal guarantees
        -----------------
        Every level of the feature has a place, however it is spelled: nothing that was
        drawn for a record is refused.
        """
        place = np.array([self.known.index(n) for n in drawn.dictionary.to_pylist()])
        self._fill_codes(place[drawn.indices.to_numpy()], out)

    def _fill_codes(self, codes: Integers, out: Floats) -> None:
        for row, code in enumerate(range(self._start, len(self.known))):
            out[row] = codes == code

    def absent(self, raw: pa.Array) -> Floats:
        """Which records have no level: ones and zeros."""
        found = pc.index_in(pc.utf8_trim_whitespace(raw), value_set=self._texts)
        return np.asarray(pc.is_null(found).to_numpy(zero_copy_only=False), np.float64)

    @property
    def mean_squares(self) -> tuple[float, ...]:
        """What each column is guessed to have as its mean square."""
        levels = len(self.known) - self._start
        usual = (MEAN_SQUARES["text"] / (len(self.known) - 1),) * levels
        return (*usual, *[0.0] * (len(self.names) - levels))


def _indicator(column: str, feature: Feature) -> list[str]:
    return [f"{column}[missing]"] if feature.indicator else []

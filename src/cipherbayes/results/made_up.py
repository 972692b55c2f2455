"""Made-up records: the reference patient, and records that differ from it.

Everything here follows from the public study and from what was released; nobody's row
is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from cipherbayes.data.features import Feature, level_name
from cipherbayes.data.preparation import Preparation
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.rescaled import rescaled
from cipherbayes.data.tables import open_table
from cipherbayes.errors import RunError
from cipherbayes.models.design import fill_products
from cipherbayes.models.rows import Rows
from cipherbayes.models.transforms import transform_named
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats

Value = float | str
Record = Mapping[str, Value]

UNIFORM = 0.5
"""Spread of a column of which only the public range is known: two of them on either
side of the middle are all of it."""


@dataclass(frozen=True)
class MadeUp:
    """Records that the features of a study allow.

    Parameters
    ----------
    moments
        Released means, then deviations, of the columns; None where there are none.
    known
        A reference record that was settled before, as ``result.json`` has it.
    spread
        Means, then deviations, of the same columns where all rows are known: without
        privacy.
    """

    study: Study
    moments: Floats | None
    known: Record | None = None
    spread: Floats | None = None

    @cached_property
    def preparation(self) -> Preparation:
        """The study's preparation, but rows are not shortened to ``row_norm``."""
        return replace(preparation_of(self.study), row_norm=None)

    @cached_property
    def reference(self) -> dict[str, Value]:
        """The reference record, as the study states it.

        What it leaves out is a number's released mean (without privacy that of all
        rows), or without one the middle of its public range, and a category's
        reference level.
        """
        if self.known is not None:
            return dict(self.known)
        stated = self.study.reference or {}
        return {
            name: self._stated(name, stated[name])
            if name in stated
            else self.levels(name)[0]
            if feature.levels is not None
            else self.at(name, 0.0)
            for name, feature in self.study.features.items()
        }

    def levels(self, name: str) -> list[str]:
        """The levels of a category, the one that others are compared with first."""
        names = self.study.features[name].level_names
        terms = self.study.model.terms
        for term in () if terms is None else terms.terms:
            for factor in term:
                if factor.column == name and factor.reference is not None:
                    first = level_name(factor.reference)
                    return [first, *(each for each in names if each != first)]
        return names

    def at(self, name: str, deviations: float) -> float:
        """A number so many deviations from its mean, within the public range."""
        feature, (mean, spread) = self._seen(name)
        centre, half = feature.affine()
        z = min(max(mean + deviations * spread, -1.0), 1.0)
        return _within(feature, centre + half * z)

    def near(self, name: str, deviations: float) -> float:
        """The number rounded to few digits (two at least) without moving it far.

        Rounding moves it by a tenth of what lies between one deviation below the mean
        and one above at most, and never out of the public range.
        """
        value, feature = self.at(name, deviations), self.study.features[name]
        low, high = feature.ends
        most = 0.1 * abs(self.at(name, 1.0) - self.at(name, -1.0))
        for digits in range(2, 16):
            short = float(f"{value:.{digits}g}")
            if abs(short - value) <= most and low <= short <= high:
                return short
        return value

    def checked(self, name: str, value: Any) -> Value:
        """A feature's value, refused where the study does not know it."""
        feature = self.study.features.get(name)
        if feature is None:
            raise RunError(
                f"'{name}' is no feature of the study",
                where=f"study '{self.study.name}'",
                remedy=f"the features are {', '.join(self.study.features)}",
            )
        try:
            feature.require(value)
        except ValueError as error:
            raise RunError(str(error), where=f"feature '{name}'") from None
        return self._stated(name, value)

    def record(self, at: Mapping[str, Any] | None = None) -> dict[str, Value]:
        """The reference record with some of its values changed."""
        changes = {name: self.checked(name, v) for name, v in (at or {}).items()}
        return {**self.reference, **changes}

    def rows(self, records: Sequence[Record]) -> Rows:
        """Records on the scale that the sampler saw."""
        (rows,) = rescaled(self._table(records), self.moments).blocks()
        return rows

    def in_user_units(self, records: Sequence[Record]) -> Floats:
        """What multiplies each coefficient in the user's units: ``(columns, records)``.

        The constant counts one.
        """
        (rows,) = self._table(records).blocks()
        design = rows.design
        values: Floats = design.centre[:, None] + design.half_width[:, None] * rows.x
        if design.intercept is not None:
            values[0] = 1.0
        fill_products(design, values)
        return values

    def _table(self, records: Sequence[Record]) -> PreparedTable:
        columns = {name: [each[name] for each in records] for name in records[0]}
        table = open_table(pa.table(columns), "reference record")
        return PreparedTable.for_prediction(table, self.preparation)

    def _stated(self, name: str, value: Any) -> Value:
        if self.study.features[name].levels is None:
            return float(value)
        return level_name(value)

    def _seen(self, name: str) -> tuple[Feature, tuple[float, float]]:
        """A number as its first column sees it, and that column's mean and spread."""
        column, feature = self.preparation.line(name)
        told = self.spread if self.moments is None else self.moments
        if told is None:
            return feature, (0.0, UNIFORM)
        place = self.preparation.moved.index(column)
        return feature, (float(told[place]), float(told[told.size // 2 + place]))


def _within(feature: Feature, transformed: float) -> float:
    """A number whose transform is given, kept within the public range."""
    low, high = feature.ends
    value = transform_named(feature.transform).undo_number(transformed)
    return min(max(value, low), high)

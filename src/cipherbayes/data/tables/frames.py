"""A frame in memory."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa

from cipherbayes.data.refusals import refuse
from cipherbayes.data.tables.table import (
    CHUNK_ROWS,
    MOST_WHOLE,
    TYPES,
    Kind,
    ReadColumn,
    Table,
)


class FrameTable(Table):
    """A frame in memory, of any library that narwhals understands."""

    def __init__(self, frame: Any, where: str) -> None:
        try:
            eager = nw.from_native(frame)
        except nw.exceptions.DuplicateError:
            refuse(where, "a column name appears twice", "rename one of them")
        except TypeError:
            refuse(
                where,
                "is neither a path nor a frame",
                "give a path, or a pandas, polars or Arrow table",
            )
        if isinstance(eager, nw.LazyFrame):
            try:
                eager = eager.collect()
            except Exception:  # each library has its own, with values in their texts
                refuse(where, "the lazy frame fails", "collect it to see why")
        self._frame, self._labels = eager, eager.columns
        super().__init__(where, [str(n) for n in eager.columns], [len(eager)])

    def _read(
        self, columns: Mapping[str, Kind], part: int, most_rows: int
    ) -> Iterator[tuple[int, ReadColumn]]:
        arrays = {name: self._arrow(name, kind) for name, kind in columns.items()}
        for batch in pa.table(arrays).to_batches(max_chunksize=CHUNK_ROWS):
            yield batch.num_rows, batch.column

    def _arrow(self, name: str, kind: Kind) -> pa.Array:
        column = self._frame.get_column(self._labels[self._known[name]])
        try:
            if column.dtype == nw.Object:
                # Cell by cell: one type for all would be chosen by looking at all, and
                # one record could then change how the others are read.
                cells = [_cell(value, kind) for value in column.to_list()]
                return pa.array(cells, type=TYPES[kind])
            return column.to_arrow()
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            refuse(
                self.where,
                f"column '{name}' mixes types",
                "convert it to numbers or to text throughout",
            )


def _cell(value: Any, kind: Kind) -> float | str | None:
    """A value of a column without a type, by itself; TypeError for neither."""
    if isinstance(value, Decimal) and value.is_nan():  # some must not be compared
        return None
    if value is None or value != value:  # NaN and its kin
        return None
    if isinstance(value, str):
        if kind == "number":
            raise TypeError
        return value
    if isinstance(value, bool | np.bool_):
        return float(value) if kind == "number" else str(value).lower()
    if not isinstance(value, numbers.Number | np.number):
        raise TypeError
    number = float(value)  # type: ignore[arg-type]
    if kind == "number":
        return number
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, Decimal):
        text = format(value, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    if abs(number) >= MOST_WHOLE:
        raise TypeError
    return str(int(number)) if number.is_integer() else repr(number)

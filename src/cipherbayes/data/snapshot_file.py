"""The file of a query's rows: Parquet of numbers and text that only its owner reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from cipherbayes.data.tables import PART_ROWS, decimal_numbers
from cipherbayes.errors import RunError

_AS_THEY_ARE = (
    pa.types.is_string,
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
)
"""Types that tables read without a change."""


class RowsFile:
    """A Parquet file that is being written; what fails here is the disk's."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._writer: Any = None

    def write(self, rows: pa.Table) -> None:
        """Add row groups."""
        try:
            if self._writer is None:
                self._writer = pyarrow.parquet.ParquetWriter(self._file, rows.schema)
            self._writer.write_table(rows, row_group_size=PART_ROWS)
        except (OSError, pa.ArrowException):
            raise cannot_keep(self._path.parent) from None

    def finish(self, facts: dict[bytes, bytes]) -> None:
        """Add what is to be known of the rows, and make the file durable."""
        try:
            self._writer.add_key_value_metadata(facts)
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
        except (OSError, pa.ArrowException):
            raise cannot_keep(self._path.parent) from None

    def close(self) -> None:
        """Let go of it, whatever has become of it."""
        if self._writer is not None:
            with suppress(OSError, ValueError, pa.ArrowException):
                self._writer.close()


def cannot_keep(folder: Path) -> RunError:
    """What is said where a disk is full, or not to be written."""
    return RunError(
        "the rows of a query cannot be kept here while the run lasts",
        where=str(folder),
        remedy="check the disk's space and permissions",
    )


@contextmanager
def private_file(path: Path) -> Iterator[RowsFile]:
    """A file 0600 that takes its name when it is whole."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with (
            os.fdopen(os.open(partial, flags, 0o600), "wb") as file,
            closing(RowsFile(file, path)) as parquet,
        ):
            yield parquet
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def row_groups(batches: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """The rows in tables of as many as make a part, however they came."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= PART_ROWS:
            table = pa.Table.from_batches(waiting)
            whole = count - count % PART_ROWS
            yield table.slice(0, whole)
            rest = table.slice(whole)
            waiting, count = rest.to_batches(), rest.num_rows
    if count:
        yield pa.Table.from_batches(waiting)


def usable(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """A column as numbers or text; of another kind, without its values.

    A NUMERIC of PostgreSQL comes as text, and becomes a number by its own digits. Money
    comes in hundredths, which nobody expects, so it is of another kind.
    """
    kind, types = column.type, pa.types
    named = (field.metadata or {}).get(b"POSTGRESQL:type", b"")
    if isinstance(kind, pa.BaseExtensionType):
        if named == b"numeric":
            return pc.cast(_storage(column), pa.float64())
        kind = pa.binary()
    elif types.is_dictionary(kind):
        return pc.cast(column, pa.string())
    elif types.is_decimal(kind):
        return decimal_numbers(column)
    elif types.is_large_string(kind) or types.is_string_view(kind):
        return pc.cast(column, pa.string())
    elif named == b"money":
        kind = pa.binary()
    elif any(test(kind) for test in _AS_THEY_ARE):
        return column
    elif types.is_nested(kind):
        kind = pa.list_(pa.bool_())
    elif types.is_temporal(kind):
        kind = pa.timestamp("us")
    else:
        kind = pa.binary()
    return pa.chunked_array([pa.nulls(len(column), kind)])


def _storage(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array(
        [chunk.storage for chunk in column.chunks], column.type.storage_type
    )

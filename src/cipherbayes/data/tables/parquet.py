"""A Parquet file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from cipherbayes.data.refusals import refuse
from cipherbayes.data.tables.table import (
    CHUNK_ROWS,
    FileTable,
    Kind,
    ReadColumn,
    refuse_text,
    text_numbers,
)

PART_ROWS = 131_072
"""Row groups of a Parquet file form one part until they hold so many rows."""


class ParquetTable(FileTable):
    """A Parquet file; its parts are runs of row groups.

    Where a number is expected, cells of text are read as those of a CSV file are, each
    by itself: some databases give a column no type, or one that depends on its rows.
    """

    def __init__(self, path: Path, where: str) -> None:
        with _parquet_errors(where):
            metadata = pyarrow.parquet.read_metadata(path)
            names = metadata.schema.to_arrow_schema().names
        sizes = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
        self._metadata = metadata
        self._groups = _runs(sizes)
        self._counts = [sum(sizes[k] for k in run) for run in self._groups]
        super().__init__(path, where, names, self._counts)

    def _read(
        self, columns: Mapping[str, Kind], part: int, most_rows: int
    ) -> Iterator[tuple[int, ReadColumn]]:
        self.check_unchanged()
        groups, rows = self._groups[part], self._counts[part]
        with _parquet_errors(self.where), self._open() as file:
            if rows <= most_rows:

                def column(name: str) -> pa.Array:
                    with _parquet_errors(self.where):
                        table = file.read_row_groups(groups, [name], use_threads=False)
                    (values,) = table.columns
                    # To combine a single chunk would copy it.
                    return (
                        values.chunk(0)
                        if values.num_chunks == 1
                        else values.combine_chunks()
                    )

                yield rows, column
                return
            for batch in file.iter_batches(
                CHUNK_ROWS, groups, list(columns), use_threads=self.parts == 1
            ):
                yield batch.num_rows, batch.column

    def _numbers(self, column: pa.Array, name: str) -> pa.Array:
        try:
            return text_numbers(column)
        except pa.ArrowInvalid:
            refuse_text(self.where, name)

    def _open(self) -> pyarrow.parquet.ParquetFile:
        # A read buffer instead of whole column chunks keeps memory flat; a quarter of a
        # megabyte stays in the cache between the system and the decoder.
        return pyarrow.parquet.ParquetFile(
            self._path, metadata=self._metadata, buffer_size=1 << 18, pre_buffer=False
        )


def _runs(sizes: Sequence[int]) -> list[list[int]]:
    """Consecutive row groups, put together until a run has ``PART_ROWS`` rows."""
    runs: list[list[int]] = []
    rows = PART_ROWS
    for index, size in enumerate(sizes):
        if rows >= PART_ROWS:
            runs.append([])
            rows = 0
        runs[-1].append(index)
        rows += size
    return runs


@contextmanager
def _parquet_errors(where: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        refuse(
            where,
            "is not a readable Parquet file",
            "write it again, it is damaged, cut short or of another kind",
        )

"""A SQLite file. Every cell has a type of its own there, and is read by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

import pyarrow as pa

from cipherbayes.data.databases.database import (
    FAILURES,
    Ask,
    FileDatabase,
    OpenQuery,
)
from cipherbayes.data.statements import SQLITE, Dialect


@dataclass(frozen=True)
class SqliteDatabase(FileDatabase):
    """A SQLite file, opened read-only; sorting and the like stay in memory.

    Formal guarantees
    -----------------
    Columns come as text, whatever rows they hold, and the text of a cell depends on
    that cell alone: a type for a column would be chosen by looking at its rows, and one
    record could change how the others are read. Texts of numbers keep every digit.
    """

    schemes: ClassVar[tuple[str, ...]] = ("sqlite",)
    driver: ClassVar[str] = "sqlite3"
    dialect: ClassVar[Dialect] = SQLITE

    @contextmanager
    def answer(self, ask: Ask) -> Iterator[OpenQuery]:
        if not self.path.is_file():
            ask.refuse("no such database file", "check the path after sqlite:")
        address = f"file:{quote(str(self.path.absolute()))}?mode=ro"
        try:
            with closing(ask.driver.connect(address, uri=True)) as connection:
                connection.execute("PRAGMA query_only = ON")
                connection.execute("PRAGMA temp_store = MEMORY")
                cursor = connection.execute(ask.select)
                names = [column[0] for column in cursor.description]
                schema = pa.schema([(name, pa.string()) for name in names])
                batches = _batches(ask, cursor, schema)
                reader = pa.RecordBatchReader.from_batches(schema, batches)
                yield OpenQuery(f"sqlite:{self.path.resolve()}", reader, (self.path,))
        except ask.foreign:
            what, remedy = FAILURES["42"]
            ask.refuse(f"{what}, or the file is no SQLite database", remedy)


def _batches(ask: Ask, cursor: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while rows := cursor.fetchmany(ask.batch_rows):
        try:
            columns = [
                pa.array(map(_text, column), pa.string())
                for column in zip(*rows, strict=True)
            ]
        except TypeError:
            ask.refuse("a column holds bytes", "leave it out, or convert it by hex()")
        yield pa.record_batch(columns, schema=schema)


def _text(cell: float | str | bytes | None) -> str | None:
    """A cell as text: whole numbers without a point, others with all their digits."""
    if cell is None or isinstance(cell, str):
        return cell
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() else repr(cell)
    if isinstance(cell, int):
        return str(cell)
    raise TypeError

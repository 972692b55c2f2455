"""DuckDB: a database file, or a folder of Parquet and CSV files.

A query reads its database, or those files of its folder that it names as tables, and no
other file: a table has one ledger, so it must be known what was read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from cipherbayes.data.databases.database import (
    FAILURES,
    Ask,
    FileDatabase,
    OpenQuery,
)
from cipherbayes.data.statements import POSTGRESQL, Dialect


@dataclass(frozen=True)
class DuckDatabase(FileDatabase):
    """A file of DuckDB, or a folder of Parquet and CSV files."""

    schemes: ClassVar[tuple[str, ...]] = ("duckdb",)
    driver: ClassVar[str] = "duckdb"
    dialect: ClassVar[Dialect] = POSTGRESQL

    @contextmanager
    def answer(self, ask: Ask) -> Iterator[OpenQuery]:
        duckdb = ask.driver
        if not self.path.exists():
            ask.refuse("no such file or folder", "check the path after duckdb:")
        folder = self.path.is_dir()
        config = {
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
        with ExitStack() as stack:
            try:
                file = ":memory:" if folder else str(self.path)
                connection = stack.enter_context(
                    duckdb.connect(file, read_only=not folder, config=config)
                )
                connection.execute("SET enable_progress_bar = false")
                tables = _tables_named(self.path, ask.query) if folder else []
                files = tuple(file for table in tables for file in table.files)
                _read_only_these(connection, files)
                for table in tables:
                    connection.execute(table.view)
                for text in (ask.query, ask.select):
                    _require_one_select(ask, connection, text)
                reader = _batches(connection, ask.select, ask.batch_rows)
                stack.enter_context(reader)
                yield OpenQuery(f"duckdb:{self.path.resolve()}", reader, files)
            except ask.foreign as error:
                ask.refuse(*_failure(duckdb, error))


def _require_one_select(ask: Ask, connection: Any, text: str) -> None:
    """Refuse what DuckDB itself reads as several statements, or as another."""
    kinds = [statement.type for statement in connection.extract_statements(text)]
    if kinds != [ask.driver.StatementType.SELECT]:
        ask.refuse(*FAILURES["42"])


def _batches(connection: Any, query: str, rows: int) -> pa.RecordBatchReader:
    answer = connection.sql(query)
    if hasattr(answer, "to_arrow_reader"):
        return answer.to_arrow_reader(rows)
    return answer.fetch_arrow_reader(rows)


@dataclass(frozen=True)
class _FolderTable:
    """A Parquet or CSV file, or a folder of Parquet files, as a table."""

    name: str
    call: str
    files: list[Path]

    @property
    def view(self) -> str:
        """The statement that makes it a table of DuckDB."""
        name = self.name.replace('"', '""')
        return f'CREATE VIEW "{name}" AS FROM {self.call}({_list(self.files)})'


def _tables_named(folder: Path, query: str) -> list[_FolderTable]:
    """The tables of a folder whose names are in a query: it gets no others."""
    tables = []
    for entry in sorted(folder.absolute().iterdir()):
        name = entry.name.lower()
        if entry.is_dir() and (parts := sorted(entry.glob("*.parquet"))):
            tables.append(_FolderTable(entry.name, "read_parquet", parts))
        elif name.endswith((".parquet", ".pq")):
            tables.append(_FolderTable(entry.stem, "read_parquet", [entry]))
        elif name.endswith((".csv", ".csv.gz")):
            table = entry.name.split(".")[0]
            tables.append(_FolderTable(table, "read_csv", [entry]))
    return [
        table
        for table in tables
        if re.search(rf"(?<!\w){re.escape(table.name)}(?!\w)", query, re.IGNORECASE)
    ]


def _read_only_these(connection: Any, files: Sequence[Path]) -> None:
    """Let the connection open no other file; DuckDB does not let a query undo it."""
    if files:
        connection.execute(f"SET allowed_paths = {_list(files)}")
    connection.execute("SET enable_external_access = false")


def _list(files: Sequence[Path]) -> str:
    places = (str(file).replace("'", "''") for file in files)
    return "[" + ", ".join(f"'{place}'" for place in places) + "]"


def _failure(duckdb: Any, error: Exception) -> tuple[str, str]:
    kinds = {
        "CatalogException": FAILURES["42P01"],
        "BinderException": FAILURES["42703"],
        "ParserException": FAILURES["42"],
        "ConversionException": FAILURES["22"],
        "OutOfRangeException": FAILURES["22"],
        "InvalidInputException": FAILURES["22"],
        "PermissionException": (
            "the query reads a file that is no table of its database",
            "name a table: a query of duckdb:FOLDER reads the files of that folder",
        ),
        "IOException": (
            "cannot be opened as a database of DuckDB",
            "check that the file is one, and that nobody has it open for writing",
        ),
    }
    for name, known in kinds.items():
        if isinstance(error, getattr(duckdb, name, ())):
            return known
    return FAILURES["42"]

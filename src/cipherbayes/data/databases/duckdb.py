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
from pyarrow.parquet import read_schema

from cipherbayes.data.databases.database import (
    FAILURES,
    Ask,
    FileDatabase,
    OpenQuery,
)
from cipherbayes.data.refusals import refuse
from cipherbayes.data.statements import POSTGRESQL, Dialect
from cipherbayes.data.tables.csv import check_csv, csv_texts


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
        tables = _tables_named(self.path, ask.query) if folder else []
        files = tuple(file for table in tables for file in table.files)
        with ExitStack() as stack:
            try:
                file = ":memory:" if folder else str(self.path)
                connection = stack.enter_context(
                    duckdb.connect(file, read_only=not folder, config=_config(ask))
                )
                connection.execute("SET enable_progress_bar = false")
                _read_only_these(connection, tables)
                for table in tables:
                    table.add_to(connection, ask.where)
                for text in (ask.query, ask.select):
                    _require_one_select(ask, connection, text)
                reader = _batches(connection, ask.select, ask.batch_rows)
                stack.enter_context(reader)
                server = f"duckdb:{self.path.resolve()}"
                yield OpenQuery(server, reader, files if folder else (self.path,))
            except ask.foreign as error:
                for table in tables:
                    table.check(ask.where)
                ask.refuse(*_failure(duckdb, error))


def _config(ask: Ask) -> dict[str, str]:
    """What a connection may do: no extensions, rows on no disk but in the scratch.

    One thread, and rows in the order of the file: how threads share rows out depends on
    all of them, and the last bits of a person's mean, or which of two rows of one day
    comes first, would too.
    """
    return {
        "threads": "1",
        "preserve_insertion_order": "true",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",
        "temp_directory": str(ask.scratch or ""),
    }


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
class _ParquetFiles:
    """A Parquet file, or a folder of Parquet files, as a table."""

    name: str
    files: list[Path]

    def add_to(self, connection: Any, where: str) -> None:
        """Make it a table of a connection, with the columns that every file has.

        Files of different columns are refused: DuckDB would read all by the first.
        """
        columns = {
            tuple((field.name, str(field.type)) for field in read_schema(file))
            for file in self.files
        }
        if len(columns) > 1:
            refuse(
                where,
                "Parquet files of one table have columns of different names or types",
                "write them alike",
            )
        name = self.name.replace('"', '""')
        connection.execute(
            f'CREATE VIEW "{name}" AS FROM read_parquet({_list(self.files)}, '
            "union_by_name = false, hive_partitioning = false, filename = false)"
        )

    def check(self, where: str) -> None:
        """Say more of what may have failed: nothing is known here."""


@dataclass(frozen=True)
class _CsvFile:
    """A CSV file as a table. It is Arrow that reads it, as text, and not DuckDB.

    DuckDB would take types, signs and the header from the rows, so that one record
    could change how all others are read.
    """

    name: str
    file: Path

    @property
    def files(self) -> list[Path]:
        return [self.file]

    def add_to(self, connection: Any, where: str) -> None:
        """Make it a table of a connection."""
        connection.register(self.name, csv_texts(self.file, self._where(where)))

    def check(self, where: str) -> None:
        """Refuse it, by a line, if it was this file that could not be read."""
        check_csv(self.file, self._where(where))

    def _where(self, where: str) -> str:
        return f"{where}, {self.file.name}"


_Table = _ParquetFiles | _CsvFile


def _tables_named(folder: Path, query: str) -> list[_Table]:
    """The tables of a folder whose names are in a query: it gets no others."""
    tables: list[_Table] = []
    for entry in sorted(folder.absolute().iterdir()):
        name = entry.name.lower()
        if entry.is_dir() and (parts := sorted(entry.glob("*.parquet"))):
            tables.append(_ParquetFiles(entry.name, parts))
        elif name.endswith((".parquet", ".pq")):
            tables.append(_ParquetFiles(entry.stem, [entry]))
        elif name.endswith((".csv", ".csv.gz")):
            tables.append(_CsvFile(entry.name.split(".")[0], entry))
    return [
        table
        for table in tables
        if re.search(rf"(?<!\w){re.escape(table.name)}(?!\w)", query, re.IGNORECASE)
    ]


def _read_only_these(connection: Any, tables: Sequence[_Table]) -> None:
    """Let the connection open no other file; DuckDB does not let a query undo it."""
    parquet = [table for table in tables if isinstance(table, _ParquetFiles)]
    if files := [file for table in parquet for file in table.files]:
        connection.execute(f"SET allowed_paths = {_list(files)}")
    connection.execute("SET enable_external_access = false")


def _list(files: Sequence[Path]) -> str:
    places = (str(file).replace("'", "''") for file in files)
    return "[" + ", ".join(f"'{place}'" for place in places) + "]"


def _failure(duckdb: Any, error: Exception) -> tuple[str, str]:
    kinds = {
        "CatalogException": FAILURES["42P01"],
        "BinderException": (
            "a column in the query does not exist, or values of different types are "
            "compared or computed with",
            "check its spelling; columns of a CSV file are text: TRY_CAST(x AS DOUBLE)",
        ),
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

"""Databases of one file, queries of them, and how these are refused."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cipherbayes.data.snapshots import Query, remove_snapshot, take_snapshot
from cipherbayes.errors import CipherbayesError

pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")
duckdb = pytest.importorskip("duckdb", reason="needs cipherbayes[database]")

SECRET = "HIV-67.1234"


def sqlite_file(folder: Path, *statements: str) -> str:
    with closing(sqlite3.connect(folder / "t.sqlite")) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return f"sqlite:{folder / 't.sqlite'}"


def query_of(folder: Path, database: str, text: str) -> Query:
    (folder / "cohort.sql").write_text(text)
    return Query(database, folder / "cohort.sql")


def taken(folder: Path, database: str, text: str) -> Path:
    remove_snapshot(folder / "snapshot")
    return take_snapshot(query_of(folder, database, text), folder / "snapshot")


def refusal(folder: Path, database: str, text: str) -> str:
    with pytest.raises(CipherbayesError) as refused:
        taken(folder, database, text)
    assert not list((folder / "snapshot").glob("*"))
    return str(refused.value)


def one_row(folder: Path, kind: str) -> str:
    """A database with the table t of one column and one row."""
    statements = ("CREATE TABLE t (a REAL)", "INSERT INTO t VALUES (1)")
    if kind == "sqlite":
        return sqlite_file(folder, *statements)
    with duckdb.connect(str(folder / "t.duckdb")) as database:
        for statement in statements:
            database.execute(statement)
    return f"duckdb:{folder / 't.duckdb'}"

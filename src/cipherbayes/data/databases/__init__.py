"""Databases that a site's query is read from: PostgreSQL, SQLite and DuckDB.

    postgresql://HOST/NAME     by ADBC; who you are comes from the environment, from a
                               service file or from ~/.pgpass, never from the address
    sqlite:FILE                each cell by itself
    duckdb:FILE                a database of DuckDB
    duckdb:FOLDER              its Parquet and CSV files, each a table by its name

Each kind is a class in a file of its own, behind :class:`Database`. Rows come as Arrow
batches. A query is one SELECT inside a read-only transaction.
"""

from __future__ import annotations

import re
from pathlib import Path

from cipherbayes.data.databases.database import (
    BATCH_ROWS,
    PASSWORD,
    Database,
    LostConnectionError,
    OpenQuery,
)
from cipherbayes.data.databases.duckdb import DuckDatabase
from cipherbayes.data.databases.postgresql import PostgresDatabase
from cipherbayes.data.databases.sqlite import SqliteDatabase
from cipherbayes.data.refusals import refuse

__all__ = [
    "BATCH_ROWS",
    "Database",
    "DuckDatabase",
    "LostConnectionError",
    "OpenQuery",
    "PostgresDatabase",
    "SqliteDatabase",
    "located",
    "open_database",
]

KINDS: tuple[type[Database], ...] = (PostgresDatabase, SqliteDatabase, DuckDatabase)

_SQL_SERVER = re.compile(
    r"\s*(jdbc:)?(mssql|sqlserver)\b|.*\bdriver\s*=.*(sql server|freetds|tds)",
    re.IGNORECASE | re.DOTALL,
)
"""How SQLAlchemy, JDBC and ODBC write the address of a SQL Server."""


def open_database(address: str) -> Database:
    """The database of an address; DataError where it is none, or holds a secret."""
    scheme, _, rest = address.partition(":")
    if re.search("//.*:.*@", address, re.DOTALL):
        refuse("database", *PASSWORD)
    for kind in KINDS:
        if scheme in kind.schemes:
            return kind.of_address(kind.schemes[0], rest)
    # An address that is not understood may hold anything, and so is not repeated.
    if _SQL_SERVER.match(address):
        refuse(
            "database",
            "a SQL Server is not read directly",
            "export the cohort to a Parquet or CSV file and query its folder, "
            '"duckdb:FOLDER", or read it through a PostgreSQL with tds_fdw '
            "(docs/databases.md)",
        )
    refuse(
        "database",
        "is not the address of a database",
        'give "postgresql://HOST/NAME", "sqlite:FILE" or "duckdb:FILE"',
    )


def located(address: str, folder: Path) -> str:
    """An address whose file, if it has one, is relative to a folder."""
    return open_database(address).relative_to(folder)

"""What every database is here: an address, and one SELECT that is read in batches.

What a driver says of a failure may hold values, names and passwords: none of it is
passed on, only what kind of failure it was.
"""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import pyarrow as pa

from cipherbayes.data.refusals import refuse
from cipherbayes.data.statements import Dialect, single_statement

BATCH_ROWS = 1 << 16
"""Rows of a batch, where the driver can be told."""

PROBE_SECONDS = 5
"""Longest time for a connection, and for a statement, where no rows are wanted."""

PASSWORD = (
    "the address holds a password",
    "remove it, change it, and keep it in ~/.pgpass, in a service file or in "
    "PGPASSWORD: studies and logs are read by others",
)
"""What is said of an address with a secret."""

FAILURES = {
    "28": ("refuses this user", "check ~/.pgpass, PGSERVICE or PGPASSWORD"),
    "3D": ("has no database of that name", "check the address"),
    "42501": ("does not let this user read it", "ask for SELECT on its tables"),
    "42P01": ("a table in the query does not exist", "check its name and schema"),
    "42703": ("a column in the query does not exist", "check its spelling"),
    "42": ("the query is not one valid SELECT", "try it with the database's own tool"),
    "25006": ("the query wants to write", "a cohort is a SELECT and changes nothing"),
    "22": ("the query fails on some rows", "guard casts and divisions in the query"),
    "57014": (
        "the query was cancelled, or took too long",
        "see the database's log; raise the role's statement_timeout",
    ),
}
"""What the beginning of a SQLSTATE means, the longest that fits first."""


class LostConnectionError(Exception):
    """The connection broke while rows were read: to be tried again."""


@dataclass(frozen=True)
class OpenQuery:
    """A query that has begun to answer.

    Attributes
    ----------
    server
        Which database it really is, by whatever address it was reached.
    batches
        Its rows.
    files
        The files that it reads: that of the database, or those of a folder.
    """

    server: str
    batches: pa.RecordBatchReader
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Ask:
    """A query that is to be run.

    Attributes
    ----------
    driver
        The driver's module.
    query
        The text of its file.
    select
        The same as part of a SELECT, with or without rows.
    where
        How errors name the table.
    batch_rows
        Rows of a batch, where the driver can be told.
    rows
        Whether rows are wanted, or only the names and types of columns.
    scratch
        A folder of this user alone for what does not fit into memory; None if all of
        it must.
    """

    driver: Any
    query: str
    select: str
    where: str
    batch_rows: int
    rows: bool
    scratch: Path | None

    @property
    def foreign(self) -> tuple[type[Exception], ...]:
        """Errors of the driver and of Arrow, whose words may hold values."""
        return (self.driver.Error, pa.ArrowException, OSError, UnicodeDecodeError)

    def refuse(self, what: str, remedy: str) -> NoReturn:
        """DataError of this query, without the driver's words."""
        refuse(self.where, what, remedy)


@dataclass(frozen=True)
class Database(ABC):
    """A database, by an address without secrets.

    A kind of database is a class in a file of its own, and a line in
    ``databases.KINDS``.

    Attributes
    ----------
    name
        The address as messages and ledgers show it.
    schemes
        How its addresses begin.
    driver
        Module that reads it.
    dialect
        How it takes a text apart.
    """

    name: str

    schemes: ClassVar[tuple[str, ...]]
    driver: ClassVar[str]
    dialect: ClassVar[Dialect]

    @classmethod
    @abstractmethod
    def of_address(cls, scheme: str, rest: str) -> Self:
        """The database of ``scheme:rest``; DataError where that is none."""

    @abstractmethod
    def relative_to(self, folder: Path) -> str:
        """Its address; that of a file relative to a folder."""

    @abstractmethod
    def answer(self, ask: Ask) -> AbstractContextManager[OpenQuery]:
        """Run a query, read-only, for as long as the block lasts."""

    def read(
        self,
        query: str,
        where: str,
        batch_rows: int = BATCH_ROWS,
        *,
        rows: bool = True,
        scratch: Path | None = None,
    ) -> AbstractContextManager[OpenQuery]:
        """Run a query, read-only, for as long as the block lasts.

        Parameters
        ----------
        where
            How errors name the table.
        batch_rows
            Rows of a batch, where the driver can be told.
        rows
            Whether rows are wanted, or only the names and types of columns, which a
            server must give within :data:`PROBE_SECONDS`.
        scratch
            A folder of this user alone for what does not fit into memory.

        Raises
        ------
        DataError
            Where the query cannot be run; never in the driver's words.
        LostConnectionError
            Where it is worth trying again.
        """
        driver = _load(self.driver, where)
        select = _one_select(query, self.dialect, where, rows=rows)
        return self.answer(Ask(driver, query, select, where, batch_rows, rows, scratch))


@dataclass(frozen=True)
class FileDatabase(Database):
    """A database that is a file or a folder."""

    path: Path

    @classmethod
    def of_address(cls, scheme: str, rest: str) -> Self:
        if not rest or re.search(r"[?;]|^\s*[A-Za-z][\w+.-]+:", rest):
            refuse(
                "database",
                "the address has a setting, or is not of a file",
                f'give "{scheme}:FILE", a path without ? and ;',
            )
        # sqlite:///PATH is how other programs write sqlite:PATH.
        path = Path(rest[3:] if rest.startswith("///") else rest)
        return cls(f"{scheme}:{path}", path)

    def relative_to(self, folder: Path) -> str:
        return f"{self.schemes[0]}:{folder / self.path}"


def _one_select(query: str, dialect: Dialect, where: str, *, rows: bool) -> str:
    """The query as part of a SELECT; refused if it is not one statement by itself."""
    text = single_statement(query, dialect)
    if text is None:
        refuse(where, *FAILURES["42"])
    limit = "" if rows else " WHERE 1 = 0"
    return f"SELECT * FROM (\n{text}\n) AS cohort{limit}"  # noqa: S608 - its own


def _load(module: str, where: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        refuse(
            where,
            f"the driver {module.partition('.')[0]} is not installed",
            'pip install "cipherbayes[database]"',
        )

"""Databases that a site's query is read from: PostgreSQL, SQLite and DuckDB.

    postgresql://HOST/NAME     by ADBC; who you are comes from the environment, from a
                               service file or from ~/.pgpass, never from the address
    sqlite:FILE                by ADBC
    duckdb:FILE                a database of DuckDB
    duckdb:FOLDER              its Parquet and CSV files, each a table by its name

A query of DuckDB reads its database, or those files of its folder that it names as
tables, and no other file: a table has one ledger, so it must be known what was read.
Rows come as Arrow batches. A query is one SELECT inside a read-only transaction. What a
driver says of a failure may hold values, names and passwords: none of it is passed on,
only what kind of failure it was.
"""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pyarrow as pa

from cipherbayes.data.statements import (
    POSTGRESQL,
    SQLITE,
    Dialect,
    single_statement,
)
from cipherbayes.errors import CipherbayesError, DataError

BATCH_ROWS = 1 << 16
"""Rows of a batch, where the driver can be told."""

PROBE_SECONDS = 5
"""Longest time for a connection, and for a statement, where no rows are wanted."""

_ALLOWED = frozenset(
    {
        *("host", "hostaddr", "port", "dbname", "user", "service"),
        *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslnegotiation"),
        *("channel_binding", "require_auth", "gssencmode", "krbsrvname"),
        *("connect_timeout", "keepalives", "keepalives_idle", "application_name"),
        *("target_session_attrs", "load_balance_hosts"),
    }
)
"""Settings of libpq that an address may hold: nothing secret is among them."""

_PASSWORD = (
    "the address holds a password",
    "remove it, change it, and keep it in ~/.pgpass, in a service file or in "
    "PGPASSWORD: studies and logs are read by others",
)

_STATES = {
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


class MixedTypesError(Exception):
    """A column's later rows have another type: to be tried with larger batches."""


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
        The files of a folder that it reads.
    """

    server: str
    batches: pa.RecordBatchReader
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Database(ABC):
    """A database, by an address without secrets.

    Attributes
    ----------
    name
        The address as messages and ledgers show it.
    """

    name: str

    @abstractmethod
    def read(
        self,
        query: str,
        where: str,
        batch_rows: int = BATCH_ROWS,
        *,
        rows: bool = True,
    ) -> AbstractContextManager[OpenQuery]:
        """Run a query, read-only, for as long as the block lasts.

        Parameters
        ----------
        where
            How errors name the table.
        batch_rows
            Rows of a batch, where the driver can be told. A column of SQLite has the
            type of its first batch.
        rows
            Whether rows are wanted, or only the names and types of columns, which a
            server must give within :data:`PROBE_SECONDS`.

        Raises
        ------
        DataError
            Where the query cannot be run; never in the driver's words.
        LostConnectionError, MixedTypesError
            Where it is worth trying again.
        """


def open_database(address: str) -> Database:
    """The database of an address; DataError where it is none, or holds a secret."""
    scheme, _, rest = address.partition(":")
    if re.search("//.*:.*@", address, re.DOTALL):
        _refuse("database", *_PASSWORD)
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        return PostgresDatabase(_public_name(address), f"postgresql:{rest}")
    if scheme in ("sqlite", "duckdb") and rest:
        if re.search(r"[?;]|^\s*[A-Za-z][\w+.-]+:", rest):
            _refuse(
                "database",
                "the address has a setting, or is not of a file",
                f'give "{scheme}:FILE", a path without ? and ;',
            )
        path = Path(_file_part(rest))
        kind = SqliteDatabase if scheme == "sqlite" else DuckDatabase
        return kind(f"{scheme}:{path}", path)
    # An address that is not understood may hold anything, and so is not repeated.
    _refuse(
        "database",
        "is not the address of a database",
        'give "postgresql://HOST/NAME", "sqlite:FILE" or "duckdb:FILE"',
    )


def refuse_address(path: str) -> None:
    """DataError where the path of a file is an address, which may hold a secret."""
    if re.search(r"://|^\w\w+:/", path):  # a Path has one slash of two
        _refuse(
            "data",
            "is the address of a database, not the path of a file",
            "give database, query and ledger in its place, the address without a "
            "password",
        )


def located(address: str, folder: Path) -> str:
    """An address whose file, if it has one, is relative to a folder."""
    database = open_database(address)
    if isinstance(database, SqliteDatabase | DuckDatabase):
        scheme = database.name.partition(":")[0]
        return f"{scheme}:{folder / database.path}"
    return address


def _file_part(rest: str) -> str:
    """The path in sqlite:PATH, or in sqlite:///PATH as other programs write it."""
    return rest[3:] if rest.startswith("///") else rest


def _public_name(address: str) -> str:
    """A PostgreSQL address without its user; refused if it holds a secret."""
    try:
        parts = urlsplit(address)
        settings = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:
        _refuse("database", "is not a valid address", 'give "postgresql://HOST/NAME"')
    user, _, host = parts.netloc.rpartition("@")
    if ":" in user or {"password", "sslpassword"} & settings.keys():
        _refuse("database", *_PASSWORD)
    if unknown := sorted(settings.keys() - _ALLOWED):
        del unknown  # perhaps a secret that was mistyped
        _refuse(
            "database",
            "the address has a setting that is not known or not allowed",
            "allowed are " + ", ".join(sorted(_ALLOWED)),
        )
    base = parts.path.strip("/") or settings.get("dbname", "")
    service = settings.get("service")
    if re.search("[;&=]", unquote(f"{base}{service or ''}")):
        _refuse(
            "database",
            "the address has a setting in the place of a name",
            'write settings as "postgresql://HOST/NAME?KEY=VALUE"',
        )
    if not base and not service:
        _refuse(
            "database",
            "the address names no database",
            'give "postgresql://HOST/NAME", or "postgresql:///?service=NAME"',
        )
    host = host or settings.get("host", "")
    if host and "port" in settings:
        host = f"{host}:{settings['port']}"
    shown = f"postgresql://{quote(host, safe=':/,[]')}/{base}"
    return f"{shown}?service={service}" if service else shown


# -- PostgreSQL ----------------------------------------------------------------


@dataclass(frozen=True)
class PostgresDatabase(Database):
    """A PostgreSQL server, by ADBC: rows come in its binary COPY format."""

    url: str

    @contextmanager
    def read(
        self,
        query: str,
        where: str,
        batch_rows: int = BATCH_ROWS,
        *,
        rows: bool = True,
    ) -> Iterator[OpenQuery]:
        driver = _driver("adbc_driver_postgresql.dbapi", where)
        with ExitStack() as stack:
            try:
                url = self.url if rows else _within(self.url, PROBE_SECONDS)
                connection = stack.enter_context(
                    closing(driver.connect(url, autocommit=False))
                )
            except Exception:  # libpq's words may hold the user, the host, a file
                _refuse(
                    where,
                    "the database cannot be reached, or does not let this user in",
                    "check address, user and password (~/.pgpass, PGSERVICE, "
                    "PGPASSWORD) with psql",
                )
            try:
                if not rows:
                    _limit_statements(connection, PROBE_SECONDS)
                server = _postgres_server(connection, self.name)
                cursor = stack.enter_context(closing(connection.cursor()))
                cursor.execute("SET TRANSACTION READ ONLY")
                cursor.execute(_one_select(query, POSTGRESQL, where, rows=rows))
                reader = stack.enter_context(cursor.fetch_record_batch())
                yield OpenQuery(server, reader)
            except CipherbayesError:
                raise
            except Exception as error:
                if not _foreign(error, driver):
                    raise
                _postgres_failure(connection, error, where)


def _within(url: str, seconds: int) -> str:
    """The address, with a limit on how long a server may take to let someone in."""
    return f"{url}{'&' if '?' in url else '?'}connect_timeout={seconds}"


def _limit_statements(connection: Any, seconds: int) -> None:
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"SET statement_timeout = {1000 * seconds}")
    connection.commit()


def _postgres_server(connection: Any, name: str) -> str:
    """The server's own id and the database's name, however it was reached."""
    try:
        with closing(connection.cursor()) as cursor:
            cursor.execute(
                "SELECT system_identifier::text, current_database()::text "
                "FROM pg_control_system()"
            )
            ((system, base),) = cursor.fetchall()
        return f"postgresql:{system}/{base}"
    except Exception:  # a server that does not let its users ask
        return name
    finally:
        connection.rollback()


def _postgres_failure(connection: Any, error: Exception, where: str) -> NoReturn:
    """Tell a query that fails from a connection that broke."""
    state = getattr(error, "sqlstate", None) or ""
    for length in (5, 2):
        if known := _STATES.get(state[:length]):
            _refuse(where, f"{known[0]} (SQLSTATE {state})", known[1])
    try:
        connection.rollback()
    except Exception:
        raise LostConnectionError from None
    _refuse(
        where,
        "the query fails on some rows, writes, or gives a type that cannot be read",
        "guard casts and divisions, change nothing, and convert unusual types",
    )


# -- SQLite --------------------------------------------------------------------


@dataclass(frozen=True)
class SqliteDatabase(Database):
    """A SQLite file, by ADBC."""

    path: Path

    @contextmanager
    def read(
        self,
        query: str,
        where: str,
        batch_rows: int = BATCH_ROWS,
        *,
        rows: bool = True,
    ) -> Iterator[OpenQuery]:
        driver = _driver("adbc_driver_sqlite.dbapi", where)
        if not self.path.is_file():
            _refuse(where, "no such database file", "check the path after sqlite:")
        address = f"file:{quote(str(self.path.absolute()))}?mode=ro"
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(closing(driver.connect(address)))
                options = {"adbc.sqlite.query.batch_rows": batch_rows}
                cursor = connection.cursor(adbc_stmt_kwargs=options)
                stack.enter_context(closing(cursor))
                cursor.execute("PRAGMA query_only = ON")
                cursor.execute(_one_select(query, SQLITE, where, rows=rows))
                reader = stack.enter_context(cursor.fetch_record_batch())
                yield OpenQuery(f"sqlite:{self.path.resolve()}", reader)
            except CipherbayesError:
                raise
            except Exception as error:
                if not _foreign(error, driver):
                    raise
                if "Type mismatch" in str(error):
                    raise MixedTypesError from None
                what, remedy = _STATES["42"]
                _refuse(where, f"{what}, or the file is no SQLite database", remedy)


# -- DuckDB --------------------------------------------------------------------


@dataclass(frozen=True)
class DuckDatabase(Database):
    """A file of DuckDB, or a folder of Parquet and CSV files."""

    path: Path

    @contextmanager
    def read(
        self,
        query: str,
        where: str,
        batch_rows: int = BATCH_ROWS,
        *,
        rows: bool = True,
    ) -> Iterator[OpenQuery]:
        duckdb = _driver("duckdb", where)
        if not self.path.exists():
            _refuse(where, "no such file or folder", "check the path after duckdb:")
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
                tables = _tables_named(self.path, query) if folder else []
                files = tuple(file for table in tables for file in table.files)
                _read_only_these(connection, files)
                for table in tables:
                    connection.execute(table.view)
                wrapped = _one_select(query, POSTGRESQL, where, rows=rows)
                for text in (query, wrapped):
                    _require_one_select(duckdb, connection, text, where)
                reader = _duck_batches(connection, wrapped, batch_rows)
                stack.enter_context(reader)
                yield OpenQuery(f"duckdb:{self.path.resolve()}", reader, files)
            except CipherbayesError:
                raise
            except Exception as error:
                if not _foreign(error, duckdb):
                    raise
                _refuse(where, *_duck_failure(duckdb, error))


def _require_one_select(duckdb: Any, connection: Any, text: str, where: str) -> None:
    """Refuse what DuckDB itself reads as several statements, or as another."""
    kinds = [statement.type for statement in connection.extract_statements(text)]
    if kinds != [duckdb.StatementType.SELECT]:
        _refuse(where, *_STATES["42"])


def _duck_batches(connection: Any, query: str, rows: int) -> pa.RecordBatchReader:
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


def _duck_failure(duckdb: Any, error: Exception) -> tuple[str, str]:
    kinds = {
        "CatalogException": _STATES["42P01"],
        "BinderException": _STATES["42703"],
        "ParserException": _STATES["42"],
        "ConversionException": _STATES["22"],
        "OutOfRangeException": _STATES["22"],
        "InvalidInputException": _STATES["22"],
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
    return _STATES["42"]


# -- all of them ---------------------------------------------------------------


def _one_select(query: str, dialect: Dialect, where: str, *, rows: bool) -> str:
    """The query as part of a SELECT; refused if it is not one statement by itself."""
    text = single_statement(query, dialect)
    if text is None:
        _refuse(where, *_STATES["42"])
    limit = "" if rows else " WHERE 1 = 0"
    return f"SELECT * FROM (\n{text}\n) AS cohort{limit}"  # noqa: S608 - its own


def _driver(module: str, where: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        _refuse(
            where,
            f"the driver {module.partition('.')[0]} is not installed",
            'pip install "cipherbayes[database]"',
        )


def _foreign(error: Exception, driver: Any) -> bool:
    """Whether an error is the driver's or Arrow's, whose words may hold values."""
    kinds = (driver.Error, pa.ArrowException, OSError, UnicodeDecodeError)
    return isinstance(error, kinds)


def _refuse(where: str, what: str, remedy: str) -> NoReturn:
    raise DataError(what, where=where, remedy=remedy) from None

"""PostgreSQL, by ADBC: rows come in its binary COPY format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from cipherbayes.data.databases.database import (
    FAILURES,
    PASSWORD,
    PROBE_SECONDS,
    Ask,
    Database,
    LostConnectionError,
    OpenQuery,
)
from cipherbayes.data.refusals import refuse
from cipherbayes.data.statements import POSTGRESQL, Dialect

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

IN_ONE_ORDER = (
    "SET LOCAL max_parallel_workers_per_gather = 0",
    "SET LOCAL synchronize_seqscans = off",
    "SET LOCAL enable_sort = off",
)
"""Rows are read by one process from the first page on, and grouped by hash where they
can be: how workers share them out, where another reader stands, and a sort, which
leaves equal keys in an order that depends on all rows, would decide in which order a
person's rows are added."""


@dataclass(frozen=True)
class PostgresDatabase(Database):
    """A PostgreSQL server; its address has no password."""

    url: str

    schemes: ClassVar[tuple[str, ...]] = ("postgresql", "postgres")
    driver: ClassVar[str] = "adbc_driver_postgresql.dbapi"
    dialect: ClassVar[Dialect] = POSTGRESQL

    @classmethod
    def of_address(cls, scheme: str, rest: str) -> Self:
        address = f"{scheme}:{rest}"
        if not rest.startswith("//"):
            refuse(
                "database", "is not a valid address", 'give "postgresql://HOST/NAME"'
            )
        return cls(_public_name(address), address)

    def relative_to(self, folder: Path) -> str:
        return self.url

    @contextmanager
    def answer(self, ask: Ask) -> Iterator[OpenQuery]:
        with ExitStack() as stack:
            try:
                url = self.url if ask.rows else _within(self.url, PROBE_SECONDS)
                connection = stack.enter_context(
                    closing(ask.driver.connect(url, autocommit=False))
                )
            except Exception:  # libpq's words may hold the user, the host, a file
                ask.refuse(
                    "the database cannot be reached, or does not let this user in",
                    "check address, user and password (~/.pgpass, PGSERVICE, "
                    "PGPASSWORD) with psql",
                )
            try:
                if not ask.rows:
                    _limit_statements(connection, PROBE_SECONDS)
                server = _server(connection, self.name)
                cursor = stack.enter_context(closing(connection.cursor()))
                cursor.execute("SET TRANSACTION READ ONLY")
                for setting in IN_ONE_ORDER:
                    cursor.execute(setting)
                cursor.execute(ask.select)
                reader = stack.enter_context(cursor.fetch_record_batch())
                yield OpenQuery(server, reader)
            except ask.foreign as error:
                _fail(ask, connection, error)


def _within(url: str, seconds: int) -> str:
    """The address, with a limit on how long a server may take to let someone in."""
    return f"{url}{'&' if '?' in url else '?'}connect_timeout={seconds}"


def _limit_statements(connection: Any, seconds: int) -> None:
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"SET statement_timeout = {1000 * seconds}")
    connection.commit()


def _server(connection: Any, name: str) -> str:
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


def _fail(ask: Ask, connection: Any, error: Exception) -> NoReturn:
    """Tell a query that fails from a connection that broke."""
    state = getattr(error, "sqlstate", None) or ""
    for length in (5, 2):
        if known := FAILURES.get(state[:length]):
            ask.refuse(f"{known[0]} (SQLSTATE {state})", known[1])
    try:
        connection.rollback()
    except Exception:
        raise LostConnectionError from None
    ask.refuse(
        "the query fails on some rows, writes, or gives a type that cannot be read",
        "guard casts and divisions, change nothing, and convert unusual types",
    )


def _public_name(address: str) -> str:
    """A PostgreSQL address without its user; refused if it holds a secret."""
    try:
        parts = urlsplit(address)
        settings = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:
        refuse("database", "is not a valid address", 'give "postgresql://HOST/NAME"')
    user, _, host = parts.netloc.rpartition("@")
    if ":" in user or {"password", "sslpassword"} & settings.keys():
        refuse("database", *PASSWORD)
    if unknown := sorted(settings.keys() - _ALLOWED):
        del unknown  # perhaps a secret that was mistyped
        refuse(
            "database",
            "the address has a setting that is not known or not allowed",
            "allowed are " + ", ".join(sorted(_ALLOWED)),
        )
    base = parts.path.strip("/") or settings.get("dbname", "")
    service = settings.get("service")
    if re.search("[;&=]", unquote(f"{base}{service or ''}")):
        refuse(
            "database",
            "the address has a setting in the place of a name",
            'write settings as "postgresql://HOST/NAME?KEY=VALUE"',
        )
    if not base and not service:
        refuse(
            "database",
            "the address names no database",
            'give "postgresql://HOST/NAME", or "postgresql:///?service=NAME"',
        )
    host = host or settings.get("host", "")
    if host and "port" in settings:
        host = f"{host}:{settings['port']}"
    shown = f"postgresql://{quote(host, safe=':/,[]')}/{base}"
    return f"{shown}?service={service}" if service else shown

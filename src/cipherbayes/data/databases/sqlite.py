"""A SQLite file, by ADBC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import quote

from cipherbayes.data.databases.database import (
    FAILURES,
    Ask,
    FileDatabase,
    MixedTypesError,
    OpenQuery,
)
from cipherbayes.data.statements import SQLITE, Dialect


@dataclass(frozen=True)
class SqliteDatabase(FileDatabase):
    """A SQLite file, opened read-only."""

    schemes: ClassVar[tuple[str, ...]] = ("sqlite",)
    driver: ClassVar[str] = "adbc_driver_sqlite.dbapi"
    dialect: ClassVar[Dialect] = SQLITE

    @contextmanager
    def answer(self, ask: Ask) -> Iterator[OpenQuery]:
        if not self.path.is_file():
            ask.refuse("no such database file", "check the path after sqlite:")
        address = f"file:{quote(str(self.path.absolute()))}?mode=ro"
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(closing(ask.driver.connect(address)))
                options = {"adbc.sqlite.query.batch_rows": ask.batch_rows}
                cursor = connection.cursor(adbc_stmt_kwargs=options)
                stack.enter_context(closing(cursor))
                cursor.execute("PRAGMA query_only = ON")
                cursor.execute(ask.select)
                reader = stack.enter_context(cursor.fetch_record_batch())
                yield OpenQuery(f"sqlite:{self.path.resolve()}", reader)
            except ask.foreign as error:
                if "Type mismatch" in str(error):
                    raise MixedTypesError from None
                what, remedy = FAILURES["42"]
                ask.refuse(f"{what}, or the file is no SQLite database", remedy)

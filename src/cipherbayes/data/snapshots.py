"""A query as a table: what it returned at one moment, in a file of the site's own.

Rows must not change during a run, so a query is read once, into a Parquet file (0600 in
a folder 0700) that a resumed run uses again and that is removed when the run ends. The
file says of itself which database and query it came from, and the digest of its rows.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from cipherbayes.data.databases import (
    LostConnectionError,
    open_database,
)
from cipherbayes.data.row_digest import RowDigest
from cipherbayes.data.snapshot_file import (
    cannot_keep,
    private_file,
    row_groups,
    usable,
)
from cipherbayes.data.statements import beyond_a_person, order_left_open
from cipherbayes.data.table_files import TableFile
from cipherbayes.errors import DataError

log = logging.getLogger("cipherbayes.database")

FILE = "query.parquet"
"""Name of every snapshot, in a folder of its own."""

PAUSES = (1.0, 4.0)
"""Seconds before a query whose connection broke is tried again."""

_SPILL = ".spill"
_SHORT = ".checked-"
_KEY = b"cipherbayes query"
_MOST_QUERY_BYTES = 1 << 20


@dataclass(frozen=True)
class Query:
    """A query that is a table.

    Attributes
    ----------
    database
        Address of the database, without secrets.
    file
        The file that holds the SELECT.
    """

    database: str
    file: Path

    @property
    def name(self) -> str:
        """How errors and the ledger name the table."""
        return f"{self.file.name} of {open_database(self.database).name}"

    def text(self) -> str:
        """The SELECT."""
        try:
            data = self.file.read_bytes()
            if len(data) > _MOST_QUERY_BYTES:
                raise ValueError
            text = data.decode("utf-8-sig")  # some editors begin with a mark
        except FileNotFoundError:
            raise DataError(
                "no such query", where=str(self.file), remedy="check the path"
            ) from None
        except (OSError, ValueError):
            raise DataError(
                "is not a readable text file",
                where=str(self.file),
                remedy="save the SELECT as UTF-8 text",
            ) from None
        if not text.strip():
            raise DataError(
                "is empty", where=str(self.file), remedy="write a SELECT into it"
            )
        return text

    def doubts(self) -> list[str]:
        """What to check where one person's record may change another's row."""
        text, dialect = self.text(), open_database(self.database).dialect
        doubts = []
        if found := beyond_a_person(text, dialect):
            doubts.append(
                f"{self.name} has {', '.join(found)}: privacy needs each row to depend "
                "on its own person's data alone, so check that it does "
                "(docs/databases.md); this goes by words, a help and not a proof"
            )
        if found := order_left_open(text, dialect):
            doubts.append(
                f"{self.name} has {', '.join(found)}, whose result can depend on the "
                "order of rows, and so on other people's: end ORDER BY with a unique "
                "key, and add floats exactly, AVG(CAST(x AS DECIMAL(18, 6))); "
                "docs/databases.md says more, and this goes by words, a help and not "
                "a proof"
            )
        return doubts


@dataclass(frozen=True)
class Origin:
    """Where a snapshot's rows came from: the identity of a query's table.

    Attributes
    ----------
    name
        The query's name: its file and the database's address.
    server
        Which database it really is, by whatever address it was reached.
    file
        The query's file, links followed.
    query
        The query's text.
    digest
        Of the rows, in whatever order they came, in hexadecimal. It stays in files
        that only the site can read: outside, whoever knows all records but one could
        tell from it which that is.
    files
        The files that the query read, as they were then: that of its database, or
        those of its folder. None of a server.
    """

    name: str
    server: str
    file: str
    query: str
    digest: str
    files: tuple[TableFile, ...] = ()

    @classmethod
    def of_json(cls, text: bytes) -> Origin:
        """An origin as :meth:`to_json` wrote it."""
        facts = json.loads(text)
        files = tuple(TableFile.of_json(file) for file in facts.pop("files", ()))
        return cls(**facts, files=files)

    def names(self, *, sure: bool) -> tuple[str, ...]:
        """Names of its database: where it is, what its files hold and are.

        Parameters
        ----------
        sure
            Only those by which it may be found; see ``TableFile.sure_keys``.
        """
        kinds = ["content"]
        if not sure or all(file.names > 1 for file in self.files):
            kinds.append("inode")
        known = [dict(file.keys) for file in self.files]
        facts = [f"{kind} {sorted(keys[kind] for keys in known)}" for kind in kinds]
        return (self.server, *(facts if known else ()))

    def to_json(self) -> bytes:
        """For the snapshot's own file."""
        facts = {**vars(self), "files": [file.to_json() for file in self.files]}
        return json.dumps(facts).encode()


def take_snapshot(query: Query, folder: Path) -> Path:
    """Read a query into a folder; the file. One that is there already stays.

    Formal guarantees
    -----------------
    The file appears whole or not at all, and only its owner can read it. The database
    is asked for one SELECT inside a read-only transaction, which does not bind what
    functions do outside of it (docs/databases.md).

    Edge cases
    ----------
    A connection that breaks is tried twice more, each time from the beginning. Columns
    that are neither numbers nor text keep their name and kind, and none of their
    values: a study that wants one is refused.
    """
    path = folder / FILE
    if path.exists():
        return path
    pauses = iter(PAUSES)
    for doubt in query.doubts():
        log.warning("%s", doubt)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        while True:
            try:
                return _take(query, path)
            except LostConnectionError:
                pause = next(pauses, None)
                if pause is None:
                    raise
                log.warning("%s: the connection broke; trying again", query.name)
                time.sleep(pause)
    except LostConnectionError:
        raise DataError(
            "the connection broke while the rows were read; nothing was released",
            where=query.name,
            remedy="see the database's log, then start or resume again",
        ) from None
    except OSError:
        raise cannot_keep(folder) from None


def remove_snapshot(folder: Path) -> None:
    """Remove a snapshot and its folder, if there is one."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def short_snapshot(query: Query, folder: Path) -> Iterator[Path]:
    """A query in a file below a site's own folder, for as long as the block lasts.

    What a killed process left there goes first.
    """
    remove_short_snapshots(folder)
    try:
        scratch = Path(tempfile.mkdtemp(prefix=_SHORT, dir=folder))
        held = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        raise cannot_keep(folder) from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield take_snapshot(query, scratch)
    finally:
        remove_snapshot(scratch)
        os.close(held)


def remove_short_snapshots(folder: Path) -> None:
    """Remove short snapshots below a folder that no process has any more."""
    for left in folder.glob(f"{_SHORT}*"):
        with suppress(OSError):  # held, or gone already
            held = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_snapshot(left)
            finally:
                os.close(held)


def origin_of(path: Path | str) -> Origin | None:
    """Where a snapshot came from; None for a table that is a file of its own."""
    path = Path(path)
    if path.name != FILE:
        return None
    try:
        metadata = pyarrow.parquet.read_metadata(path).metadata or {}
        return Origin.of_json(metadata[_KEY]) if _KEY in metadata else None
    except (KeyError, OSError, ValueError, TypeError, pa.ArrowException):
        raise DataError(
            "the kept rows of a query are gone or damaged",
            where=str(path),
            remedy="start a new run, which reads the query again",
        ) from None


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder for rows that a database cannot hold in memory, gone afterwards.

    It lies in the snapshot's own folder, 0700; what a killed process left goes first.
    """
    scratch = folder / _SPILL
    remove_snapshot(scratch)
    scratch.mkdir(mode=0o700)
    try:
        yield scratch
    finally:
        remove_snapshot(scratch)


def _take(query: Query, path: Path) -> Path:
    text, where = query.text(), query.name
    digest, count = RowDigest(), 0
    database = open_database(query.database)
    with (
        _scratch(path.parent) as scratch,
        database.read(text, where, scratch=scratch) as opened,
        private_file(path) as file,
    ):
        schema = opened.batches.schema
        for table in row_groups(opened.batches):
            columns = [
                usable(column, field)
                for column, field in zip(table.columns, schema, strict=True)
            ]
            kept = pa.table(columns, names=schema.names)
            digest.add(kept)
            count += kept.num_rows
            file.write(kept)
        if count == 0:
            raise DataError(
                "the query returned no rows",
                where=where,
                remedy="check its conditions, and that this user sees the rows",
            )
        place, files = str(query.file.resolve()), map(TableFile.open, opened.files)
        origin = Origin(where, opened.server, place, text, digest.hex(), tuple(files))
        file.finish({_KEY: origin.to_json()})
    return path

"""A query as a table: what it returned at one moment, in a file of the site's own.

Rows must not change during a run, so a query is read once, into a Parquet file (0600 in
a folder 0700) that a resumed run uses again and that is removed when the run ends. The
file says of itself which database and query it came from, and the digest of its rows.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from numpy.typing import NDArray

from cipherbayes.data.databases import (
    BATCH_ROWS,
    LostConnectionError,
    MixedTypesError,
    open_database,
)
from cipherbayes.data.table_files import TableFile
from cipherbayes.data.tables import PART_ROWS, decimal_numbers
from cipherbayes.errors import DataError, RunError

log = logging.getLogger("cipherbayes.database")

FILE = "query.parquet"
"""Name of every snapshot, in a folder of its own."""

PAUSES = (1.0, 4.0)
"""Seconds before a query whose connection broke is tried again."""

MOST_BATCH_ROWS = 1 << 28
_SHORT = ".checked-"
_KEY = b"cipherbayes query"
_MOST_QUERY_BYTES = 1 << 20

_SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
"""Of the two halves of a digest of rows."""

Words = NDArray[np.uint64]

_AS_THEY_ARE = (
    pa.types.is_string,
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
)
"""Types that tables read without a change."""


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
        The files that the query read, as they were then, where its database is a
        folder of files.
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
    rows, pauses = BATCH_ROWS, iter(PAUSES)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        while True:
            try:
                return _take(query, path, rows)
            except MixedTypesError:
                if rows >= MOST_BATCH_ROWS:
                    raise
                rows *= 16
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
    except MixedTypesError:
        raise DataError(
            "a column holds values of different types",
            where=query.name,
            remedy="CAST it in the query",
        ) from None
    except OSError:
        raise _cannot_keep(folder) from None


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
        raise _cannot_keep(folder) from None
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


# -- the file ------------------------------------------------------------------


def _take(query: Query, path: Path, batch_rows: int) -> Path:
    text, where = query.text(), query.name
    digest, count = RowDigest(), 0
    with (
        open_database(query.database).read(text, where, batch_rows) as opened,
        _private_file(path) as file,
    ):
        schema = opened.batches.schema
        for table in _row_groups(opened.batches):
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
        file.finish(
            Origin(where, opened.server, place, text, digest.hex(), tuple(files))
        )
    return path


class _ParquetFile:
    """A Parquet file that is being written; what fails here is the disk's."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._writer: Any = None

    def write(self, rows: pa.Table) -> None:
        """Add row groups."""
        try:
            if self._writer is None:
                self._writer = pyarrow.parquet.ParquetWriter(self._file, rows.schema)
            self._writer.write_table(rows, row_group_size=PART_ROWS)
        except (OSError, pa.ArrowException):
            raise _cannot_keep(self._path.parent) from None

    def finish(self, origin: Origin) -> None:
        """Say where the rows came from, and make the file durable."""
        try:
            self._writer.add_key_value_metadata({_KEY: origin.to_json()})
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
        except (OSError, pa.ArrowException):
            raise _cannot_keep(self._path.parent) from None

    def close(self) -> None:
        """Let go of it, whatever has become of it."""
        if self._writer is not None:
            with suppress(OSError, ValueError, pa.ArrowException):
                self._writer.close()


def _cannot_keep(folder: Path) -> RunError:
    return RunError(
        "the rows of a query cannot be kept here while the run lasts",
        where=str(folder),
        remedy="check the disk's space and permissions",
    )


@contextmanager
def _private_file(path: Path) -> Iterator[_ParquetFile]:
    """A file 0600 that takes its name when it is whole."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with (
            os.fdopen(os.open(partial, flags, 0o600), "wb") as file,
            closing(_ParquetFile(file, path)) as parquet,
        ):
            yield parquet
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _row_groups(batches: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """The rows in tables of as many as make a part, however they came."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= PART_ROWS:
            table = pa.Table.from_batches(waiting)
            whole = count - count % PART_ROWS
            yield table.slice(0, whole)
            rest = table.slice(whole)
            waiting, count = rest.to_batches(), rest.num_rows
    if count:
        yield pa.Table.from_batches(waiting)


def usable(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """A column as numbers or text; of another kind, without its values.

    A NUMERIC of PostgreSQL comes as text, and becomes a number by its own digits. Money
    comes in hundredths, which nobody expects, so it is of another kind.
    """
    kind, types = column.type, pa.types
    named = (field.metadata or {}).get(b"POSTGRESQL:type", b"")
    if isinstance(kind, pa.BaseExtensionType):
        if named == b"numeric":
            return pc.cast(_storage(column), pa.float64())
        kind = pa.binary()
    elif types.is_dictionary(kind):
        return pc.cast(column, pa.string())
    elif types.is_decimal(kind):
        return decimal_numbers(column)
    elif types.is_large_string(kind) or types.is_string_view(kind):
        return pc.cast(column, pa.string())
    elif named == b"money":
        kind = pa.binary()
    elif any(test(kind) for test in _AS_THEY_ARE):
        return column
    elif types.is_nested(kind):
        kind = pa.list_(pa.bool_())
    elif types.is_temporal(kind):
        kind = pa.timestamp("us")
    else:
        kind = pa.binary()
    return pa.chunked_array([pa.nulls(len(column), kind)])


def _storage(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array(
        [chunk.storage for chunk in column.chunks], column.type.storage_type
    )


# -- the digest ----------------------------------------------------------------


class RowDigest:
    """A digest of rows in no order: 128 bits, the sum of a hash of each row.

    Two tables with the same rows have the same digest, whatever order a database
    returned rows and columns in, and whatever its types of numbers are. Names do not
    count: a row's hash is that of the sum of its cells' hashes.

    Edge cases
    ----------
    It finds tables that are the same by mistake or by habit. It is no commitment:
    whoever wants two tables with one digest can make them, and owns both.
    """

    def __init__(self) -> None:
        self._sums = [0, 0]
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """Count more rows."""
        lanes = [np.zeros(table.num_rows, dtype=np.uint64) for _ in _SEEDS]
        for column in table.columns:
            cells = _cell_words(column)
            for lane, words, seed in zip(lanes, cells, _SEEDS, strict=True):
                cell = words ^ np.uint64(seed)
                _mix(cell)
                lane += cell
        for index, lane in enumerate(lanes):
            _mix(lane)
            total = int(lane.sum(dtype=np.uint64))
            self._sums[index] = (self._sums[index] + total) % 2**64
        self._rows += table.num_rows

    def hex(self) -> str:
        """The digest of all rows so far."""
        text = f"{self._rows}/{self._sums[0]}/{self._sums[1]}"
        return hashlib.sha256(text.encode()).hexdigest()


def _cell_words(column: pa.ChunkedArray) -> tuple[Words, Words]:
    """Two words for each cell: of a number its bits, of a text its hash."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # none, or more than one array can hold
        array = pa.concat_arrays(array.chunks)
    if pa.types.is_string(array.type):
        encoded = array.dictionary_encode()
        digests = [
            hashlib.sha256(text.encode()).digest()[:16]
            for text in encoded.dictionary.to_pylist()
        ]
        table = np.frombuffer(b"".join(digests) + bytes(16), dtype="<u8").reshape(-1, 2)
        index = pc.fill_null(encoded.indices, len(digests)).to_numpy(
            zero_copy_only=False
        )
        return table[index, 0].astype(np.uint64), table[index, 1].astype(np.uint64)
    if pa.types.is_null(array.type) or array.null_count == len(array):
        words = np.zeros(len(array), dtype=np.uint64)
        return words, words
    numbers = pc.fill_null(pc.cast(array, pa.float64(), safe=False), float("nan"))
    values = numbers.to_numpy(zero_copy_only=False) + 0.0  # no negative zero
    words = values.view(np.uint64).copy()
    words[np.isnan(values)] = 0  # every spelling of a gap
    return words, words


def _mix(state: Words) -> None:
    """The splitmix64 finaliser, in place."""
    state += np.uint64(0x9E3779B97F4A7C15)
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)

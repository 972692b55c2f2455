"""What the CSP and the server remember across a crash: SQLite, one commit a round."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from cipherbayes.crypto.transcript import transcript
from cipherbayes.errors import RunError
from cipherbayes.inference.released import State
from cipherbayes.typing import Floats


class _Store:
    """A private database, or one in memory where there is no path."""

    schema: str
    remedy: str

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(
                path or ":memory:", isolation_level=None, timeout=60.0
            )
        except (OSError, sqlite3.Error) as error:
            raise self._failed(error) from None
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(self.schema)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._database.close()
            raise self._failed(error) from None

    def _do(self, statement: str, *values: bytes | str | int) -> list[Any]:
        """The rows of a statement; a file that fails is named."""
        try:
            return self._database.execute(statement, values).fetchall()
        # SQLite's own words about a damaged file need not be UTF-8.
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> RunError:
        if isinstance(error, sqlite3.OperationalError | OSError):
            what = "cannot be opened or written"
            remedy = "check the disk and its permissions, then `cipherbayes resume`"
        else:
            what, remedy = "is damaged or no file of a run", self.remedy
        return RunError(what, where=str(self._path), remedy=remedy)

    def close(self) -> None:
        """Release the file."""
        self._database.close()


class AnswerStore(_Store):
    """The CSP's answers, one per round."""

    schema = (
        "CREATE TABLE IF NOT EXISTS answers "
        "(round INTEGER PRIMARY KEY, reply BLOB NOT NULL) STRICT;"
    )
    remedy = "restore it, or start a new run"

    def rounds(self) -> int:
        """How many rounds were answered."""
        ((last,),) = self._do("SELECT MAX(round) FROM answers")
        if type(last) not in (int, type(None)):
            raise self._failed(TypeError())
        return 0 if last is None else int(last) + 1

    def answer(self, number: int) -> bytes | None:
        """The answer given in a round, if one was."""
        rows = self._do("SELECT reply FROM answers WHERE round = ?", number)
        if rows and type(rows[0][0]) is not bytes:
            raise self._failed(TypeError())
        return rows[0][0] if rows else None

    def keep(self, number: int, reply: bytes) -> bytes:
        """Make an answer durable before it is given.

        Returns what is to be given: where another process was first, its answer.
        """
        self._do("INSERT OR IGNORE INTO answers VALUES (?, ?)", number, reply)
        kept = self.answer(number)
        assert kept is not None
        return kept


class Checkpoint(_Store):
    """The server's state after each round, and the sites it has lost.

    Every row has a checksum, so a damaged θ is refused and not gone on from. All of it
    can be made again: the sites repeat their vectors and the CSP its answers.

    ``finished`` says when each round ended, in seconds since 1970. The database writes
    it in the same commit; nothing that a run does depends on it.
    """

    schema = (
        "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, "
        "value BLOB NOT NULL, checksum BLOB NOT NULL) STRICT;"
        "CREATE TABLE IF NOT EXISTS rounds (round INTEGER PRIMARY KEY, "
        "theta BLOB NOT NULL, memory BLOB NOT NULL, checksum BLOB NOT NULL) STRICT;"
        "CREATE TABLE IF NOT EXISTS lost (site TEXT PRIMARY KEY, "
        "round INTEGER NOT NULL, checksum BLOB NOT NULL) STRICT;"
        "CREATE TABLE IF NOT EXISTS finished (round INTEGER PRIMARY KEY, "
        "at REAL NOT NULL) STRICT;"
        "CREATE TRIGGER IF NOT EXISTS stamp AFTER INSERT ON rounds BEGIN "
        "INSERT OR REPLACE INTO finished VALUES "
        "(NEW.round, (julianday('now') - 2440587.5) * 86400.0); END;"
    )
    remedy = (
        "restore it, or delete it (with its -wal file) and `cipherbayes resume`: "
        "the sites repeat their answers, nothing is released again"
    )

    def _checked(self, rows: list[Any]) -> list[Any]:
        """Rows without their checksums, which must fit."""
        for *values, checksum in rows:
            if None in values or checksum != _checksum(*values):
                raise RunError(
                    "is damaged: an entry does not match its checksum",
                    where=str(self._path),
                    remedy=self.remedy,
                )
        return [row[:-1] for row in rows]

    @contextmanager
    def one_commit(self) -> Iterator[None]:
        """All that is kept within the block becomes durable together, or not at all."""
        self._do("BEGIN IMMEDIATE")
        try:
            yield
            self._do("COMMIT")
        except BaseException:
            # On a full disk it may fail as well; the journal is then ignored.
            with suppress(sqlite3.Error):
                self._database.rollback()
            raise

    def fact(self, name: str) -> bytes | None:
        """A value kept under a name."""
        rows = self._do("SELECT * FROM facts WHERE name = ?", name)
        return bytes(self._checked(rows)[0][1]) if rows else None

    def keep_fact(self, name: str, value: bytes) -> None:
        """Keep a value under a name."""
        row = (name, value)
        self._do("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", *row, _checksum(*row))

    def keep_state(self, number: int, state: State) -> None:
        """Make the state after round ``number`` durable."""
        row = (number, state.theta.tobytes(), state.memory.tobytes())
        statement = "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?)"
        self._do(statement, *row, _checksum(*row))

    def last_state(self) -> tuple[int, State] | None:
        """The newest round and the state after it."""
        rows = self._do("SELECT * FROM rounds ORDER BY round DESC LIMIT 1")
        if not rows:
            return None
        ((number, theta, memory),) = self._checked(rows)
        ((count,),) = self._do("SELECT COUNT(*) FROM rounds")
        return int(number), State(_floats(theta), _floats(memory), int(count))

    def trajectory(self) -> list[Floats]:
        """θ after each round so far."""
        rows = self._checked(self._do("SELECT * FROM rounds ORDER BY round"))
        return [_floats(theta) for _, theta, _ in rows]

    def lost(self) -> list[str]:
        """Sites that dropped out, the first lost first."""
        rows = self._checked(self._do("SELECT * FROM lost ORDER BY rowid"))
        return [str(site) for site, _ in rows]

    def keep_lost(self, sites: Sequence[str], number: int) -> None:
        """Remember sites that dropped out in a round."""
        for row in ((site, number) for site in sites):
            self._do(
                "INSERT OR IGNORE INTO lost VALUES (?, ?, ?)", *row, _checksum(*row)
            )


def _checksum(*values: bytes | str | int) -> bytes:
    return hashlib.sha256(transcript("cipherbayes/checkpoint/1", *values)).digest()


def _floats(data: bytes) -> Floats:
    return np.frombuffer(data, dtype=np.float64).copy()

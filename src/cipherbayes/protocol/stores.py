"""What the CSP and the server remember across a crash: SQLite, one commit a round."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cipherbayes.errors import RunError
from cipherbayes.inference.released import State
from cipherbayes.typing import Floats


def _connect(path: Path | None, schema: str) -> sqlite3.Connection:
    """A private database, or one in memory where there is no path."""
    if path is None:
        connection = sqlite3.connect(":memory:", isolation_level=None)
    else:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(schema)
    except sqlite3.DatabaseError:
        raise RunError(
            "is damaged or no file of a run",
            where=str(path),
            remedy="restore it, or start a new run",
        ) from None
    return connection


class AnswerStore:
    """The CSP's answers, one per round."""

    def __init__(self, path: Path | None = None) -> None:
        self._database = _connect(
            path,
            "CREATE TABLE IF NOT EXISTS answers "
            "(round INTEGER PRIMARY KEY, reply BLOB NOT NULL) STRICT;",
        )

    def rounds(self) -> int:
        """How many rounds were answered."""
        (last,) = self._database.execute("SELECT MAX(round) FROM answers").fetchone()
        return 0 if last is None else int(last) + 1

    def answer(self, number: int) -> bytes | None:
        """The answer given in a round, if one was."""
        row = self._database.execute(
            "SELECT reply FROM answers WHERE round = ?", (number,)
        ).fetchone()
        return None if row is None else bytes(row[0])

    def keep(self, number: int, reply: bytes) -> None:
        """Make an answer durable before it is given; a second one is impossible."""
        self._database.execute("INSERT INTO answers VALUES (?, ?)", (number, reply))

    def close(self) -> None:
        """Release the file."""
        self._database.close()


class Checkpoint:
    """The server's state after each round, and the sites it has lost."""

    def __init__(self, path: Path | None = None) -> None:
        self._database = _connect(
            path,
            "CREATE TABLE IF NOT EXISTS facts "
            "(name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;"
            "CREATE TABLE IF NOT EXISTS rounds (round INTEGER PRIMARY KEY, "
            "theta BLOB NOT NULL, memory BLOB NOT NULL) STRICT;"
            "CREATE TABLE IF NOT EXISTS lost "
            "(site TEXT PRIMARY KEY, round INTEGER NOT NULL) STRICT;",
        )

    def fact(self, name: str) -> bytes | None:
        """A value kept under a name."""
        row = self._database.execute(
            "SELECT value FROM facts WHERE name = ?", (name,)
        ).fetchone()
        return None if row is None else bytes(row[0])

    def keep_fact(self, name: str, value: bytes) -> None:
        """Keep a value under a name."""
        self._database.execute(
            "INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value)
        )

    def keep_state(self, number: int, state: State) -> None:
        """Make the state after round ``number`` durable."""
        row = (number, state.theta.tobytes(), state.memory.tobytes())
        self._database.execute("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?)", row)

    def last_state(self) -> tuple[int, State] | None:
        """The newest round and the state after it."""
        row = self._database.execute(
            "SELECT round, theta, memory FROM rounds ORDER BY round DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        (count,) = self._database.execute("SELECT COUNT(*) FROM rounds").fetchone()
        return int(row[0]), State(_floats(row[1]), _floats(row[2]), int(count))

    def trajectory(self) -> list[Floats]:
        """θ after each round so far."""
        rows = self._database.execute("SELECT theta FROM rounds ORDER BY round")
        return [_floats(theta) for (theta,) in rows]

    def lost(self) -> list[str]:
        """Sites that dropped out, the first lost first."""
        rows = self._database.execute("SELECT site FROM lost ORDER BY rowid")
        return [str(site) for (site,) in rows]

    def keep_lost(self, sites: Sequence[str], number: int) -> None:
        """Remember sites that dropped out in a round."""
        self._database.executemany(
            "INSERT OR IGNORE INTO lost VALUES (?, ?)", [(s, number) for s in sites]
        )

    def close(self) -> None:
        """Release the file."""
        self._database.close()


def _floats(data: bytes) -> Floats:
    return np.frombuffer(data, dtype=np.float64).copy()

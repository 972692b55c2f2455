"""The server's memory of a run, read while somebody else may be writing it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np

from cipherbayes.typing import Floats


def open_read_only(path: Path) -> sqlite3.Connection:
    """A database that is never changed by whoever reads it here."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)


def lost_sites(database: sqlite3.Connection) -> tuple[tuple[str, int], ...]:
    """Sites that dropped out, and in which round, the first lost first."""
    rows = database.execute("SELECT site, round FROM lost ORDER BY rowid")
    return tuple((str(site), int(number)) for site, number in rows)


def last_memory(database: sqlite3.Connection) -> Floats | None:
    """The sampler's memory after the last round; None before the first."""
    row = database.execute(
        "SELECT memory FROM rounds ORDER BY round DESC LIMIT 1"
    ).fetchone()
    return None if row is None else np.frombuffer(row[0], dtype=np.float64)


def round_times(database: sqlite3.Connection) -> tuple[tuple[int, float], ...]:
    """When each round ended, in seconds since 1970; empty where it was not kept."""
    known = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'finished'")
    if known.fetchone() is None:
        return ()
    # Rounds that were taken back are not shown.
    rows = database.execute(
        "SELECT round, at FROM finished JOIN rounds USING (round) ORDER BY round"
    )
    return tuple((int(number), float(at)) for number, at in rows)

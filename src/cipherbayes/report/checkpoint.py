"""The server's memory of a run, read while somebody else may be writing it."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def open_read_only(path: Path) -> sqlite3.Connection:
    """A database that is never changed by whoever reads it here."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)


def lost_sites(database: sqlite3.Connection) -> tuple[tuple[str, int], ...]:
    """Sites that dropped out, and in which round, the first lost first."""
    rows = database.execute("SELECT site, round FROM lost ORDER BY rowid")
    return tuple((str(site), int(number)) for site, number in rows)

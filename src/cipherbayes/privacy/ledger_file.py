"""How a ledger lies on the disk: its tables, the chain of its records, its seal.

A record is a charge, an answer or the end of a run. Each has a place, counted from 1,
and a link: a hash over the record and the link before it. The answers themselves lie
apart (``vectors``), under a salted digest that the chain covers, so they can be erased
and the chain still be checked; without its salt a digest tells nothing.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cipherbayes.errors import PrivacyError
from cipherbayes.storage.custody import ID_BYTES, Custody

VERSION = "2"
SALT_BYTES = 32

SCHEMA = """
CREATE TABLE entries (
  number INTEGER PRIMARY KEY,
  place INTEGER NOT NULL UNIQUE,
  time TEXT NOT NULL,
  run BLOB NOT NULL,
  site TEXT NOT NULL,
  round INTEGER NOT NULL,
  purpose TEXT NOT NULL,
  study BLOB NOT NULL,
  question BLOB NOT NULL,
  event TEXT NOT NULL,
  epsilon REAL NOT NULL,
  link BLOB NOT NULL,
  UNIQUE (run, site, round, purpose)
) STRICT;
CREATE TABLE answers (
  number INTEGER PRIMARY KEY,
  place INTEGER NOT NULL UNIQUE,
  digest BLOB NOT NULL,
  link BLOB NOT NULL
) STRICT;
CREATE TABLE ended (
  place INTEGER PRIMARY KEY,
  time TEXT NOT NULL,
  run BLOB NOT NULL,
  site TEXT NOT NULL,
  link BLOB NOT NULL
) STRICT;
CREATE TABLE vectors (
  number INTEGER PRIMARY KEY,
  salt BLOB NOT NULL,
  answer BLOB NOT NULL
) STRICT;
"""
ABOUT = "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;"

CHARGE, ANSWER, END = "charge", "answer", "end"
COLUMNS = {
    CHARGE: (
        "entries",
        "place, number, time, run, site, round, purpose, study, question, event, "
        "epsilon",
    ),
    ANSWER: ("answers", "place, number, digest"),
    END: ("ended", "place, time, run, site"),
}
ANY_SITE = ""
"""Where a record was made before ledgers knew sites."""

Row = tuple[Any, ...]


def is_database(path: Path) -> bool:
    """Whether a file begins as a database does."""
    magic = b"SQLite format 3\0"
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        raise PrivacyError(
            "cannot be read",
            where=str(path),
            remedy="run as its owner, and check the disk",
        ) from None


def new_facts(
    dataset: str, epsilon: float, delta: float, custody: Custody, *, lasting: bool
) -> dict[str, str]:
    """What a ledger says about itself, without its seal."""
    return {
        "version": VERSION,
        "id": os.urandom(ID_BYTES).hex(),
        "key": custody.key_id,
        "dataset": dataset,
        "epsilon": repr(float(epsilon)),
        "delta": repr(float(delta)),
        "lasting": "yes" if lasting else "no",
    }


def facts_of(database: sqlite3.Connection) -> dict[str, str]:
    """What a ledger says about itself."""
    return dict(database.execute("SELECT name, value FROM about"))


def seal(facts: Mapping[str, str], link: bytes, custody: Custody) -> str:
    """MAC over budget, table and the last record: shows edits and lost records."""
    return custody.mac("ledger", link + _text(facts)).hex()


def write_seal(database: sqlite3.Connection, link: bytes, custody: Custody) -> None:
    """Seal the ledger anew, after a record or another budget."""
    database.execute(
        "INSERT OR REPLACE INTO about VALUES ('seal', ?)",
        (seal(facts_of(database), link, custody),),
    )


def chain(before: bytes, row: Row) -> bytes:
    """The link of a record."""
    digest = hashlib.sha256(before)
    for value in row:
        part = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def answer_digest(salt: bytes, answer: bytes) -> bytes:
    """What the chain holds of an answer."""
    return hashlib.sha256(salt + answer).digest()


def append(database: sqlite3.Connection, kind: str, row: Row, before: bytes) -> bytes:
    """Write a record behind the last one; its link."""
    table, columns = COLUMNS[kind]
    link = chain(before, (kind, *row))
    marks = ", ".join("?" * (len(row) + 1))
    database.execute(
        f"INSERT INTO {table} ({columns}, link) VALUES ({marks})",  # noqa: S608
        (*row, link),
    )
    return link


def records(
    database: sqlite3.Connection, after: int
) -> Iterator[tuple[str, Row, bytes]]:
    """Records behind a place, in their order: kind, columns and link."""
    found = [
        (kind, tuple(row[:-1]), row[-1])
        for kind, (table, columns) in COLUMNS.items()
        for row in database.execute(
            f"SELECT {columns}, link FROM {table} WHERE place > ?",  # noqa: S608
            (after,),
        )
    ]
    yield from sorted(found, key=lambda record: record[1][0])


def link_at(database: sqlite3.Connection, place: int) -> bytes | None:
    """The link of the record at a place."""
    for table, _ in COLUMNS.values():
        row = database.execute(
            f"SELECT link FROM {table} WHERE place = ?",  # noqa: S608 - constants
            (place,),
        ).fetchone()
        if row is not None:
            return bytes(row[0])
    return None


def upgrade(database: sqlite3.Connection, path: Path, custody: Custody) -> None:
    """Make a ledger of version 1 one of this version.

    Formal guarantees
    -----------------
    Every entry stays, with its event and ε, so what is spent stays spent. Its chain and
    seal are checked first. All its runs are over: their answers are erased, since
    version 1 did not say which site they were for.
    """
    database.execute("BEGIN IMMEDIATE")
    facts = facts_of(database)
    if facts.get("version") == VERSION:  # another process was first
        database.execute("ROLLBACK")
        return
    columns = "number, time, run, round, purpose, study, question, event, epsilon"
    rows = database.execute(
        f"SELECT {columns}, answer, link FROM entries ORDER BY number"  # noqa: S608
    ).fetchall()
    link = b""
    for number, (*row, known) in enumerate(rows, start=1):
        link = chain(link, tuple(row))
        if row[0] != number or link != known:
            raise damaged(path)
    if facts.get("seal") != hashlib.sha256(link + _text(facts)).hexdigest():
        raise damaged(path)
    try:
        _write_anew(database, rows, facts, custody)
    except sqlite3.Error:
        raise unwritable(path) from None


def _write_anew(
    database: sqlite3.Connection,
    rows: list[Row],
    facts: Mapping[str, str],
    custody: Custody,
) -> None:
    """Write the entries of version 1 as records.

    Id and salts follow from what was there and the owner's key: an old copy that is
    put back and upgraded again is still known by its mark.
    """
    database.execute("DROP TABLE entries")
    for statement in SCHEMA.split(";")[:-1]:
        database.execute(statement)
    link, place, runs = b"", 0, {}
    for *row, answer, old in rows:
        number, time, run, *rest = row
        digest = answer_digest(custody.mac("upgrade/salt", old), answer)
        charge = (place + 1, number, time, run, ANY_SITE, *rest)
        link = append(database, CHARGE, charge, link)
        link = append(database, ANSWER, (place + 2, number, digest), link)
        place, runs[run] = place + 2, time
    for run, time in runs.items():
        place += 1
        link = append(database, END, (place, time, run, ANY_SITE), link)
    dataset, epsilon, delta = facts["dataset"], facts["epsilon"], facts["delta"]
    new = new_facts(dataset, float(epsilon), float(delta), custody, lasting=True)
    if rows:
        new["id"] = custody.mac("upgrade/id", rows[0][-1])[:ID_BYTES].hex()
    database.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", new.items())
    write_seal(database, link, custody)
    database.execute("COMMIT")
    empty_journal(database)


def empty_journal(database: sqlite3.Connection) -> None:
    """Move all that is in the journal into the file, and cut the journal.

    Where another process reads at this moment, the last one to close does it.
    """
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _text(facts: Mapping[str, str]) -> bytes:
    text = "|".join(f"{k}={v}" for k, v in sorted(facts.items()) if k != "seal")
    return text.encode()


def unwritable(path: Path) -> PrivacyError:
    """The ledger's disk does not take an entry."""
    return PrivacyError(
        "cannot be written, so nothing is released",
        where=str(path),
        remedy="check the disk, the permissions and other runs on this table",
    )


def damaged(path: Path) -> PrivacyError:
    """The ledger is not what it was."""
    return PrivacyError(
        "is damaged, was changed, or is no ledger",
        where=str(path),
        remedy="put back the newest copy, made after the table's last study, with its "
        "-wal file; an older one is refused, and without one nothing may be released",
    )

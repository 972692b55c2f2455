"""How a ledger lies on the disk: its tables, the chain of its records, its seal.

A record is a charge, an answer, the end of a run, or a fact that the owner changed, as
the budget. Each has a place, counted from 1, and a link: a hash over the record and the
link before it. The answers themselves lie
apart (``vectors``), under a salted digest that the chain covers, so they can be erased
and the chain still be checked; without its salt a digest tells nothing.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

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
CHANGES = """
CREATE TABLE IF NOT EXISTS changes (
  place INTEGER PRIMARY KEY,
  time TEXT NOT NULL,
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  link BLOB NOT NULL
) STRICT;
"""
"""Apart, since there are ledgers that were begun without it."""
ABOUT = "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;"

ANY_SITE = ""
"""The site of a record that version 1 wrote, which did not know sites."""


class Charge(NamedTuple):
    """A release is paid for. The fields are the columns, in the chain's order."""

    place: int
    number: int
    time: str
    run: bytes
    site: str
    round: int
    purpose: str
    study: bytes
    question: bytes
    event: str
    epsilon: float


class Answer(NamedTuple):
    """The answer to the charge of this number is stored."""

    place: int
    number: int
    digest: bytes


class End(NamedTuple):
    """A run is over at a site."""

    place: int
    time: str
    run: bytes
    site: str


class Change(NamedTuple):
    """The owner changed a fact of the ledger: its budget, or the table's name.

    It is a record so that an older file, with the fact as it was, is behind its mark.
    """

    place: int
    time: str
    name: str
    value: str


Record = Charge | Answer | End | Change

KINDS: dict[type[Record], tuple[str, str]] = {
    Charge: ("charge", "entries"),
    Answer: ("answer", "answers"),
    End: ("end", "ended"),
    Change: ("change", "changes"),
}
"""What the chain calls each kind of record, and its table."""


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


FACTS = frozenset(
    ("version", "id", "key", "dataset", "epsilon", "delta", "lasting", "put back")
)
"""Names of what a ledger says about itself."""


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
    return custody.mac("ledger", link + facts_text(facts)).hex()


def write_seal(
    database: sqlite3.Connection,
    link: bytes,
    custody: Custody,
    facts: Mapping[str, str] | None = None,
) -> None:
    """Seal the ledger anew, after a record or another budget.

    Parameters
    ----------
    facts
        What the ledger says about itself, where the caller knows it already.
    """
    facts = facts_of(database) if facts is None else facts
    database.execute(
        # An upsert: the row keeps its place, so the index is not written again.
        "INSERT INTO about VALUES ('seal', ?) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (seal(facts, link, custody),),
    )


def chain(before: bytes, values: tuple[object, ...]) -> bytes:
    """Hash of some values and the link before them."""
    parts = [before]
    for value in values:
        part = value if isinstance(value, bytes) else repr(value).encode()
        parts += (len(part).to_bytes(8, "little"), part)
    return hashlib.sha256(b"".join(parts)).digest()


def link_of(before: bytes, record: Record) -> bytes:
    """The link of a record."""
    kind, _ = KINDS[type(record)]
    return chain(before, (kind, *record))


def answer_digest(salt: bytes, answer: bytes) -> bytes:
    """What the chain holds of an answer."""
    return hashlib.sha256(salt + answer).digest()


def append(database: sqlite3.Connection, record: Record, before: bytes) -> bytes:
    """Write a record behind the last one, and the fact that it changes; its link."""
    if isinstance(record, Change):
        database.execute(
            "INSERT OR REPLACE INTO about VALUES (?, ?)", (record.name, record.value)
        )
    link = link_of(before, record)
    database.execute(_INSERTS[type(record)], (*record, link))
    return link


def _insert(kind: type[Record]) -> str:
    """The statement that writes a record of a kind."""
    _, table = KINDS[kind]
    columns = ", ".join(kind._fields)
    placeholders = ", ".join("?" * (len(kind._fields) + 1))
    return f"INSERT INTO {table} ({columns}, link) VALUES ({placeholders})"  # noqa: S608


_INSERTS = {kind: _insert(kind) for kind in KINDS}


def records(database: sqlite3.Connection, after: int) -> Iterator[tuple[Record, bytes]]:
    """Records behind a place, in their order, each with its link."""
    found: list[tuple[Record, bytes]] = []
    for kind, (_, table) in KINDS.items():
        columns = ", ".join(kind._fields)
        rows = database.execute(
            f"SELECT {columns}, link FROM {table} WHERE place > ?",  # noqa: S608
            (after,),
        )
        found += [(kind(*values), link) for *values, link in rows]
    yield from sorted(found, key=lambda item: item[0].place)


def link_at(database: sqlite3.Connection, place: int) -> bytes | None:
    """The link of the record at a place."""
    for _, table in KINDS.values():
        row = database.execute(
            f"SELECT link FROM {table} WHERE place = ?",  # noqa: S608 - constants
            (place,),
        ).fetchone()
        if row is not None:
            return bytes(row[0])
    return None


def empty_journal(database: sqlite3.Connection) -> None:
    """Move all that is in the journal into the file, and cut the journal.

    Where another process reads at this moment, the last one to close does it.
    """
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def facts_text(facts: Mapping[str, str]) -> bytes:
    """What the seal covers of the facts: all of them but the seal itself.

    Formal guarantees
    -----------------
    Other facts have another text. Where all names are known and no value contains one
    of them between ``|`` and ``=``, a text falls apart at these in one way only. Any
    other facts, as of a table that is called ``a|epsilon=9``, are told with their
    lengths, behind a zero byte with which no name begins.
    """
    pairs = sorted((k, v) for k, v in facts.items() if k != "seal")
    apart = FACTS.issuperset(k for k, _ in pairs) and not any(
        f"|{name}=" in value for name in FACTS for _, value in pairs
    )
    if apart:
        return "|".join(f"{k}={v}" for k, v in pairs).encode()
    parts = [part.encode() for pair in pairs for part in pair]
    return b"\0" + b"".join(len(p).to_bytes(8, "little") + p for p in parts)


def partial_beside(path: Path) -> Path:
    """An empty file beside a ledger, which becomes one when it is whole.

    Only the owner may read it, and a killed process blocks nobody.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(".partial", f".{path.name}.", path.parent)
    except OSError:
        raise unwritable(path) from None
    os.close(descriptor)
    return Path(name)


def remove_partial(partial: Path) -> None:
    """Remove such a file, and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{partial}{suffix}").unlink(missing_ok=True)


def unwritable(path: Path) -> PrivacyError:
    """The refusal of a release that cannot be recorded."""
    return PrivacyError(
        "cannot be written, so nothing is released",
        where=str(path),
        remedy="check the disk, the permissions and other runs on this table",
    )


def interrupted(path: Path) -> PrivacyError:
    """The refusal after a write that failed: the file may hold a record that this
    process has not counted."""
    return PrivacyError(
        "was being written when something failed, so nothing more is released by this "
        "program",
        where=str(path),
        remedy="start it again: the file is read anew, and nothing is lost",
    )


def damaged(path: Path) -> PrivacyError:
    """The refusal of a ledger that was changed or is damaged."""
    return PrivacyError(
        "is damaged, was changed, or is no ledger",
        where=str(path),
        remedy="put back the newest copy, made after the table's last study, with its "
        "-wal file; an older one is refused, and without one nothing may be released",
    )

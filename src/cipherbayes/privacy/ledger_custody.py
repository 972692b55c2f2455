"""How a ledger's file is begun, opened, and taken over by its owner.

A ledger is sealed with the key of the user who began it. With another key, as on a new
machine, it opens only after its owner has said that it is the newest copy; so does a
ledger of version 1, whose seal needed no key. That is called adopting it.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy import ledger_file as layout
from cipherbayes.privacy.ledger_balance import Budget
from cipherbayes.privacy.ledger_file import (
    ANY_SITE,
    VERSION,
    Answer,
    Charge,
    End,
    damaged,
    partial_beside,
    remove_partial,
    unwritable,
)
from cipherbayes.privacy.ledger_records import LedgerRecords
from cipherbayes.storage.custody import ID_BYTES, Custody
from cipherbayes.storage.private_files import sync_folder, why_not_trusted

WAIT_SECONDS = 600.0


class OldEntry(NamedTuple):
    """An entry of version 1: charge and answer in one row, of no named site."""

    number: int
    time: str
    run: bytes
    round: int
    purpose: str
    study: bytes
    question: bytes
    event: str
    epsilon: float
    answer: bytes
    link: bytes


def begin(path: Path, dataset: str, budget: Budget, *, lasting: bool) -> None:
    """Write a ledger without records, unless another process is first.

    Parameters
    ----------
    lasting
        Whether its mark is kept in the owner's state folder.
    """
    custody = Custody.of_user()
    facts = layout.new_facts(
        dataset, budget.epsilon, budget.delta, custody, lasting=lasting
    )
    partial = partial_beside(path)
    try:
        database = sqlite3.connect(partial, isolation_level=None)
        # Now, while nobody else has the file: the mode stays with it.
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(layout.ABOUT + layout.SCHEMA + layout.CHANGES)
        database.executemany("INSERT INTO about VALUES (?, ?)", facts.items())
        layout.write_seal(database, b"", custody)
        database.close()
        os.link(partial, path)
        sync_folder(path.parent)
    except FileExistsError:
        pass  # another process was first: its ledger counts
    except (sqlite3.Error, OSError):
        raise unwritable(path) from None
    finally:
        remove_partial(partial)


def open_records(path: Path, *, adopt: bool = False) -> LedgerRecords:
    """Open a ledger that exists, and check every record.

    Parameters
    ----------
    adopt
        Seal it with this user's key if it was sealed with another or is of version 1.
    """
    if not path.is_file():
        raise PrivacyError("no such ledger", where=str(path), remedy="check the path")
    if (reason := why_not_trusted(path)) is not None:
        # Looked into only here: to open a ledger beside SQLite, and to close it, takes
        # away the locks that another connection of this process has on it.
        if not layout.is_database(path):
            raise damaged(path)
        what, remedy = reason
        raise PrivacyError(what, where=str(path), remedy=remedy)
    custody = Custody.of_user()
    database = sqlite3.connect(path, isolation_level=None, timeout=WAIT_SECONDS)
    try:
        return _checked(path, database, custody, adopt=adopt)
    except PrivacyError:
        database.close()
        raise
    except sqlite3.OperationalError as error:
        database.close()
        # SQLITE_ERROR: a table is missing. Anything else is the disk, and the
        # ledger itself may be as it should be.
        missing = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
        raise (damaged if missing else unwritable)(path) from None
    except (sqlite3.DatabaseError, TypeError, ValueError, KeyError):
        database.close()
        raise damaged(path) from None


def _checked(
    path: Path, database: sqlite3.Connection, custody: Custody, *, adopt: bool
) -> LedgerRecords:
    # First of all, so that nobody else's database is changed.
    facts = layout.facts_of(database)
    if facts.get("version") not in ("1", VERSION):
        raise damaged(path)
    database.execute("PRAGMA synchronous = FULL")
    # What is erased is overwritten, and not only let go.
    database.execute("PRAGMA secure_delete = ON")
    first_version = facts["version"] == "1"
    own_key = not first_version and facts["key"] == custody.key_id
    if not own_key and not adopt:
        raise (_of_version_1(path) if first_version else _of_another_key(path, custody))
    if first_version:
        _upgrade(database, path, custody)
    database.execute(layout.CHANGES)
    if not first_version and not own_key:
        _reseal(database, path, custody, facts)
    records = LedgerRecords(path, database, custody)
    if facts != layout.facts_of(database):  # a new id, or a new key
        records.settle()
    return records


def _upgrade(database: sqlite3.Connection, path: Path, custody: Custody) -> None:
    """Make a ledger of version 1 one of this version.

    Formal guarantees
    -----------------
    Every entry stays, with its event and ε, so what is spent stays spent. Its chain and
    seal are checked first. All its runs are over: their answers are erased, since
    version 1 did not say which site they were for.
    """
    database.execute("BEGIN IMMEDIATE")
    facts = layout.facts_of(database)
    if facts.get("version") == VERSION:  # another process was first
        database.execute("ROLLBACK")
        return
    columns = ", ".join(OldEntry._fields)
    rows = database.execute(
        f"SELECT {columns} FROM entries ORDER BY number"  # noqa: S608
    )
    entries = [OldEntry(*row) for row in rows]
    link = b""
    for number, entry in enumerate(entries, start=1):
        link = layout.chain(link, entry[:-1])
        if entry.number != number or entry.link != link:
            raise damaged(path)
    if facts.get("seal") != hashlib.sha256(link + layout.facts_text(facts)).hexdigest():
        raise damaged(path)
    try:
        _write_anew(database, entries, facts, custody)
    except sqlite3.Error:
        raise unwritable(path) from None


def _write_anew(
    database: sqlite3.Connection,
    entries: Sequence[OldEntry],
    facts: Mapping[str, str],
    custody: Custody,
) -> None:
    """Write the entries of version 1 as records.

    Id and salts follow from what was there and the owner's key: an old copy that is
    put back and upgraded again is still known by its mark.
    """
    database.execute("DROP TABLE entries")
    for statement in layout.SCHEMA.split(";")[:-1]:
        database.execute(statement)
    link, place = b"", 0
    runs: dict[bytes, str] = {}
    for old in entries:
        salt = custody.mac("upgrade/salt", old.link)
        digest = layout.answer_digest(salt, old.answer)
        charge = Charge(
            place=place + 1,
            number=old.number,
            time=old.time,
            run=old.run,
            site=ANY_SITE,
            round=old.round,
            purpose=old.purpose,
            study=old.study,
            question=old.question,
            event=old.event,
            epsilon=old.epsilon,
        )
        link = layout.append(database, charge, link)
        link = layout.append(database, Answer(place + 2, old.number, digest), link)
        place, runs[old.run] = place + 2, old.time
    for run, time in runs.items():
        place += 1
        link = layout.append(database, End(place, time, run, ANY_SITE), link)
    dataset, epsilon, delta = facts["dataset"], facts["epsilon"], facts["delta"]
    new = layout.new_facts(dataset, float(epsilon), float(delta), custody, lasting=True)
    if entries:
        new["id"] = custody.mac("upgrade/id", entries[0].link)[:ID_BYTES].hex()
    database.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", new.items())
    layout.write_seal(database, link, custody)
    database.execute("COMMIT")
    layout.empty_journal(database)


def _reseal(
    database: sqlite3.Connection,
    path: Path,
    custody: Custody,
    facts: Mapping[str, str],
) -> None:
    """Put this user's seal on a ledger that another key sealed.

    What this user's mark knows of it is compared first, and from now on always.
    """
    marked = custody.mark(bytes.fromhex(facts["id"]))
    database.execute("BEGIN IMMEDIATE")
    records = list(layout.records(database, 0))
    link = records[-1][1] if records else b""
    if marked.records and layout.link_at(database, marked.records) != marked.link:
        database.execute("ROLLBACK")
        raise PrivacyError(
            "is an old or changed copy: it has other records than this user's mark",
            where=str(path),
            remedy="put back the newest ledger with its -wal file, or release nothing "
            "more from this table",
        )
    for name, value in (("key", custody.key_id), ("lasting", "yes")):
        database.execute("UPDATE about SET value = ? WHERE name = ?", (value, name))
    layout.write_seal(database, link, custody)
    database.execute("COMMIT")


def _of_version_1(path: Path) -> PrivacyError:
    return PrivacyError(
        "is a ledger of the first version, whose seal needs no key",
        where=str(path),
        remedy="if it is the newest copy and nobody changed it, `cipherbayes ledger "
        "FILE --adopt` seals it anew; every charge stays",
    )


def _of_another_key(path: Path, custody: Custody) -> PrivacyError:
    return PrivacyError(
        "was sealed with another key than this user's",
        where=str(path),
        remedy=f"run as its owner; on a new machine bring {custody.path} along from "
        "the old one, or make sure that this is the newest copy and say "
        "`cipherbayes ledger FILE --adopt`",
    )

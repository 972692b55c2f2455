"""Copies of a ledger, and how one is put back without giving any budget back.

A copy holds every charge and no answer: what a site once sent is erased when its run
ends, and a copy would outlive that. Whoever puts a copy back cannot know what was
released after it was made, unless the mark in the state folder says that it is the
newest. Where it does not, nothing is left of the budget until its owner sets another.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy import ledger_file as layout
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.ledger_balance import (
    Budget,
    ChargedEvent,
    epsilon_of_charges,
)
from cipherbayes.privacy.ledger_file import (
    Answer,
    Change,
    Charge,
    End,
    damaged,
    partial_beside,
    remove_partial,
    unwritable,
)
from cipherbayes.storage.custody import Custody, Head
from cipherbayes.storage.private_files import sync_folder, why_not_trusted

_NOTHING_LEFT = 1e-9
"""The budget of a restored ledger that had spent nothing: too small for any release."""


def copy_ledger(ledger: Path, out: Path) -> None:
    """Copy a ledger, also while runs charge it; 0600, and whole or not at all.

    Formal guarantees
    -----------------
    The copy has every record that was durable when this began, and no answer.
    """
    Ledger.read(ledger).close()  # a damaged or old one is no backup
    _refuse_existing(out)
    partial = partial_beside(out)
    try:
        with (
            closing(sqlite3.connect(ledger, timeout=60.0)) as source,
            # Answers reach no other file, not even one that a kill would leave behind.
            closing(sqlite3.connect(":memory:", isolation_level=None)) as copy,
        ):
            source.backup(copy)
            copy.execute("PRAGMA secure_delete = ON")
            copy.execute("DELETE FROM vectors")
            copy.execute("VACUUM INTO ?", (str(partial),))
        _put(partial, out)
    except sqlite3.Error:
        raise unwritable(out) from None
    finally:
        remove_partial(partial)


def restore_ledger(copy: Path, ledger: Path) -> bool:
    """Put a copy back where a ledger was lost; whether its budget could be kept.

    Formal guarantees
    -----------------
    What was spent stays spent, and every run of the copy is over. If the mark in the
    state folder shows that nothing came after the copy, its budget stays; an older copy
    is refused; if there is no mark, as on a new machine, the budget becomes what is
    spent, so that nothing more is released until the owner sets another with
    ``cipherbayes ledger FILE --budget``: no budget that stands in a study or in
    ``site.toml`` raises it. What is written is a function of the copy alone, so one
    that is restored twice is the same ledger twice, with no more budget.

    Edge cases
    ----------
    A copy that was sealed with another key is taken at its owner's word, as by
    ``--adopt``.
    """
    if not copy.is_file() or not layout.is_database(copy):
        raise PrivacyError(
            "is not a copy of a ledger", where=str(copy), remedy="check the path"
        )
    if (reason := why_not_trusted(copy)) is not None:
        raise PrivacyError(reason[0], where=str(copy), remedy=reason[1])
    _refuse_existing(ledger)
    partial = partial_beside(ledger)
    try:
        partial.write_bytes(copy.read_bytes())
        newest = _close(partial, copy)
        with closing(Ledger.read(partial, adopt=True)) as opened:
            opened.remember()
        _put(partial, ledger)
    except (sqlite3.Error, OSError):
        raise unwritable(ledger) from None
    finally:
        remove_partial(partial)
    return newest


class _History(NamedTuple):
    """What a copy's records say: the last one and its time, charges, runs not ended."""

    head: Head
    time: str
    charges: Counter[ChargedEvent]
    open_runs: set[tuple[bytes, str]]


def _close(path: Path, copy: Path) -> bool:
    """End every run, and the budget unless this is the newest copy; whether it is."""
    custody = Custody.of_user()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        try:
            facts = layout.facts_of(database)
            database.execute(layout.CHANGES)
            history = _read(database, copy)
            marked = custody.mark(bytes.fromhex(facts["id"]))
            budget = Budget(float(facts["epsilon"]), float(facts["delta"]))
        except (sqlite3.Error, KeyError, ValueError, TypeError):
            raise damaged(copy) from None
        own_key = facts["key"] == custody.key_id
        link = history.head.link
        if own_key and facts["seal"] != layout.seal(facts, link, custody):
            raise damaged(copy)
        database.execute("BEGIN IMMEDIATE")
        head = _end_runs(database, history)
        newest = bool(marked.records) and marked in (history.head, head)
        if not newest:
            spent = max(epsilon_of_charges(history.charges, budget), _NOTHING_LEFT)
            for name, value in (("epsilon", repr(spent)), ("put back", "yes")):
                change = Change(head.records + 1, history.time, name, value)
                link = layout.append(database, change, head.link)
                head = Head(change.place, link)
        if marked.records and layout.link_at(database, marked.records) != marked.link:
            raise PrivacyError(
                f"is an old copy: it ends at record {history.head.records}, and this "
                f"ledger had {marked.records}",
                where=str(copy),
                remedy="look for a newer one; if there is none, what was spent since "
                "is not known: release nothing more from this table",
            )
        if own_key:
            layout.write_seal(database, head.link, custody)
        database.execute("COMMIT")
        # As a ledger has it.
        database.execute("PRAGMA journal_mode = WAL")
    return newest


def _end_runs(database: sqlite3.Connection, history: _History) -> Head:
    """Write that every run is over; the last record then."""
    head = history.head
    for run, site in sorted(history.open_runs):
        end = End(head.records + 1, history.time, run, site)
        head = Head(end.place, layout.append(database, end, head.link))
    return head


def _read(database: sqlite3.Connection, copy: Path) -> _History:
    """What a copy's records say, after the whole chain was checked."""
    head, time = Head(0, b""), ""
    charges: Counter[ChargedEvent] = Counter()
    runs: set[tuple[bytes, str]] = set()
    for record, link in layout.records(database, 0):
        right = layout.link_of(head.link, record)
        if record.place != head.records + 1 or right != link:
            raise damaged(copy)
        head = Head(record.place, link)
        if not isinstance(record, Answer):
            time = record.time
        if isinstance(record, Charge):
            charges[ChargedEvent(record.run, record.event)] += 1
            runs.add((record.run, record.site))
        elif isinstance(record, End):
            runs = {
                (run, site)
                for run, site in runs
                if run != record.run or record.site not in (site, layout.ANY_SITE)
            }
    return _History(head, time, charges, runs)


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise PrivacyError(
            "exists already, and nothing is written over it",
            where=str(path),
            remedy="name a file that is not there yet",
        )


def _put(partial: Path, path: Path) -> None:
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    try:
        os.link(partial, path)
    except FileExistsError:
        _refuse_existing(path)
    sync_folder(path.parent)

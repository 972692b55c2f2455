"""The open file of a ledger: its records, and what shows that they are all there.

Every write is one transaction that adds a record to the chain and seals the file anew.
How far the file has come is remembered outside it, in the owner's state folder
(:class:`~cipherbayes.storage.custody.Custody`), so that an old copy is noticed.
"""

from __future__ import annotations

import hmac
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy import ledger_file as layout
from cipherbayes.privacy.ledger_balance import ChargedEvent
from cipherbayes.privacy.ledger_file import (
    Answer,
    Change,
    Charge,
    End,
    damaged,
    interrupted,
    unwritable,
)
from cipherbayes.storage.custody import BEGINNING, Custody, Head
from cipherbayes.storage.private_files import sync_file, sync_folder


class ReleaseKey(NamedTuple):
    """Which release it is: one question and one answer for ever."""

    run: bytes
    site: str
    round: int
    purpose: str


class ReleaseTerms(NamedTuple):
    """What a release was asked, for which study, and what it cost."""

    study: bytes
    question: bytes
    event: str


class LedgerRecords:
    """Records of one ledger: checked when they are read, sealed when they are written.

    Formal guarantees
    -----------------
    An object exists only of a file whose chain and seal are right, in which no answer
    of a run that goes on is missing, and which is neither behind its mark nor has
    other records than its mark has seen. Records of other processes are checked in the
    same way before anything is done with them (:meth:`refresh`). When :meth:`charge`,
    :meth:`keep`, :meth:`end` or :meth:`change` returns, the record is in the file,
    where the end of this process cannot take it back. When :meth:`settle` returns, all
    records up to the head, whoever wrote them, are on disk, where loss of power cannot
    either. No mark is ahead of the disk. What was charged and answered is what the
    chain said when this object read it: where the file was edited since then no other
    answer is taken from it, and PrivacyError is raised.

    Edge cases
    ----------
    Whoever has the owner's account has the sealing key and can forge all of it.

    Attributes
    ----------
    charges
        How often each run was charged for each event, as of the last refresh.
    facts
        What the ledger says about itself, as of the last refresh.
    """

    def __init__(
        self, path: Path, database: sqlite3.Connection, custody: Custody
    ) -> None:
        self.path = path
        self.database = database
        self._custody = custody
        self.dataset = self.fact("dataset")
        self.id = bytes.fromhex(self.fact("id"))
        self._lasting = self.fact("lasting") == "yes"
        self.charges: Counter[ChargedEvent] = Counter()
        self.facts: dict[str, str] = {}
        self._studies: dict[bytes, bytes] = {}
        # What the chain said when it was read. The file may be edited afterwards.
        self._charged: dict[ReleaseKey, tuple[int, ReleaseTerms]] = {}
        self._answered: dict[int, bytes] = {}
        self._ended: set[tuple[bytes, str]] = set()
        self.head = BEGINNING
        self._on_disk = BEGINNING
        self._version: int | None = None
        # Set while memory falls behind the file; an exception then leaves it set.
        self._unsure = False
        # The name that SQLite has for the file, where that is a link too.
        ((_, _, file),) = self.database.execute("PRAGMA database_list").fetchall()
        self._journal = Path(f"{file}-wal")
        # A commit does not wait for the disk: settle() does, for all that is there.
        self.database.execute("PRAGMA synchronous = NORMAL")
        # The mark first: another process may add records and raise it in between.
        self._mark = custody.mark(self.id)
        with self._snapshot():
            self.refresh()
            self._check_answers()
            self._check_mark(self._mark)

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    # -- transactions ------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process from writing; undo what was not committed."""
        if self._unsure:
            raise interrupted(self.path)
        try:
            self.database.execute("BEGIN IMMEDIATE")
            yield
        except (sqlite3.Error, UnicodeDecodeError):
            raise unwritable(self.path) from None
        finally:
            if self.database.in_transaction:
                # On a full disk it may fail as well; the journal is then ignored.
                with suppress(sqlite3.Error):
                    self.database.execute("ROLLBACK")

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Read everything as it is at one moment."""
        self.database.execute("BEGIN")
        try:
            yield
        finally:
            self.database.execute("ROLLBACK")

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError):
            raise damaged(self.path) from None

    # -- reading -----------------------------------------------------------

    def fact(self, name: str, default: str | None = None) -> str:
        """One of the facts that the ledger says about itself."""
        with self._readable():
            row = self.database.execute(
                "SELECT value FROM about WHERE name = ?", (name,)
            ).fetchone()
        value = default if row is None else str(row[0])
        if value is None:
            raise damaged(self.path)
        return value

    def refresh(self) -> None:
        """Take in records that this object has not seen, checking chain and seal."""
        if self._unsure:
            raise interrupted(self.path)
        if not self.database.in_transaction:
            # One transaction, so that the seal is that of these records.
            with self._snapshot():
                return self.refresh()
        # SQLite's count of other connections' commits: the same, so nothing is new.
        ((version,),) = self.database.execute("PRAGMA data_version").fetchall()
        if version == self._version:
            return None
        for record, link in layout.records(self.database, self.head.records):
            right = layout.link_of(self.head.link, record)
            if record.place != self.head.records + 1 or right != link:
                raise damaged(self.path)
            if isinstance(record, Charge) and record.number != self._next_number():
                raise damaged(self.path)
            self._take(record, link)
        facts = layout.facts_of(self.database)
        right_seal = layout.seal(facts, self.head.link, self._custody)
        if not hmac.compare_digest(facts.get("seal", ""), right_seal):
            raise damaged(self.path)
        self._version, self.facts = version, facts
        return None

    def find(self, key: ReleaseKey) -> tuple[int, ReleaseTerms] | None:
        """Number and terms of a release that was charged; None if it was not.

        As of the last refresh.
        """
        return self._charged.get(key)

    def study_of(self, run: bytes) -> bytes | None:
        """The study that a run was begun with; None where nothing is known of it.

        As of the last refresh.
        """
        return self._studies.get(run)

    def answer(self, number: int) -> bytes | None:
        """The answer to the charge of this number; None if there is none yet.

        As of the last refresh.
        """
        digest = self._answered.get(number)
        if digest is None:
            return None
        row = self.database.execute(
            "SELECT salt, answer FROM vectors WHERE number = ?", (number,)
        ).fetchone()
        if row is None or layout.answer_digest(*row) != digest:
            raise damaged(self.path)
        return bytes(row[1])

    def knows(self, run: bytes, site: str) -> bool:
        """Whether a run was charged for anything at a site."""
        with self._readable():
            row = self.database.execute(
                "SELECT 1 FROM entries WHERE run = ? AND site = ?", (run, site)
            ).fetchone()
        return row is not None

    def is_over(self, run: bytes, site: str) -> bool:
        """Whether a run has ended at a site, as of the last refresh."""
        return (run, site) in self._ended or (run, layout.ANY_SITE) in self._ended

    def last_answered_round(self, run: bytes, site: str) -> int | None:
        """The highest round of a run with an answer."""
        with self._readable():
            row = self.database.execute(
                "SELECT MAX(round) FROM entries JOIN answers USING (number) "
                "WHERE run = ? AND site = ?",
                (run, site),
            ).fetchone()
        return None if row[0] is None else int(row[0])

    def questions(self, run: bytes) -> dict[tuple[int, str], bytes]:
        """Hash of what each round of a run asked, by round and purpose."""
        with self._readable():
            rows = self.database.execute(
                "SELECT round, purpose, question FROM entries WHERE run = ?", (run,)
            ).fetchall()
        return {(int(round), str(purpose)): bytes(q) for round, purpose, q in rows}

    def all_charges(self) -> list[tuple[Charge, bool]]:
        """All charges, the oldest first, and whether the answer of each is here."""
        columns = ", ".join(f"entries.{name}" for name in Charge._fields)
        with self._readable():
            rows = self.database.execute(
                f"SELECT {columns}, answer IS NOT NULL FROM entries "  # noqa: S608
                "LEFT JOIN vectors USING (number) ORDER BY number"
            ).fetchall()
        return [(Charge(*values), bool(kept)) for *values, kept in rows]

    # -- writing, always inside of locked() and after refresh() ------------

    def charge(
        self, time: str, key: ReleaseKey, terms: ReleaseTerms, epsilon: float
    ) -> int:
        """Write that a release is paid for; its number."""
        number = self._next_number()
        self._commit(Charge(self._next_place(), number, time, *key, *terms, epsilon))
        return number

    def keep(self, number: int, answer: bytes) -> None:
        """Store the answer to a charge."""
        salt = os.urandom(layout.SALT_BYTES)
        self.database.execute(
            "INSERT INTO vectors VALUES (?, ?, ?)", (number, salt, answer)
        )
        digest = layout.answer_digest(salt, answer)
        self._commit(Answer(self._next_place(), number, digest))

    def end(self, time: str, run: bytes, site: str) -> None:
        """Erase the answers of a run at a site, and write that it is over there."""
        self.database.execute(
            "DELETE FROM vectors WHERE number IN "
            "(SELECT number FROM entries WHERE run = ? AND site = ?)",
            (run, site),
        )
        self._commit(End(self._next_place(), time, run, site))
        layout.empty_journal(self.database)

    def change(self, time: str, name: str, value: str) -> None:
        """Write that the owner changed a fact, as the budget."""
        self._commit(Change(self._next_place(), time, name, value))

    def _commit(self, record: layout.Record) -> None:
        """Write a record, and seal the ledger anew."""
        facts = self.facts
        if isinstance(record, Change):
            facts = {**facts, record.name: record.value}
        link = layout.append(self.database, record, self.head.link)
        layout.write_seal(self.database, link, self._custody, facts)
        try:
            self.database.execute("COMMIT")
            self._take(record, link)
            self.facts = facts
        except BaseException:
            self._version = None  # it may be in the file: look again
            raise

    def _take(self, record: layout.Record, link: bytes) -> None:
        """Count a record of the file; where that fails, nothing more is released."""
        self._unsure = True
        if isinstance(record, Charge):
            key = ReleaseKey(record.run, record.site, record.round, record.purpose)
            terms = ReleaseTerms(record.study, record.question, record.event)
            self._charged[key] = record.number, terms
            self.charges[ChargedEvent(record.run, record.event)] += 1
            self._studies.setdefault(record.run, record.study)
        elif isinstance(record, Answer):
            self._answered[record.number] = record.digest
        elif isinstance(record, End):
            self._ended.add((record.run, record.site))
        self.head = Head(record.place, link)
        self._unsure = False

    def _next_place(self) -> int:
        return self.head.records + 1

    def _next_number(self) -> int:
        return self.charges.total() + 1

    # -- what shows that nothing is missing --------------------------------

    def _check_answers(self) -> None:
        """Raise PrivacyError unless every answer of a run that goes on is here."""
        rows = self.database.execute(
            "SELECT digest, salt, answer FROM entries JOIN answers USING (number) "
            "LEFT JOIN vectors USING (number) WHERE NOT EXISTS (SELECT 1 FROM ended "
            "WHERE ended.run = entries.run AND ended.site IN (entries.site, ?))",
            (layout.ANY_SITE,),
        )
        for digest, salt, answer in rows:
            if answer is None or layout.answer_digest(salt, answer) != digest:
                raise damaged(self.path)

    def _check_mark(self, mark: Head) -> None:
        """Raise PrivacyError where the ledger is not the one that a mark has seen."""
        count, link = mark
        if not self._lasting or count == 0:
            return
        if count > self.head.records:
            raise PrivacyError(
                f"is an old copy: it ends at record {self.head.records}, and this "
                f"ledger had {count}",
                where=str(self.path),
                remedy="put back the newest ledger with its -wal file; if that is "
                "lost, so is what was spent since: release nothing more from this "
                "table",
            )
        if layout.link_at(self.database, count) != link:
            raise PrivacyError(
                f"has other records than it had: record {count} is not the one that "
                "was written",
                where=str(self.path),
                remedy="an old copy was used and written to: put back the ledger that "
                "all studies were charged to, or release nothing more from this table",
            )

    def settle(self) -> None:
        """Have all records on disk and the mark raised, before anything leaves.

        Formal guarantees
        -----------------
        When it returns, the mark is at this file's last record or later, and its record
        is in this file. Where it is not, every call raises, the first and any later:
        of two copies that have gone on apart, the one that came second.
        """
        if self._on_disk != self.head:
            self._sync()
        if self._lasting and self._mark.records < self.head.records:
            head = self.head
            mark = self._custody.raise_mark(self.id, head, self._check_mark)
            if mark != head:
                # Another process has gone further, in this file or in a copy of it.
                with self._snapshot():
                    self.refresh()
                    self._check_mark(mark)
            self._mark = mark

    def _sync(self) -> None:
        """Wait until every record in the file is on disk, whoever wrote it.

        A record that is not on disk is in the journal, which is there as long as the
        file is open: SQLite waits for the disk before it moves anything from there. The
        database itself must not be opened here, since closing a second descriptor would
        take away the locks that SQLite has on it.
        """
        head = self.head
        try:
            sync_file(self._journal)
            if self._on_disk is BEGINNING:
                # The journal may be new, and its name not on disk yet.
                sync_folder(self._journal.parent)
        except OSError:
            # A system that failed to write once may say the next time that all is well.
            self._unsure = True
            raise unwritable(self.path) from None
        self._on_disk = head

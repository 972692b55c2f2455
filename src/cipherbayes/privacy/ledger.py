"""A table's ledger: what has been released, what is left, and no.

One SQLite file for each table, since a budget belongs to the data and not to a
study. A charge is durable before its answer is computed, and the answer is durable
before it leaves: the same round asked again gets the same vector, never a fresh one.
"""

from __future__ import annotations

import hmac
import math
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from cipherbayes.errors import BudgetError, PrivacyError
from cipherbayes.privacy import ledger_file as layout
from cipherbayes.privacy.events import Composed, Event, Repeated, from_json, to_json
from cipherbayes.privacy.filters import filter_epsilon
from cipherbayes.privacy.ledger_file import VERSION, damaged, unwritable
from cipherbayes.storage.custody import Custody, Head
from cipherbayes.storage.private_files import sync_folder, trouble_with

WAIT_SECONDS = 600.0
# A table that spends its budget exactly must not fail over the last digit.
SLACK = 1.0 + 1e-9

# Every round of a phase costs the same event: it is written and read once.
_described = lru_cache(maxsize=64)(to_json)
_event = lru_cache(maxsize=64)(from_json)
_epsilon = lru_cache(maxsize=8)(filter_epsilon)

Release = tuple[bytes, str]
"""The run of a release, and its event as the ledger writes it."""


@dataclass(frozen=True)
class Entry:
    """One release, as the ledger shows it.

    Attributes
    ----------
    kept
        Whether its answer is still here: not before it is given, and not after the
        run is over.
    """

    number: int
    time: str
    run: str
    site: str
    round: int
    purpose: str
    study: str
    event: Event
    epsilon: float
    kept: bool


class Ledger:
    """The releases of one table, and the only way to make another.

    Formal guarantees
    -----------------
    Let ε(E) be the figure of
    :func:`~cipherbayes.privacy.filters.filter_epsilon` for all entries E at the
    ledger's δ. (1) After every call, exception, crash or kill, ε(E) is at most the
    budget, and E has an entry for every answer that was ever begun. (2)
    :meth:`release` computes an answer only after its entry is on disk, and returns it
    only after the answer is on disk too; nothing that goes wrong in between takes the
    entry back. (3) For one (run, site, round, purpose) one answer leaves, the same for
    ever; a call with another study, question or event is refused, and so is every call
    once the run is over. (4) All this holds for any number of processes: a write lock
    is held from reading the balance to the entry's commit, and of two processes that
    compute one answer both return the one that was stored first. (5) A ledger that is
    behind its mark, or has other records than its mark has seen, is not opened.

    Edge cases
    ----------
    Records are chained by hashes and sealed together with the budget under the owner's
    key (:class:`~cipherbayes.storage.custody.Custody`), so a file that was edited, cut
    or damaged is refused. Whoever has the owner's account has the key and can forge it.
    A compute that fails may be tried again with the same question, for the one charge:
    until it succeeds nothing was released but that it failed.
    """

    def __init__(
        self, path: Path, database: sqlite3.Connection, custody: Custody
    ) -> None:
        self.path = path
        self._database = database
        self._custody = custody
        self.dataset = self._about("dataset")
        self.id = bytes.fromhex(self._about("id"))
        self._lasting = self._about("lasting") == "yes"
        self._counts: Counter[Release] = Counter()
        self._entries = 0
        self._place = 0
        self._link = b""
        self._version: int | None = None
        self._coarse: dict[tuple[float, tuple[tuple[Release, int], ...]], float] = {}
        # The mark first: another process may add records and raise it in between.
        self._marked = custody.mark(self.id)
        with self._reading():
            self._refresh()
            self._check_answers()
            self._check_mark()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        dataset: str,
        epsilon: float,
        delta: float,
        lasting: bool = True,
    ) -> Ledger:
        """Open a table's ledger, or begin one with this budget.

        A ledger that exists keeps its own budget: see :meth:`set_budget`.

        Parameters
        ----------
        lasting
            False for a ledger that goes with its run: no mark is kept of it.
        """
        if path.exists():
            ledger = cls.read(path)
            if ledger.dataset != dataset:
                raise PrivacyError(
                    f"is the ledger of another table ('{ledger.dataset}')",
                    where=str(path),
                    remedy="give every table a ledger of its own",
                )
            return ledger
        if not (epsilon > 0.0 and 0.0 < delta < 1.0):
            raise PrivacyError(
                "a budget needs epsilon > 0 and 0 < delta < 1", where=str(path)
            )
        custody = Custody.of_user()
        facts = layout.new_facts(dataset, epsilon, delta, custody, lasting=lasting)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # mkstemp: only the owner may read it, and a killed process blocks nobody.
            where = path.parent
            descriptor, name = tempfile.mkstemp(".partial", f".{path.name}.", where)
        except OSError:
            raise unwritable(path) from None
        os.close(descriptor)
        partial = Path(name)
        try:
            database = sqlite3.connect(partial, isolation_level=None)
            # Now, while nobody else has the file: the mode stays with it.
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(layout.ABOUT + layout.SCHEMA)
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
            for file in (name, f"{name}-wal", f"{name}-shm"):
                Path(file).unlink(missing_ok=True)
        return cls.open(path, dataset=dataset, epsilon=epsilon, delta=delta)

    @classmethod
    def read(cls, path: Path, *, adopt: bool = False) -> Ledger:
        """Open a ledger that exists, and check every record.

        Parameters
        ----------
        adopt
            Seal with this user's key a ledger that was sealed with another, or one of
            version 1, whose seal needed no key: the owner's word that it is the newest
            copy and that nobody changed it.
        """
        if not path.is_file():
            raise PrivacyError(
                "no such ledger", where=str(path), remedy="check the path"
            )
        if not layout.is_database(path):
            raise damaged(path)
        if (trouble := trouble_with(path)) is not None:
            what, remedy = trouble
            raise PrivacyError(what, where=str(path), remedy=remedy)
        custody = Custody.of_user()
        database = sqlite3.connect(path, isolation_level=None, timeout=WAIT_SECONDS)
        try:
            # First of all, so that nobody else's database is changed.
            facts = layout.facts_of(database)
            if facts.get("version") not in ("1", VERSION):
                raise damaged(path)
            database.execute("PRAGMA synchronous = FULL")
            # What is erased is overwritten, and not only let go.
            database.execute("PRAGMA secure_delete = ON")
            if facts["version"] == "1":
                if not adopt:
                    raise _of_version_1(path)
                layout.upgrade(database, path, custody)
            elif facts["key"] != custody.key_id:
                if not adopt:
                    raise _of_another_key(path, custody)
                _reseal(database, path, custody, facts)
            ledger = cls(path, database, custody)
            if facts != layout.facts_of(database):  # a new id, or a new key
                ledger._raise_mark()
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
        return ledger

    @property
    def epsilon(self) -> float:
        """The budget's ε."""
        return float(self._about("epsilon"))

    @property
    def delta(self) -> float:
        """The budget's δ."""
        return float(self._about("delta"))

    def set_budget(self, epsilon: float) -> None:
        """The owner of the data sets another budget; what is spent stays spent."""
        if not 0.0 < epsilon < math.inf:
            raise PrivacyError(
                "a budget needs epsilon > 0", where=str(self.path), remedy="raise it"
            )
        with self._locked():
            self._refresh()
            self._database.execute(
                "UPDATE about SET value = ? WHERE name = 'epsilon'",
                (repr(float(epsilon)),),
            )
            layout.write_seal(self._database, self._link, self._custody)
            self._database.execute("COMMIT")

    def release(
        self,
        *,
        run: bytes,
        site: str,
        round: int,
        purpose: str,
        study: bytes,
        question: bytes,
        event: Event,
        compute: Callable[[], bytes],
    ) -> bytes:
        """The answer to a round: charged, then computed and stored, then repeated.

        Parameters
        ----------
        run, site, round, purpose
            Which release this is.
        study, question
            Hashes of the study and of what was asked, which may not change.
        event
            What the answer costs.
        compute
            Draws the noise and returns the answer's bytes; not called once there is
            an answer.
        """
        release = (run, site, round, purpose)
        asked = (study, question, _described(event))
        with self._locked():
            number, answer = self._known(release, asked)
            if number is None:
                number = self._charge(release, asked)
        if answer is None:
            try:
                answer = compute()
            except BaseException:
                # What went wrong may tell something of the records: it is paid for.
                with suppress(PrivacyError):
                    self._raise_mark()
                raise
            answer = self._keep(number, answer)
        self._raise_mark()
        return answer

    def _known(
        self, release: tuple[bytes, str, int, str], asked: tuple[bytes, bytes, str]
    ) -> tuple[int | None, bytes | None]:
        """Number and answer of a release, as far as there are any."""
        run, site, round, _ = release
        if self._is_over(run, site):
            raise PrivacyError(
                "the run is over, and its answers are erased",
                where=str(self.path),
                remedy="start a new run",
            )
        known = self._database.execute(
            "SELECT number, study, question, event FROM entries "
            "WHERE run = ? AND site = ? AND round = ? AND purpose = ?",
            release,
        ).fetchone()
        if known is None:
            return None, None
        if known[1:] != asked:
            raise PrivacyError(
                f"round {round} was answered for another question",
                where=str(self.path),
                remedy="a round has one question: start a new run",
            )
        return known[0], self._stored(known[0])

    def _charge(
        self, release: tuple[bytes, str, int, str], asked: tuple[bytes, bytes, str]
    ) -> int:
        """Write the entry of a release; its number."""
        run, _, round, _ = release
        self._refresh()
        self._refuse_another_study(run, asked[0])
        epsilon = self._after((run, asked[2]), round)
        number = self._entries + 1
        row = (self._place + 1, number, _now(), *release, *asked, epsilon)
        self._commit(layout.CHARGE, row)
        return number

    def _keep(self, number: int, answer: bytes) -> bytes:
        """Store an answer; where another process was first, its answer."""
        with self._locked():
            stored = self._stored(number)
            if stored is not None:
                return stored
            self._refresh()
            salt = os.urandom(layout.SALT_BYTES)
            self._database.execute(
                "INSERT INTO vectors VALUES (?, ?, ?)", (number, salt, answer)
            )
            digest = layout.answer_digest(salt, answer)
            self._commit(layout.ANSWER, (self._place + 1, number, digest))
        return answer

    def _commit(self, kind: str, row: layout.Row) -> None:
        """Write a record, seal the ledger, and make both durable."""
        link = layout.append(self._database, kind, row, self._link)
        layout.write_seal(self._database, link, self._custody)
        self._database.execute("COMMIT")
        self._take(kind, row, link)

    def _take(self, kind: str, row: layout.Row, link: bytes) -> None:
        """Count a record that is on disk."""
        if kind == layout.CHARGE:
            self._counts[row[3], row[9]] += 1
            self._entries += 1
        self._place, self._link = row[0], link

    def _stored(self, number: int) -> bytes | None:
        """The answer of an entry; None if there is none yet."""
        row = self._database.execute(
            "SELECT digest, salt, answer FROM answers LEFT JOIN vectors "
            "USING (number) WHERE number = ?",
            (number,),
        ).fetchone()
        if row is None:
            return None
        digest, salt, answer = row
        if answer is None or layout.answer_digest(salt, answer) != digest:
            raise damaged(self.path)
        return bytes(answer)

    def end(self, run: bytes, site: str) -> None:
        """A run is over here: erase its answers, and refuse it from now on.

        Charges stay, and the chain with the answers' digests. Nothing happens where
        the run has no entry, or is over already.
        """
        with self._locked():
            self._refresh()
            known = self._database.execute(
                "SELECT 1 FROM entries WHERE run = ? AND site = ?", (run, site)
            ).fetchone()
            if known is None or self._is_over(run, site):
                return
            self._database.execute(
                "DELETE FROM vectors WHERE number IN "
                "(SELECT number FROM entries WHERE run = ? AND site = ?)",
                (run, site),
            )
            self._commit(layout.END, (self._place + 1, _now(), run, site))
            layout.empty_journal(self._database)
        self._raise_mark()

    def _is_over(self, run: bytes, site: str) -> bool:
        row = self._database.execute(
            "SELECT 1 FROM ended WHERE run = ? AND site IN (?, ?)",
            (run, site, layout.ANY_SITE),
        ).fetchone()
        return row is not None

    def rounds(self, run: bytes, site: str) -> int:
        """How many rounds of a run were answered: they are answered in order."""
        with self._readable():
            row = self._database.execute(
                "SELECT MAX(round) FROM entries JOIN answers USING (number) "
                "WHERE run = ? AND site = ?",
                (run, site),
            ).fetchone()
        return 0 if row[0] is None else int(row[0]) + 1

    @property
    def head(self) -> Head:
        """How far the ledger has come; two numbers that tell nothing of the table."""
        self._refresh()
        return Head(self._place, self._link)

    def questions(self, run: bytes) -> dict[tuple[int, str], bytes]:
        """Hash of what each round of a run asked, by round and purpose."""
        with self._readable():
            rows = self._database.execute(
                "SELECT round, purpose, question FROM entries WHERE run = ?", (run,)
            ).fetchall()
        return {(int(round), str(purpose)): bytes(q) for round, purpose, q in rows}

    def expect(self, run: bytes, event: Event) -> None:
        """Reckon now what :meth:`release` of this event will have to know."""
        with suppress(PrivacyError):  # which release itself will raise
            self._bound(self._counts + Counter({(run, _described(event)): 1}))

    def spent(self) -> float:
        """ε of everything released so far."""
        self._refresh()
        return self._epsilon(self._counts)

    def entries(self) -> Iterator[Entry]:
        """All releases, the oldest first."""
        with self._readable():
            rows = self._database.execute(
                "SELECT number, time, run, site, round, purpose, study, event, "
                "epsilon, answer IS NOT NULL FROM entries LEFT JOIN vectors "
                "USING (number) ORDER BY number"
            ).fetchall()
        for number, time, run, site, round, purpose, study, *rest in rows:
            event, epsilon, kept = rest
            yield Entry(
                number, time, run.hex(), site, round, purpose, study.hex(),
                from_json(event), epsilon, bool(kept),
            )  # fmt: skip

    def close(self) -> None:
        """Release the file."""
        self._database.close()

    def _refuse_another_study(self, run: bytes, study: bytes) -> None:
        known = self._database.execute(
            "SELECT study FROM entries WHERE run = ? LIMIT 1", (run,)
        ).fetchone()
        if known is not None and known[0] != study:
            raise PrivacyError(
                "the run was begun with another study",
                where=str(self.path),
                remedy="a changed study is a new run",
            )

    # -- balance -----------------------------------------------------------

    def _after(self, release: Release, round: int) -> float:
        """ε with one more release, or a refusal."""
        counts = self._counts + Counter({release: 1})
        epsilon = self._bound(counts)
        if epsilon <= self.epsilon * SLACK:
            return epsilon
        epsilon = self._epsilon(counts)
        if epsilon <= self.epsilon * SLACK:
            return epsilon
        left = max(self.epsilon - self._epsilon(self._counts), 0.0)
        raise BudgetError(
            f"round {round} would exceed this table's budget of ε = {self.epsilon:g} "
            f"(ε = {left:.3g} is left)",
            where=str(self.path),
            remedy="the owner of the data may raise the table's budget in [sites]",
        )

    def _bound(self, counts: Counter[Release]) -> float:
        """ε, or a little more where the exact figure is slow to compute.

        Counts of sampled events are raised by up to 5 %, so that few different
        compositions are ever computed in a run.
        """
        coarse = {
            (run, text): count if _is_quick(text) else _raised(count)
            for (run, text), count in counts.items()
        }
        key = self.epsilon, tuple(sorted(coarse.items()))
        if all(_is_quick(text) for _, text in coarse):
            return self._epsilon(counts)
        if key not in self._coarse:
            self._coarse[key] = self._epsilon(Counter(coarse))
        return self._coarse[key]

    def _epsilon(self, counts: Counter[Release]) -> float:
        """ε of releases in runs that were chosen one after the other."""
        runs: dict[bytes, list[Event]] = {}
        for (run, text), count in sorted(counts.items()):
            runs.setdefault(run, []).append(Repeated(_event(text), count))
        each = tuple(Composed(tuple(events)) for events in runs.values())
        return _epsilon(each, self.delta, self.epsilon)

    # -- the file ----------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield
        except (sqlite3.Error, UnicodeDecodeError):
            raise unwritable(self.path) from None
        finally:
            if self._database.in_transaction:
                # On a full disk it may fail as well; the journal is then ignored.
                with suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")

    def _about(self, name: str) -> str:
        with self._readable():
            row = self._database.execute(
                "SELECT value FROM about WHERE name = ?", (name,)
            ).fetchone()
        if row is None:
            raise damaged(self.path)
        return str(row[0])

    def _refresh(self) -> None:
        """Take in records that this object has not seen, checking chain and seal."""
        if not self._database.in_transaction:
            # Records and seal must be of one moment.
            with self._reading():
                return self._refresh()
        # Counts commits of others: without one there is nothing that is not known.
        ((version,),) = self._database.execute("PRAGMA data_version").fetchall()
        if version == self._version:
            return None
        for kind, row, link in layout.records(self._database, self._place):
            right = layout.chain(self._link, (kind, *row))
            if row[0] != self._place + 1 or right != link:
                raise damaged(self.path)
            if kind == layout.CHARGE and row[1] != self._entries + 1:
                raise damaged(self.path)
            self._take(kind, row, link)
        facts = layout.facts_of(self._database)
        right_seal = layout.seal(facts, self._link, self._custody)
        if not hmac.compare_digest(facts.get("seal", ""), right_seal):
            raise damaged(self.path)
        self._version = version
        return None

    def _check_answers(self) -> None:
        """Raise PrivacyError unless every answer of a run that goes on is here."""
        rows = self._database.execute(
            "SELECT digest, salt, answer FROM entries JOIN answers USING (number) "
            "LEFT JOIN vectors USING (number) WHERE NOT EXISTS (SELECT 1 FROM ended "
            "WHERE ended.run = entries.run AND ended.site IN (entries.site, ?))",
            (layout.ANY_SITE,),
        )
        for digest, salt, answer in rows:
            if answer is None or layout.answer_digest(salt, answer) != digest:
                raise damaged(self.path)

    # -- the mark ----------------------------------------------------------

    def _check_mark(self) -> None:
        """Raise PrivacyError where the ledger is not the one its mark has seen."""
        count, link = self._marked
        if not self._lasting or count == 0:
            return
        if count > self._place:
            raise PrivacyError(
                f"is an old copy: it ends at record {self._place}, and this ledger had "
                f"{count}",
                where=str(self.path),
                remedy="put back the newest ledger with its -wal file; if that is "
                "lost, so is what was spent since: release nothing more from this "
                "table",
            )
        if layout.link_at(self._database, count) != link:
            raise PrivacyError(
                f"has other records than it had: record {count} is not the one that "
                "was written",
                where=str(self.path),
                remedy="an old copy was used and written to: put back the ledger that "
                "all studies were charged to, or release nothing more from this table",
            )

    def _raise_mark(self) -> None:
        """Remember outside this file how far it has come, before anything leaves."""
        if self._lasting and self._marked.records < self._place:
            head = Head(self._place, self._link)
            self._marked = self._custody.raise_mark(self.id, head)
            if self._marked != head:
                # Another process has gone further, in this file or in a copy of it.
                with self._reading():
                    self._refresh()
                    self._check_mark()

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError):
            raise damaged(self.path) from None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._database.execute("BEGIN")
        try:
            yield
        finally:
            self._database.execute("ROLLBACK")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


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
    found = list(layout.records(database, 0))
    link = found[-1][2] if found else b""
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


def _is_quick(described: str) -> bool:
    return "poisson" not in described


def _raised(count: int) -> int:
    step = max(1, count // 20)
    return -(-count // step) * step

"""A table's ledger: what has been released, what is left, and no.

One SQLite file for each table, since a budget belongs to the data and not to a
study. An entry is durable before an answer leaves, and it holds the answer: the
same round asked again gets the same vector, never a fresh one.
"""

from __future__ import annotations

import hashlib
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
from cipherbayes.privacy import accountant
from cipherbayes.privacy.events import Composed, Event, Repeated, from_json, to_json

VERSION = "1"
WAIT_SECONDS = 600.0
# A table that spends its budget exactly must not fail over the last digit.
SLACK = 1.0 + 1e-9

_SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE entries (
  number INTEGER PRIMARY KEY,
  time TEXT NOT NULL,
  run BLOB NOT NULL,
  round INTEGER NOT NULL,
  purpose TEXT NOT NULL,
  study BLOB NOT NULL,
  question BLOB NOT NULL,
  event TEXT NOT NULL,
  epsilon REAL NOT NULL,
  answer BLOB NOT NULL,
  link BLOB NOT NULL,
  UNIQUE (run, round, purpose)
) STRICT;
"""
# Every round of a phase costs the same event: it is written and read once.
_described = lru_cache(maxsize=64)(to_json)
_event = lru_cache(maxsize=64)(from_json)
_epsilon = lru_cache(maxsize=8)(accountant.epsilon)
_COLUMNS = "number, time, run, round, purpose, study, question, event, epsilon, answer"


@dataclass(frozen=True)
class Entry:
    """One release, as the ledger shows it."""

    number: int
    time: str
    run: str
    round: int
    purpose: str
    study: str
    event: Event
    epsilon: float


class Ledger:
    """The releases of one table, and the only way to make another.

    Formal guarantees
    -----------------
    Let ε(E) be the accountant's figure for the composition of all entries E at the
    ledger's δ. (1) After every call, crash or kill, ε(E) is at most the budget.
    (2) :meth:`release` returns an answer only after its entry is on disk. (3) For
    one (run, round, purpose) there is one answer for ever; a call with another
    study, question or event is refused. (4) All this holds for any number of
    processes: a write lock is held from reading the balance to the commit.

    Edge cases
    ----------
    Entries are chained by hashes and sealed together with the budget, so a file that
    was edited, cut or damaged is refused; whoever can rewrite the whole file, or
    delete it, can forge it: it protects against mistakes and crashes, and belongs
    into the site's backup.
    """

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path = path
        self._database = database
        self.dataset = self._about("dataset")
        self._counts: Counter[str] = Counter()
        self._seen = 0
        self._link = b""
        self._coarse: dict[tuple[tuple[str, int], ...], float] = {}
        self._refresh()

    @classmethod
    def open(cls, path: Path, *, dataset: str, epsilon: float, delta: float) -> Ledger:
        """Open a table's ledger, or begin one with this budget.

        A ledger that exists keeps its own budget: see :meth:`set_budget`.
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
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # mkstemp: only the owner may read it, and a killed process blocks nobody.
            where = path.parent
            descriptor, name = tempfile.mkstemp(".partial", f".{path.name}.", where)
        except OSError:
            raise _unwritable(path) from None
        os.close(descriptor)
        partial = Path(name)
        try:
            database = sqlite3.connect(partial, isolation_level=None)
            # Now, while nobody else has the file: the mode stays with it.
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(_SCHEMA)
            facts = {
                "version": VERSION,
                "dataset": dataset,
                "epsilon": repr(float(epsilon)),
                "delta": repr(float(delta)),
            }
            facts["seal"] = _seal(facts, b"")
            database.executemany("INSERT INTO about VALUES (?, ?)", facts.items())
            database.close()
            os.link(partial, path)
            _sync_folder(path.parent)
        except FileExistsError:
            pass  # another process was first: its ledger counts
        except (sqlite3.Error, OSError):
            raise _unwritable(path) from None
        finally:
            for file in (name, f"{name}-wal", f"{name}-shm"):
                Path(file).unlink(missing_ok=True)
        return cls.open(path, dataset=dataset, epsilon=epsilon, delta=delta)

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Open a ledger that exists, and check every entry."""
        if not path.is_file():
            raise PrivacyError(
                "no such ledger", where=str(path), remedy="check the path"
            )
        database = sqlite3.connect(path, isolation_level=None, timeout=WAIT_SECONDS)
        try:
            # First of all, so that nobody else's database is changed.
            ledger = cls(path, database)
            if ledger._about("version") != VERSION:
                raise _damaged(path)
            database.execute("PRAGMA synchronous = FULL")
        except PrivacyError:
            database.close()
            raise
        except (sqlite3.DatabaseError, TypeError, ValueError):
            database.close()
            raise _damaged(path) from None
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
            self._write_seal(self._link)
            self._database.execute("COMMIT")

    def release(
        self,
        *,
        run: bytes,
        round: int,
        purpose: str,
        study: bytes,
        question: bytes,
        event: Event,
        compute: Callable[[], bytes],
    ) -> bytes:
        """The answer to a round: computed, charged and stored once, then repeated.

        Parameters
        ----------
        run, round, purpose
            Which release this is.
        study, question
            Hashes of the study and of what was asked, which may not change.
        event
            What the answer costs.
        compute
            Draws the noise and returns the answer's bytes; called at most once.
        """
        described = _described(event)
        with self._locked():
            known = self._database.execute(
                "SELECT study, question, event, answer FROM entries "
                "WHERE run = ? AND round = ? AND purpose = ?",
                (run, round, purpose),
            ).fetchone()
            if known is not None:
                if known[:3] != (study, question, described):
                    raise PrivacyError(
                        f"round {round} was answered for another question",
                        where=str(self.path),
                        remedy="a round has one question: start a new run",
                    )
                return bytes(known[3])
            self._refresh()
            self._refuse_another_study(run, study)
            epsilon = self._after(described, round)
            answer = compute()
            time = datetime.now(UTC).isoformat(timespec="seconds")
            row = (
                self._seen + 1, time, run, round, purpose, study, question,
                described, epsilon, answer,
            )  # fmt: skip
            link = _chain(self._link, row)
            self._database.execute(
                f"INSERT INTO entries ({_COLUMNS}, link) "  # noqa: S608 - constants
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, link),
            )
            self._write_seal(link)
            self._database.execute("COMMIT")
            self._counts[described] += 1
            self._seen, self._link = self._seen + 1, link
            return answer

    def rounds(self, run: bytes) -> int:
        """How many rounds of a run were answered: they are answered in order."""
        with self._readable():
            row = self._database.execute(
                "SELECT MAX(round) FROM entries WHERE run = ?", (run,)
            ).fetchone()
        return 0 if row[0] is None else int(row[0]) + 1

    def questions(self, run: bytes) -> dict[tuple[int, str], bytes]:
        """Hash of what each round of a run asked, by round and purpose."""
        with self._readable():
            rows = self._database.execute(
                "SELECT round, purpose, question FROM entries WHERE run = ?", (run,)
            ).fetchall()
        return {(int(round), str(purpose)): bytes(q) for round, purpose, q in rows}

    def expect(self, event: Event) -> None:
        """Reckon now what :meth:`release` of this event will have to know."""
        with suppress(PrivacyError):  # which release itself will raise
            self._bound(self._counts + Counter({_described(event): 1}))

    def spent(self) -> float:
        """ε of everything released so far."""
        self._refresh()
        return self._epsilon(self._counts)

    def entries(self) -> Iterator[Entry]:
        """All releases, the oldest first."""
        with self._readable():
            rows = self._database.execute(
                "SELECT number, time, run, round, purpose, study, event, epsilon "
                "FROM entries ORDER BY number"
            ).fetchall()
        for number, time, run, round, purpose, study, event, epsilon in rows:
            yield Entry(
                number, time, run.hex(), round, purpose, study.hex(),
                from_json(event), epsilon,
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

    def _after(self, described: str, round: int) -> float:
        """ε with one more event, or a refusal."""
        counts = self._counts + Counter({described: 1})
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

    def _bound(self, counts: Counter[str]) -> float:
        """ε, or a little more where the exact figure is slow to compute.

        Counts of sampled events are raised by up to 5 %, so that few different
        compositions are ever computed in a run.
        """
        coarse = {
            text: count if _is_quick(text) else _raised(count)
            for text, count in counts.items()
        }
        key = tuple(sorted(coarse.items()))
        if all(map(_is_quick, coarse)):
            return self._epsilon(counts)
        if key not in self._coarse:
            self._coarse[key] = self._epsilon(Counter(coarse))
        return self._coarse[key]

    def _epsilon(self, counts: Counter[str]) -> float:
        if not counts:
            return 0.0
        events = tuple(Repeated(_event(t), n) for t, n in sorted(counts.items()))
        return _epsilon(Composed(events), self.delta)

    # -- the file ----------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield
        except (sqlite3.Error, UnicodeDecodeError):
            raise _unwritable(self.path) from None
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
            raise _damaged(self.path)
        return str(row[0])

    def _facts(self) -> dict[str, str]:
        return dict(self._database.execute("SELECT name, value FROM about"))

    def _write_seal(self, link: bytes) -> None:
        self._database.execute(
            "UPDATE about SET value = ? WHERE name = 'seal'",
            (_seal(self._facts(), link),),
        )

    def _refresh(self) -> None:
        """Take in entries that this object has not seen, checking chain and seal."""
        if not self._database.in_transaction:
            # Entries and seal must be of one moment.
            with self._reading():
                return self._refresh()
        rows = self._database.execute(
            f"SELECT {_COLUMNS}, link FROM entries "  # noqa: S608 - constants
            "WHERE number > ? ORDER BY number",
            (self._seen,),
        )
        for *row, link in rows.fetchall():
            if row[0] != self._seen + 1 or _chain(self._link, tuple(row)) != link:
                raise _damaged(self.path)
            self._counts[row[7]] += 1
            self._seen, self._link = row[0], link
        facts = self._facts()
        if facts.get("seal") != _seal(facts, self._link):
            raise _damaged(self.path)
        return None

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError):
            raise _damaged(self.path) from None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._database.execute("BEGIN")
        try:
            yield
        finally:
            self._database.execute("ROLLBACK")


def _seal(facts: Mapping[str, str], link: bytes) -> str:
    """Hash over budget, table and the last entry: shows edits and lost entries."""
    text = "|".join(f"{k}={v}" for k, v in sorted(facts.items()) if k != "seal")
    return hashlib.sha256(link + text.encode()).hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make a new file's name as durable as its content."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_quick(described: str) -> bool:
    return "poisson" not in described


def _raised(count: int) -> int:
    step = max(1, count // 20)
    return -(-count // step) * step


def _chain(before: bytes, row: tuple[object, ...]) -> bytes:
    digest = hashlib.sha256(before)
    for value in row:
        part = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _unwritable(path: Path) -> PrivacyError:
    return PrivacyError(
        "cannot be written, so nothing is released",
        where=str(path),
        remedy="check the disk, the permissions and other runs on this table",
    )


def _damaged(path: Path) -> PrivacyError:
    return PrivacyError(
        "is damaged, was changed, or is no ledger",
        where=str(path),
        remedy="restore it from a backup: without it nothing may be released",
    )

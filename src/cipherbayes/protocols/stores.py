"""What parties remember across a crash: SQLite, one commit a round."""

from __future__ import annotations

import hashlib
import hmac
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from cipherbayes.crypto.identity.roster import Member
from cipherbayes.crypto.wire.transcript import transcript
from cipherbayes.errors import ProtocolError, RunError
from cipherbayes.inference.released import ServerState
from cipherbayes.storage.custody import KEY_BYTES, Custody, Head
from cipherbayes.storage.private_files import why_not_trusted
from cipherbayes.typing import Floats


class _Store:
    """A private database, or one in memory where there is no path.

    A file of another user, or one that others can open, is refused.
    """

    schema: str
    remedy: str

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                # A file that is there is not opened: closing it again would take away
                # the locks that another connection of this process has on it.
                with suppress(FileExistsError):
                    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
                    os.close(os.open(path, flags, 0o600))
                self._refuse_untrusted(path)
            self._database = sqlite3.connect(
                path or ":memory:", isolation_level=None, timeout=60.0
            )
        except (OSError, sqlite3.Error) as error:
            raise self._error(error) from None
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute("PRAGMA secure_delete = ON")
            self._database.executescript(self.schema)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._database.close()
            raise self._error(error) from None

    def _refuse_untrusted(self, path: Path) -> None:
        if (reason := why_not_trusted(path)) is not None:
            what, remedy = reason
            raise RunError(what, where=str(path), remedy=remedy)

    def _execute(self, statement: str, *values: bytes | str | int) -> list[Any]:
        """The rows of a statement; a file that fails is named."""
        try:
            return self._database.execute(statement, values).fetchall()
        # SQLite's own words about a damaged file need not be UTF-8.
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> RunError:
        if isinstance(error, sqlite3.OperationalError | OSError):
            what = "cannot be opened or written"
            remedy = "check the disk and its permissions, then `cipherbayes resume`"
        else:
            what, remedy = "is damaged or no file of a run", self.remedy
        return RunError(what, where=str(self._path), remedy=remedy)

    def close(self) -> None:
        """Release the file."""
        self._database.close()


class AnswerStore(_Store):
    """The CSP's answers, one per round.

    Formal guarantees
    -----------------
    A file that lacks an answer once given, or has another one in its place, is refused:
    a mark outside it (:class:`~cipherbayes.storage.custody.Custody`) says how many
    rounds of the run were answered, and with what the last of them. An old copy would
    have the CSP open a second sum in a round, over fewer sites than the first, say.

    Edge cases
    ----------
    In memory (without ``path``), or without the ``run``, there is no mark.
    """

    schema = (
        "CREATE TABLE IF NOT EXISTS answers "
        "(round INTEGER PRIMARY KEY, reply BLOB NOT NULL) STRICT;"
    )
    remedy = "start a new run: an old copy of it is refused"

    def __init__(self, path: Path | None = None, run: bytes = b"") -> None:
        super().__init__(path)
        self._id = hashlib.sha256(b"answers of a run/" + run).digest()
        self._custody = Custody.of_user() if path is not None and run else None
        if self._custody is not None:
            self._refuse_other_than(self._custody.mark(self._id))

    def rounds(self) -> int:
        """How many rounds were answered."""
        ((last,),) = self._execute("SELECT MAX(round) FROM answers")
        if type(last) not in (int, type(None)):
            raise self._error(TypeError())
        return 0 if last is None else int(last) + 1

    def _refuse_other_than(self, mark: Head) -> None:
        """Raise RunError where the last answer that the mark knows of is missing."""
        if not mark.records:
            return
        given = self.answer(mark.records - 1)
        if given is None or hashlib.sha256(given).digest() != mark.link:
            raise RunError(
                f"is an old copy: {mark.records} rounds were answered, and it does not "
                "have the last of these answers",
                where=str(self._path),
                remedy="put back the newest file with its -wal file, or start a new "
                "run",
            )

    def _mark(self, number: int, reply: bytes) -> None:
        """Record outside the file which answer a round has, before it is given."""
        if self._custody is not None:
            head = Head(number + 1, hashlib.sha256(reply).digest())
            marked = self._custody.raise_mark(self._id, head, self._refuse_other_than)
            if marked != head:
                # Another process has gone further, in this file or in a copy of it.
                self._refuse_other_than(marked)

    def answer(self, number: int) -> bytes | None:
        """The answer given in a round, if one was."""
        rows = self._execute("SELECT reply FROM answers WHERE round = ?", number)
        if rows and type(rows[0][0]) is not bytes:
            raise self._error(TypeError())
        return rows[0][0] if rows else None

    def keep(self, number: int, reply: bytes) -> bytes:
        """Make an answer durable before it is given.

        Returns what is to be given: where another process was first, its answer.
        """
        statement = "INSERT OR IGNORE INTO answers VALUES (?, ?) RETURNING 1"
        kept = reply
        if not self._execute(statement, number, reply):
            found = self.answer(number)
            if found is None:
                raise self._error(KeyError())
            kept = found
        self._mark(number, kept)
        return kept


class Checkpoint(_Store):
    """The server's state after each round, and the sites it has lost.

    Every row has a checksum under the owner's key, so a θ that was damaged, or changed
    by somebody without the key, is refused and not gone on from. All of it can be made
    again while the run goes on: the sites repeat their vectors and the CSP its answers.

    ``finished`` says when each round ended, in seconds since 1970. The database writes
    it in the same commit; nothing that a run does depends on it.
    """

    schema = (
        "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, "
        "value BLOB NOT NULL, checksum BLOB NOT NULL) STRICT;"
        "CREATE TABLE IF NOT EXISTS rounds (round INTEGER PRIMARY KEY, "
        "theta BLOB NOT NULL, memory BLOB NOT NULL, checksum BLOB NOT NULL) STRICT;"
        "CREATE TABLE IF NOT EXISTS lost (site TEXT PRIMARY KEY, "
        "round INTEGER NOT NULL, checksum BLOB NOT NULL) STRICT;"
        "CREATE TABLE IF NOT EXISTS finished (round INTEGER PRIMARY KEY, "
        "at REAL NOT NULL) STRICT;"
        "CREATE TRIGGER IF NOT EXISTS stamp AFTER INSERT ON rounds BEGIN "
        "INSERT OR REPLACE INTO finished VALUES "
        "(NEW.round, (julianday('now') - 2440587.5) * 86400.0); END;"
    )
    remedy = (
        "restore it, or delete it (with its -wal file) and `cipherbayes resume`: "
        "the sites repeat their answers, nothing is released again"
    )

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        # In memory nothing outlives this object, so a random key will do.
        self._key = os.urandom(KEY_BYTES) if path is None else Custody.of_user().key

    def _checksum(self, *values: bytes | str | int) -> bytes:
        data = transcript("cipherbayes/checkpoint/2", *values)
        return hmac.digest(self._key, data, "sha256")

    def _checked(self, rows: list[Any]) -> list[Any]:
        """Rows without their checksums, which must fit."""
        for *values, checksum in rows:
            right = b"" if None in values else self._checksum(*values)
            if type(checksum) is not bytes or not hmac.compare_digest(checksum, right):
                raise RunError(
                    "is damaged: an entry does not match its checksum",
                    where=str(self._path),
                    remedy=self.remedy,
                )
        return [row[:-1] for row in rows]

    @contextmanager
    def one_commit(self) -> Iterator[None]:
        """All that is kept within the block becomes durable together, or not at all."""
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            # On a full disk it may fail as well; the journal is then ignored.
            with suppress(sqlite3.Error):
                self._database.rollback()
            raise

    def fact(self, name: str) -> bytes | None:
        """A value kept under a name."""
        rows = self._execute("SELECT * FROM facts WHERE name = ?", name)
        return bytes(self._checked(rows)[0][1]) if rows else None

    def known(self, name: str) -> bytes:
        """A value that the run has kept before; RunError where it is gone."""
        value = self.fact(name)
        if value is None:
            raise self._error(KeyError())
        return value

    def keep_fact(self, name: str, value: bytes) -> None:
        """Keep a value under a name."""
        row = (name, value)
        statement = "INSERT OR REPLACE INTO facts VALUES (?, ?, ?)"
        self._execute(statement, *row, self._checksum(*row))

    def keep_state(self, number: int, state: ServerState) -> None:
        """Make the state after round ``number`` durable."""
        row = (number, state.theta.tobytes(), state.memory.tobytes())
        statement = "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?)"
        self._execute(statement, *row, self._checksum(*row))

    def last_state(self) -> tuple[int, ServerState] | None:
        """The newest round and the state after it."""
        rows = self._execute("SELECT * FROM rounds ORDER BY round DESC LIMIT 1")
        if not rows:
            return None
        ((number, theta, memory),) = self._checked(rows)
        ((count,),) = self._execute("SELECT COUNT(*) FROM rounds")
        return int(number), ServerState(_floats(theta), _floats(memory), int(count))

    def trajectory(self) -> list[Floats]:
        """θ after each round so far."""
        rows = self._checked(self._execute("SELECT * FROM rounds ORDER BY round"))
        return [_floats(theta) for _, theta, _ in rows]

    def lost(self) -> list[str]:
        """Sites that dropped out, the first lost first."""
        rows = self._checked(self._execute("SELECT * FROM lost ORDER BY rowid"))
        return [str(site) for site, _ in rows]

    def keep_lost(self, sites: Sequence[str], number: int) -> None:
        """Remember sites that dropped out in a round."""
        for row in ((site, number) for site in sites):
            self._execute(
                "INSERT OR IGNORE INTO lost VALUES (?, ?, ?)",
                *row,
                self._checksum(*row),
            )


def checkpoint_file(run: Path) -> Path:
    """Where the server's checkpoint lies in the folder of a run."""
    return run / "server" / "checkpoint.sqlite"


class CheckpointReader:
    """A server's checkpoint, read while somebody else may be writing it.

    The file is never changed, and checksums are not checked, since a reader need not
    have the owner's key: what is found is to be shown or compared, not to go on from.
    ``sqlite3.Error`` says that the file is not laid out yet, or damaged.
    """

    def __init__(self, path: Path) -> None:
        address = f"{path.absolute().as_uri()}?mode=ro"
        self._database = sqlite3.connect(address, uri=True, timeout=5.0)

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def trajectory(self) -> list[tuple[int, Floats]]:
        """Each round so far, and θ after it."""
        rows = self._database.execute("SELECT round, theta FROM rounds ORDER BY round")
        return [(int(number), _floats(theta)) for number, theta in rows]

    def last_memory(self) -> Floats | None:
        """What the method remembers after the newest round; None before the first."""
        row = self._database.execute(
            "SELECT memory FROM rounds ORDER BY round DESC LIMIT 1"
        ).fetchone()
        return None if row is None else _floats(row[0])

    def fact_names(self) -> set[str]:
        """Names that values are kept under."""
        return {
            str(name) for (name,) in self._database.execute("SELECT name FROM facts")
        }

    def lost(self) -> tuple[tuple[str, int], ...]:
        """Sites that dropped out, and in which round, the first lost first."""
        rows = self._database.execute("SELECT site, round FROM lost ORDER BY rowid")
        return tuple((str(site), int(number)) for site, number in rows)

    def round_times(self) -> tuple[tuple[int, float], ...]:
        """When each round ended, in seconds since 1970; empty where it was not kept."""
        known = self._database.execute(
            "SELECT 1 FROM sqlite_master WHERE name = 'finished'"
        )
        if known.fetchone() is None:
            return ()
        # Rounds that were taken back are not shown.
        rows = self._database.execute(
            "SELECT round, at FROM finished JOIN rounds USING (round) ORDER BY round"
        )
        return tuple((int(number), float(at)) for number, at in rows)


class Heads(_Store):
    """How far every site's ledger had come when it was last met, over all runs.

    Formal guarantees
    -----------------
    A ledger, known by its id and by the identity that signed for it, that has fewer
    records than before, or as many and another last link, is refused. Within a run it
    must have the two records, charge and answer, of every round that was answered.

    Edge cases
    ----------
    A site that begins a new ledger has a new id, and nothing is known of it. Where a
    study allows for lost sites, a lost one is met again as it was.
    """

    schema = (
        "CREATE TABLE IF NOT EXISTS heads (identity BLOB, ledger BLOB, "
        "records INTEGER NOT NULL, link BLOB NOT NULL, "
        "PRIMARY KEY (identity, ledger)) STRICT;"
        "CREATE TABLE IF NOT EXISTS met (run BLOB, identity BLOB, "
        "ledger BLOB NOT NULL, began INTEGER NOT NULL, records INTEGER NOT NULL, "
        "link BLOB NOT NULL, PRIMARY KEY (run, identity)) STRICT;"
    )
    remedy = "put it back from the newest copy"

    def check(
        self, run: bytes, members: Iterable[Member], *, answered: int, dropouts: bool
    ) -> None:
        """Check the sites of a run against what is remembered, and remember them.

        Parameters
        ----------
        answered
            Rounds of the run that every site has surely answered.
        dropouts
            Whether the study allows for lost sites.
        """
        for member in members:
            if not (dropouts and self._is_as_met(run, member)):
                self._refuse_behind(run, member, answered)
            head = (member.ledger, member.records, member.link)
            self._execute(
                "INSERT INTO heads VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "records = excluded.records, link = excluded.link "
                "WHERE excluded.records > records",
                member.identity,
                *head,
            )
            self._execute(
                "INSERT INTO met VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "records = excluded.records, link = excluded.link",
                run,
                member.identity,
                member.ledger,
                member.records,
                member.records,
                member.link,
            )

    def _is_as_met(self, run: bytes, member: Member) -> bool:
        rows = self._execute(
            "SELECT ledger, records, link FROM met WHERE run = ? AND identity = ?",
            run,
            member.identity,
        )
        return rows == [(member.ledger, member.records, member.link)]

    def _refuse_behind(self, run: bytes, member: Member, answered: int) -> None:
        known = self._execute(
            "SELECT records, link FROM heads WHERE identity = ? AND ledger = ?",
            member.identity,
            member.ledger,
        )
        begun = self._execute(
            "SELECT ledger, began FROM met WHERE run = ? AND identity = ?",
            run,
            member.identity,
        )
        records, link = known[0] if known else (0, member.link)
        ledger, began = begun[0] if begun else (member.ledger, -2 * answered)
        if (
            ledger != member.ledger
            or member.records < max(records, began + 2 * answered)
            or (member.records == records and member.link != link)
        ):
            raise ProtocolError(
                "its ledger is not as far as it was: an old copy was put back",
                where=f"site {member.site}",
                remedy="that site must put back its newest ledger, with its -wal file, "
                "or take no more part with this table",
            )


def _floats(data: bytes) -> Floats:
    return np.frombuffer(data, dtype=np.float64).copy()

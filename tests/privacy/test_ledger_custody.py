"""Old copies, forged seals, loose files, older versions: a ledger is what it was."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import DELTA, SIGMA, ask, ledger, never, opened, path

from cipherbayes.errors import CryptoError, PrivacyError
from cipherbayes.privacy import ledger_file
from cipherbayes.privacy.events import GaussianSum, to_json
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.ledger_file import chain
from cipherbayes.storage.custody import BEGINNING, Custody, Head

__all__ = ["ledger", "path"]


def backup(path: Path, place: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copy(file, place.parent / file.name.replace(path.name, place.name))


def restore(place: Path, path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    backup(place, path)


# -- the mark ------------------------------------------------------------------


def test_an_old_copy_of_a_ledger_is_refused_with_what_to_do(path: Path) -> None:
    ledger = opened(path)
    ask(ledger, 0)
    ledger.close()
    backup(path, path.with_name("old"))
    ledger = opened(path)
    ask(ledger, 1)
    ledger.close()
    backup(path, path.with_name("newest"))
    restore(path.with_name("old"), path)
    for attempt in (lambda: Ledger.read(path), lambda: opened(path)):
        with pytest.raises(PrivacyError, match="old copy") as refused:
            attempt()  # type: ignore[no-untyped-call]
        assert "newest" in refused.value.remedy
        assert "release nothing more" in refused.value.remedy
    restore(path.with_name("newest"), path)
    again = Ledger.read(path)
    assert len(list(again.entries())) == 2
    again.close()


def test_an_old_copy_that_was_written_to_is_refused_as_well(path: Path) -> None:
    """It may even be longer: the records are not those that were written."""
    ledger = opened(path)
    ask(ledger, 0)
    ledger.close()
    backup(path, path.with_name("old"))
    ledger = opened(path)
    ask(ledger, 1)
    ledger.close()
    state = Custody.of_user()
    mark = state.mark(ledger.id)
    shutil.rmtree(state.path / "marks")
    restore(path.with_name("old"), path)
    forked = opened(path)
    ask(forked, 1)
    ask(forked, 2)
    forked.close()
    shutil.rmtree(state.path / "marks")
    state.raise_mark(ledger.id, mark)
    with pytest.raises(PrivacyError, match="other records than it had"):
        Ledger.read(path)


def test_a_copy_from_between_charge_and_answer_is_an_old_copy(path: Path) -> None:
    """Else the question would be answered a second time, with fresh noise."""
    ledger = opened(path)

    def copied() -> bytes:
        backup(path, path.with_name("old"))
        return b"answer"

    ask(ledger, compute=copied)
    ledger.close()
    restore(path.with_name("old"), path)
    with pytest.raises(PrivacyError, match="old copy"):
        opened(path)


def test_a_mark_that_is_behind_hinders_nobody(ledger: Ledger, path: Path) -> None:
    """A kill may come between an entry and its mark."""
    ask(ledger, 0)
    marks = Custody.of_user().path / "marks"
    shutil.rmtree(marks)
    again = Ledger.read(path)
    assert len(ask(again, 1)) == 16
    assert Custody.of_user().mark(ledger.id) == again.head
    again.close()


@given(counts=st.lists(st.integers(1, 50), min_size=1, max_size=20), cut=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_mark_never_goes_back(counts: list[int], cut: bool) -> None:
    custody, name = Custody.of_user(), os.urandom(16)
    for count in counts:
        custody.raise_mark(name, Head(count, hashlib.sha256(bytes([count])).digest()))
    highest = max(counts)
    assert custody.mark(name).records == highest
    if cut:
        # The write of the next one is torn: one of the two slots is no slot.
        file = custody.path / "marks" / f"{name.hex()}.mark"
        content = bytearray(file.read_bytes())
        older = 0 if len(set(counts)) == 1 else custody_older(custody, name, highest)
        if len(content) > 72 * (older + 1) - 1 and len(content) > 72:
            content[72 * older + 3] ^= 255
            file.write_bytes(content)
            assert custody.mark(name).records == highest


def custody_older(custody: Custody, name: bytes, highest: int) -> int:
    """Which slot does not hold the highest mark."""
    data = (custody.path / "marks" / f"{name.hex()}.mark").read_bytes()
    return 0 if int.from_bytes(data[:8], "little") != highest else 1


def test_a_forged_mark_is_refused(ledger: Ledger, path: Path) -> None:
    ask(ledger, 0)
    file = Custody.of_user().path / "marks" / f"{ledger.id.hex()}.mark"
    file.write_bytes(bytes(len(file.read_bytes()) * 2))
    with pytest.raises(PrivacyError, match="damaged or was changed"):
        Ledger.read(path)


def test_a_ledger_that_goes_with_its_run_leaves_no_mark(tmp_path: Path) -> None:
    ledger = Ledger.open(
        tmp_path / "frame", dataset="a", epsilon=1.0, delta=DELTA, lasting=False
    )
    ask(ledger)
    assert Custody.of_user().mark(ledger.id) == BEGINNING
    ledger.close()


# -- the key -------------------------------------------------------------------


def test_a_ledger_of_another_key_is_refused_until_its_owner_adopts_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = opened(path)
    ask(ledger, 0)
    spent = ledger.spent()
    ledger.close()
    monkeypatch.setenv("CIPHERBAYES_STATE", str(tmp_path / "new-machine"))
    with pytest.raises(PrivacyError, match="another key") as refused:
        Ledger.read(path)
    assert "--adopt" in refused.value.remedy
    adopted = Ledger.read(path, adopt=True)
    assert adopted.spent() == spent
    assert adopted.id == ledger.id
    # From now on it has a mark here too.
    assert Custody.of_user().mark(ledger.id) == adopted.head
    adopted.close()


def test_an_edited_ledger_cannot_be_adopted(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = opened(path)
    for number in range(3):
        ask(ledger, number)
    ledger.close()
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM entries WHERE number = 2")
    database.close()
    monkeypatch.setenv("CIPHERBAYES_STATE", str(tmp_path / "new-machine"))
    with pytest.raises(PrivacyError, match="damaged"):
        Ledger.read(path, adopt=True)


def test_the_key_lies_in_a_folder_of_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIPHERBAYES_STATE", str(tmp_path / "state"))
    before = os.umask(0)
    try:
        ledger = opened(tmp_path / "north.ledger")
        ask(ledger)
        ledger.close()
    finally:
        os.umask(before)
    for file in (tmp_path / "state").rglob("*"):
        assert file.stat().st_mode & 0o077 == 0, file
    (tmp_path / "state" / "seal.key").chmod(0o644)
    with pytest.raises(CryptoError, match="other users"):
        Ledger.read(tmp_path / "north.ledger")


def test_the_usual_place_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CIPHERBAYES_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert Custody.of_user().path == tmp_path / "cipherbayes"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Custody.of_user().path == tmp_path / ".local" / "state" / "cipherbayes"


# -- loose files ---------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o644, 0o666])
@pytest.mark.parametrize("ending", ["", "-wal"])
def test_a_ledger_that_others_can_open_is_refused(
    ledger: Ledger, path: Path, mode: int, ending: str
) -> None:
    ask(ledger)
    Path(f"{path}{ending}").chmod(mode)
    with pytest.raises(PrivacyError, match="opened by other users") as refused:
        Ledger.read(path)
    assert "chmod 600" in refused.value.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_ledger_of_another_user_is_refused(ledger: Ledger, path: Path) -> None:
    os.chown(path, 12345, -1)
    with pytest.raises(PrivacyError, match="another user"):
        Ledger.read(path)


# -- the end of a run ----------------------------------------------------------


def test_a_run_that_is_over_keeps_its_charges_and_no_answer(path: Path) -> None:
    ledger = opened(path)
    answers = [ask(ledger, n, compute=lambda: os.urandom(64)) for n in range(3)]
    other = ask(ledger, 0, run=b"another", compute=lambda: os.urandom(64))
    spent = ledger.spent()
    assert any(answers[0] in file.read_bytes() for file in path.parent.iterdir())
    ledger.end(b"run", "north")
    for file in path.parent.iterdir():
        content = file.read_bytes()
        assert not any(answer in content for answer in answers), file
    assert [entry.kept for entry in ledger.entries()] == [False] * 3 + [True]
    for book in (ledger, Ledger.read(path)):
        for number in (0, 2, 3):
            with pytest.raises(PrivacyError, match="the run is over"):
                ask(book, number, compute=never)
        assert ask(book, 0, run=b"another", compute=never) == other
        assert book.spent() == spent
        book.end(b"run", "north")  # twice is once
        book.end(b"no run", "north")
    assert Ledger.read(path).head == ledger.head
    ledger.close()


# -- version 1 -----------------------------------------------------------------


def version_1(path: Path, rounds: int, tamper: str = "") -> None:
    """A ledger as the first version wrote it."""
    database = sqlite3.connect(path, isolation_level=None)
    path.chmod(0o600)
    database.execute("PRAGMA journal_mode = WAL")
    database.executescript(
        "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;"
        "CREATE TABLE entries (number INTEGER PRIMARY KEY, time TEXT NOT NULL, "
        "run BLOB NOT NULL, round INTEGER NOT NULL, purpose TEXT NOT NULL, "
        "study BLOB NOT NULL, question BLOB NOT NULL, event TEXT NOT NULL, "
        "epsilon REAL NOT NULL, answer BLOB NOT NULL, link BLOB NOT NULL, "
        "UNIQUE (run, round, purpose)) STRICT;"
    )
    facts = {
        "version": "1", "dataset": "north.csv", "epsilon": "1.0", "delta": repr(DELTA),
    }  # fmt: skip
    link = b""
    for number in range(1, rounds + 1):
        row = (
            number, "2026-01-01T00:00:00+00:00", b"run", number - 1, "gradient",
            b"study", b"theta", to_json(GaussianSum(SIGMA)), 0.1 * number,
            b"a vector of one site" + os.urandom(8),
        )  # fmt: skip
        link = chain(link, row)
        marks = ", ".join("?" * 11)
        database.execute(f"INSERT INTO entries VALUES ({marks})", (*row, link))
    text = "|".join(f"{k}={v}" for k, v in sorted(facts.items()))
    facts["seal"] = hashlib.sha256(link + text.encode()).hexdigest()
    database.executemany("INSERT INTO about VALUES (?, ?)", facts.items())
    if tamper:
        database.execute(tamper)
    database.close()


def test_a_ledger_of_version_1_is_upgraded_and_what_is_spent_stays_spent(
    path: Path,
) -> None:
    version_1(path, 12)
    # Its seal needs no key, so anyone could have made it: the owner must say so.
    with pytest.raises(PrivacyError, match="--adopt"):
        opened(path)
    ledger = Ledger.read(path, adopt=True)
    entries = list(ledger.entries())
    assert [entry.number for entry in entries] == list(range(1, 13))
    assert [entry.epsilon for entry in entries] == [0.1 * n for n in range(1, 13)]
    fresh = opened(path.with_name("fresh"))
    for number in range(12):
        ask(fresh, number)
    assert ledger.spent() == fresh.spent()
    assert ledger.epsilon == 1.0
    # Its runs are over: nobody knows which site their answers were for.
    with pytest.raises(PrivacyError, match="the run is over"):
        ask(ledger, 3, compute=never)
    assert len(ask(ledger, 0, run=b"a new run")) == 16
    for file in path.parent.glob(f"{path.name}*"):
        assert b"a vector of one site" not in file.read_bytes()
    ledger.close()
    Ledger.read(path).close()


def test_an_old_copy_of_version_1_is_known_after_the_upgrade(path: Path) -> None:
    version_1(path, 2)
    backup(path, path.with_name("old"))
    ledger = Ledger.read(path, adopt=True)
    ask(ledger, 0, run=b"a new run")
    ledger.close()
    restore(path.with_name("old"), path)
    with pytest.raises(PrivacyError, match="old copy"):
        Ledger.read(path, adopt=True)


def test_an_upgrade_that_was_undone_can_be_done_again(path: Path) -> None:
    version_1(path, 2)
    backup(path, path.with_name("old"))
    Ledger.read(path, adopt=True).close()
    restore(path.with_name("old"), path)
    ledger = Ledger.read(path, adopt=True)
    assert len(list(ledger.entries())) == 2
    ledger.close()


@pytest.mark.parametrize(
    "tamper",
    [
        "DELETE FROM entries WHERE number = 2",
        "UPDATE about SET value = '9.0' WHERE name = 'epsilon'",
        "UPDATE entries SET epsilon = 0.0",
    ],
)
def test_a_damaged_ledger_of_version_1_is_refused_and_left_as_it_is(
    path: Path, tamper: str
) -> None:
    version_1(path, 2, tamper)
    before = path.read_bytes()
    with pytest.raises(PrivacyError, match="damaged"):
        Ledger.read(path, adopt=True)
    assert path.read_bytes() == before


# -- invariants under kills ----------------------------------------------------


class Killed(BaseException):
    """The process ends here: nothing behind this point happens."""


class Mortal:
    """A connection of a process that is killed before its n-th statement."""

    def __init__(self, database: sqlite3.Connection, left: int) -> None:
        self._database = database
        self._left = left

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    @property
    def in_transaction(self) -> bool:
        # A dead process rolls nothing back by itself; closing the file does.
        return self._left >= 0 and self._database.in_transaction

    def execute(self, statement: str, *values: object) -> object:
        self._left -= 1
        if self._left < 0:
            raise Killed
        return self._database.execute(statement, *values)  # type: ignore[arg-type]


STEPS = st.tuples(
    st.integers(0, 3),  # round
    st.sampled_from(["north", "south"]),
    st.sampled_from([b"theta", b"other"]),
    st.integers(1, 60),  # statements until the kill; most releases need fewer
    st.sampled_from(["answers", "fails"]),
)


@pytest.mark.slow
@given(steps=st.lists(STEPS, min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_whatever_dies_every_answer_is_charged_first_and_stays_the_only_one(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    path = tmp_path_factory.mktemp("kills") / "north.ledger"
    opened(path, epsilon=0.5).close()
    given: dict[tuple[str, int], tuple[bytes, bytes]] = {}
    computed: set[tuple[str, int]] = set()
    charged = 0
    for round, site, question, left, way in steps:
        ledger = Ledger.read(path)
        database = ledger._database

        def compute(key: Any = (site, round), way: Any = way) -> bytes:
            # (2): an entry is on disk before anything is computed.
            assert key in {(e.site, e.round) for e in Ledger.read(path).entries()}
            computed.add(key)
            if way == "fails":
                raise ArithmeticError
            return os.urandom(8)

        ledger._database = Mortal(database, left)  # type: ignore[assignment]
        try:
            answer = ask(ledger, round, site=site, question=question, compute=compute)
        except (Killed, ArithmeticError, PrivacyError):
            answer = None
        database.close()
        if answer is not None:
            # (3): one answer for ever, to one question.
            known = given.setdefault((site, round), (question, answer))
            assert known == (question, answer)
        again = Ledger.read(path)
        entries = list(again.entries())
        keys = [(entry.site, entry.round) for entry in entries]
        assert len(keys) == len(set(keys)) >= charged
        charged = len(keys)
        assert computed <= set(keys)
        assert set(given) <= {(e.site, e.round) for e in entries if e.kept}
        # (1): whatever happened, within the budget.
        assert again.spent() <= 0.5 * (1 + 1e-9)
        again.close()


def test_a_ledger_on_a_failing_disk_is_not_called_damaged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever believed it would write an old copy over a good ledger."""
    opened(path).close()

    def fails(database: object) -> dict[str, str]:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(ledger_file, "facts_of", fails)
    with pytest.raises(PrivacyError) as refused:
        Ledger.read(path)
    assert "damaged" not in str(refused.value)
    assert "disk" in refused.value.remedy


def test_adopting_a_ledger_still_asks_this_users_mark(path: Path) -> None:
    """Also where the ledger says of itself that it has none."""
    ledger = opened(path)
    for number in range(3):
        ask(ledger, number)
    ledger.close()
    database = sqlite3.connect(path)
    for table in ("entries", "answers", "vectors"):
        database.execute(f"DELETE FROM {table}")
    database.execute("UPDATE about SET value = 'no' WHERE name = 'lasting'")
    database.execute("UPDATE about SET value = '00' WHERE name = 'key'")
    database.commit()
    database.close()
    with pytest.raises(PrivacyError, match="mark"):
        Ledger.read(path, adopt=True)

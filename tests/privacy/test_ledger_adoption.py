"""A ledger of another key or of version 1 opens once its owner adopts it."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

import pytest
from ledgers import (
    DELTA,
    SIGMA,
    ask,
    backup,
    never,
    opened,
    path,
    restore,
)

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy.events import GaussianSum, to_json
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.ledger_file import chain
from cipherbayes.storage.custody import Custody

__all__ = ["path"]


# -- another key --------------------------------------------------------------


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

"""Copies of ledgers: whole, without answers, and never a budget given back."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cipherbayes.errors import BudgetError, PrivacyError
from cipherbayes.privacy.events import GaussianSum
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.ledger_backup import copy_ledger, restore_ledger
from terminal import cipherbayes

RUN = b"r" * 16


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger with one answer of a run that goes on."""
    path = tmp_path / "t.ledger"
    Ledger.open(path, dataset="t", epsilon=3.0, delta=1e-5).close()
    release(path, 0)
    return path


def release(path: Path, number: int) -> bytes:
    book = Ledger.read(path)
    try:
        return book.release(
            run=RUN, site="a", round=number, purpose="gradient", study=bytes(32),
            question=bytes(32), event=GaussianSum(4.0), compute=lambda: b"ANSWER-6713",
        )  # fmt: skip
    finally:
        book.close()


def spent(path: Path) -> tuple[float, float]:
    book = Ledger.read(path)
    try:
        return book.spent(), book.epsilon
    finally:
        book.close()


def lose(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def new_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CIPHERBAYES_STATE", str(tmp_path / "new-state"))


def test_a_copy_has_the_charges_and_no_answer(ledger: Path, tmp_path: Path) -> None:
    copy = tmp_path / "backup" / "t.copy"
    copy_ledger(ledger, copy)
    assert os.stat(copy).st_mode & 0o777 == 0o600
    assert b"ANSWER-6713" not in copy.read_bytes()
    assert not list(copy.parent.glob("*-wal"))
    with closing(sqlite3.connect(copy)) as database:
        assert database.execute("SELECT COUNT(*) FROM entries").fetchone() == (1,)
    assert release(ledger, 0) == b"ANSWER-6713"  # the ledger itself goes on
    with pytest.raises(PrivacyError, match="exists already"):
        copy_ledger(ledger, copy)


def test_answers_are_in_no_file_of_a_copy_at_any_moment(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill would leave it there for ever."""
    folder = tmp_path / "backup"

    class Looking(sqlite3.Connection):
        def execute(self, *statement: Any) -> sqlite3.Cursor:
            for file in folder.glob(".*"):
                assert b"ANSWER-6713" not in file.read_bytes()
            return super().execute(*statement)

    real = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *a, **k: real(*a, **k, factory=Looking)
    )
    copy_ledger(ledger, folder / "t.copy")


def test_the_newest_copy_keeps_its_budget(ledger: Path, tmp_path: Path) -> None:
    before = spent(ledger)
    copy_ledger(ledger, tmp_path / "copy")
    lose(ledger)
    assert restore_ledger(tmp_path / "copy", ledger)
    assert spent(ledger) == before
    # Its runs are over: the answer of round 0 is gone, and no other is given.
    with pytest.raises(PrivacyError, match="over"):
        release(ledger, 0)


def test_an_old_copy_is_refused(ledger: Path, tmp_path: Path) -> None:
    copy_ledger(ledger, tmp_path / "copy")
    release(ledger, 1)
    lose(ledger)
    with pytest.raises(PrivacyError, match="is an old copy"):
        restore_ledger(tmp_path / "copy", ledger)
    assert not ledger.exists()
    assert [p.name for p in tmp_path.glob("*partial*")] == []


def test_a_copy_on_a_new_machine_has_nothing_left(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, _ = spent(ledger)
    copy_ledger(ledger, tmp_path / "copy")
    release(ledger, 1)
    lose(ledger)
    new_machine(monkeypatch, tmp_path)
    assert not restore_ledger(tmp_path / "copy", ledger)
    left, budget = spent(ledger)
    assert left == pytest.approx(once)
    assert budget == pytest.approx(once)
    book = Ledger.read(ledger)
    with pytest.raises(BudgetError):
        book.release(
            run=b"s" * 16, site="a", round=0, purpose="gradient", study=bytes(32),
            question=bytes(32), event=GaussianSum(400.0), compute=lambda: b"",
        )  # fmt: skip
    book.set_budget(3.0)
    book.close()
    assert spent(ledger)[1] == 3.0


def test_a_copy_restored_twice_has_no_more_left(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_ledger(ledger, tmp_path / "copy")
    release(ledger, 1)
    lose(ledger)
    new_machine(monkeypatch, tmp_path)
    for _ in range(3):
        assert not restore_ledger(tmp_path / "copy", ledger)
        once, budget = spent(ledger)
        assert budget == once
        lose(ledger)
    # Nor after it was put back and used: what came since is not in the copy.
    assert not restore_ledger(tmp_path / "copy", ledger)
    book = Ledger.read(ledger)
    book.set_budget(9.0)
    book.close()
    lose(ledger)
    with pytest.raises(PrivacyError, match="is an old copy"):
        restore_ledger(tmp_path / "copy", ledger)


def test_a_copy_of_a_ledger_without_charges_opens_nothing_on_a_new_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "t.ledger"
    Ledger.open(ledger, dataset="t", epsilon=3.0, delta=1e-5).close()
    copy_ledger(ledger, tmp_path / "copy")
    release(ledger, 0)
    lose(ledger)
    new_machine(monkeypatch, tmp_path)
    assert not restore_ledger(tmp_path / "copy", ledger)
    with pytest.raises(BudgetError):
        release(ledger, 0)


def test_a_lower_budget_is_not_raised_by_an_older_file(
    ledger: Path, tmp_path: Path
) -> None:
    copy_ledger(ledger, tmp_path / "copy")
    shutil.copy(ledger, tmp_path / "older")
    book = Ledger.read(ledger)
    book.set_budget(1.0)
    book.close()
    lose(ledger)
    with pytest.raises(PrivacyError, match="is an old copy"):
        restore_ledger(tmp_path / "copy", ledger)
    shutil.copy(tmp_path / "older", ledger)
    ledger.chmod(0o600)
    with pytest.raises(PrivacyError, match="is an old copy"):
        Ledger.read(ledger)


def test_a_copy_put_back_by_hand_opens_nothing(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_ledger(ledger, tmp_path / "copy")
    release(ledger, 1)
    lose(ledger)
    shutil.copy(tmp_path / "copy", ledger)
    ledger.chmod(0o600)
    with pytest.raises(PrivacyError):
        Ledger.read(ledger)
    new_machine(monkeypatch, tmp_path)
    with pytest.raises(PrivacyError, match="sealed with another key"):
        Ledger.read(ledger)


def test_a_ledger_that_is_there_is_never_replaced(ledger: Path, tmp_path: Path) -> None:
    copy_ledger(ledger, tmp_path / "copy")
    release(ledger, 1)
    after = spent(ledger)
    with pytest.raises(PrivacyError, match="exists already"):
        restore_ledger(tmp_path / "copy", ledger)
    assert spent(ledger) == after


@pytest.mark.parametrize("statement", [
    "UPDATE about SET value = '900.0' WHERE name = 'epsilon'",
    "DELETE FROM entries",
    "UPDATE entries SET epsilon = 0",
])  # fmt: skip
def test_a_copy_that_was_changed_is_refused(
    ledger: Path, tmp_path: Path, statement: str
) -> None:
    copy_ledger(ledger, tmp_path / "copy")
    lose(ledger)
    with closing(sqlite3.connect(tmp_path / "copy")) as database:
        database.execute(statement)
        database.commit()
    with pytest.raises(PrivacyError):
        restore_ledger(tmp_path / "copy", ledger)
    assert not ledger.exists()


def test_the_command_copies_and_restores(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = cipherbayes("ledger", ledger, "--copy", tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    lose(ledger)
    new_machine(monkeypatch, tmp_path)
    done = cipherbayes("ledger", ledger, "--restore", tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    assert "nothing is left of the budget" in " ".join(done.stdout.split())

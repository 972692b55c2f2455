"""A ledger whose disk, file or memory fails releases nothing that it cannot keep."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from ledgers import ask, ledger, never, path

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy import ledger_records
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.storage.private_files import sync_file

__all__ = ["ledger", "path"]


def test_the_journal_of_a_linked_ledger_is_brought_to_disk(
    ledger: Ledger, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.close()
    link = tmp_path / "link.ledger"
    link.symlink_to(path)
    synced: list[Path] = []

    def seen(file: Path) -> None:
        sync_file(file)
        synced.append(file)

    monkeypatch.setattr(ledger_records, "sync_file", seen)
    linked = Ledger.read(link)
    ask(linked)
    linked.close()
    assert synced
    assert {str(file) for file in synced} == {f"{path.resolve()}-wal"}


def test_the_name_of_the_journal_is_on_disk_before_the_first_answer_leaves(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(ledger_records, "sync_folder", synced.append)
    ask(ledger)
    ask(ledger, 1)
    assert synced == [path.resolve().parent]


@pytest.mark.parametrize("failing", ["gone", "disk"])
def test_what_may_not_be_on_disk_never_leaves_not_even_later(
    ledger: Ledger, path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(ledger)
    if failing == "gone":
        Path(f"{path}-wal").unlink()
    else:

        def fails(file: Path) -> None:
            raise OSError

        monkeypatch.setattr(ledger_records, "sync_file", fails)
    with pytest.raises(PrivacyError, match="cannot be written"):
        ask(ledger, 1)
    monkeypatch.undo()
    with pytest.raises(PrivacyError, match="start it again"):
        ask(ledger, 1, compute=never)


def test_a_failure_after_a_commit_costs_the_program_and_not_the_ledger(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask(ledger)

    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ledger_records, "Head", fails)
    with pytest.raises(MemoryError):
        ask(ledger, 1)
    monkeypatch.undo()
    for number in (0, 1, 2):
        with pytest.raises(PrivacyError, match="start it again"):
            ask(ledger, number, compute=never)
    ledger.close()
    again = Ledger.read(path)
    assert ask(again, compute=never) == first
    ask(again, 1)
    assert [entry.round for entry in again.entries()] == [0, 1]
    again.close()


@pytest.mark.parametrize("edit", ["lost", "exchanged", "uncharged"])
def test_an_answer_that_is_edited_away_is_not_given_a_second_time(
    ledger: Ledger, path: Path, edit: str
) -> None:
    first = ask(ledger)
    ask(ledger, 1)
    with closing(sqlite3.connect(path)) as other, other:
        if edit == "exchanged":
            other.execute(
                "UPDATE vectors SET answer = ? WHERE number = 1",
                (os.urandom(len(first)),),
            )
        else:
            other.execute("DELETE FROM answers WHERE number = 1")
            other.execute("DELETE FROM vectors WHERE number = 1")
        if edit == "uncharged":
            other.execute("DELETE FROM entries WHERE number = 1")
    with pytest.raises(PrivacyError, match="damaged"):
        ask(ledger, compute=never)

"""The ledger's file is private, and survives tampering."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
from pathlib import Path

import pytest
from ledgers import DELTA, ask, ledger, never, opened, path

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy import ledger_file
from cipherbayes.privacy.events import GaussianSum, to_json
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.ledger_file import Answer, Charge, End
from cipherbayes.storage.custody import Custody, Head

__all__ = ["ledger", "path"]


# -- the file ----------------------------------------------------------------


def test_only_the_owner_can_read_the_file(ledger: Ledger, path: Path) -> None:
    ask(ledger)
    files = list(path.parent.iterdir())
    assert path in files
    assert not [file for file in files if file.name.endswith(".partial")]
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def test_a_leftover_of_a_killed_beginning_blocks_nobody(path: Path) -> None:
    leftover = path.with_name(f".{path.name}.{os.getpid()}.partial")
    leftover.write_bytes(b"half a ledger")
    ledger = opened(path)
    assert len(ask(ledger)) == 16
    ledger.close()


def test_the_ledger_of_another_table_is_refused(ledger: Ledger, path: Path) -> None:
    with pytest.raises(PrivacyError, match=r"another table \('north.csv'\)"):
        Ledger.open(path, dataset="south.csv", epsilon=1.0, delta=DELTA)


def test_a_missing_ledger_is_not_begun_by_reading_it(path: Path) -> None:
    with pytest.raises(PrivacyError, match="no such ledger"):
        Ledger.read(path)
    with pytest.raises(PrivacyError, match="no such ledger"):
        Ledger.read(path.parent)
    assert not path.exists()


TAMPERINGS = {
    "a cheaper event": "UPDATE entries SET event = replace(event, '.', '9.')",
    "a smaller epsilon": "UPDATE entries SET epsilon = epsilon / 2 WHERE number = 2",
    "another answer": "UPDATE vectors SET answer = x'00' WHERE number = 1",
    "an answer taken back": "DELETE FROM answers WHERE number = 3",
    "an answer gone": "DELETE FROM vectors WHERE number = 3",
    "another digest": "UPDATE answers SET digest = x'00' WHERE number = 2",
    "a run that is over": "INSERT INTO ended VALUES (7, '', x'', '', x'')",
    "another question": "UPDATE entries SET question = x'00' WHERE number = 3",
    "the first entry lost": "DELETE FROM entries WHERE number = 1",
    "the last entry lost": "DELETE FROM entries WHERE number = 3",
    "all entries lost": "DELETE FROM entries",
    "entries renumbered": "UPDATE entries SET number = number + 10",
    "a larger budget": "UPDATE about SET value = '100.0' WHERE name = 'epsilon'",
    "a larger delta": "UPDATE about SET value = '0.5' WHERE name = 'delta'",
    "no budget": "DELETE FROM about WHERE name = 'epsilon'",
    "no seal": "DELETE FROM about WHERE name = 'seal'",
    "another version": "UPDATE about SET value = '9' WHERE name = 'version'",
    "no table of entries": "DROP TABLE entries",
    "no facts": "DROP TABLE about",
}


@pytest.mark.parametrize("tampering", sorted(TAMPERINGS))
def test_a_tampered_ledger_is_refused(path: Path, tampering: str) -> None:
    ledger = opened(path)
    for number in range(3):
        ask(ledger, number)
    ledger.close()
    database = sqlite3.connect(path)
    database.execute(TAMPERINGS[tampering])
    database.commit()
    database.close()
    assert_refused(path)


def test_tampering_under_an_open_ledger_is_refused_too(
    ledger: Ledger, path: Path
) -> None:
    ask(ledger, 0)
    database = sqlite3.connect(path)
    database.execute("UPDATE about SET value = '100.0' WHERE name = 'epsilon'")
    database.commit()
    database.close()
    with pytest.raises(PrivacyError, match="damaged"):
        ask(ledger, 1, compute=never)
    with pytest.raises(PrivacyError, match="damaged"):
        ledger.spent()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9])
def test_a_truncated_ledger_is_refused(path: Path, share: float) -> None:
    ledger = opened(path)
    for number in range(10):
        ask(ledger, number, compute=lambda: os.urandom(4000))
    ledger.close()
    os.truncate(path, int(path.stat().st_size * share))
    assert_refused(path)


def test_what_is_no_database_is_refused(path: Path) -> None:
    path.touch(mode=0o600)
    path.write_text("time,event\n1,0\n" * 1000, encoding="utf-8")
    assert_refused(path)
    path.write_bytes(os.urandom(8192))
    assert_refused(path)


def test_somebody_elses_database_is_refused_and_left_as_it_is(path: Path) -> None:
    database = sqlite3.connect(path)
    path.chmod(0o600)
    database.execute("CREATE TABLE patients (name TEXT)")
    database.commit()
    database.close()
    before = path.read_bytes()
    assert_refused(path)
    assert path.read_bytes() == before


def assert_refused(path: Path) -> None:
    for attempt in (lambda: Ledger.read(path), lambda: opened(path)):
        with pytest.raises(PrivacyError, match="damaged, was changed, or is no") as no:
            attempt()  # type: ignore[no-untyped-call]
        assert "\n" not in str(no.value)
        assert str(path) in str(no.value)
        assert no.value.remedy


def test_a_ledger_that_cannot_be_written_releases_nothing(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger._records.database.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(PrivacyError, match="cannot be written, so nothing"):
        ask(ledger, compute=never)
    other.execute("ROLLBACK")
    other.close()
    assert len(ask(ledger)) == 16


# -- the format --------------------------------------------------------------


def test_ledgers_of_older_installations_stay_readable(path: Path) -> None:
    """Tables, chain, seal and mark, byte for byte: these figures must never change."""
    tables = ledger_file.ABOUT + ledger_file.SCHEMA
    assert hashlib.sha256(tables.encode()).hexdigest() == (
        "c973057d2ac55ac8886eb4daa187ad408575a8dc8bed09787eff4b237382ddc1"
    )
    time = "2026-01-01T00:00:00+00:00"
    event = to_json(GaussianSum(3.5))
    records: list[Charge | Answer | End] = [
        Charge(1, 1, time, b"run", "north", 0, "gradient", b"study", b"theta", event,
               0.125),
        Answer(2, 1, ledger_file.answer_digest(bytes(32), b"answer")),
        End(3, time, b"run", "north"),
    ]  # fmt: skip
    link, links = b"", []
    for record in records:
        link = ledger_file.link_of(link, record)
        links.append(link.hex())
    assert links == [
        "d515f99b7297c7627477cad7fca090e9f08540948236084da8da674024606701",
        "354b558696d3ad857bfbe7592fece485d09586b02ca6d14296792c744c949837",
        "0ea002a2071711aee3d70346469ceee4acf8e702deebeead3b16d6a821d147ce",
    ]
    custody = Custody(path.parent / "state")
    (custody.path).mkdir(mode=0o700)
    (custody.path / "seal.key").touch(mode=0o600)
    (custody.path / "seal.key").write_bytes(bytes(range(32)))
    facts = ledger_file.new_facts("north.csv", 1.0, 1e-5, custody, lasting=True)
    assert facts == {
        "version": "2",
        "id": facts["id"],
        "key": "61f3d38bf0ad18232643a9bc83442de9",
        "dataset": "north.csv",
        "epsilon": "1.0",
        "delta": "1e-05",
        "lasting": "yes",
    }
    facts["id"] = "00" * 16
    assert ledger_file.seal(facts, link, custody) == (
        "69c6ac7a7438d1984a1fe106c5b7159c9a9eae1dcaa3e971c34f4d79af6a3412"
    )
    custody.raise_mark(bytes(16), Head(3, link), lambda known: None)
    mark = custody.path / "marks" / f"{bytes(16).hex()}.mark"
    assert mark.read_bytes().hex() == (
        "03000000000000000ea002a2071711aee3d70346469ceee4acf8e702deebeead3b16d6a821d1"
        "47cee2decbb191a18b0444bca392320af5afa179d0de08eaeaa02fcb3ba8b01b1dff"
    )

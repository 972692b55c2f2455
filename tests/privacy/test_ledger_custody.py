"""Old copies, forged marks and files that others can open are refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import DELTA, ask, backup, ledger, opened, path, restore

from cipherbayes.errors import CryptoError, PrivacyError
from cipherbayes.privacy import ledger_file
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.storage.custody import BEGINNING, ID_BYTES, Custody, Head

__all__ = ["ledger", "path"]


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
    state.raise_mark(ledger.id, mark, lambda known: None)
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
        link = hashlib.sha256(bytes([count])).digest()
        custody.raise_mark(name, Head(count, link), lambda known: None)
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


# -- a failing disk -------------------------------------------------------------


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


TEXTS = st.text(st.sampled_from("ab|="), max_size=6)
PAIRS = st.dictionaries(
    st.sampled_from(sorted(ledger_file.FACTS)) | TEXTS,
    TEXTS | st.sampled_from(["1|epsilon=9", "|delta=1|", "x|put back=yes"]),
    max_size=5,
)


@given(one=PAIRS, other=PAIRS)
def test_other_facts_have_another_seal(
    one: dict[str, str], other: dict[str, str]
) -> None:
    same = ledger_file.facts_text(one) == ledger_file.facts_text(other)
    assert same == (one == other)


def test_a_budget_cannot_be_taken_from_a_tables_name(tmp_path: Path) -> None:
    """The name, told as name and budget, is not what was sealed."""
    path = tmp_path / "lab.ledger"
    name = f"lab|delta={DELTA}|epsilon=100.0|f=.csv"
    ledger = Ledger.open(path, dataset=name, epsilon=1.0, delta=DELTA)
    ledger.close()
    assert Ledger.open(path, dataset=name, epsilon=1.0, delta=DELTA).dataset == name
    told = {
        "dataset": "lab",
        "epsilon": "100.0",
        "f": f".csv|delta={DELTA}|epsilon=1.0",
    }
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", told.items())
    with pytest.raises(PrivacyError, match="was changed"):
        Ledger.open(path, dataset="lab", epsilon=100.0, delta=DELTA)


def test_where_a_ledger_lies_cannot_be_taken_for_its_name(tmp_path: Path) -> None:
    """The register's MAC covers both, one behind the other."""
    custody, ledger = Custody.of_user(), b"i" * ID_BYTES
    custody.register("content", b"digest", ledger, tmp_path / "north.ledger")
    known = custody.registered("content", b"digest")
    assert known is not None
    entry = json.loads(known.file.read_text())
    path = entry["path"].encode()
    moved = {"ledger": (ledger + path[:1]).hex(), "path": path[1:].decode()}
    known.file.write_text(json.dumps(entry | moved))
    with pytest.raises(PrivacyError, match="was changed"):
        custody.registered("content", b"digest")

"""Somebody who reads files, logs, errors and messages, or changes what lies on disk."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import stat
import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parties import small_study, write_tables

from cipherbayes.engine.in_process import LocalCsp, LocalSite
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.errors import CipherbayesError, PrivacyError, ProtocolError, RunError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.ledger_records import LedgerRecords
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.results.run import resume, run
from cipherbayes.study.schema import Study
from conftest import logistic_frame

# A value that no computation makes by itself, as a row of each table has it.
SECRET = 67.12345678901234


def marked(folder: Path) -> Study:
    """Tables of which every row holds the secret value."""
    study = write_tables(folder, small_study(("a", "b")))
    for name in ("a", "b"):
        frame = logistic_frame(60, seed=ord(name)).assign(age=SECRET)
        frame.loc[:5, "age"] = [20.0, 30.0, 40.0, 50.0, 60.0, 70.0]
        frame.to_csv(folder / f"{name}.csv", index=False)
    return study


def traces(content: bytes) -> bool:
    """Whether bytes hold the secret: as text, as a float, raw or prepared."""
    prepared = (SECRET - 18.0) / (100.0 - 18.0) * 2.0 - 1.0
    wanted = [b"67.12345678", f"{prepared:.9f}".encode()]
    wanted += [np.array([v]).tobytes() for v in (SECRET, prepared)]
    return any(each in content for each in wanted)


@pytest.fixture
def overheard(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every message that passes between the parties."""
    passed: list[bytes] = []
    for owner, names in (
        (LocalSite, ("enrol", "join", "ask", "answer")),
        (LocalCsp, ("offer", "join", "decrypt")),
    ):
        for name in names:
            honest = getattr(owner, name)

            def spy(self: Any, *data: bytes, honest: Any = honest) -> Any:
                answer = honest(self, *data)
                passed.extend(x for x in (*data, answer) if isinstance(x, bytes))
                return answer

            monkeypatch.setattr(owner, name, spy)
    return passed


def found(study: Study, home: Path, overheard: list[bytes], caplog: Any) -> list[str]:
    """Where an outsider finds a row's value after a run."""
    overheard.clear()
    caplog.clear()
    out = home / "run"
    with caplog.at_level(logging.DEBUG):
        run(study, out=out)
    places = [str(file) for file in out.rglob("*") if file.is_file()]
    places += [str(file) for file in home.glob("*.ledger*")]
    seen = [place for place in places if traces(Path(place).read_bytes())]
    seen += ["a message"] * any(map(traces, overheard))
    seen += ["a log"] * traces(caplog.text.encode())
    return seen


def test_no_rows_value_is_in_a_file_a_log_or_a_message(
    tmp_path: Path,
    overheard: list[bytes],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    study = marked(tmp_path / "calm")
    assert traces((tmp_path / "calm" / "a.csv").read_bytes())
    assert found(study, tmp_path / "calm", overheard, caplog) == []
    assert len(overheard) > 20
    # The same search finds a leak where there is one.
    honest = Contributions.total

    def careless(self: Any, *args: Any) -> Any:
        logging.getLogger("cipherbayes.site").debug("first row: %r", SECRET)
        return honest(self, *args)

    monkeypatch.setattr(Contributions, "total", careless)
    study = marked(tmp_path / "leaky")
    assert found(study, tmp_path / "leaky", overheard, caplog) == ["a log"]


BROKEN = {
    "text": "sixty-seven 67.12345678",
    "a date": "67.12345678-01-01",
    "too many fields": "67.12345678,67.12345678",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_no_error_quotes_a_rows_value(tmp_path: Path, kind: str) -> None:
    """Not its text, not what it came from, not the traceback's last line."""
    study = marked(tmp_path)
    path = tmp_path / "a.csv"
    lines = path.read_text().splitlines()
    lines[9] = f"{BROKEN[kind]},F,1"
    path.write_text("\n".join(lines))
    with pytest.raises(CipherbayesError) as refused:
        run(study, out=tmp_path / "run")
    assert "67.12" not in "".join(traceback.format_exception_only(refused.value))
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
    assert "line 10" in str(refused.value)


def test_a_run_from_python_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    modes: list[Any] = []

    def look(done: int, total: int) -> None:
        entries = (tmp_path / "temporary").iterdir()
        modes.extend(stat.S_IMODE(entry.stat().st_mode) for entry in entries)

    before = os.umask(0o022)
    try:
        study = small_study(("a", "b"))
        frames = {name: logistic_frame(60, seed=ord(name)) for name in ("a", "b")}
        run(study, frames, progress=look)
    finally:
        os.umask(before)
    assert set(modes) == {0o700}
    assert not list((tmp_path / "temporary").iterdir())


# -- tampering ------------------------------------------------------------------


def interrupted(folder: Path, rounds: int = 2) -> Path:
    """A run that stopped after two of four rounds."""
    study = write_tables(folder, small_study(("a", "b")))

    def stop(done: int, total: int) -> None:
        if done == rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(study, out=folder / "run", progress=stop)
    return folder / "run"


def test_a_cheaper_study_in_the_middle_of_a_run_is_refused_twice_over(
    tmp_path: Path,
) -> None:
    """The hash in run.json first; with a forged hash, the sites' ledgers."""
    out = interrupted(tmp_path)
    spent = Ledger.read(tmp_path / "a.csv.ledger").spent()
    file = out / "study.toml"
    file.write_text(file.read_text().replace("epsilon = 3.0", "epsilon = 0.3"))
    with pytest.raises(RunError, match="not the study"):
        resume(out)
    about = json.loads((out / "run.json").read_text())
    about["study"] = Study.load(file).fingerprint()
    (out / "run.json").write_text(json.dumps(about))
    for folder in ("server", "csp"):
        for memory in (out / folder).glob("*.sqlite*"):
            memory.unlink()
    with pytest.raises((RunError, ProtocolError)):
        resume(out)
    ledger = Ledger.read(tmp_path / "a.csv.ledger")
    assert (ledger.spent(), len(list(ledger.entries()))) == (spent, 2)


def test_another_run_id_buys_no_second_budget(tmp_path: Path) -> None:
    out = interrupted(tmp_path)
    about = json.loads((out / "run.json").read_text())
    about["run"] = "ab" * 16
    (out / "run.json").write_text(json.dumps(about))
    for folder in ("server", "csp"):
        for memory in (out / folder).glob("*.sqlite*"):
            memory.unlink()
    resume(out)
    for name in ("a", "b"):
        ledger = Ledger.read(tmp_path / f"{name}.csv.ledger")
        assert ledger.spent() <= 3.0 * (1 + 1e-9)
        assert len(list(ledger.entries())) == 4


def test_a_stranger_cannot_take_a_sites_place(tmp_path: Path) -> None:
    out = interrupted(tmp_path)
    shutil.rmtree(out / "sites" / "a" / "keys")
    with pytest.raises(ProtocolError, match="pins"):
        resume(out)


def edits(path: Path, statement: str) -> bool:
    """Whether an edited ledger is still believed."""
    copy = path.with_suffix(".edited")
    for ending in ("", "-wal"):  # the newest entries may be in the journal
        if Path(f"{path}{ending}").exists():
            shutil.copy(f"{path}{ending}", f"{copy}{ending}")
    database = sqlite3.connect(copy)
    with database:
        database.execute(statement)
    database.close()
    try:
        Ledger.read(copy).close()
    except PrivacyError:
        return False
    return True


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entries WHERE number = (SELECT MAX(number) FROM entries)",
        "DELETE FROM entries",
        "UPDATE about SET value = '30.0' WHERE name = 'epsilon'",
        "UPDATE about SET value = '0.5' WHERE name = 'delta'",
        "UPDATE entries SET event = replace(event, '\"noise_multiplier\":', "
        "'\"noise_multiplier\":9')",
        "UPDATE vectors SET answer = zeroblob(24)",
        "DELETE FROM answers",
        "UPDATE entries SET round = round + 100",
    ],
)
def test_an_edited_ledger_is_not_believed(
    tmp_path: Path, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path)
    path = tmp_path / "a.csv.ledger"
    assert not edits(path, statement)
    # Without chain, seal, digests and mark the same edit passes unseen.
    for check in ("refresh", "_check_answers", "_check_mark"):
        monkeypatch.setattr(LedgerRecords, check, lambda self, *mark: None)
    assert edits(path, statement)


def test_tampered_answers_of_the_csp_are_not_believed(tmp_path: Path) -> None:
    """They are signed: a changed total does not verify at the server."""
    out = interrupted(tmp_path, 1)
    for memory in (out / "server").glob("*"):
        memory.unlink()
    database = sqlite3.connect(out / "csp" / "answers.sqlite")
    (reply,) = database.execute("SELECT reply FROM answers").fetchone()
    forged = bytearray(reply)
    forged[-70] ^= 1
    with database:
        database.execute("UPDATE answers SET reply = ?", (bytes(forged),))
    database.close()
    with pytest.raises((ProtocolError, RunError)):
        resume(out)
    assert len(list(Ledger.read(tmp_path / "a.csv.ledger").entries())) == 1


def test_each_file_of_a_run_belongs_to_one_party(tmp_path: Path) -> None:
    """The server's part holds nothing that opens a message or names a row."""
    out = interrupted(tmp_path)
    folder = RunFolder.open(out)
    keys = [file.read_bytes()[-32:] for file in out.rglob("*.key")]
    assert len(keys) == 6
    for file in (out / "server").iterdir():
        content = file.read_bytes()
        assert not any(key in content for key in keys)
    assert folder.pinned().keys() == {"a", "b", "csp"}

"""A run that is over leaves no key of its own, and no site's vector."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from crashing import crash
from parties import Consortium, refusal, small_study, trajectory, write_tables

from cipherbayes.crypto.key_folder import KeyFolder
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.errors import CryptoError, RunError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.messages import Reason
from cipherbayes.results.run import resume, run

HEADERS = [{"protocol": "secure-sum"}, {"protocol": "pooled"}]
"""test_same_integers.py looks at parties in processes of their own."""


def vectors(path: Path) -> list[bytes]:
    database = sqlite3.connect(path)
    try:
        return [row[0] for row in database.execute("SELECT answer FROM vectors")]
    finally:
        database.close()


@pytest.mark.slow
@pytest.mark.parametrize("header", HEADERS)
def test_a_finished_run_has_erased_its_keys_and_the_sites_answers(
    tmp_path: Path, header: dict[str, str]
) -> None:
    study = write_tables(tmp_path, small_study(("a", "b"), header=header))
    out = tmp_path / "run"
    seen: list[Any] = []

    def look(done: int, total: int) -> None:
        for name in ("a", "b"):
            seen.extend(v for v in vectors(tmp_path / f"{name}.csv.ledger") if v)

    result = run(study, out=out, progress=look)
    assert seen
    left = {file.name for file in out.rglob("*.key")}
    assert left <= {"identity.key"}
    # A pooled total is released, and stays in the run's folder: no site's vector is.
    kept = [] if study.protocol == "pooled" else out.rglob("*")
    for file in (*kept, *tmp_path.glob("*.ledger*")):
        if file.is_file():
            content = file.read_bytes()
            assert not any(vector in content for vector in seen), file
    for name in ("a", "b"):
        ledger = Ledger.read(tmp_path / f"{name}.csv.ledger")
        assert [entry.kept for entry in ledger.entries()] == [False] * 4
        assert ledger.spent() == pytest.approx(result.certificate["spent"])


def test_no_party_of_a_finished_run_can_be_made_again(tmp_path: Path) -> None:
    run(write_tables(tmp_path, small_study(("a", "b"))), out=tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    for make in (folder.csp, lambda: folder.site("a")):
        with pytest.raises(CryptoError, match="the run is over"):
            make()
    with pytest.raises(RunError, match="finished"):
        resume(tmp_path / "run")


@pytest.mark.parametrize("point", ["before the result is saved", "before the end"])
def test_a_kill_near_the_end_costs_neither_the_result_nor_the_erasing(
    tmp_path: Path, point: str
) -> None:
    study, out = write_tables(tmp_path, small_study(("a", "b"))), tmp_path / "run"
    assert crash(study, out, point, 1) == -signal.SIGKILL
    assert list(out.rglob("*.exchange.key"))
    if point == "before the end":
        with pytest.raises(RunError, match="finished"):
            resume(out)
    else:
        resume(out)
    assert {file.name for file in out.rglob("*.key")} == {"identity.key"}
    assert len(trajectory(out)) == 4
    assert not vectors(tmp_path / "a.csv.ledger")


def test_a_party_that_is_told_the_end_answers_nothing_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    three = Consortium(tmp_path, small_study())
    three.play(4)
    last = three.request(round=3)
    erased = []
    for party in (three.sites["a"], three.csp):
        party.forget_keys = lambda: erased.append(1)
        party.end()
        party.end()
    assert erased
    no = refusal(three.sites["a"].handle(last))
    assert (no.reason, no.text) == (Reason.WRONG_RUN, "the run is over")
    # The CSP repeats no answer either.
    assert refusal(three.csp.handle(b"anything")).text == "the run is over"
    # After a restart the ledger says the same, to its owner.
    assert refusal(three.restart("a").handle(last)).reason is Reason.UNAVAILABLE
    assert "the run is over" in caplog.text


def test_keys_of_a_run_that_is_over_are_erased_and_not_made_again(
    tmp_path: Path,
) -> None:
    folder, one, other = KeyFolder(tmp_path / "keys"), b"1" * 16, b"2" * 16
    secret = folder.exchange_key(one).to_secret_bytes()[-32:]
    folder.exchange_key(other)
    content = folder.path / f"{one.hex()}.exchange.key"
    opened = content.open("rb")
    assert folder.forget(one) == 1
    # Not only its name is gone: an open file reads zeros.
    assert secret not in opened.read()
    opened.close()
    assert folder.forget(one) == 0
    with pytest.raises(CryptoError, match="the run is over"):
        folder.exchange_key(one)
    folder.exchange_key(other)
    assert [record.kind for record in folder.records()] == ["exchange"]

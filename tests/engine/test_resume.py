"""kill -9 at any point, then resume: the same θ, nothing released twice."""

from __future__ import annotations

import signal
import sqlite3
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from crashing import crash, crash_party
from parties import small_study, trajectory, write_tables

from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.errors import DataError, PrivacyError, RunError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.results.run import resume, run
from cipherbayes.study.schema import Study
from conftest import logistic_frame

KILLED = -signal.SIGKILL
ROUNDS = 5


def made(folder: Path, **changes: Any) -> Study:
    return write_tables(
        folder, small_study(("a", "b"), inference={"rounds": ROUNDS}, **changes)
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """θ of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run(made(folder), out=folder / "run")
    return trajectory(folder / "run")


def assert_whole(folder: Path, study: Study, expected: list[bytes]) -> None:
    """Every round there, every ledger with one entry a round, and the same θ."""
    assert trajectory(folder / "run") == expected
    for name in study.sites:
        entries = list(Ledger.read(folder / f"{name}.csv.ledger").entries())
        assert [entry.round for entry in entries] == list(range(len(entries)))
        assert len({entry.run for entry in entries}) == 1
    if study.protocol == "secure-sum":
        assert answers(folder / "run") == len(entries)


def answers(out: Path) -> int:
    database = sqlite3.connect(out / "csp" / "answers.sqlite")
    (count,) = database.execute("SELECT COUNT(*) FROM answers").fetchone()
    database.close()
    return count  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "number"),
    [
        ("before a site opens its ledger", 1),
        ("before a site opens its ledger", 2),
        ("before the key pair", 1),
        ("after the key pair", 1),
        ("before the sum over records", 1),
        ("before the ledger's commit", 1),
        ("before the ledger's commit", 2),
        ("before the ledger's commit", 6),
        ("after the ledger's commit", 1),
        ("after the ledger's commit", 2),
        ("after the ledger's commit", 7),
        ("after the ledger's commit", 10),
        ("before encryption", 4),
        ("after encryption", 5),
        ("before decryption", 1),
        ("before the CSP's memory", 1),
        ("before the CSP's memory", 5),
        ("after the CSP's memory", 1),
        ("after the CSP's memory", 3),
        ("after the CSP's memory", 5),
        ("before theta moves", 2),
        ("before the checkpoint", 1),
        ("before the checkpoint", 4),
        ("after the checkpoint", 1),
        ("after the checkpoint", 5),
        ("before the result is saved", 1),
    ],
)
def test_a_killed_run_resumes_to_the_same_theta(
    tmp_path: Path, undisturbed: list[bytes], point: str, number: int
) -> None:
    study = made(tmp_path)
    assert crash(study, tmp_path / "run", point, number) == KILLED
    result = resume(tmp_path / "run")
    assert result.record["rounds"] == ROUNDS
    assert_whole(tmp_path, study, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("header", [{}, {"protocol": "pooled"}])
def test_a_table_that_changed_since_the_run_began_is_refused(
    tmp_path: Path, header: dict[str, str]
) -> None:
    """Rows could change sides between the fit and its check."""
    study = made(tmp_path, header=header)
    assert crash(study, tmp_path / "run", "after the checkpoint", 3) == KILLED
    table = tmp_path / "b.csv"
    before = table.read_bytes()
    table.write_bytes(before + before.splitlines(keepends=True)[-1])
    with pytest.raises(PrivacyError, match="changed since the run began") as caught:
        resume(tmp_path / "run")
    assert "b.csv" in str(caught.value)
    table.write_bytes(before)
    assert resume(tmp_path / "run").record["rounds"] == ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize("header", [{}, {"protocol": "pooled"}])
def test_a_run_whose_record_of_its_rows_is_gone_does_not_go_on(
    tmp_path: Path, header: dict[str, str]
) -> None:
    """Nobody knows any more which rows it was charged for."""
    study = made(tmp_path, header=header)
    assert crash(study, tmp_path / "run", "after the checkpoint", 3) == KILLED
    (kept,) = (tmp_path / "run").glob("sites/b/table-*")
    digest = kept.read_bytes()
    kept.unlink()
    with pytest.raises(PrivacyError, match="the record of its rows is gone"):
        resume(tmp_path / "run")
    assert not kept.exists()
    kept.write_bytes(digest)
    assert resume(tmp_path / "run").record["rounds"] == ROUNDS


@pytest.mark.parametrize("header", [{}, {"protocol": "pooled"}])
def test_a_file_that_is_replaced_after_it_was_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: dict[str, str]
) -> None:
    """The run would be tied to rows that it never read, and go on over those."""
    study, create = made(tmp_path, header=header), RunFolder.create

    def replaced(*given: Any) -> RunFolder:
        new = logistic_frame(60, seed=9).to_csv(index=False)
        (tmp_path / "b.csv").write_text(new)
        return create(*given)

    monkeypatch.setattr(RunFolder, "create", replaced)
    with pytest.raises(DataError, match="changed while it was in use"):
        run(study, out=tmp_path / "run")
    ledger = tmp_path / "b.csv.ledger"
    assert not ledger.exists() or not list(Ledger.read(ledger).entries())


def test_a_run_killed_at_every_turn_resumes_to_the_same_theta(
    tmp_path: Path, undisturbed: list[bytes]
) -> None:
    """One run, killed again and again, each time a little later."""
    study = made(tmp_path)
    for point in (
        "after the ledger's commit",
        "before the CSP's memory",
        "after the CSP's memory",
        "before the checkpoint",
        "after the checkpoint",
        "before the ledger's commit",
        "after the checkpoint",
        "before the result is saved",
    ):
        assert crash(study, tmp_path / "run", point, 1) == KILLED
    resume(tmp_path / "run")
    assert_whole(tmp_path, study, undisturbed)


def test_a_run_killed_while_its_folder_is_laid_out_has_spent_nothing(
    tmp_path: Path,
) -> None:
    study = made(tmp_path)
    point = "as the folder is laid out"
    assert crash(study, tmp_path / "run", point, 2) == KILLED
    assert not list(tmp_path.glob("*.ledger"))
    with pytest.raises(RunError, match="holds no run"):
        resume(tmp_path / "run")
    run(study, out=tmp_path / "run")


PREPARATIONS = ("private-moments", "private-scales")


def preparing(method: str) -> dict[str, Any]:
    return {"privacy": {"records": None}, "preparation": {"method": method}}


@pytest.fixture(scope="module")
def prepared_calmly(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[bytes]]:
    """θ of runs that nothing happened to, by their preparation."""
    found = {}
    for method in PREPARATIONS:
        folder = tmp_path_factory.mktemp(method)
        run(made(folder, **preparing(method)), out=folder / "run")
        found[method] = trajectory(folder / "run")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "number"),
    [
        ("before the ledger's commit", 1),
        ("after the ledger's commit", 3),
        ("before a fact's checkpoint", 1),
        ("after a fact's checkpoint", 1),
        ("before a fact's checkpoint", 2),
        ("after a fact's checkpoint", 2),
        ("after the CSP's memory", 2),
        ("after the checkpoint", 2),
    ],
)
@pytest.mark.parametrize("method", PREPARATIONS)
def test_a_run_killed_while_it_prepares_resumes_to_the_same_theta(
    tmp_path: Path,
    prepared_calmly: dict[str, list[bytes]],
    point: str,
    number: int,
    method: str,
) -> None:
    """N, windows and scales are releases too: drawn once, kept for ever."""
    study = made(tmp_path, **preparing(method))
    assert crash(study, tmp_path / "run", point, number) == KILLED
    result = resume(tmp_path / "run")
    assert result.record["moments"] is not None
    assert_whole(tmp_path, study, prepared_calmly[method])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "number"),
    [
        ("before the ledger's commit", 2),
        ("after the ledger's commit", 1),
        ("after the ledger's commit", 2),
        ("after a pooled release", 3),
        ("before the checkpoint", 2),
        ("after the checkpoint", 4),
    ],
)
def test_a_killed_pooled_run_resumes_to_the_same_theta(
    tmp_path: Path, point: str, number: int
) -> None:
    header = {"protocol": "pooled"}
    calm = made(tmp_path / "calm", header=header)
    run(calm, out=tmp_path / "calm" / "run")
    study = made(tmp_path, header=header)
    assert crash(study, tmp_path / "run", point, number) == KILLED
    resume(tmp_path / "run")
    assert_whole(tmp_path, study, trajectory(tmp_path / "calm" / "run"))


def test_a_resumed_run_has_the_same_result(tmp_path: Path) -> None:
    whole = run(made(tmp_path / "calm"), out=tmp_path / "calm" / "run")
    study = made(tmp_path)
    assert crash(study, tmp_path / "run", "after the checkpoint", 3) == KILLED
    resumed = resume(tmp_path / "run")
    assert resumed.summary() == whole.summary()
    assert resumed.certificate == whole.certificate


# -- what cannot be resumed ---------------------------------------------------


def test_a_finished_run_is_not_resumed(tmp_path: Path) -> None:
    run(made(tmp_path), out=tmp_path / "run")
    with pytest.raises(RunError, match="finished"):
        resume(tmp_path / "run")


def test_a_folder_without_a_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        resume(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2}', "\x00"])
def test_a_damaged_run_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match="cannot be read"):
        resume(tmp_path)


def test_a_study_changed_in_between_is_refused_and_costs_nothing(
    tmp_path: Path,
) -> None:
    study = made(tmp_path)
    assert crash(study, tmp_path / "run", "after the checkpoint", 2) == KILLED
    file = tmp_path / "run" / "study.toml"
    file.write_text(file.read_text().replace("epsilon = 3.0", "epsilon = 2.9"))
    with pytest.raises(RunError, match="not the study that this run began with"):
        resume(tmp_path / "run")
    assert len(list(Ledger.read(tmp_path / "a.csv.ledger").entries())) == 2


def test_a_run_over_frames_says_that_it_cannot_be_resumed(tmp_path: Path) -> None:
    study = small_study(("a", "b"))
    frames = {name: logistic_frame(60, seed=ord(name)) for name in study.sites}
    interrupted = RuntimeError("interrupted")

    def stop(done: int, total: int) -> None:
        raise interrupted

    with pytest.raises(RuntimeError):
        run(study, frames, out=tmp_path / "run", progress=stop)
    with pytest.raises(RunError, match="was given a frame"):
        resume(tmp_path / "run")
    with pytest.raises(RunError, match="another folder") as refused:
        run(study, frames, out=tmp_path / "run")
    assert "cipherbayes resume" not in str(refused.value)


def test_a_used_folder_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    study = made(tmp_path)
    run(study, out=tmp_path / "run")
    spent = Ledger.read(tmp_path / "a.csv.ledger").spent()
    with pytest.raises(RunError, match="not empty"):
        run(study, out=tmp_path / "run")
    assert Ledger.read(tmp_path / "a.csv.ledger").spent() == spent


# -- parties in processes of their own -----------------------------------------


PROCESSES = {"engine": "local-processes"}


BOTH_ROLES = {("b", 4, "after"), ("csp", 1, "before")}
"""A site and the CSP, early and late; all others are for torture: within one process
every point of a round is tried above."""


@pytest.mark.parametrize(
    ("party", "number", "moment"),
    [
        pytest.param(*each, marks=mark)
        for each in product(("a", "b", "csp"), (1, 4), ("before", "after"))
        for mark in [pytest.mark.slow if each in BOTH_ROLES else pytest.mark.torture]
    ],
)
def test_a_killed_party_costs_no_round(
    tmp_path: Path, undisturbed: list[bytes], party: str, number: int, moment: str
) -> None:
    study = made(tmp_path, header=PROCESSES)
    assert crash_party(study, tmp_path / "run", party, number, moment) == 1
    assert not (tmp_path / "run" / "result.json").exists()
    resume(tmp_path / "run")
    assert_whole(tmp_path, study, undisturbed)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(1, marks=pytest.mark.torture),
        pytest.param(5, marks=pytest.mark.slow),
    ],
)
def test_a_killed_driver_costs_no_round_and_leaves_no_party_behind(
    tmp_path: Path, undisturbed: list[bytes], number: int
) -> None:
    study = made(tmp_path, header=PROCESSES)
    assert crash_party(study, tmp_path / "run", "driver", number) == KILLED
    wait_until_gone(tmp_path / "run")
    resume(tmp_path / "run")
    assert_whole(tmp_path, study, undisturbed)


def wait_until_gone(out: Path) -> None:
    """Until no process of the run is left."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not parties_of(out):
            return
        time.sleep(0.05)
    pytest.fail("a party outlived the process that drove it")


def parties_of(out: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"cipherbayes.engine.party" in command and str(out).encode() in command:
            found.append(int(entry.name))
    return found

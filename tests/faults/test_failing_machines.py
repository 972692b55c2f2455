"""Full disks, read-only folders, no memory, jumping clocks, damaged checkpoints.

Whatever happens, afterwards a resumed run has the θ of a run to which nothing
happened, every ledger has one entry a round, and no ε was under-counted.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from breaking import (
    BROKE,
    REFUSED,
    apart,
    continued,
    small_disk,
    with_files_below,
    with_memory_left,
)
from parties import small_study, trajectory, write_tables

import cipherbayes.privacy.ledger
from cipherbayes.errors import CipherbayesError, PrivacyError, RunError
from cipherbayes.privacy.accountant import epsilon
from cipherbayes.privacy.events import Composed
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.results.run import resume, run
from cipherbayes.study.schema import Study

ROUNDS = 4


def made(folder: Path, **changes: Any) -> Study:
    return write_tables(folder, small_study(("a", "b"), **changes))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """θ of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run(made(folder), out=folder / "run")
    return trajectory(folder / "run")


def assert_counted(folder: Path, rounds: int | None = None) -> None:
    """Each release once in its ledger, and ε that of exactly these releases."""
    for name in ("a", "b"):
        path = folder / f"{name}.csv.ledger"
        if rounds is None and not path.exists():
            continue
        ledger = Ledger.read(path)
        entries = list(ledger.entries())
        assert [entry.round for entry in entries] == list(range(len(entries)))
        assert rounds is None or len(entries) == rounds
        if entries:
            events = Composed(tuple(entry.event for entry in entries))
            assert ledger.spent() == pytest.approx(epsilon(events, 1e-5), rel=1e-9)
        assert ledger.spent() <= 3.0 * (1 + 1e-9)
        ledger.close()


def assert_whole(folder: Path, expected: list[bytes]) -> None:
    assert trajectory(folder / "run") == expected
    assert_counted(folder, ROUNDS)


# -- full and read-only disks --------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("size", [1_000, 30_000, 60_000, 100_000])
def test_a_file_that_cannot_grow_costs_no_round(
    tmp_path: Path, undisturbed: list[bytes], size: Any
) -> None:
    study = made(tmp_path)
    code = with_files_below(size, study, tmp_path / "run")
    assert code in (0, REFUSED)
    assert_counted(tmp_path)
    if not (tmp_path / "run" / "run.json").exists():
        shutil.rmtree(tmp_path / "run")
    if code:
        continued(study, tmp_path / "run")
    assert_whole(tmp_path, undisturbed)


def test_so_small_a_limit_does_stop_a_run(tmp_path: Path) -> None:
    """The control of the test above."""
    assert with_files_below(30_000, made(tmp_path), tmp_path / "run") == REFUSED


@pytest.mark.parametrize("where", ["the run", "the tables"])
def test_a_full_disk_costs_no_round(
    tmp_path: Path, undisturbed: list[bytes], where: str
) -> None:
    disk = tmp_path / "disk"
    try:
        with small_disk(disk, "1m") as remount:
            home = disk if where == "the tables" else tmp_path / "home"
            study = made(home)
            out = disk / "run" if where == "the run" else tmp_path / "run"
            filler = disk / "filler"
            free = shutil.disk_usage(disk).free
            filler.write_bytes(bytes(free - 90_000))
            code = apart(lambda: continued(study, out))
            assert code == REFUSED
            assert_counted(home)
            filler.unlink()
            if not (out / "run.json").exists():
                shutil.rmtree(out, ignore_errors=True)
            remount("size=64m")
            continued(study, out)
            assert trajectory(out) == undisturbed
            assert_counted(home, ROUNDS)
    except PermissionError:
        pytest.skip("this user may not mount a disk")


def test_a_folder_that_became_read_only_costs_no_round(
    tmp_path: Path, undisturbed: list[bytes]
) -> None:
    disk = tmp_path / "disk"
    study = made(tmp_path)
    try:
        with small_disk(disk, "64m") as remount:
            out = disk / "run"

            def stop(done: int, total: int) -> None:
                if done == 2:
                    raise RunError("interrupted")

            # Apart: an open file would keep the disk from becoming read-only.
            assert apart(lambda: run(study, out=out, progress=stop)) == REFUSED
            remount("ro")
            assert apart(lambda: resume(out)) == REFUSED
            remount("rw")
            resume(out)
            assert trajectory(out) == undisturbed
            assert_counted(tmp_path, ROUNDS)
    except PermissionError:
        pytest.skip("this user may not mount a disk")


def test_a_ledger_that_cannot_be_written_releases_nothing(tmp_path: Path) -> None:
    """The entry first: without it no vector leaves the table."""
    disk = tmp_path / "disk"
    try:
        with small_disk(disk, "64m") as remount:
            study = made(disk)
            assert apart(lambda: run(study, out=tmp_path / "first")) == 0
            remount("ro")
            with pytest.raises(PrivacyError):
                release(disk / "a.csv.ledger")
            remount("rw")
            assert_counted(disk, ROUNDS)
    except PermissionError:
        pytest.skip("this user may not mount a disk")


def release(path: Path) -> bytes:
    """Ask a table for one more answer, which its budget does not forbid."""
    ledger = Ledger.read(path)
    try:
        ledger.set_budget(9.0)
        return ledger.release(
            run=b"r" * 16,
            site="a",
            round=0,
            purpose="gradient",
            study=bytes(32),
            question=bytes(32),
            event=next(iter(ledger.entries())).event,
            compute=lambda: b"an answer",
        )
    finally:
        ledger.close()


# -- memory --------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 3])
def test_a_site_out_of_memory_costs_no_round(
    tmp_path: Path,
    undisturbed: list[bytes],
    after: int,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    study = made(tmp_path)
    honest, calls = Contributions.total, 0

    def greedy(self: Any, phase: Any, question: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            np.ones(10**15)
        return honest(self, phase, question)

    with monkeypatch.context() as patch:
        patch.setattr(Contributions, "total", greedy)
        with pytest.raises(RunError):
            run(study, out=tmp_path / "run")
    assert_counted(tmp_path)
    resume(tmp_path / "run")
    assert_whole(tmp_path, undisturbed)


@pytest.mark.slow
def test_a_process_out_of_memory_costs_no_round(
    tmp_path: Path, undisturbed: list[bytes]
) -> None:
    """The real thing: the system refuses an allocation, wherever that is."""
    study, out = made(tmp_path), tmp_path / "run"
    assert with_memory_left(2 * 2**20, study, out) != 0
    assert_counted(tmp_path)
    if out.exists() and not (out / "run.json").exists():
        shutil.rmtree(out)
    continued(study, out)
    assert_whole(tmp_path, undisturbed)


# -- clocks --------------------------------------------------------------------


def test_a_clock_that_jumps_changes_nothing_but_the_times(
    tmp_path: Path, undisturbed: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> Any:
    years = itertools.cycle([2026, 1971, 2099, 2026, 1999, 2070, 2001])

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime(next(years), 1, 1, tzinfo=UTC)

    monkeypatch.setattr(cipherbayes.privacy.ledger, "datetime", Jumping)
    run(made(tmp_path), out=tmp_path / "run")
    assert_whole(tmp_path, undisturbed)
    times = [e.time[:4] for e in Ledger.read(tmp_path / "a.csv.ledger").entries()]
    assert times != sorted(times)


# -- damaged memories -----------------------------------------------------------


def interrupted(folder: Path, rounds: int = 2) -> Study:
    study = made(folder)

    def stop(done: int, total: int) -> None:
        if done == rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(study, out=folder / "run", progress=stop)
    return study


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_lost_checkpoint_is_made_again_from_what_the_others_remember(
    tmp_path: Path, undisturbed: list[bytes], rounds: int
) -> None:
    interrupted(tmp_path, rounds)
    spent = Ledger.read(tmp_path / "a.csv.ledger").spent()
    for file in (tmp_path / "run" / "server").iterdir():
        file.unlink()
    resume(tmp_path / "run")
    assert_whole(tmp_path, undisturbed)
    assert Ledger.read(tmp_path / "a.csv.ledger").spent() > spent


def test_a_changed_theta_in_the_checkpoint_is_not_gone_on_from(
    tmp_path: Path, undisturbed: list[bytes]
) -> None:
    interrupted(tmp_path)
    path = tmp_path / "run" / "server" / "checkpoint.sqlite"
    database = sqlite3.connect(path)
    (theta,) = database.execute("SELECT theta FROM rounds WHERE round = 1").fetchone()
    poisoned = np.frombuffer(theta) + 1e-3
    with database:
        database.execute(
            "UPDATE rounds SET theta = ? WHERE round = 1", (poisoned.tobytes(),)
        )
    database.close()
    with pytest.raises(RunError, match="checksum") as refused:
        resume(tmp_path / "run")
    assert "delete it" in str(refused.value)
    for file in path.parent.iterdir():
        file.unlink()
    resume(tmp_path / "run")
    assert_whole(tmp_path, undisturbed)


def damaged_runs(tmp_path: Path, expected: list[bytes], times: int, seed: int) -> int:
    """Flip bits all over the server's and the CSP's files; how many were noticed."""
    interrupted(tmp_path)
    rng = random.Random(seed)
    noticed = 0
    for number in range(times):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(tmp_path / "run", copy / "run")
        for name in ("a", "b"):
            for file in tmp_path.glob(f"{name}.csv*"):
                shutil.copy(file, copy)
        for site in (copy / "run" / "sites").glob("*/site.json"):
            site.write_text(site.read_text().replace(str(tmp_path), str(copy)))
        files = [
            *(copy / "run" / "server").iterdir(),
            *(copy / "run" / "csp").glob("*.s*"),
        ]
        victim = rng.choice(sorted(files))
        data = bytearray(victim.read_bytes())
        for _ in range(rng.choice((1, 8, 64))):
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        victim.write_bytes(data)
        with pytest.MonkeyPatch.context() as patch:
            # A machine of its own: else all copies but the first were old ones.
            shutil.copytree(os.environ["CIPHERBAYES_STATE"], copy / "state")
            patch.setenv("CIPHERBAYES_STATE", str(copy / "state"))
            try:
                resume(copy / "run")
            except CipherbayesError:
                noticed += 1
                assert_counted(copy)
            else:
                assert trajectory(copy / "run") == expected
                assert_counted(copy, ROUNDS)
    return noticed


def test_a_damaged_memory_is_refused_or_harmless(
    tmp_path: Path, undisturbed: list[bytes]
) -> None:
    damaged_runs(tmp_path, undisturbed, 6, seed=1)


@pytest.mark.torture
def test_a_memory_damaged_a_hundred_ways_is_refused_or_harmless(
    tmp_path: Path, undisturbed: list[bytes]
) -> None:
    assert damaged_runs(tmp_path, undisturbed, 150, seed=2) > 10


def test_every_exit_code_above_is_told_apart() -> None:
    def refuse() -> None:
        raise RunError("no")

    assert apart(refuse) == REFUSED
    assert apart(lambda: None) == 0
    assert apart(lambda: 1 / 0) == BROKE

"""kill -9 at any step and at any moment, and two processes on one run."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from breaking import REFUSED, apart, continued
from crashing import POINTS, _begin_or_resume, crash, forked
from parties import small_study, write_tables
from test_failing_machines import assert_counted, assert_whole, interrupted, made
from test_failing_machines import undisturbed as undisturbed

from cipherbayes.engine.in_process import LocalSite
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.results.run import resume, run
from cipherbayes.study.schema import Study

KILLED = -signal.SIGKILL
STEPS = [
    point
    for point in POINTS
    if point
    not in (
        "as the folder is laid out",
        "before a fact's checkpoint",
        "after a fact's checkpoint",
        "after a pooled release",
        "before the end",
    )
]


@pytest.mark.torture
@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("point", STEPS)
def test_a_kill_at_every_step_of_every_round_costs_no_round(
    tmp_path: Path, undisturbed: list[bytes], point: str, number: int
) -> None:
    study, out = made(tmp_path), tmp_path / "run"
    code = crash(study, out, point, number)
    assert code in (KILLED, 0)  # 0: the run has fewer such steps
    if code:
        assert_counted(tmp_path)
        resume(out)
    assert_whole(tmp_path, undisturbed)


def _go_on(text: str, out: Path) -> None:
    _begin_or_resume(Study.model_validate_json(text), out)


def killed_at_random(
    tmp_path: Path, expected: list[bytes], kills: int, seed: int
) -> int:
    """Kill a run again and again until it ends; how often it was hit."""
    rng = random.Random(seed)
    study, out = made(tmp_path), tmp_path / "run"
    hits = 0
    while not (out / "result.json").exists():
        if out.exists() and not (out / "run.json").exists():
            out = tmp_path / "run"
            for file in sorted(out.rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() else file.unlink()
        process = forked(_go_on, study.model_dump_json(), out)
        process.start()
        if hits < kills:
            time.sleep(rng.uniform(0.0, 0.4))
            process.kill()
        process.join()
        hits += process.exitcode == KILLED
        assert process.exitcode in (KILLED, 0)
        assert_counted(tmp_path)
    assert_whole(tmp_path, expected)
    return hits


@pytest.mark.slow
def test_a_run_killed_at_random_moments_resumes_to_the_same_theta(
    tmp_path: Path, undisturbed: list[bytes]
) -> None:
    assert killed_at_random(tmp_path, undisturbed, 4, seed=1) > 0


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(20))
def test_runs_killed_at_many_random_moments_resume_to_the_same_theta(
    tmp_path: Path, undisturbed: list[bytes], seed: int
) -> None:
    killed_at_random(tmp_path, undisturbed, 30, seed=100 + seed)


def test_two_processes_on_one_run_release_nothing_twice(
    tmp_path: Path, undisturbed: list[bytes]
) -> None:
    """Both resume the same folder: the same answers to both, one entry a round."""
    interrupted(tmp_path, 1)
    text = small_study(("a", "b")).model_dump_json()
    both = [forked(_go_on, text, tmp_path / "run") for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert 0 in [process.exitcode for process in both]
    assert_whole(tmp_path, undisturbed)


def test_a_run_over_a_ledger_in_use_waits_its_turn(tmp_path: Path) -> None:
    """Two studies over one table at once: together they stay within its budget."""
    study = write_tables(tmp_path, small_study(("a", "b")))
    outs = [tmp_path / "one", tmp_path / "other"]
    both = [forked(_go_on, study.model_dump_json(), out) for out in outs]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    for name in ("a", "b"):
        ledger = Ledger.read(tmp_path / f"{name}.csv.ledger")
        assert ledger.spent() <= 3.0 * (1 + 1e-9)
        assert len(list(ledger.entries())) == 4
    # A third comes too late altogether.
    assert apart(lambda: run(study, out=tmp_path / "late")) == REFUSED


def test_a_run_resumes_without_a_site_that_was_lost_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Its enrolment is remembered: neither its keys nor its table are needed."""
    names = ("a", "b", "c", "d")
    study = write_tables(tmp_path, small_study(names, privacy={"dropouts": 1}))
    honest = LocalSite.answer

    def silent(self: LocalSite) -> bytes | None:
        return None if self._site._name == "d" else honest(self)

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalSite, "answer", silent)
        with pytest.raises(KeyboardInterrupt):
            run(study, out=tmp_path / "run", progress=stop)
    (tmp_path / "d.csv").unlink()
    shutil.rmtree(tmp_path / "run" / "sites" / "d" / "keys")
    result = resume(tmp_path / "run")
    assert result.record["rounds"] == 4
    for name in ("a", "b", "c"):
        ledger = Ledger.read(tmp_path / f"{name}.csv.ledger")
        assert [entry.round for entry in ledger.entries()] == [0, 1, 2, 3]


def test_going_on_is_what_a_user_would_do(
    tmp_path: Path, undisturbed: list[bytes]
) -> None:
    """The control: without any fault the same helper gives the same θ."""
    continued(made(tmp_path), tmp_path / "run")
    assert_whole(tmp_path, undisturbed)

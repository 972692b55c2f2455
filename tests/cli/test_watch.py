"""`cipherbayes watch`: a live page that shows what is released anyway."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from browser import MISSING, Browser
from cipherbayes.cli.run import spending
from cipherbayes.protocols.plan import plan_study
from cipherbayes.protocols.plan_description import epsilon_by_tenths
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.report.live import Watcher, page, serving
from cipherbayes.study.schema import Study
from finished_runs import FinishedRuns, runs
from terminal import cipherbayes

__all__ = ["runs"]


def fetch(address: str, host: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(address)
    if host is not None:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


@pytest.fixture
def half_way(runs: FinishedRuns, tmp_path: Path) -> Path:
    """A run as it stood after its fourth round, and one site lost."""
    folder = tmp_path / "half"
    shutil.copytree(runs["survival"], folder)
    (folder / "result.json").unlink()
    database = sqlite3.connect(folder / "server" / "checkpoint.sqlite")
    with database:
        database.execute("DELETE FROM rounds WHERE round > 3")
    database.close()
    checkpoint = Checkpoint(folder / "server" / "checkpoint.sqlite")
    checkpoint.keep_lost(["two"], 2)
    checkpoint.close()
    return folder


@pytest.mark.slow
def test_a_running_study_is_followed(half_way: Path) -> None:
    watcher = Watcher.open(half_way)
    seen = watcher.look()
    assert (seen.done, seen.finished) == (4, False)
    assert 0.0 < seen.spent < seen.budget
    assert seen.lost == (("two", 2),)
    assert {len(path) for path in seen.theta} == {4}
    database = sqlite3.connect(half_way / "server" / "checkpoint.sqlite")
    (theta,) = database.execute("SELECT theta FROM rounds WHERE round = 3").fetchone()
    database.close()
    assert [path[-1] for path in seen.theta] == np.frombuffer(theta).tolist()
    shown = page(seen)
    assert 'http-equiv="refresh"' in shown
    assert "lost in round 3" in shown


def stamped(folder: Path, *times: float) -> Path:
    """The first rounds of a run, ended at these seconds."""
    database = sqlite3.connect(folder / "server" / "checkpoint.sqlite")
    with database:
        database.executemany(
            "UPDATE finished SET at = ? WHERE round = ?",
            [(at, number) for number, at in enumerate(times)],
        )
    database.close()
    return folder


def test_round_times_are_those_of_the_servers_checkpoint(half_way: Path) -> None:
    now = time.time()
    ends = (now - 9.0, now - 7.0, now - 6.0, now - 3.0)
    seen = Watcher.open(stamped(half_way, *ends)).look()
    assert seen.seconds == pytest.approx((2.0, 1.0, 3.0), abs=1e-3)
    assert seen.pace == pytest.approx(2.0, abs=1e-3)
    assert seen.left == pytest.approx(2.0 * (seen.rounds - 4), abs=0.1)
    assert seen.answered == pytest.approx(3.0, abs=2.0)
    assert not seen.late
    assert "How long a round takes" in page(seen)


def test_a_party_that_does_not_answer_shows(half_way: Path) -> None:
    now = time.time()
    seen = Watcher.open(stamped(half_way, *(now - 500.0 - k for k in (3, 2, 1, 0))))
    shown = seen.look()
    assert shown.late
    assert "waiting for a party" in page(shown)
    assert shown.document()["late"] is True


def test_the_csp_is_among_the_parties(half_way: Path) -> None:
    shown = page(Watcher.open(half_way).look())
    assert "CSP" in shown
    assert "ago, to round 4" in shown


def test_a_clock_that_was_set_back_gives_no_negative_time(half_way: Path) -> None:
    seen = Watcher.open(stamped(half_way, 50.0, 40.0, 41.0, 42.0)).look()
    assert seen.seconds == pytest.approx((1.0, 1.0))


def test_a_checkpoint_without_times_is_followed_too(half_way: Path) -> None:
    database = sqlite3.connect(half_way / "server" / "checkpoint.sqlite")
    with database:
        database.execute("DROP TABLE finished")
    database.close()
    seen = Watcher.open(half_way).look()
    assert (seen.done, seen.pace, seen.answered) == (4, None, None)


def test_a_finished_run_is_not_asked_again(runs: FinishedRuns) -> None:
    seen = Watcher.open(runs["survival"]).look()
    assert seen.finished
    assert seen.done == seen.rounds
    assert 'http-equiv="refresh"' not in page(seen)


def test_only_loopback_and_only_by_its_own_name(half_way: Path) -> None:
    with serving(Watcher.open(half_way).look) as address:
        assert address.startswith("http://127.0.0.1:")
        port = address.rsplit(":", 1)[1].strip("/")
        assert fetch(address)[0] == 200
        assert fetch(address, f"localhost:{port}")[0] == 200
        for name in ("attacker.example", f"attacker.example:{port}", "127.0.0.1"):
            status, text = fetch(address, name)
            assert status == 403
            assert "survival" not in text
        assert fetch(address + "run.json")[0] == 404
        state = json.loads(fetch(address + "state.json")[1])
        assert state["round"] == 4


def test_watching_changes_nothing_in_the_folder(half_way: Path) -> None:
    def content() -> dict[str, bytes]:
        files = (p for p in half_way.rglob("*") if p.is_file())
        skip = ("-wal", "-shm")
        return {str(p): p.read_bytes() for p in files if not p.name.endswith(skip)}

    before = content()
    with serving(Watcher.open(half_way).look) as address:
        fetch(address)
    assert content() == before


def test_the_page_holds_nothing_of_sites_folders(half_way: Path) -> None:
    shown = page(Watcher.open(half_way).look())
    assert ".csv" not in shown
    assert str(half_way) not in shown


def test_programs_get_the_state_as_json(runs: FinishedRuns) -> None:
    done = cipherbayes("watch", runs["survival"], "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finished"] is True


def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path: Path) -> None:
    done = cipherbayes("watch", tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_the_live_page_draws_in_a_browser(half_way: Path, tmp_path: Path) -> None:
    with (
        serving(Watcher.open(half_way).look) as address,
        Browser(tmp_path / "profile") as browser,
    ):
        browser.open(address)
        assert browser.complaints() == []
        # The browser's own new tab is not the page's.
        own = ("data:,", "chrome")
        asked = {u for u in browser.requested() if not u.startswith(own)}
        assert asked == {address}
        count = "return document.querySelectorAll('svg.trace').length"
        # The page renews itself: it may be looked at in between.
        assert any(browser.run(count) > 0 for _ in range(50))
        for width in (400, 768, 1280):
            browser.open(address)
            assert browser.unfit(width) == [], width


@pytest.mark.slow
def test_the_papers_own_mode_shows_its_honest_epsilon(runs: FinishedRuns) -> None:
    folder = runs["printed"]
    honest = json.loads((folder / "result.json").read_text())["privacy"]["epsilon"]
    seen = Watcher.open(folder).look()
    assert seen.spent == honest > 0.0
    assert seen.document()["certified"] is False
    assert "then the posterior" not in page(seen)  # it is finished
    assert "of 3: not certified" in page(seen)
    shown = page(replace(seen, spent=24902.0))
    assert "24,902, claimed 3: not certified" in shown


@pytest.mark.slow
def test_epsilon_after_a_round_is_one_figure_everywhere(runs: FinishedRuns) -> None:
    study = Study.load(runs["printed"] / "study.toml")
    plan = plan_study(study)
    honest = plan.protocol.certificate(plan, plan.rounds)["epsilon"]
    assert plan.epsilon_after(0) == 0.0
    # The whole run is charged with its first answer.
    assert plan.epsilon_after(1) == plan.epsilon_after(plan.rounds) == honest
    assert dict(epsilon_by_tenths(plan))[plan.rounds] == honest
    spent = spending(study)
    assert spent is not None
    assert spent(1) == honest


@pytest.mark.slow
def test_the_drawing_after_the_last_round_is_shown(
    runs: FinishedRuns, tmp_path: Path
) -> None:
    """All rounds are done, and the result is not there yet."""
    folder = tmp_path / "out"
    shutil.copytree(runs["federated"], folder)
    (folder / "result.json").unlink()
    snapshot = Watcher.open(folder).look()
    assert snapshot.done == snapshot.rounds
    assert snapshot.drawing
    assert not snapshot.late
    assert snapshot.left is None
    assert "drawing the posterior" in page(snapshot)
    assert snapshot.document()["drawing"] is True

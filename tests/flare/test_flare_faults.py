"""Faults and attacks between machines: a clear message, no second release."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from parties import small_study, trajectory, write_tables

from cipherbayes.errors import RunError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocol.stores import Checkpoint
from cipherbayes.running import run

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from cipherbayes.engine.flare.jobs import write_job
from cipherbayes.engine.flare.starting import command
from cipherbayes.engine.flare.submitting import _session
from flare_machines import Machines

pytestmark = pytest.mark.torture
ROUNDS = 150


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("machines")
    study = small_study(("a", "b", "c"), inference={"rounds": ROUNDS})
    made = Machines(folder, write_tables(folder / "tables", study))
    made.start()
    try:
        made.wait_for()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def undisturbed(machines, tmp_path_factory) -> list[bytes]:
    """θ of the same study on one machine, over tables of its own."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run(write_tables(folder / "tables", machines.study), out=folder / "run")
    return trajectory(folder / "run")


def joined(machines: Machines, name: str) -> int:
    log = machines.kits["server"].path / "log.txt"
    return log.read_text(errors="replace").count(f"New client {name}@")


def ended(session, job: str, seconds: float = 60.0) -> str:
    """How FLARE ended a job."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state = str(session.get_job_meta(job).get("status"))
        if state.startswith("FINISHED"):
            return state
        time.sleep(0.3)
    raise TimeoutError(job)


def test_a_job_that_brings_code_is_refused(machines, tmp_path):
    job = write_job(tmp_path, machines.study, "11" * 16)
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "foreign.py").write_text("raise SystemExit\n")
    with _session(machines.kits["admin"]) as session:
        try:
            state = ended(session, session.submit_job(str(job)))
        except Exception as refused:
            state = str(refused)
    assert "COMPLETED" not in state
    for name in ("server", "a", "b", "c", "csp"):
        assert not list(machines.kits[name].path.glob("*/app*/custom/foreign.py"))


def test_a_job_with_another_class_is_refused(machines, tmp_path):
    job = write_job(tmp_path, machines.study, "22" * 16)
    path = job / "app" / "config" / "config_fed_client.json"
    content = json.loads(path.read_text())
    foreign = "nvflare.app_common.np.np_trainer.NPTrainer"
    content["executors"][0]["executor"] = {"path": foreign, "args": {}}
    path.write_text(json.dumps(content))
    with _session(machines.kits["admin"]) as session:
        state = ended(session, session.submit_job(str(job)), 120.0)
    assert "COMPLETED" not in state


def test_a_hospital_cannot_join_as_the_csp(machines):
    machines.kill("csp")
    before = joined(machines, "csp")
    words = ["uid=csp" if w == "uid=a" else w for w in command(machines.kits["a"])]
    copy = machines.folder / "impostor"
    shutil.copytree(machines.kits["a"].path, copy, dirs_exist_ok=True)
    words = [str(copy) if w == str(machines.kits["a"].path) else w for w in words]
    with (machines.folder / "impostor.log").open("wb") as log:
        impostor = subprocess.Popen(words, cwd=copy, stdout=log, stderr=log)
    try:
        time.sleep(15.0)
        assert joined(machines, "csp") == before
    finally:
        impostor.kill()
        impostor.wait()
    machines.start("csp")
    deadline = time.monotonic() + 40.0
    while joined(machines, "csp") == before:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("victim", ["csp", "server"])
def test_a_killed_party_costs_no_round(machines, undisturbed, tmp_path, victim):
    for name in machines.study.sites:
        data = machines.study.sites[name].data
        machines.tell(name, data=data, ledger=f"{victim}-{name}.ledger")
    out = tmp_path / "out"
    killed = 0.0

    def strike(done: int, rounds: int) -> None:
        nonlocal killed
        if done and not killed:
            machines.kill(victim)
            killed = time.monotonic()

    with pytest.raises(RunError):
        machines.submit(out, strike)
    assert time.monotonic() - killed < 30.0
    if victim == "server":
        for name in ("csp", "a", "b", "c"):
            machines.kill(name)
        (machines.kits["server"].path / "log.txt").unlink()
        machines.start()
        machines.wait_for()
    else:
        before = joined(machines, victim)
        machines.start(victim)
        while joined(machines, victim) == before:
            time.sleep(0.1)
    machines.submit(out)
    run_id = json.loads((out / "submission.json").read_text())["run"]
    path = machines.kits["server"].path / "runs" / run_id / "checkpoint.sqlite"
    checkpoint = Checkpoint(path)
    thetas = [theta.tobytes() for theta in checkpoint.trajectory()]
    checkpoint.close()
    for name in machines.study.sites:
        ledger = machines.kits[name].path / f"{victim}-{name}.ledger"
        entries = list(Ledger.read(ledger).entries())
        assert [entry.round for entry in entries] == list(range(ROUNDS))
    assert thetas == undisturbed


def test_two_thousand_rounds_without_growth(tmp_path):
    study = small_study(("a", "b", "c"), inference={"rounds": 2000})
    machines = Machines(tmp_path, write_tables(tmp_path / "tables", study))
    machines.start()
    seen: dict[str, list[int]] = {}
    page = resource.getpagesize()

    def weigh(done: int, rounds: int) -> None:
        # Caches fill first, and the result is put together last.
        if not 600 <= done < rounds:
            return
        for name in ("server", "csp", "a"):
            statm = Path(f"/proc/{machines.job_process(name)}/statm").read_text()
            seen.setdefault(name, []).append(int(statm.split()[1]) * page)

    try:
        machines.wait_for()
        result = machines.submit(tmp_path / "out", weigh)
    finally:
        machines.stop()
    assert result.record["rounds"] == 2000
    for name, sizes in seen.items():
        half = len(sizes) // 2
        growth = max(sizes[half:]) - max(sizes[:half])
        assert growth < 16 * 2**20, (name, sizes[0], sizes[half], sizes[-1])

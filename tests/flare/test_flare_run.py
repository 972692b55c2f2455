"""A study between machines, for real: certificates, TLS, a kill, a resume."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from parties import small_study, trajectory, write_tables

from cipherbayes.errors import RunError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocol.stores import Checkpoint
from cipherbayes.running import run

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from flare_machines import Machines

pytestmark = pytest.mark.slow
ROUNDS = 120


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


def test_a_killed_site_is_named_and_the_resubmitted_run_has_the_undisturbed_theta(
    machines, tmp_path
):
    out = tmp_path / "out"
    killed = 0.0

    def kill_b(done: int, rounds: int) -> None:
        nonlocal killed
        if done and not killed:
            machines.kill("b")
            killed = time.monotonic()

    with pytest.raises(RunError, match=r"\bb\b|party that stopped"):
        machines.submit(out, kill_b)
    assert killed
    assert time.monotonic() - killed < 20.0
    assert not (out / "result.json").exists()
    released = {
        name: len(list(Ledger.read(path).entries()))
        for name, path in machines.ledgers().items()
    }
    assert 0 < min(released.values()) <= max(released.values()) < ROUNDS
    rejoined = machines.kits["server"].path / "log.txt"
    before = rejoined.read_text().count("New client b@")
    machines.start("b")
    deadline = time.monotonic() + 40.0
    while rejoined.read_text().count("New client b@") == before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    result = machines.submit(out)
    assert result.record["rounds"] == ROUNDS
    checkpoint = Checkpoint(machines.checkpoint())
    thetas = [theta.tobytes() for theta in checkpoint.trajectory()]
    checkpoint.close()
    alone = run(machines.study, out=tmp_path / "alone")
    assert thetas == trajectory(tmp_path / "alone")
    assert result.summary() == alone.summary()
    for path in machines.ledgers().values():
        entries = list(Ledger.read(path).entries())
        assert [entry.round for entry in entries] == list(range(ROUNDS))
        assert len({entry.run for entry in entries}) == 1
    record = json.loads(Path(out, "result.json").read_text())
    assert (out / "posterior.nc").exists()
    assert record["privacy"]["certified"] is False
    with pytest.raises(RunError, match="finished already"):
        machines.submit(out)

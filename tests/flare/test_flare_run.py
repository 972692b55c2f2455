"""A study between machines, for real: certificates, TLS, a query, a kill, a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from query_sites import fill

from cipherbayes.errors import RunError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.plan import plan_study
from cipherbayes.results.result import Result
from cipherbayes.validation.verify import verify
from conftest import logistic_frame
from flare_machines import Machines

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

pytest_plugins = ("hospitals",)
pytestmark = pytest.mark.slow


def test_a_killed_site_is_named_and_the_resubmitted_run_has_the_undisturbed_theta(
    machines: Machines, alone: Path, undisturbed: list[bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    killed = False

    def kill_b(done: int, rounds: int) -> None:
        nonlocal killed
        if done and not killed:
            machines.kill("b")
            killed = True

    with pytest.raises(RunError, match=r"\bb\b|party that stopped"):
        machines.submit(out, kill_b)
    assert killed
    assert not (out / "result.json").exists()
    rounds = plan_study(machines.study).rounds
    assert all(0 < len(done) < rounds for done in machines.released().values())
    # Its database changes meanwhile; the run goes on over the rows it began with.
    kit = machines.kits["b"].path
    assert list(kit.glob("runs/*/snapshot/*.parquet"))
    fill(kit / "b.sqlite", logistic_frame(30, seed=9))
    before = machines.joined("b")
    machines.start("b")
    machines.wait_for("b", times=before + 1)
    result = machines.submit(out)
    assert result.record["rounds"] == len(undisturbed)
    assert machines.thetas(out) == undisturbed
    assert machines.released() == {name: list(range(rounds)) for name in "ab"}
    for name in "ab":
        ledger = Ledger.read(machines.kits[name].path / f"{name}.ledger")
        assert len({entry.run for entry in ledger.entries()}) == 1
        ledger.close()
    local = Result.load(alone)
    assert result.summary() == local.summary()
    assert result.metrics["private"] is True
    assert result.metrics == local.metrics
    assert result.describe() == local.describe()
    assert not list(kit.rglob("*.parquet"))
    record = json.loads((out / "result.json").read_text())
    assert (out / "posterior.nc").exists()
    assert record["privacy"]["certified"] is False
    with pytest.raises(RunError, match="finished already"):
        machines.submit(out)
    assert_every_site_can_check(machines, out)


def assert_every_site_can_check(machines: Machines, out: Path) -> None:
    """Each site compares the lead's result with the copy that it got itself."""
    run = json.loads((out / "submission.json").read_text())["run"]
    for name in "ab":
        found = verify(machines.kits[name].path / "runs" / run, result=out)
        assert found.failed == []
        holding = {f.check for f in found if f.state == "holds"}
        assert {"totals", "posterior", "certificate", f"ledger of {name}"} <= holding
    assert verify(out).failed == []

"""Both protocols between machines: FLchain over five sites, as on one machine."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from parties import trajectory

from cipherbayes.results.run import run
from cipherbayes.study.schema import Study
from conftest import another_owner
from terminal import cipherbayes

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from flare_machines import Machines

pytestmark = pytest.mark.torture
ROUNDS = 6
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flchain.toml"


def flchain(folder: Path, protocol: str) -> Study:
    """The example with its five tables, and noise that can be repeated."""
    given = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    done = cipherbayes("data", "flchain", "--sites", "5", "--out", "data", cwd=folder)
    assert done.returncode == 0, done.stderr
    given["study"]["protocol"] = protocol
    given["privacy"]["randomness"] = "insecure-repeatable"
    if protocol == "secure-sum":
        given["hierarchy"] = {}  # five hospitals that may differ
    if protocol == "encrypted-update":
        # Its only preparation is that of public bounds.
        del given["preparation"]
        given["inference"] = {"rounds": ROUNDS}
    for site in given["sites"].values():
        site["data"] = str(folder / site["data"])
    return Study.model_validate(given)


@pytest.mark.parametrize("protocol", ["secure-sum", "encrypted-update"])
def test_flchain_over_five_sites_is_the_same_on_flare(
    tmp_path: Path, protocol: str
) -> None:
    study = flchain(tmp_path, protocol)
    machines = Machines(tmp_path, study)
    machines.start()
    try:
        machines.wait_for(seconds=90.0)
        result = machines.submit(tmp_path / "out")
    finally:
        machines.stop()
    record = json.loads((tmp_path / "out" / "result.json").read_text())
    assert record["protocol"] == protocol
    assert sorted(machines.study.sites) == sorted(study.sites)
    another_owner()
    alone = run(study, out=tmp_path / "alone")
    here, there = (
        np.array([np.frombuffer(theta) for theta in thetas])
        for thetas in (
            machines.thetas(tmp_path / "out"),
            trajectory(tmp_path / "alone"),
        )
    )
    if protocol == "secure-sum":
        assert study.method == "noise-aware"
        assert here.tobytes() == there.tobytes()
        told, alone_told = result.hierarchy(), alone.hierarchy()
        assert told is not None
        assert alone_told is not None
        for ours, theirs in zip(told["sites"], alone_told["sites"], strict=True):
            assert abs(ours["mean"] - theirs["mean"]) < 0.2 * theirs["sd"]
    else:
        # CKKS is encrypted with fresh randomness, whose error is far below the noise.
        assert here.shape == there.shape == (ROUNDS, len(alone.summary()))
        assert np.abs(here - there).max() < 1e-4 * np.abs(there).max()
    for mine, its in zip(result.summary(), alone.summary(), strict=True):
        # The draws are made afterwards, with as many threads as each process has; an
        # average of iterates has no sd.
        room = 1e-3 * (1.0 + abs(its["mean"]))
        room = room if its["sd"] is None else 0.2 * its["sd"]
        assert abs(mine["mean"] - its["mean"]) < room, mine["name"]

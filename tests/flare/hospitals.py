"""The parties of a small study as FLARE programs, for the tests that need them all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from parties import small_study, trajectory, write_tables
from query_sites import QUERY, fill

from cipherbayes.results.run import run

if TYPE_CHECKING:
    from flare_machines import Machines

ROUNDS = 150


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """A server, a CSP and two sites, all running; b's table is a query."""
    from flare_machines import Machines

    folder = tmp_path_factory.mktemp("machines")
    study = small_study(
        ("a", "b"),
        inference={"rounds": ROUNDS},
        evaluation={"holdout": 0.3},
        describe={"by": ["site"]},
    )
    study = write_tables(folder / "tables", study)
    made = Machines(folder, study)
    kit = made.kits["b"].path
    # To the last bit: a hash of each record decides whether it is held out.
    rows = pd.read_csv(study.sites["b"].data, float_precision="round_trip")
    fill(kit / "b.sqlite", rows)
    (kit / "b.sql").write_text(QUERY)
    (kit / "site.toml").write_text(
        'data = { database = "sqlite:b.sqlite", query = "b.sql" }\n'
        'ledger = "b.ledger"\n'
    )
    made.start()
    try:
        made.wait_for()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def alone(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same study on one machine, over tables of its own."""
    folder = tmp_path_factory.mktemp("alone")
    run(write_tables(folder / "tables", machines.study), out=folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def undisturbed(alone: Path) -> list[bytes]:
    """θ of that run."""
    return trajectory(alone)

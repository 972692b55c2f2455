"""Every experiment from its cells to its table and picture, on few made-up rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from cipherbayes_research.datasets.physionet2012 import FEATURES, OUTCOME
from cipherbayes_research.datasets.splitting import write_table
from cipherbayes_research.paper import flchain_population, mortality, peers, timing
from cipherbayes_research.paper.cells import Cell, CellStore, Sources, compute_cells
from cipherbayes_research.paper.experiment import NAMES, experiment
from cipherbayes_research.paper.physionet import feature
from cipherbayes_research.paper.report import COLUMNS, Report
from conftest import needs

pytestmark = needs("matplotlib")

PRINTED = ("printed-pooled", "printed-federated")
ALONE = ("approximation", "constants")
"""Those that test_reproduce_command.py runs whole."""
KEPT: dict[str, Callable[[Cell], bool]] = {
    "logistic": lambda cell: cell.kind != "encrypted-update" and cell.epsilon != 0.1,
}
"""Of ``logistic`` what takes longest is left out: encryption, and one budget of two."""


def made_up_stays(count: int) -> pa.Table:
    """PhysioNet's columns with values around the public centres; the old die."""
    rng = np.random.default_rng(0)
    columns = {}
    for name in FEATURES:
        bounds = feature(name)
        reach = 0.2 * (bounds["high"] - bounds["low"])
        values = bounds["missing"] + reach * rng.uniform(-1.0, 1.0, count)
        columns[name] = np.where(rng.random(count) < 0.1, np.nan, values)
    age = np.nan_to_num(columns["Age"], nan=65.0)
    chance = 1.0 / (1.0 + np.exp(1.5 - (age - 65.0) / 5.0))
    deaths = (rng.random(count) < chance).astype(np.int64)
    return pa.table(columns | {OUTCOME: deaths})


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    folder = tmp_path_factory.mktemp("rows")
    write_table(made_up_stays(500), folder / "stays.parquet")
    cohort = flchain_population.cohort(500, 0).to_pandas()
    cohort.to_csv(folder / "cohort.csv", index=False)
    return Sources(folder / "stays.parquet", folder / "cohort.csv")


def reproduced(name: str, sources: Sources, folder: Path) -> Report:
    """The quick cells of the first split, with very short runs as printed."""
    found = experiment(name)
    keep = KEPT.get(name, lambda cell: True)
    cells = [cell for cell in found.cells(True) if cell.split == 0 and keep(cell)]  # type: ignore[no-untyped-call]
    cells = [
        replace(cell, choice="5") if cell.kind in PRINTED and cell.choice else cell
        for cell in cells
    ]
    if name == "timing":
        cells = [replace(cell, choice="1+1") for cell in cells]
    store = CellStore(folder / "cells.jsonl", name=name, quick=True)
    for cell in cells:  # the accountant's answer takes seconds, and has its own tests
        if cell.kind == "honest":
            store.keep(cell, {"epsilon": 1000.0})
    results = compute_cells(
        store,
        cells,
        found.compute,
        sources,
        progress=lambda done, total: None,
        workers=0,
    )
    report = found.report(results, True)
    report.write(folder)
    from cipherbayes_research.paper.pictures import save

    save(found.draw(report), folder / f"{name}.svg")
    return report


@pytest.fixture
def _shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of a cell make a mean, and two settings of everything a grid."""
    monkeypatch.setattr(mortality, "DRAWS", dict.fromkeys(mortality.DRAWS, 2))
    monkeypatch.setattr(timing, "WARM_UP", 1)
    for grid in ("STEPS", "STRENGTHS", "OUR_STEPS"):
        monkeypatch.setattr(peers, grid, getattr(peers, grid)[:2])


LONG = {"sites", "imbalance"}
"""Of the same cells as ``logistic``, with more sites or other sizes of them."""


@pytest.mark.slow
@pytest.mark.usefixtures("_shorter")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.torture) if name in LONG else name
        for name in NAMES
        if name not in ALONE
    ],
)
def test_an_experiment_goes_from_cells_to_a_table_and_a_picture(
    name: str, sources: Sources, tmp_path: Path
) -> None:
    report = reproduced(name, sources, tmp_path)
    document = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert document["name"] == name
    assert all(tuple(row) == COLUMNS for row in document["rows"])
    assert all(row.mean is None or np.isfinite(row.mean) for row in report.rows)
    aucs = [row for row in report.rows if row.metric in ("auc", "c_index")]
    assert all(row.mean is not None and 0.0 < row.mean <= 1.0 for row in aucs)
    printed = [row for row in report.rows if "as printed" in row.setting]
    assert not any(row.certified for row in printed)
    root = ElementTree.parse(tmp_path / f"{name}.svg").getroot()
    assert root.tag.endswith("svg")


@pytest.mark.slow
def test_encrypted_as_printed_follows_its_simulation() -> None:
    from cipherbayes_research.paper.printed_encrypted import compare

    found = compare(rounds=3)
    assert found["rounds"] == 3
    assert found["gap"] < 0.01 * found["move"]


@pytest.mark.slow
def test_the_encrypted_update_follows_its_simulation(tmp_path: Path) -> None:
    """With the same noise both release the same integers, to a step of their grid."""
    from cipherbayes import Study, run
    from cipherbayes.protocols.encrypted_update.plan import plan_encrypted
    from cipherbayes.protocols.stores import Checkpoint, checkpoint_file
    from cipherbayes.study.tables import with_sites
    from cipherbayes_research.paper.simulated_update import simulate_update

    study = Study.model_validate(
        {
            "study": {"name": "both", "protocol": "encrypted-update"},
            "model": {"kind": "logistic", "outcome": "y"},
            "features": {"a": {"low": -1.0, "high": 1.0}},
            "preparation": {"method": "public-bounds"},
            "inference": {"method": "psgld", "rounds": 3},
            "privacy": {
                "epsilon": 3.0,
                "delta": 1e-5,
                "records": 400,
                "randomness": "insecure-repeatable",
            },
        }
    )
    rng = np.random.default_rng(7)
    tables = {
        name: pa.table({"a": rng.uniform(-1, 1, 200), "y": rng.integers(0, 2, 200)})
        for name in ("north", "south")
    }
    run(study, tables, out=tmp_path / "run")
    checkpoint = Checkpoint(checkpoint_file(tmp_path / "run"))
    encrypted = np.array(checkpoint.trajectory())
    checkpoint.close()
    _, simulated = simulate_update(study, tables)
    plan = plan_encrypted(with_sites(study, tables).with_privacy())
    assert np.abs(np.diff(encrypted, axis=0)).max() > 100 * plan.grid
    # A value at the edge of two steps may be rounded to either.
    gap = np.abs(np.array(simulated) - encrypted)
    assert (gap <= 1.01 * len(encrypted) * plan.grid * plan.step_size).all()


def test_a_made_up_cohort_ages_and_dies_as_the_facts_say() -> None:
    rows = flchain_population.cohort(20_000, 1).to_pandas()
    assert rows["age"].between(50, 100).all()
    young, old = rows[rows["age"] < 60], rows[rows["age"] > 80]
    assert old["death"].mean() > 2 * young["death"].mean()
    assert rows["kappa"].between(0.33, 1.94).mean() == pytest.approx(0.95, abs=0.02)
    assert rows["lambda"].between(0.57, 2.63).mean() == pytest.approx(0.95, abs=0.02)
    assert rows["mgus"].mean() == pytest.approx(0.03, abs=0.01)

"""``cipherbayes reproduce`` writes a table and a picture, and prints JSON."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cipherbayes.errors import RunError
from cipherbayes_research.commands.reproduce import Name
from cipherbayes_research.paper.cells import Cell, CellStore, Results, Sources
from cipherbayes_research.paper.experiment import NAMES, experiment, reproduce
from cipherbayes_research.paper.report import COLUMNS
from conftest import needs
from terminal import cipherbayes

pytestmark = needs("matplotlib")


def test_the_command_knows_every_experiment() -> None:
    assert tuple(name.value for name in Name) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_run_is_a_smaller_experiment_of_the_same_kinds(name: str) -> None:
    found = experiment(name)
    quick, full = found.cells(True), found.cells(False)
    assert 0 < len(quick) <= len(full)
    assert len(set(full)) == len(full)
    assert {cell.kind for cell in quick} <= {cell.kind for cell in full}


@pytest.mark.slow
def test_an_experiment_ends_in_json_csv_and_a_picture(tmp_path: Path) -> None:
    words = ("reproduce", "approximation", "--quick", "--json", "--out", "found")
    outcome = cipherbayes(*words, cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    document = json.loads(outcome.stdout)
    assert document["name"] == "approximation"
    assert all(tuple(row) == COLUMNS for row in document["rows"])
    folder = tmp_path / "found" / "quick" / "approximation"
    assert json.loads((folder / "approximation.json").read_text()) == document
    assert (folder / "approximation.csv").exists()
    root = ElementTree.parse(folder / "approximation.svg").getroot()
    assert root.tag.endswith("svg")
    again = cipherbayes(*words, cwd=tmp_path)
    assert json.loads(again.stdout) == document


@pytest.mark.slow
def test_finished_cells_alone_make_a_table_and_a_picture(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no cell is finished"):
        reproduce("approximation", out=tmp_path, finished=True)
    found = experiment("approximation")
    cells = found.cells(False)
    folder = tmp_path / "approximation"
    held = CellStore(folder / "cells.jsonl", name="approximation", quick=False)
    for cell in (cells[0], cells[1], cells[-1]):
        held.keep(cell, found.compute(cell, Sources()))
    report = reproduce("approximation", out=tmp_path, finished=True)
    assert report.notes[-1] == f"3 of {len(cells)} cells are finished"
    assert len(report.rows) == 6
    assert (folder / "approximation.csv").exists()


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are computed in this process: others take longer to start."""
    monkeypatch.setattr("cipherbayes_research.paper.cells.os.cpu_count", lambda: 1)


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
def test_minimax_is_never_worse_than_the_papers_polynomial(tmp_path: Path) -> None:
    outcome = cipherbayes(
        "reproduce", "approximation", "--json", "--out", tmp_path, cwd=tmp_path
    )
    errors = {
        row["setting"]: row["mean"]
        for row in json.loads(outcome.stdout)["rows"]
        if row["metric"] == "largest relative error"
    }
    for low in ("0.001", "0.01", "0.03", "0.1"):
        assert errors[f"minimax on [{low}, 1]"] < errors[f"chebyshev on [{low}, 1]"]


def test_cells_of_a_finished_experiment_serve_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sites and imbalance ask for some of the very cells of logistic."""
    shared = set(experiment("sites").cells(True))
    shared &= set(experiment("logistic").cells(True))
    assert shared
    archive = tmp_path / "set-a.tar.gz"
    archive.touch()
    logistic = tmp_path / "quick" / "logistic" / "cells.jsonl"
    held = CellStore(logistic, name="logistic", quick=True)
    for cell in shared:
        held.keep(cell, {"auc": 0.8, "accuracy": 0.9, "epsilon": 1.0})
    asked: list[Cell] = []

    def watch(store: CellStore, cells: list[Cell], *_: object, **__: object) -> Results:
        asked.extend(cell for cell in cells if cell not in store.results)
        raise RunError("enough")

    monkeypatch.setattr("cipherbayes_research.paper.experiment.compute_cells", watch)
    (tmp_path / "physionet2012.parquet").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="enough"):
        reproduce("sites", out=tmp_path, quick=True)
    assert set(asked) == set(experiment("sites").cells(True)) - shared


def test_absent_data_is_one_line_with_a_remedy(tmp_path: Path) -> None:
    outcome = cipherbayes("reproduce", "sites", "--quick", cwd=tmp_path)
    assert outcome.returncode == 1
    assert outcome.stderr.count("\n") == 1
    assert "set-a.tar.gz" in outcome.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
def test_the_honest_epsilon_of_the_papers_constants(tmp_path: Path) -> None:
    """Of those with c = 1, which its theorem covers, nothing is asked here."""
    folder = tmp_path / "quick" / "constants"
    known = CellStore(folder / "cells.jsonl", name="constants", quick=True)
    for cell in experiment("constants").cells(True):
        if cell.choice == "1":
            known.keep(cell, {"all": 0.03, "first": 0.01})
    outcome = cipherbayes(
        "reproduce", "constants", "--quick", "--json", "--out", tmp_path, cwd=tmp_path
    )
    rows = [
        row for row in json.loads(outcome.stdout)["rows"] if row["metric"] == "honest ε"
    ]
    assert not any(row["certified"] for row in rows)
    scaled = [row for row in rows if not row["setting"].endswith("c = 1")]
    assert len(scaled) == 3
    assert all(row["epsilon"] > 10.0 * row["paper"] for row in scaled)

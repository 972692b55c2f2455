"""The notebooks run from top to bottom, with nothing beside the project.

They are kept with their outputs, for readers who do not run them:
``jupyter execute --inplace notebooks/*.ipynb`` writes these again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from conftest import needs

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytestmark = [needs("nbclient"), needs("sksurv")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    client = NotebookClient(
        book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env={**os.environ, "TMPDIR": str(tmp_path)})
    kept = nbformat.read(path, as_version=4)
    assert [shown(cell) for cell in book.cells] == [shown(cell) for cell in kept.cells]


def shown(cell: Any) -> list[list[str]]:
    """The kinds of things that a cell shows."""
    outputs = cell.get("outputs", [])
    return [sorted(output.get("data", {output.output_type: 0})) for output in outputs]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_what_it_shows_and_no_more(path: Path) -> None:
    import nbformat

    cells = nbformat.read(path, as_version=4).cells
    every = [output for cell in cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in every)
    assert any(
        "<table" in output.get("data", {}).get("text/html", "") for output in every
    )
    assert all(output.output_type != "error" for output in every)
    assert all(output.get("name") != "stderr" for output in every)
    text = path.read_text(encoding="utf-8")
    for machine in ("/tmp", "/home", "/root", "/Users", "/work"):
        assert machine + "/" not in text


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["survival", "what-privacy-costs"]

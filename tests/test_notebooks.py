"""The notebooks run from top to bottom, with nothing beside the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("sksurv", reason="scikit-survival carries the example data")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env={**os.environ, "TMPDIR": str(tmp_path)})
    outputs = [cell.get("outputs") for cell in book.cells if cell.cell_type == "code"]
    assert sum(bool(found) for found in outputs) >= len(outputs) // 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    import nbformat

    for cell in nbformat.read(path, as_version=4).cells:  # type: ignore[no-untyped-call]
        assert not cell.get("outputs")


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["survival", "what-privacy-costs"]

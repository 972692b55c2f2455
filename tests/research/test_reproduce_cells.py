"""An experiment goes on where it stopped, and never mixes with another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cipherbayes.errors import RunError
from cipherbayes_research.paper.cells import (
    Cell,
    CellStore,
    Sources,
    compute_cells,
    known_cells,
)

CELLS = [Cell("fit", split, epsilon=0.1 * split) for split in range(4)]


def square(cell: Cell, sources: Sources) -> dict[str, float]:
    return {"value": float(cell.split**2)}


def refuse(cell: Cell, sources: Sources) -> dict[str, float]:
    raise AssertionError("computed again")


def store(path: Path, name: str = "toy", quick: bool = False) -> CellStore:
    return CellStore(path / "cells.jsonl", name=name, quick=quick)


def run(held: CellStore, compute=square, cells=CELLS, **more):  # type: ignore[no-untyped-def]
    return compute_cells(
        held, cells, compute, Sources(), progress=lambda done, total: None, **more
    )


def test_a_finished_cell_is_not_computed_again(tmp_path: Path) -> None:
    first = run(store(tmp_path), workers=0)
    assert run(store(tmp_path), refuse, workers=0) == first


def test_only_missing_cells_are_computed(tmp_path: Path) -> None:
    run(store(tmp_path), cells=CELLS[:2], workers=0)
    asked = []

    def watch(cell: Cell, sources: Sources) -> dict[str, float]:
        asked.append(cell)
        return square(cell, sources)

    run(store(tmp_path), watch, workers=0)
    assert asked == CELLS[2:]


def test_a_line_that_was_cut_off_is_forgotten_and_computed(tmp_path: Path) -> None:
    whole = run(store(tmp_path), workers=0)
    path = tmp_path / "cells.jsonl"
    path.write_text(path.read_text()[:-20])
    held = store(tmp_path)
    assert len(held.results) == len(CELLS) - 1
    assert run(held, workers=0) == whole
    assert run(store(tmp_path), refuse, workers=0) == whole


def test_progress_counts_finished_cells_too(tmp_path: Path) -> None:
    run(store(tmp_path), cells=CELLS[:3], workers=0)
    seen: list[tuple[int, int]] = []
    compute_cells(
        store(tmp_path),
        CELLS,
        square,
        Sources(),
        progress=lambda done, total: seen.append((done, total)),
        workers=0,
    )
    assert seen == [(3, 4), (4, 4)]


@pytest.mark.parametrize("other", [{"name": "other"}, {"quick": True}])
def test_another_experiments_cells_are_refused(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    run(store(tmp_path), workers=0)
    with pytest.raises(RunError, match="another experiment"):
        store(tmp_path, **other)


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    run(store(tmp_path), workers=0)
    path = tmp_path / "cells.jsonl"
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], "{}", *lines[1:]]))
    with pytest.raises(RunError, match="damaged"):
        store(tmp_path)


def test_a_value_that_json_cannot_hold_is_not_kept(tmp_path: Path) -> None:
    held = store(tmp_path)
    with pytest.raises(ValueError):
        held.keep(CELLS[0], {"value": float("nan")})
    header = json.loads((tmp_path / "cells.jsonl").read_text())
    assert header["reproduce"] == "toy"


def test_reading_known_cells_leaves_a_file_that_is_being_written(
    tmp_path: Path,
) -> None:
    run(store(tmp_path), workers=0)
    path = tmp_path / "cells.jsonl"
    half = path.read_text()[:-20]
    path.write_text(half)
    assert len(known_cells(path, name="toy", quick=False)) == len(CELLS) - 1
    assert path.read_text() == half

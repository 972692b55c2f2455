"""The page's tables are written from finished cells, and from nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from cipherbayes.errors import RunError
from cipherbayes_research.paper.cells import Cell, CellStore
from cipherbayes_research.paper.page import TABLES, Finished, refreshed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "the-paper-reproduced.md"


def page() -> str:
    return "".join(f"<!-- table: {name} -->\n\n| old |\n\nend\n\n" for name in TABLES)


def test_the_page_has_a_place_for_every_table(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert refreshed(text, Finished(tmp_path)).count("<!-- table:") == len(TABLES)


def test_a_table_has_what_is_finished_and_says_what_is_not(tmp_path: Path) -> None:
    path = tmp_path / "logistic" / "cells.jsonl"
    held = CellStore(path, name="logistic", quick=False)
    for split, auc in enumerate((0.7, 0.8)):
        held.keep(
            Cell("private", split, 1, 1.0, "ranked"), {"auc": auc, "draws": [auc] * 3}
        )
    text = refreshed(page(), Finished(tmp_path))
    (row,) = [line for line in text.split("\n") if line.startswith("| 1 | 0.817 |")]
    assert row.count("0.750 (0.071), 2 of 10") == 1
    assert row.count("± 0.0000") == 1
    assert row.count("not run") == 5
    assert "old" not in text
    assert text.count("end") == len(TABLES)
    assert refreshed(text, Finished(tmp_path)) == text


def test_noise_is_the_error_of_the_mean_over_runs_and_splits(tmp_path: Path) -> None:
    held = CellStore(
        tmp_path / "logistic" / "cells.jsonl", name="logistic", quick=False
    )
    head = Cell("private", 0, 1, 1.0, "ranked")
    for split in range(4):
        cell = Cell("private", split, 1, 1.0, "ranked")
        held.keep(cell, {"auc": 0.8, "draws": [0.7, 0.9]})
    # A run has variance 0.02, a split's mean 0.01, the mean of four of them 0.0025.
    assert Finished(tmp_path).noise("logistic", head) == "± 0.0500"


def test_a_page_without_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="0 tables 'state'"):
        refreshed("no tables", Finished(tmp_path))

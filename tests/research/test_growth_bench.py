"""``cipherbayes bench --growth``: one line for each number of rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cipherbayes_research.benchmarks import growth, scans
from terminal import cipherbayes


def here(function: Callable[..., Any], *arguments: object) -> Any:
    return function(*arguments)


def small_study(path: Path, rows: int) -> growth.StudyCost:
    assert path.exists()
    return {
        "study_s": 3.0, "rounds_s": 2.0, "rounds_cpu_s": 1.5, "study_rounds": 4,
        "study_megabytes": 9.0,
    }  # fmt: skip


def test_rows_grow_by_tens() -> None:
    assert growth.row_counts(100_000) == [100_000]
    assert growth.row_counts(10**8) == [10**5, 10**6, 10**7, 10**8]
    assert growth.row_counts(999_999) == [100_000]


def test_growth_has_a_line_for_each_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "alone", here)
    monkeypatch.setattr(growth, "private_study", small_study)
    monkeypatch.setattr(growth, "REPEATS", 1)
    monkeypatch.setattr(growth, "row_counts", lambda most: [500, 2000])
    done = cipherbayes("bench", "--growth", "--json", "--folder", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["rows"] for row in rows] == [500, 2000]
    for row in rows:
        assert set(row) == set(growth.GrowthOfRows.__annotations__)
        assert row["scan"] in row["scans"].keys() == scans.SCANS.keys()
        assert row["scan_s"] == min(wall for wall, _ in row["scans"].values())
        assert row["speed"] == pytest.approx(row["scan_s"] / row["pass_s"])
        assert row["study_speed"] == pytest.approx(row["scan_s"] / 0.5)
        assert row["passes"].keys() >= {"influence", "influence, with information"}
        walls = [wall for wall, _ in row["passes"].values()]
        assert min(walls) <= row["pass_s"] <= max(walls) == row["dearest_s"]
    assert rows[1]["cpu_ns_per_row_and_round"] == pytest.approx(1.5 / 4 / 2000 * 1e9)
    assert not list(tmp_path.iterdir())

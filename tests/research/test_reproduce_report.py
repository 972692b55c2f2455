"""Splits, tables and paired differences."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from cipherbayes_research.paper.pictures import style
from cipherbayes_research.paper.report import COLUMNS, Report, difference, summarised
from cipherbayes_research.paper.splits import SPLITS, split_over_sites, split_rows


@given(st.integers(10, 300), st.integers(0, SPLITS - 1))
def test_a_split_tests_a_fifth_of_the_rows(count: int, split: int) -> None:
    train, test = split_rows(count, split)
    assert sorted([*train, *test]) == list(range(count))
    assert abs(test.size - count / 5) < 1


def test_splits_are_independent_and_repeat() -> None:
    tests = [set(split_rows(4000, split)[1]) for split in range(SPLITS)]
    assert tests == [set(split_rows(4000, split)[1]) for split in range(SPLITS)]
    shared = [len(a & b) for i, a in enumerate(tests) for b in tests[:i]]
    assert 160 - 40 < min(shared) <= max(shared) < 160 + 40


@given(st.integers(1, 6), st.integers(60, 200))
def test_sites_share_the_training_rows(sites: int, count: int) -> None:
    rows = np.arange(0, 3 * count, 3)
    parts = split_over_sites(rows, sites, split=0)
    assert np.array_equal(np.sort(np.concatenate(parts)), rows)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_site_can_be_four_times_as_large() -> None:
    large, small = split_over_sites(np.arange(3200), 2, 0, (4.0, 1.0))
    assert (large.size, small.size) == (2560, 640)


def test_a_paired_difference_has_the_corrected_interval() -> None:
    first = {0: 0.8, 1: 0.9, 2: 0.85, 7: 0.1}
    second = {0: 0.7, 1: 0.85, 2: 0.7, 9: 0.1}
    gap = difference(first, second, ("a", "b"), metric="auc", epsilon=1.0)
    assert gap is not None
    gaps = np.array([0.1, 0.05, 0.15])
    error = gaps.std(ddof=1) * math.sqrt(1 / 3 + 1 / 4)
    assert gap.splits == 3
    assert gap.mean == pytest.approx(0.1)
    assert gap.upper - gap.mean == pytest.approx(student.ppf(0.975, 2) * error)
    assert gap.mean - gap.lower == pytest.approx(gap.upper - gap.mean)


def test_one_common_split_gives_no_difference() -> None:
    assert difference({0: 1.0}, {0: 0.5}, ("a", "b"), metric="auc") is None


def test_a_report_is_written_as_the_contract_says(tmp_path: Path) -> None:
    row = summarised(
        [0.7, 0.8], setting="pooled", metric="auc", epsilon=1.0, certified=True
    )
    report = Report("toy", "a toy", True, [row])
    report.write(tmp_path)
    document = json.loads((tmp_path / "toy.json").read_text(encoding="utf-8"))
    assert document["name"] == "toy"
    (only,) = document["rows"]
    assert tuple(only) == COLUMNS
    assert only["mean"] == pytest.approx(0.75)
    assert only["sd"] == pytest.approx(np.std([0.7, 0.8], ddof=1))
    with (tmp_path / "toy.csv").open(encoding="utf-8") as file:
        (line,) = csv.DictReader(file)
    assert line["setting"] == "pooled"
    assert float(line["mean"]) == pytest.approx(0.75)


def test_no_two_lines_of_a_picture_look_alike() -> None:
    looks = [style(number) for number in range(12)]
    for what in ("linestyle", "marker"):
        assert len({(str(look["color"]), str(look[what])) for look in looks}) == 12
    shapes = {(str(look["linestyle"]), look["marker"]) for look in looks}
    assert len(shapes) == 12  # without any colour

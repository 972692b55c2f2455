"""Dividing one table over sites and writing the parts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cipherbayes.errors import DataError
from cipherbayes_research.datasets.splitting import split_sites, write_table


def numbers(count: int) -> pa.Table:
    return pa.table({"id": list(range(count)), "x": [0.1 * i for i in range(count)]})


@settings(deadline=None)
@given(
    count=st.integers(20, 200),
    ratios=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    seed=st.integers(0, 2**31),
)
def test_every_row_goes_to_exactly_one_site_in_the_stated_ratio(
    count: int, ratios: list[int], seed: int
) -> None:
    parts = split_sites(numbers(count), len(ratios), seed, ratios)
    ids = [i for part in parts for i in part["id"].to_pylist()]
    assert sorted(ids) == list(range(count))
    for part, ratio in zip(parts, ratios, strict=True):
        assert abs(part.num_rows - count * ratio / sum(ratios)) <= 1.0
        assert part.schema == numbers(1).schema


def test_four_to_one() -> None:
    sizes = [part.num_rows for part in split_sites(numbers(4000), 2, 7, (4, 1))]
    assert sizes == [3200, 800]


def test_equal_parts_are_equal_and_random() -> None:
    parts = split_sites(numbers(103), 5, 1)
    assert sorted(part.num_rows for part in parts) == [20, 20, 21, 21, 21]
    assert parts[0]["id"].to_pylist() != list(range(20))


def test_the_seed_decides_the_split() -> None:
    again = [split_sites(numbers(50), 3, seed)[0] for seed in (5, 5, 6)]
    assert again[0].equals(again[1])
    assert not again[0].equals(again[2])


@pytest.mark.parametrize(
    ("sites", "ratios"),
    [
        (0, None),
        (-1, None),
        (2, (1, 1, 1)),
        (2, (1, 0)),
        (2, (1, -1)),
        (2, (1, float("nan"))),
        (11, None),
        (2, (1000, 1)),
    ],
)
def test_impossible_splits_are_refused(
    sites: int, ratios: tuple[float, ...] | None
) -> None:
    with pytest.raises(DataError):
        split_sites(numbers(10), sites, 1, ratios)


def test_tables_survive_being_written(tmp_path: Path) -> None:
    table = pa.table(
        {"a": [0.1, None, 3.0], "b": ["F", "M, or so", "F"], "c": [1, 2, 3]}
    )
    write_table(table, tmp_path / "t.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "t.parquet").equals(table)
    write_table(table, tmp_path / "t.csv")
    assert pyarrow.csv.read_csv(tmp_path / "t.csv").equals(table)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.parquet"]


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\.csv or \.parquet"):
        write_table(numbers(3), tmp_path / "t.xlsx")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        write_table(numbers(3), tmp_path / "nowhere" / "t.csv")

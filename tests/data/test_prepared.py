"""Held or streamed, from whatever source: the same records, block for block."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cipherbayes.data import blocks, spool, streaming
from cipherbayes.data.blocks import BLOCK_ROWS
from cipherbayes.data.preparation import Feature, Preparation
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.tables import open_table, parquet
from cipherbayes.errors import DataError
from cipherbayes.models import Design, Exponential, Logistic, Rows

MODEL = Logistic(outcome="death")
PREPARATION = Preparation(
    {
        "age": Feature(low=20, high=100),
        "lab": Feature(low=0.1, high=50, transform="log", missing=1.0, indicator=True),
        "sex": Feature(levels=["F", "M"]),
    },
    intercept=1.0,
    row_norm=1.5,
)


def clinic(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    lab = np.exp(rng.normal(size=rows))
    lab[rng.random(rows) < 0.1] = np.nan
    return pd.DataFrame(
        {
            "age": rng.uniform(10, 110, rows),
            "sex": rng.choice(["F", "M"], rows),
            "lab": lab,
            "death": rng.integers(0, 2, rows),
        }
    )


def write_parquet(frame: pd.DataFrame, path: Path, row_group: int = 1 << 20) -> Path:
    pq.write_table(pa.Table.from_pandas(frame), path, row_group_size=row_group)
    return path


def write_csv(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path, index=False)  # the shortest text that gives the number back
    return path


def same(found: Iterator[Rows], expected: Iterator[Rows]) -> bool:
    """Whether two sequences of blocks are equal to the last bit."""
    for a, b in zip(found, expected, strict=True):
        assert a.x.tobytes() == b.x.tobytes()
        assert a.squared_norms.tobytes() == b.squared_norms.tobytes()
        assert a.outcome.keys() == b.outcome.keys()
        for role in a.outcome:
            assert a.outcome[role].tobytes() == b.outcome[role].tobytes()
    return True


SOURCES: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "csv": lambda frame, folder: write_csv(frame, folder / "t.csv"),
    "parquet": lambda frame, folder: write_parquet(frame, folder / "t.parquet"),
    "small row groups": lambda f, folder: write_parquet(f, folder / "t.pq", 7001),
    "polars": lambda frame, folder: pl.from_pandas(frame),
}


def without_spool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every pass read the table itself."""
    monkeypatch.setattr(spool, "spool_folder", lambda beside: None)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["streamed", "spooled", "held"])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_every_source_gives_identical_blocks(
    source: Callable[[pd.DataFrame, Path], Any],
    way: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet, "PART_ROWS", 10_000)
    limit = 1 << 30 if way == "held" else 0
    if way == "streamed":
        without_spool(monkeypatch)
    frame = clinic(2 * BLOCK_ROWS + 5000)
    reference = PreparedTable(open_table(frame), PREPARATION, MODEL)
    table = PreparedTable(
        open_table(source(frame, tmp_path)), PREPARATION, MODEL, memory_limit=limit
    )
    assert table.in_memory == (limit > 0)
    assert table.count == len(frame)
    assert [b.count for b in table.blocks()] == [BLOCK_ROWS, BLOCK_ROWS, 5000]
    assert same(table.blocks(), reference.blocks())
    assert table.outcome()["y"].tolist() == frame["death"].tolist()
    rows = np.arange(1, len(frame), 2)
    assert same(table.blocks(rows), reference.blocks(rows))
    part = table.subset(rows)
    assert part.in_memory == table.in_memory
    assert same(part.blocks(), reference.blocks(rows))
    assert same(part.blocks(np.array([3, 18_000])), table.blocks(rows[[3, 18_000]]))


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreparedTable]:
    """A file whose parts end nowhere near the end of a block, and its records."""
    frame = clinic(70_000, seed=3)
    path = tmp_path_factory.mktemp("awkward") / "t.parquet"
    write_parquet(frame, path, row_group=9_999)
    return path, PreparedTable(open_table(frame), PREPARATION, MODEL)


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2", "5"])
@pytest.mark.parametrize("part_rows", [1, 25_000, 1_000_000])
@pytest.mark.parametrize("chunk_bytes", [1, 3_000_000, 1 << 30])
def test_blocks_do_not_depend_on_how_the_table_is_cut(
    awkward: tuple[Path, PreparedTable],
    threads: str,
    part_rows: int,
    chunk_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_spool(monkeypatch)
    monkeypatch.setenv("CIPHERBAYES_THREADS", threads)
    monkeypatch.setattr(parquet, "PART_ROWS", part_rows)
    monkeypatch.setattr(streaming, "CHUNK_BYTES", chunk_bytes)
    path, reference = awkward
    table = PreparedTable(open_table(path), PREPARATION, MODEL, memory_limit=0)

    def contents(block: Rows) -> tuple[bytes, bytes, bytes]:
        return (
            block.x.tobytes(),
            block.squared_norms.tobytes(),
            block.outcome["y"].tobytes(),
        )

    assert list(table.map(contents)) == list(reference.map(contents))
    rows = np.flatnonzero(np.random.default_rng(0).random(70_000) < 0.5)
    assert list(table.map(contents, rows)) == list(reference.map(contents, rows))
    held = PreparedTable(open_table(path), PREPARATION, MODEL)
    assert same(held.blocks(), reference.blocks())


@given(picked=st.sets(st.integers(0, 69_999), max_size=40))
@settings(max_examples=20)
def test_any_selection_of_rows_is_what_it_says(
    awkward: tuple[Path, PreparedTable], picked: set[int]
) -> None:
    _, reference = awkward
    rows = np.array(sorted(picked), dtype=np.int64)
    whole = np.concatenate([block.x for block in reference.blocks()], axis=1)
    for table in (reference, PreparedTable.from_arrays(reference.design, whole, {})):
        found = [block.x for block in table.blocks(rows)]
        assert len(found) == (1 if picked else 0)
        if picked:
            assert (found[0] == whole[:, rows]).all()
    assert reference.subset(rows).count == len(picked)


def test_a_csv_that_outgrows_the_limit_is_streamed(tmp_path: Path) -> None:
    frame = clinic(40_000)
    path = write_csv(frame, tmp_path / "t.csv")
    limit = 20_000 * 8 * 7
    table = PreparedTable(open_table(path), PREPARATION, MODEL, memory_limit=limit)
    assert not table.in_memory
    assert table.count == 40_000
    held = PreparedTable(open_table(path), PREPARATION, MODEL, memory_limit=4 * limit)
    assert held.in_memory
    assert same(table.blocks(), held.blocks())


def test_blocks_of_a_stream_may_be_kept(tmp_path: Path) -> None:
    path = write_parquet(clinic(300_000), tmp_path / "t.parquet", 140_000)
    table = PreparedTable(open_table(path), PREPARATION, MODEL, memory_limit=0)
    kept = list(table.blocks())
    assert same(iter(kept), table.blocks())


def test_squared_norms_are_those_of_the_rows() -> None:
    table = PreparedTable(open_table(clinic(1000)), PREPARATION, MODEL)
    (block,) = table.blocks()
    np.testing.assert_allclose(block.squared_norms, (block.x**2).sum(axis=0))
    # The row norm bounds the features, the intercept's square comes on top.
    assert block.squared_norms.max() <= 1.0 + 1.5**2 + 1e-12


def test_prediction_reads_no_outcome() -> None:
    frame = clinic(10).drop(columns="death")
    table = PreparedTable.for_prediction(open_table(frame), PREPARATION)
    (block,) = table.blocks()
    assert block.outcome == {}
    assert table.outcome() == {}
    assert block.count == 10


def test_constant_columns_are_named_without_the_intercept(tmp_path: Path) -> None:
    frame = clinic(40_000).assign(sex="F", lab=3.0)
    for limit in (0, 1 << 30):
        source = write_parquet(frame, tmp_path / "t.parquet", 10_000)
        table = PreparedTable(
            open_table(source), PREPARATION, MODEL, memory_limit=limit
        )
        assert table.constant_columns() == ("lab", "lab[missing]", "sex[M]")
        assert table.subset(np.array([7])).constant_columns() == (
            "age",
            "lab",
            "lab[missing]",
            "sex[M]",
        )
    frame.loc[39_999, "sex"] = "M"
    table = PreparedTable(open_table(frame), PREPARATION, MODEL)
    assert table.constant_columns() == ("lab", "lab[missing]")


def small_design(width: int = 2) -> Design:
    names = tuple(f"b{j}" for j in range(width))
    return Design(names, np.zeros(width), np.ones(width), None)


def test_a_site_without_rows_can_be_represented() -> None:
    empty = {"y": np.empty(0)}
    table = PreparedTable.from_arrays(small_design(), np.empty((2, 0)), empty)
    assert table.count == 0
    assert list(table.blocks()) == []
    assert table.outcome()["y"].size == 0
    assert table.constant_columns() == ()
    one = PreparedTable.from_arrays(small_design(), np.ones((2, 1)), {"y": np.ones(1)})
    nothing = one.subset(np.array([], dtype=np.int64))
    assert nothing.count == 0
    assert nothing.outcome()["y"].size == 0


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one row for each column"):
        PreparedTable.from_arrays(small_design(), np.ones((3, 4)), {})
    with pytest.raises(ValueError, match="one value for each record"):
        PreparedTable.from_arrays(small_design(), np.ones((2, 4)), {"y": np.ones(3)})
    with pytest.raises(ValueError, match="finite"):
        PreparedTable.from_arrays(small_design(), np.full((2, 4), np.nan), {})
    table = PreparedTable.from_arrays(small_design(), np.ones((2, 4)), {})
    for rows in ([-1], [4], [2, 1]):
        with pytest.raises(ValueError, match="sorted positions"):
            table.blocks(np.array(rows))


SURVIVAL = Exponential(time="time", event="event", horizon=10.0)
BAD_OUTCOMES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "not binary": (MODEL, {"death": [0, 8841]}, "column 'death' is not binary"),
    "missing": (MODEL, {"death": [0, None]}, "column 'death' has missing values"),
    "infinite": (MODEL, {"death": [0, np.inf]}, "column 'death' has infinite values"),
    "text": (MODEL, {"death": ["8841", "1"]}, "column 'death' holds text where"),
    "unknown": (MODEL, {"deaths": [0, 1]}, "has no column 'death'; check its"),
    "negative time": (
        SURVIVAL,
        {"time": [1.0, -8841.0], "event": [1, 0]},
        "column 'time' has zero or negative times",
    ),
}


@pytest.mark.parametrize(
    ("model", "columns", "line"), BAD_OUTCOMES.values(), ids=BAD_OUTCOMES
)
def test_an_impossible_outcome_is_refused_without_being_shown(
    model: Any, columns: dict[str, Any], line: str
) -> None:
    frame = pd.DataFrame({"age": [30.0, 40.0], **columns})
    preparation = Preparation({"age": Feature(low=20, high=100)}, 1.0)
    with pytest.raises(DataError) as caught:
        PreparedTable(open_table(frame, "north"), preparation, model)
    assert str(caught.value).startswith("north: ")
    assert line in str(caught.value)
    assert "8841" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_row_far_down_a_file_is_found(tmp_path: Path) -> None:
    frame = clinic(300_000)
    frame.loc[290_000, "sex"] = "8841"
    path = write_parquet(frame, tmp_path / "t.parquet", 50_000)
    with pytest.raises(DataError, match=r"none of its levels \(F, M\)"):
        PreparedTable(open_table(path), PREPARATION, MODEL, memory_limit=0)


def test_the_number_of_threads_can_be_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIPHERBAYES_THREADS", "3")
    assert blocks.thread_count() == 3
    for nonsense in ("", "0", "-1", "many"):
        monkeypatch.setenv("CIPHERBAYES_THREADS", nonsense)
        assert 1 <= blocks.thread_count() <= blocks.MOST_THREADS


STREAM = """
import sys
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.preparation import Feature, Preparation
from cipherbayes.data.tables import open_table
from cipherbayes.models import Logistic
features = {f"x{j}": Feature(low=-3, high=3) for j in range(20)}
table = PreparedTable(
    open_table(sys.argv[1]), Preparation(features, 1.0), Logistic(outcome="y"),
    memory_limit=0,
)
rows = sum(table.map(lambda block: block.count))
# ru_maxrss would count what the parent of this process held when it forked.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(rows, int(status["VmHWM"].split()[0]) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is read from Linux"
)
@pytest.mark.parametrize(
    "row_group",
    [pytest.param(1 << 20, marks=pytest.mark.torture), 3_000_000],  # all rows in one
)
def test_a_table_larger_than_its_memory_is_streamed(
    tmp_path: Path, row_group: int
) -> None:
    """A process that streams 500 MB needs less than 400, whatever the row groups."""
    rows = 3_000_000
    rng = np.random.default_rng(0)
    names = [f"x{j}" for j in range(20)] + ["y"]
    schema = pa.schema([(name, pa.float64()) for name in names])
    path = tmp_path / "t.parquet"
    plain = {"compression": "none", "use_dictionary": False}
    with pq.ParquetWriter(path, schema, **plain) as writer:
        for start in range(0, rows, row_group):
            x = rng.random(min(row_group, rows - start))
            columns = [*(20 * [x]), (x < 0.5).astype(np.float64)]
            table = pa.table(dict(zip(names, columns, strict=True)), schema=schema)
            writer.write_table(table, row_group_size=row_group)
    answer = subprocess.run(
        [sys.executable, "-c", STREAM, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    count, megabytes = map(int, answer.stdout.split())
    assert count == rows
    assert path.stat().st_size > 0.5e9
    assert 100 < megabytes < 400

"""Tables of every kind read alike, and bad ones are refused in one clear line."""

from __future__ import annotations

import datetime
import gzip
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from cipherbayes.data import tables
from cipherbayes.data.tables import Kind, Table, open_table
from cipherbayes.errors import DataError

COLUMNS: dict[str, Kind] = {"age": "number", "sex": "text", "sick": "number"}
FRAME = pd.DataFrame(
    {
        "age": [50.5, None, 70.0],
        "sex": ["F", "M", None],
        "sick": [True, False, True],
        "unused": [1, 2, 3],
    }
)
SECRET = "8841.25"


def read(table: Table, columns: dict[str, Kind] = COLUMNS, **options: int) -> pa.Table:
    """All chunks of a table, joined."""
    pieces = [
        pa.table({name: chunk.column(name) for name in columns})
        for chunk in table.chunks(columns, **options)
    ]
    return pa.concat_tables(pieces)


def plain(values: pa.Table) -> dict[str, list[Any]]:
    """Columns as lists, every spelling of a missing value as None."""
    return {
        name: [
            None if v is None or v != v or v == "" else v
            for v in values.column(name).to_pylist()
        ]
        for name in values.column_names
    }


def as_csv(frame: pd.DataFrame, folder: Path) -> Path:
    frame.to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


def as_gzip(frame: pd.DataFrame, folder: Path) -> Path:
    frame.to_csv(folder / "t.csv.gz", index=False)
    return folder / "t.csv.gz"


def as_parquet(frame: pd.DataFrame, folder: Path) -> Path:
    frame.to_parquet(folder / "t.parquet")
    return folder / "t.parquet"


SOURCES: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "csv": as_csv,
    "gzip": as_gzip,
    "parquet": as_parquet,
    "path as text": lambda frame, folder: str(as_csv(frame, folder)),
    "pandas": lambda frame, folder: frame,
    "polars": lambda frame, folder: pl.from_pandas(frame),
    "lazy polars": lambda frame, folder: pl.from_pandas(frame).lazy(),
    "arrow": lambda frame, folder: pa.Table.from_pandas(frame),
}
every_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


@every_source
def test_every_source_gives_the_same_columns(
    source: Callable[[pd.DataFrame, Path], Any], tmp_path: Path
) -> None:
    found = read(open_table(source(FRAME, tmp_path), "north"))
    assert found.schema.types == [pa.float64(), pa.string(), pa.float64()]
    assert plain(found) == {
        "age": [50.5, None, 70.0],
        "sex": ["F", "M", None],
        "sick": [1.0, 0.0, 1.0],
    }


@every_source
def test_integers_and_categories_may_be_levels(
    source: Callable[[pd.DataFrame, Path], Any], tmp_path: Path
) -> None:
    frame = pd.DataFrame({"stage": [1, 2, 3], "kind": pd.Categorical(["a", "b", "a"])})
    found = read(open_table(source(frame, tmp_path)), {"stage": "text", "kind": "text"})
    assert plain(found) == {"stage": ["1", "2", "3"], "kind": ["a", "b", "a"]}


def test_a_csv_keeps_its_types_from_the_first_block_to_the_last(
    tmp_path: Path,
) -> None:
    rows = 60_000  # several of Arrow's blocks; the first holds integers only
    path = tmp_path / "t.csv"
    with path.open("w") as file:
        file.write("age,padding,level\n")
        for row in range(rows):
            age = row if row < rows - 2 else ["0.5", "NA"][row - rows + 2]
            file.write(f"{age},{'x' * 40},{row % 2 if row else 'NA'}\n")
    table = open_table(path)
    columns: dict[str, Kind] = {"age": "number", "level": "text"}
    assert len(list(table.chunks(columns))) > 1
    found = read(table, columns)
    assert found.num_rows == rows
    assert found.column("age").null_count == 1
    assert found.column("age")[rows - 2].as_py() == 0.5
    assert found.column("level")[0].as_py() == "NA"  # perhaps the name of a level


SPELLINGS = (
    *(" 1 ", "1E5", "+1", ".5", "5.", "0x10", "1_0", "-inf", "Infinity", "nan", "-nan"),
    *("1e400", "-0", "1e-400", '"1"', "1d5", "", "NA", " NA", "4.9e-324", "1e", "1 2"),
    *("0.1", "123456789012345678901234567890", "\N{NO-BREAK SPACE}1", "'1'", " "),
)


@pytest.mark.parametrize("cell", [*SPELLINGS, "true", " False", "yes"])
def test_how_a_cell_is_read_does_not_depend_on_the_others(
    tmp_path: Path, cell: str
) -> None:
    """A column was typed from its first block: true and false opened, 0.5 opened, and
    both together were refused."""
    found, places = set(), set()
    for others in ([], ["0.5"], ["true", "false"], ["0.5", "true"]):
        for cells in ([cell, *others], [*others, cell]):
            path = tmp_path / "t.csv"
            path.write_text("a,b\n" + "".join(f"{each},x\n" for each in cells), "utf-8")
            try:
                column = read(open_table(path), {"a": "number"}).column("a")
                found.add(repr(column[cells.index(cell)].as_py()))
            except DataError as error:
                places.add(f"in line {cells.index(cell) + 2};" in str(error))
                found.add("refused")
    assert len(found) == 1
    assert places <= {True}


def test_a_word_far_down_a_column_of_numbers_is_read(tmp_path: Path) -> None:
    path, rows = tmp_path / "t.csv", 600_000  # more than one block of Arrow's
    path.write_text("a\n" + "1\n0\n" * (rows // 2) + "true\n0.5\n")
    column = read(open_table(path), {"a": "number"}).column("a")
    assert len(column) == rows + 2
    assert column.slice(rows).to_pylist() == [1.0, 0.5]
    assert pc.sum(column).as_py() == rows / 2 + 1.5
    with path.open("a") as file:
        file.write("yes\n")
    with pytest.raises(DataError, match=f"in line {rows + 4};"):
        read(open_table(path), {"a": "number"})


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfage\n4\n")
    assert open_table(path).names == ("age",)


@pytest.mark.parametrize("most_rows", [10, 10_000_000])
def test_the_parts_of_a_parquet_file_are_runs_of_row_groups(
    tmp_path: Path, most_rows: int
) -> None:
    rows = 300_000
    path = tmp_path / "t.parquet"
    frame = pa.table({"age": np.arange(rows, dtype=np.float32)})
    pq.write_table(frame, path, row_group_size=50_000)
    table = open_table(path)
    assert table.counts == (150_000, 150_000)
    second = read(table, {"age": "number"}, part=1, most_rows=most_rows)
    assert second.column("age").to_pylist() == list(range(150_000, rows))
    chunks = list(table.chunks({"age": "number"}, most_rows=most_rows))
    assert max(chunk.num_rows for chunk in chunks) == (
        tables.CHUNK_ROWS if most_rows == 10 else 150_000
    )


def bad_bytes(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


def folder(path: Path) -> Path:
    (path / "t.csv").mkdir()
    return path / "t.csv"


def truncated_parquet(path: Path) -> Path:
    whole = as_parquet(FRAME, path)
    whole.write_bytes(whole.read_bytes()[:-20])
    return whole


def corrupt_parquet(path: Path) -> Path:
    frame = pa.table(
        {
            "age": np.random.default_rng(0).normal(size=5000),
            "sex": ["F"] * 5000,
            "sick": np.ones(5000),
        }
    )
    pq.write_table(frame, path / "t.parquet", compression="zstd")
    content = bytearray((path / "t.parquet").read_bytes())
    content[40:4000] = bytes(3960)
    (path / "t.parquet").write_bytes(content)
    return path / "t.parquet"


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing file": (lambda p: p / "no.csv", "no such file; check the path"),
    "folder": (folder, "is a folder; name one file in it"),
    "unknown ending": (bad_bytes("t.xlsx", b"x"), "has an ending that is not known"),
    "empty csv": (bad_bytes("t.csv", b""), "has no rows"),
    "blank csv": (bad_bytes("t.csv", b"\n\n"), "has no rows"),
    "header only": (bad_bytes("t.csv", b"age,sex,sick\n"), "has no rows"),
    "empty gzip": (bad_bytes("t.csv.gz", gzip.compress(b"")), "has no rows"),
    "not gzip": (bad_bytes("t.csv.gz", b"age\n1\n"), "cannot be read"),
    "unknown column": (
        bad_bytes("t.csv", b"Agee,sex,sick\n1,F,1\n"),
        "has no column 'age'; did you mean 'Agee'?",
    ),
    "capital letters": (
        bad_bytes("t.csv", b"Age,sage,sex,sick\n1,1,F,1\n"),
        "has no column 'age'; it is written 'Age' there: capital letters count",
    ),
    "no header": (
        bad_bytes("t.csv", f"{SECRET},F,1\n{SECRET},M,0\n".encode()),
        "has no column 'age'; check its header line",
    ),
    "no header, and a value like a column's name": (
        bad_bytes("t.csv", b"54.5,Agee,8841\n61,old,no\n"),
        "has no column 'age'; check its header line",
    ),
    "no header, and a value that is a column's name": (
        bad_bytes("t.csv", b"54.5,AGE,Sex 8841\n61,old,no\n"),
        "has no column 'age'; check its header line",
    ),
    "equal names": (
        bad_bytes("t.csv", f"age,{SECRET},{SECRET}\n1,2,3\n".encode()),
        "columns 2 and 3 have the same name; rename one of them",
    ),
    "semicolons": (
        bad_bytes("t.csv", b"age;sex;sick\n1;F;1\n"),
        "is not separated by commas",
    ),
    "ragged csv": (
        bad_bytes("t.csv", f"age,sex,sick\n1,F,1\n{SECRET},F\n".encode()),
        "line 3 has 2 fields instead of 3",
    ),
    "a quote without an end": (
        bad_bytes("t.csv", f'age,sex,sick\n1,F,1\n2,"{SECRET},1\n3,F,1\n'.encode()),
        "line 3 has a cell in quotes that does not end in this line; take line breaks",
    ),
    "text for a number": (
        bad_bytes("t.csv", b"age,sex,sick\n1,F,1\nx8841.25,F,1\n"),
        "column 'age' holds text where a number is expected in line 3; correct it "
        "(decimals need a point: 58.0, not 58,0)",
    ),
    "latin-1 header": (
        bad_bytes("t.csv", b"age,sex,sick,\xe9t\xe9\n1,F,1,1\n"),
        "its header is not UTF-8 text; save the file as UTF-8",
    ),
    "latin-1 values": (
        bad_bytes("t.csv", b"age,sex,sick\n1,8841.25\xe9,1\n"),
        "column 'sex' is not UTF-8 text in line 2",
    ),
    "utf-16": (bad_bytes("t.csv", "age,sex\n1,F\n".encode("utf-16")), "UTF-8"),
    "not parquet": (
        bad_bytes("t.parquet", b"age,sex\n1,F\n"),
        "not a readable Parquet",
    ),
    "cut short": (truncated_parquet, "not a readable Parquet file"),
    "damaged": (corrupt_parquet, "not a readable Parquet file"),
    "no rows of parquet": (
        lambda p: as_parquet(FRAME.iloc[:0], p),
        "has no rows; give a table with at least one record",
    ),
    "no rows of a frame": (lambda p: FRAME.iloc[:0], "has no rows"),
    "equal names of a frame": (
        lambda p: pd.DataFrame([[1, 2]], columns=["age", "age"]),
        "a column name appears twice",
    ),
    "not a frame": (lambda p: {"age": [1]}, "is neither a path nor a frame"),
    "text in a frame": (
        lambda p: FRAME.assign(age=SECRET),
        "column 'age' holds text where a number is expected",
    ),
    "mixed types": (
        lambda p: FRAME.assign(age=[1, SECRET, 2.0]),
        "column 'age' mixes types",
    ),
    "dates": (
        lambda p: FRAME.assign(age=datetime.datetime(2020, 1, 1)),
        "column 'age' holds dates or times",
    ),
    "failing lazy frame": (
        lambda p: pl.LazyFrame({"age": [SECRET]}).select(pl.col("age").cast(pl.Date)),
        "the lazy frame fails",
    ),
}


@pytest.mark.parametrize(("make", "line"), BAD.values(), ids=BAD)
def test_a_bad_table_is_refused_in_one_line_without_a_value(
    make: Callable[[Path], Any], line: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as caught:
        read(open_table(make(tmp_path), "site north"))
    message = str(caught.value)
    assert message.startswith("site north: ")
    assert line in message
    assert "8841" not in message
    assert "\n" not in message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("write", [as_csv, as_parquet])
def test_a_file_that_changes_during_a_run_is_refused(
    write: Callable[[pd.DataFrame, Path], Path], tmp_path: Path
) -> None:
    path = write(FRAME, tmp_path)
    table = open_table(path)
    read(table)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="changed while it was in use"):
        read(table)
    path.unlink()
    with pytest.raises(DataError, match="cannot be found any more"):
        read(table)


@pytest.mark.parametrize("kind", ["number", "text"])
def test_a_decimals_value_does_not_depend_on_the_digits_of_another_record(
    kind: Any,
) -> None:
    """Arrow gives a whole column the scale of its longest value."""
    values = [Decimal("0.3"), Decimal("-0.7"), Decimal("120"), Decimal("1E-9"), None]
    read = []
    for more in ([], [Decimal("0.123456789012")]):
        table = open_table(pa.table({"lab": values + more}))
        (chunk,) = table.chunks({"lab": kind})
        read.append(chunk.column("lab").to_pylist()[: len(values)])
    assert read[0] == read[1]
    if kind == "number":
        assert read[0] == [0.3, -0.7, 120.0, 1e-9, None]
    else:
        assert read[0][:3] == ["0.3", "-0.7", "120"]


@pytest.mark.parametrize("kind", ["number", "text"])
def test_a_decimal_that_is_no_number_is_missing(kind: Any) -> None:
    """One that signals raises where it is compared with itself."""
    values = pd.Series([Decimal("sNaN"), Decimal("NaN"), Decimal("2")], dtype=object)
    (chunk,) = open_table(pd.DataFrame({"lab": values})).chunks({"lab": kind})
    assert chunk.column("lab").to_pylist()[:2] == [None, None]


def written_as(kind: str, values: list[Any], folder: Path) -> Any:
    """The same values in the ways that hospitals keep them."""
    objects = pd.DataFrame({"lab": pd.Series(values, dtype=object)})
    if kind == "pandas objects":
        return objects
    if kind == "polars":
        return pl.DataFrame({"lab": [None if v is None else float(v) for v in values]})
    if kind == "csv":
        objects.to_csv(folder / "t.csv", index=False)
        return folder / "t.csv"
    pd.DataFrame({"lab": values}).to_parquet(folder / "t.parquet")
    return folder / "t.parquet"


@pytest.mark.parametrize("kind", ["pandas objects", "polars", "csv", "parquet"])
@pytest.mark.parametrize(
    ("values", "another"),
    [
        ([0.1, 0.3, 2.5], 7),
        ([1, 2, 3], 0.25),
        ([1, 2, 3], None),
        ([True, False, True], None),
        ([Decimal("0.3"), Decimal("0.7"), Decimal("1.1")], Decimal("0.1234567")),
        ([Decimal("0.3"), Decimal("0.7"), Decimal("1.1")], None),
    ],
    ids=str,
)
def test_a_record_is_read_alike_whatever_else_the_table_holds(
    kind: str, values: list[Any], another: Any, tmp_path: Path
) -> None:
    """A type that is chosen by looking at all rows must not change one of them."""
    read = []
    for rows in (values, [*values, another]):
        table = open_table(written_as(kind, rows, tmp_path))
        chunks = table.chunks({"lab": "number"})
        cells = [cell for chunk in chunks for cell in chunk.column("lab").to_pylist()]
        read.append(cells[: len(values)])
    assert read[0] == read[1] == [float(value) for value in values]


def test_objects_of_half_precision_are_not_cut_by_a_whole_number() -> None:
    halves = [np.float16(0.3), np.float16(1.7)]
    for more in ([], [3]):
        frame = pd.DataFrame({"lab": pd.Series([*halves, *more], dtype=object)})
        (chunk,) = open_table(frame).chunks({"lab": "number"})
        assert chunk.column("lab").to_pylist()[:2] == [float(h) for h in halves]


def test_a_column_of_half_precision_may_be_levels() -> None:
    halves = pa.array(np.array([1, 2, 7.5], np.float16))
    table = open_table(pa.table({"grade": halves}))
    (chunk,) = table.chunks({"grade": "text"})
    assert chunk.column("grade").to_pylist() == ["1", "2", "7.5"]


def test_a_whole_number_beyond_all_bounds_is_refused_in_words() -> None:
    frame = pd.DataFrame({"lab": pd.Series([1, 10**400], dtype=object)})
    with pytest.raises(DataError, match="mixes types"):
        list(open_table(frame).chunks({"lab": "number"}))

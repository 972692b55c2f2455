"""A cell of a database is read by itself, whatever else the table holds."""

from __future__ import annotations

import gzip
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from cipherbayes.data.row_digest import RowDigest
from cipherbayes.data.snapshots import FILE, Query, remove_snapshot, take_snapshot
from cipherbayes.data.tables import CsvTable, Kind, open_table
from cipherbayes.errors import CipherbayesError

duckdb = pytest.importorskip("duckdb", reason="needs cipherbayes[database]")

SECRET = "HIV-67.1234"


def taken(folder: Path, database: str, text: str) -> Path:
    remove_snapshot(folder / "snapshot")
    (folder / "cohort.sql").write_text(text)
    return take_snapshot(Query(database, folder / "cohort.sql"), folder / "snapshot")


def of_folder(folder: Path, lines: Sequence[str], text: str = "FROM cohort") -> Path:
    """A query of a folder with one CSV file."""
    exports = folder / "exports"
    exports.mkdir(exist_ok=True)
    (exports / "cohort.csv").write_text("\n".join(lines) + "\n")
    return taken(folder, f"duckdb:{exports}", text)


def of_sqlite(folder: Path, cells: Sequence[Any], declared: str = "") -> Path:
    """A query of a SQLite table with one column."""
    file = folder / "t.sqlite"
    file.unlink(missing_ok=True)
    with closing(sqlite3.connect(file)) as database:
        database.execute(f"CREATE TABLE t (a {declared})")
        database.executemany("INSERT INTO t VALUES (?)", [(cell,) for cell in cells])
        database.commit()
    return taken(folder, f"sqlite:{file}", "SELECT a FROM t")


def read(path: Path, kinds: dict[str, Kind]) -> list[tuple[Any, ...]]:
    return [
        row
        for chunk in open_table(path).chunks(kinds)
        for row in zip(*(chunk.column(name).to_pylist() for name in kinds), strict=True)
    ]


# -- CSV files of a folder ---------------------------------------------------------

KINDS: dict[str, Kind] = {"id": "text", "lab": "number", "word": "text"}
BODY = [f"{k},{k}.50,{'yes' if k % 2 else 'no'}" for k in range(30)]
ODD = [
    "X9,1.5,no", "07,1.5,no", "7.0,1.5,no", "7,1e3,no", "7,,no", "7,NA,no", "7,nan,no",
    "7,true,no", "7,1.5,maybe", "7,1.5,2020-01-01", "7,1.5,", '"7",1.5,no',
    '7,1.5,"n""o"', '7,1.5,"n, o"', "'7',1.5,no", "id,1.5,word", "7, 1.5,no", ",,", "",
    "#7,1.5,no", "7;8,1.5,a|b",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD)
def test_a_record_changes_no_other_one_of_a_csv_file_in_a_folder(
    odd: str, tmp_path: Path
) -> None:
    others = [(str(k), k + 0.5, "yes" if k % 2 else "no") for k in range(30)]
    rows = read(of_folder(tmp_path, ["id,lab,word", odd, *BODY]), KINDS)
    assert rows[-30:] == others
    assert len(rows) == 30 + bool(odd)


def test_cells_of_a_folder_are_what_they_are_in_a_csv_file(tmp_path: Path) -> None:
    cells = ["1", "1.0", "01", " 2 ", "+3", "1e2", "", "NA", "nan", "None", "-inf"]
    snapshot = of_folder(tmp_path, ["a,b", *(f"{cell},x" for cell in cells)])
    file = tmp_path / "exports" / "cohort.csv"
    as_numbers: dict[str, Kind] = {"a": "number"}
    assert str(read(snapshot, as_numbers)) == str(read(file, as_numbers))
    text = [cell or None for (cell,) in read(file, {"a": "text"})]
    assert [cell for (cell,) in read(snapshot, {"a": "text"})] == text
    (tmp_path / "exports" / "packed.csv.gz").write_bytes(
        gzip.compress(file.read_bytes())
    )
    packed = taken(tmp_path, f"duckdb:{tmp_path / 'exports'}", "FROM packed")
    assert [cell for (cell,) in read(packed, {"a": "text"})] == text


@pytest.mark.parametrize("row", [SECRET, f"1,2,3,{SECRET}", f"1,{SECRET}"])
def test_a_row_of_a_folder_with_other_cells_is_refused_by_its_line(
    row: str, tmp_path: Path
) -> None:
    with pytest.raises(CipherbayesError, match=r"cohort\.csv: line 32 has") as by_query:
        of_folder(tmp_path, ["id,lab,word", *BODY, row])
    assert SECRET not in str(by_query.value)
    with pytest.raises(CipherbayesError, match="line 32 has"):
        CsvTable(tmp_path / "exports" / "cohort.csv", "t")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("SELECT word::INTEGER AS a FROM cohort", "fails on some rows"),
        ("SELECT lab + word AS a FROM cohort", "columns of a CSV file are text"),
        ("FROM read_csv('{file}')", "no table of its database"),
        ("FROM read_text('{file}')", "no table of its database"),
    ],
)
def test_what_a_query_cannot_do_with_a_csv_file_is_said_without_a_value(
    text: str, what: str, tmp_path: Path
) -> None:
    lines = ["id,lab,word", f"1,1.5,{SECRET}"]
    file = tmp_path / "exports" / "cohort.csv"
    with pytest.raises(CipherbayesError, match=what) as refused:
        of_folder(tmp_path, lines, text.format(file=file))
    assert SECRET not in str(refused.value)
    query = "SELECT TRY_CAST(lab AS DOUBLE) * 2 AS a FROM cohort"
    assert read(of_folder(tmp_path, lines, query), {"a": "number"}) == [(3.0,)]


def test_parquet_files_of_one_table_have_the_same_columns(tmp_path: Path) -> None:
    folder = tmp_path / "site=3" / "visits"
    folder.mkdir(parents=True)
    pa.parquet.write_table(pa.table({"a": [1, 2]}), folder / "1.parquet")
    pa.parquet.write_table(pa.table({"a": [3]}), folder / "2.parquet")
    path = taken(tmp_path, f"duckdb:{folder.parent}", "FROM visits")
    # The folder's name is no column.
    assert pa.parquet.read_table(path).to_pydict() == {"a": [1, 2, 3]}
    for other in ({"a": [1.5]}, {"b": [1]}, {"a": [1], "b": [2]}):
        pa.parquet.write_table(pa.table(other), folder / "2.parquet")
        with pytest.raises(CipherbayesError, match="different names or types"):
            taken(tmp_path, f"duckdb:{folder.parent}", "FROM visits")


# -- SQLite ------------------------------------------------------------------------

CELLS = [7, 7.5, 10000001.0, 10000002.0, 1234567890123456, 0.1, 1 / 3, 1e300, None]


@pytest.mark.parametrize(
    ("another", "declared"),
    [("X9", ""), ("X9", "REAL"), (0.5, ""), (3, "REAL"), ("7.0", ""), (None, "")],
)
def test_a_cell_of_sqlite_is_read_by_itself(
    declared: str, another: Any, tmp_path: Path
) -> None:
    texts = []
    for cells in (CELLS, [another, *CELLS]):
        rows = read(of_sqlite(tmp_path, cells, declared), {"a": "text"})
        texts.append(rows[-len(CELLS) :])
    assert texts[0] == texts[1]
    assert [text for (text,) in texts[0]][:5] == [
        "7", "7.5", "10000001", "10000002", "1234567890123456",
    ]  # fmt: skip
    numbers = read(of_sqlite(tmp_path, CELLS, declared), {"a": "number"})
    assert [number for (number,) in numbers] == CELLS


def test_text_of_sqlite_is_no_number_and_is_not_quoted(tmp_path: Path) -> None:
    path = of_sqlite(tmp_path, [1, SECRET])
    with pytest.raises(CipherbayesError, match="holds text where a number") as refused:
        read(path, {"a": "number"})
    assert SECRET not in str(refused.value)
    with pytest.raises(CipherbayesError, match="holds bytes"):
        of_sqlite(tmp_path, [1, b"\x00"])
    with pytest.raises(CipherbayesError) as refused:
        taken(tmp_path, f"sqlite:{tmp_path / 't.sqlite'}",
              f"SELECT CAST(x'ff{SECRET.encode().hex()}' AS TEXT) AS a")  # fmt: skip
    assert SECRET not in str(refused.value)


def test_rows_have_one_digest_as_text_and_as_numbers() -> None:
    digests = []
    for ids in ([1, 2, None], ["1", "2", None], [1.0, 2.0, None]):
        digest = RowDigest()
        digest.add(pa.table({"id": ids, "word": ["a", "1.50", ""]}))
        digests.append(digest.hex())
    assert len(set(digests)) == 1


# -- rows that do not fit into memory ------------------------------------------------


def test_rows_go_to_no_disk_but_the_snapshots_own_folder(tmp_path: Path) -> None:
    (tmp_path / "exports").mkdir()
    text = "SELECT current_setting('temp_directory') AS a"
    with duckdb.connect(str(tmp_path / "t.duckdb")):
        pass
    for place in ("exports", "t.duckdb"):
        path = taken(tmp_path, f"duckdb:{tmp_path / place}", text)
        assert read(path, {"a": "text"}) == [(str(tmp_path / "snapshot" / ".spill"),)]
        assert os.listdir(path.parent) == [FILE]
        assert path.parent.stat().st_mode & 0o777 == 0o700


def test_rows_of_a_killed_process_are_gone_at_the_next_start(tmp_path: Path) -> None:
    path = of_folder(tmp_path, ["id,lab,word", *BODY])
    path.unlink()
    left = path.parent / ".spill"
    left.mkdir()
    (left / "duckdb_temp_storage").write_text("rows")
    query = Query(f"duckdb:{tmp_path / 'exports'}", tmp_path / "cohort.sql")
    take_snapshot(query, path.parent)
    assert os.listdir(path.parent) == [FILE]

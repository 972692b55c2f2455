"""Queries of SQLite and DuckDB as tables; addresses without secrets."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from parties import small_study
from small_databases import SECRET, query_of, refusal, sqlite_file, taken

from cipherbayes.data.databases import located, open_database
from cipherbayes.data.snapshots import FILE, origin_of, take_snapshot
from cipherbayes.data.table_files import TableFile
from cipherbayes.data.tables import PART_ROWS, Kind, open_table
from cipherbayes.engine.flare.site_settings import site_settings
from cipherbayes.errors import DataError, RunError, StudyError
from cipherbayes.study.schema import Study
from conftest import logistic_frame
from terminal import cipherbayes

duckdb = pytest.importorskip("duckdb", reason="needs cipherbayes[database]")

# -- addresses -----------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://me:{SECRET}@host/icu",
        f"postgres://me:{SECRET}@/icu",
        f"postgresql:///icu?password={SECRET}",
        f"postgresql:///icu?%70assword={SECRET}",
        f"postgresql:///icu?sslpassword={SECRET}",
        f"postgresql:///icu?pasword={SECRET}",
        f"postgresql:///icu?options=-c%20x={SECRET}",
        f"host=db password={SECRET}",
        f"mysql://me:{SECRET}@host/icu",
        f"{SECRET}",
        f"postgresql://u:SEC/{SECRET}@127.0.0.1:54399/north",
        f"postgresql://u:a?b=#{SECRET}@h/north",
        f"postgresql://h/db;password={SECRET}",
        f"postgresql://h/db%3Bpassword%3D{SECRET}",
        f"postgresql://h/db&password={SECRET}",
        f"duckdb:md:db?motherduck_token={SECRET}",
        f"duckdb:md:{SECRET}",
        f"duckdb:postgres:password={SECRET}",
        f"sqlite:x.db?key={SECRET}",
        f"sqlite:x.db;password={SECRET}",
        f"sqlite://u:{SECRET}@h/x.db",
        "postgresql://host",
        "sqlite:",
    ],
)
def test_an_address_with_a_secret_or_an_unknown_part_is_not_repeated(
    address: str,
) -> None:
    with pytest.raises(DataError) as refused:
        open_database(address)
    assert SECRET not in str(refused.value)
    assert refused.value.remedy


@pytest.mark.parametrize(
    "address",
    [
        f"mssql://db.example/icu;pwd={SECRET}",
        f"mssql+pyodbc://db.example/icu?driver={SECRET}",
        f"sqlserver://db.example/icu;password={SECRET}",
        f"jdbc:sqlserver://db.example;databaseName=icu;password={SECRET}",
        f"Driver={{ODBC Driver 18 for SQL Server}};Server=db;PWD={SECRET}",
    ],
)
def test_a_sql_server_is_refused_with_what_to_do_instead(address: str) -> None:
    with pytest.raises(DataError, match="SQL Server is not read directly") as refused:
        open_database(address)
    assert "duckdb:FOLDER" in refused.value.remedy
    assert SECRET not in str(refused.value)


def test_an_address_in_the_place_of_a_file_is_not_repeated(tmp_path: Path) -> None:
    address = f"postgresql://u:{SECRET}@h/db"
    (tmp_path / "site.toml").write_text(f'data = "{address}"')
    with pytest.raises(DataError, match="address of a database") as by_path:
        open_table(address)
    with pytest.raises(RunError, match="address of a database") as by_kit:
        site_settings(tmp_path)
    study = small_study(("a", "b")).to_toml()
    assert "[sites.a]" in study
    file = tmp_path / "study.toml"
    file.write_text(study.replace("[sites.a]", f'[sites.a]\ndata = "{address}"'))
    with pytest.raises(StudyError, match="address of a database") as by_study:
        Study.load(file)
    file.write_text(study)
    done = cipherbayes("site", "check", "--study", file, "--table", address)
    assert "address of a database" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    for refused in (by_path, by_kit, by_study):
        assert SECRET not in str(refused.value)
        assert "query" in str(refused.value)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("postgresql:///icu", "postgresql:///icu"),
        ("postgres://me@db.example:5433/icu", "postgresql://db.example:5433/icu"),
        ("postgresql:///icu?host=/run/pg&port=5433&user=me",
         "postgresql:///run/pg:5433/icu"),
        ("postgresql:///?service=icu", "postgresql:///?service=icu"),
        ("sqlite:a/b.sqlite", "sqlite:a/b.sqlite"),
        ("sqlite:///a/b.sqlite", "sqlite:a/b.sqlite"),
        ("sqlite:////a/b.sqlite", "sqlite:/a/b.sqlite"),
        ("duckdb:/a/b", "duckdb:/a/b"),
    ],
)  # fmt: skip
def test_a_database_is_named_without_its_user(address: str, name: str) -> None:
    assert open_database(address).name == name


def test_files_are_relative_to_the_study(tmp_path: Path) -> None:
    assert located("sqlite:a.db", tmp_path) == f"sqlite:{tmp_path}/a.db"
    assert located("sqlite:/a.db", tmp_path) == "sqlite:/a.db"
    assert located("postgresql:///icu", tmp_path) == "postgresql:///icu"


# -- snapshots -----------------------------------------------------------------


def test_a_snapshot_is_the_query_in_a_file_that_only_its_owner_reads(
    tmp_path: Path,
) -> None:
    frame = logistic_frame(300)
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as database:
        frame.to_sql("t", database, index=False)
    path = taken(tmp_path, f"sqlite:{tmp_path / 't.sqlite'}", "SELECT * FROM t")
    assert path.name == FILE
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(path.parent).st_mode & 0o777 == 0o700
    kinds: dict[str, Kind] = {"age": "number", "sex": "text", "death": "number"}
    for chunk in open_table(path).chunks(kinds):
        for name in kinds:
            assert chunk.column(name).to_pylist() == frame[name].tolist()
    origin = origin_of(path)
    assert origin is not None
    assert origin.query == "SELECT * FROM t"
    assert origin.name == f"cohort.sql of sqlite:{tmp_path}/t.sqlite"


def test_a_snapshot_that_is_there_is_used_again(tmp_path: Path) -> None:
    address = sqlite_file(
        tmp_path, "CREATE TABLE t (a REAL)", "INSERT INTO t VALUES(1)"
    )
    asked = query_of(tmp_path, address, "SELECT a FROM t")
    first = take_snapshot(asked, tmp_path / "s").read_bytes()
    sqlite_file(tmp_path, "INSERT INTO t VALUES (2)")
    assert take_snapshot(asked, tmp_path / "s").read_bytes() == first


def test_large_results_come_in_parts(tmp_path: Path) -> None:
    rows = 2 * PART_ROWS + 10
    with duckdb.connect(str(tmp_path / "d.duckdb")) as database:
        database.execute(f"CREATE TABLE t AS SELECT range AS a FROM range({rows})")
    path = taken(tmp_path, f"duckdb:{tmp_path / 'd.duckdb'}", "SELECT a FROM t")
    assert open_table(path).counts == (PART_ROWS, PART_ROWS, 10)


def test_the_types_of_duckdb_become_numbers_or_text(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "d.duckdb")) as database:
        database.execute(
            "CREATE TABLE t AS SELECT 1.25::DECIMAL(9, 3) AS price, "
            "2::HUGEINT AS big, 'b'::ENUM('a', 'b') AS level, true AS flag, "
            "NULL::DOUBLE AS gap, DATE '2020-01-02' AS day, [1, 2] AS list, "
            "INTERVAL 1 DAY AS wait, uuid() AS id"
        )
    path = taken(tmp_path, f"duckdb:{tmp_path / 'd.duckdb'}", "FROM t")
    kinds: dict[str, Kind] = dict.fromkeys(("price", "big", "flag", "gap"), "number")
    chunk = next(chunks := open_table(path).chunks({**kinds, "level": "text"}))
    values = {name: chunk.column(name)[0].as_py() for name in (*kinds, "level")}
    assert values == {
        "price": 1.25, "big": 2.0, "flag": 1.0, "gap": None, "level": "b",
    }  # fmt: skip
    for column, what in {
        "day": "dates or times",
        "list": "lists",
        "wait": "dates or times",
    }.items():
        chunk = next(chunks := open_table(path).chunks({column: "number"}))
        with pytest.raises(DataError, match=f"column '{column}' holds {what}"):
            chunk.column(column)
        del chunks
    # What no study can use is not copied.
    assert pa.parquet.read_table(path)["day"].null_count == 1


def test_a_folder_of_parquet_and_csv_files_is_a_database(tmp_path: Path) -> None:
    folder = tmp_path / "exports"
    (folder / "visits").mkdir(parents=True)
    pd.DataFrame({"id": [1, 2], "age": [50.0, 60.0]}).to_csv(
        folder / "people.csv", index=False
    )
    for part in (1, 2):
        pd.DataFrame({"id": [part], "death": [part - 1]}).to_parquet(
            folder / "visits" / f"{part}.parquet"
        )
    text = "SELECT age, death FROM people JOIN visits USING (id) ORDER BY id"
    table = pa.parquet.read_table(taken(tmp_path, f"duckdb:{folder}", text))
    assert table.to_pydict() == {"age": ["50.0", "60.0"], "death": [0, 1]}


def test_a_query_of_a_folder_says_which_files_it_reads_and_reads_no_others(
    tmp_path: Path,
) -> None:
    folder, other = tmp_path / "exports", tmp_path / "other's"
    for place in (folder, folder / "visits", other):
        place.mkdir()
    frame = pd.DataFrame({"id": [1, 2]})
    frame.to_csv(folder / "people.csv", index=False)
    frame.to_csv(folder / "unread.csv", index=False)
    frame.to_csv(folder / "visits" / "deep.csv", index=False)
    frame.to_csv(other / "people.csv", index=False)
    frame.to_parquet(folder / "visits" / "1.parquet")
    text = 'SELECT id FROM main.People JOIN "visits" USING (id)'
    origin = origin_of(taken(tmp_path, f"duckdb:{folder}", text))
    assert origin is not None
    read = [folder / "people.csv", folder / "visits" / "1.parquet"]
    assert [file.path for file in origin.files] == read
    assert origin.files[0] == TableFile.open(folder / "people.csv")
    with duckdb.connect(str(tmp_path / "d.duckdb")) as database:
        database.execute(f"CREATE VIEW v AS FROM '{folder / 'people.csv'}'")
    for address, query in (
        (f"duckdb:{folder}", f"FROM read_csv('{folder / 'visits' / 'deep.csv'}')"),
        (f"duckdb:{folder}", f"FROM read_csv('{folder}/un*.csv')"),
        (f"duckdb:{folder}", "FROM '../other''s/people.csv'"),
        (f"duckdb:{folder}", "FROM query_table('un' || 'read')"),
        (f"duckdb:{tmp_path / 'd.duckdb'}", f"FROM '{folder / 'people.csv'}'"),
        (f"duckdb:{tmp_path / 'd.duckdb'}", "FROM v"),
    ):
        message = refusal(other, address, query)
        assert "no table of its database" in message or "does not exist" in message

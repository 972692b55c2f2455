"""Queries of SQLite and DuckDB as tables; addresses without secrets."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from importlib import resources
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from parties import small_study

from cipherbayes.data.databases import located, open_database
from cipherbayes.data.snapshots import (
    FILE,
    Query,
    origin_of,
    remove_snapshot,
    take_snapshot,
)
from cipherbayes.data.statements import (
    POSTGRESQL,
    beyond_a_person,
    order_left_open,
    single_statement,
)
from cipherbayes.data.table_files import TableFile
from cipherbayes.data.tables import PART_ROWS, Kind, open_table
from cipherbayes.engine.flare.site_settings import site_settings
from cipherbayes.errors import CipherbayesError, DataError, RunError, StudyError
from cipherbayes.study.schema import Study
from conftest import logistic_frame
from terminal import cipherbayes

pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")
duckdb = pytest.importorskip("duckdb", reason="needs cipherbayes[database]")

SECRET = "HIV-67.1234"


def sqlite_file(folder: Path, *statements: str) -> str:
    with closing(sqlite3.connect(folder / "t.sqlite")) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return f"sqlite:{folder / 't.sqlite'}"


def query(folder: Path, database: str, text: str) -> Query:
    (folder / "cohort.sql").write_text(text)
    return Query(database, folder / "cohort.sql")


def taken(folder: Path, database: str, text: str) -> Path:
    remove_snapshot(folder / "snapshot")
    return take_snapshot(query(folder, database, text), folder / "snapshot")


def refusal(folder: Path, database: str, text: str) -> str:
    with pytest.raises(CipherbayesError) as refused:
        taken(folder, database, text)
    assert not list((folder / "snapshot").glob("*"))
    return str(refused.value)


def one_row(folder: Path, kind: str) -> str:
    """A database with the table t of one column and one row."""
    statements = ("CREATE TABLE t (a REAL)", "INSERT INTO t VALUES (1)")
    if kind == "sqlite":
        return sqlite_file(folder, *statements)
    with duckdb.connect(str(folder / "t.duckdb")) as database:
        for statement in statements:
            database.execute(statement)
    return f"duckdb:{folder / 't.duckdb'}"


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
    asked = query(tmp_path, address, "SELECT a FROM t")
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


# -- what goes wrong -----------------------------------------------------------

BAD = {
    "no such table": "SELECT * FROM nope",
    "no SELECT": "DELETE FROM t RETURNING a",
    "two statements": "SELECT a FROM t; DROP TABLE t",
    "not SQL": "selec",
    "only a comment": "-- nothing",
    "nothing": "  \n",
    "no rows": "SELECT a FROM t WHERE a > 10",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_bad_query_is_refused_in_our_words_and_changes_nothing(
    tmp_path: Path, kind: str, case: str
) -> None:
    address = one_row(tmp_path, kind)
    message = refusal(tmp_path, address, BAD[case])
    assert "cohort.sql" in message
    assert "; " in message  # what to do
    assert "nope" not in message
    assert taken(tmp_path, address, "SELECT a FROM t").exists()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 AS a) AS x; COPY (SELECT * FROM t) TO '{out}'; "
        "SELECT * FROM (SELECT a FROM t",
        "SELECT 1 AS a) AS x; ATTACH '{out}' AS o; CREATE TABLE o.s AS SELECT * FROM t;"
        " SELECT * FROM (SELECT a FROM t",
        "SELECT 1 AS a) AS x /* /* */; ATTACH '{out}' AS o; SELECT * FROM (SELECT 1",
        "SELECT $x(') AS a) AS x; ATTACH '{out}' AS o; SELECT * FROM (SELECT 1 --'",
        "SELECT 1 AS [a'] ) AS x; ATTACH '{out}' AS o; SELECT * FROM (SELECT 1 --'",
        "SELECT a FROM t) AS x UNION SELECT * FROM (SELECT a FROM t",
        "COPY (SELECT * FROM t) TO '{out}'",
        "ATTACH '{out}' AS o",
        "SELECT a FROM t; SELECT 'open",
        "SELECT a FROM t /* open",
        "SELECT (a FROM t",
    ],
)
@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_no_text_leaves_the_parentheses_that_it_is_put_into(
    tmp_path: Path, kind: str, text: str
) -> None:
    out = tmp_path / "stolen.csv"
    message = refusal(tmp_path, one_row(tmp_path, kind), text.format(out=out))
    assert "not one valid SELECT" in message
    assert not out.exists()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t;",
        "SELECT a FROM t;;\n;",
        "\ufeffSELECT a FROM t",
        "SELECT a FROM t; -- it's all\n/* and; (more */ ; --",
        "-- first;\n/* then ) */ SELECT a FROM t WHERE ';' <> ')' -- (",
        "SELECT a AS \"a;)\" FROM t WHERE 'it''s (' <> '--'",
        "(SELECT a FROM t)",
        "WITH x AS (SELECT a FROM t) SELECT a FROM x\r\n;\r\n",
    ],
)
@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_signs_in_strings_and_remarks_and_at_the_end_do_no_harm(
    tmp_path: Path, kind: str, text: str
) -> None:
    path = taken(tmp_path, one_row(tmp_path, kind), text)
    assert pa.parquet.read_table(path).num_rows == 1


def test_strings_of_postgresql_are_read_by_its_own_rules() -> None:
    for text in (
        r"SELECT E'\'' AS a, ')'",
        "SELECT $$;)'$$ AS a, $x$ $$ ) $x$",
        "SELECT /* /* ; */ ) */ 1 AS a",
        "SELECT (ARRAY['a', 'b'])[1] AS a, x::text",
    ):
        assert single_statement(f"{text} ; -- end", POSTGRESQL) == text
    for text in (
        r"SELECT '\') AS x; DROP TABLE t; SELECT * FROM (SELECT '",
        r"SELECT E'\\') AS x; DROP TABLE t; SELECT * FROM (SELECT 1",
        "SELECT $$a$$) AS x; DROP TABLE t; SELECT * FROM (SELECT $$b$$",
        "SELECT 1 -- a\r) AS x; DROP TABLE t; SELECT * FROM (SELECT 1",
        ";",
        "",
    ):
        assert single_statement(text, POSTGRESQL) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT a / max(a) OVER () AS a FROM t", "OVER without PARTITION BY"),
        ("SELECT rank() over w AS a FROM t WINDOW w AS ()", "OVER without"),
        ("SELECT a FROM t ORDER BY a LIMIT 5", "LIMIT"),
        ("SELECT a, random () AS r FROM t", r"random\(\)"),
        ("SELECT max(a) OVER ( /* all */ PARTITION BY a) AS a FROM t", ""),
        ("SELECT AVG(a) AS a FROM t GROUP BY a", r"avg\(\), whose"),
        ("SELECT AVG(CAST(a AS DECIMAL(9, 2))) AS a FROM t GROUP BY a", ""),
        ("SELECT lag(a) OVER (PARTITION BY a ORDER BY a) AS a FROM t", r"lag\(\)"),
        (
            "SELECT first_value(a) OVER (PARTITION BY a ORDER BY max(a, 1), a) AS a "
            "FROM t",
            "",
        ),
        ("SELECT a AS \"limit\", 'over (' AS b FROM t -- LIMIT 5", ""),
        ("SELECT a AS random FROM t", ""),
    ],
)
def test_words_by_which_rows_may_depend_on_others_are_pointed_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, found: str
) -> None:
    taken(tmp_path, one_row(tmp_path, "sqlite"), text)
    assert bool(caplog.messages) == bool(found)
    for message in caplog.messages:
        assert re.search(f"cohort.sql of .* has {found}", message)
        assert "not a proof" in message


def test_the_example_cohort_raises_no_doubt() -> None:
    text = resources.files("cipherbayes.data.omop").joinpath("cohort.sql").read_text()
    assert beyond_a_person(text, POSTGRESQL) == []
    assert order_left_open(text, POSTGRESQL) == []
    tied = text.replace(", m.measurement_id DESC", "")
    assert order_left_open(tied, POSTGRESQL) == ["row_number()"]
    one = "SELECT DISTINCT ON (person_id) lab FROM labs ORDER BY person_id"
    assert order_left_open(one, POSTGRESQL) == ["DISTINCT ON"]
    assert order_left_open(f"{one}, day, id", POSTGRESQL) == []


def test_rows_are_not_shared_out_between_threads(tmp_path: Path) -> None:
    """With two, one person less changed the last bits of other people's means, and so
    who was held out: the one person then moved a sum by 25 times what it may."""
    text = "SELECT a, current_setting('threads')::INT AS threads FROM t"
    path = taken(tmp_path, one_row(tmp_path, "duckdb"), text)
    assert pyarrow.parquet.read_table(path)["threads"].to_pylist() == [1]


def test_what_a_driver_says_of_values_is_not_passed_on(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "d.duckdb")) as database:
        database.execute(f"CREATE TABLE t AS SELECT '{SECRET}' AS a")
    address = f"duckdb:{tmp_path / 'd.duckdb'}"
    message = refusal(tmp_path, address, "SELECT a::INTEGER AS a FROM t")
    assert SECRET not in message
    assert "fails on some rows" in message


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_database_that_is_none_is_said_to(tmp_path: Path, kind: str) -> None:
    address = f"{kind}:{tmp_path / 'missing'}"
    assert "no such" in refusal(tmp_path, address, "SELECT 1 AS a")
    (tmp_path / "missing").write_bytes(b"not a database" * 1000)
    assert "database" in refusal(tmp_path, address, "SELECT 1 AS a FROM t")


def test_a_query_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    address = sqlite_file(tmp_path, "CREATE TABLE t (a)")
    with pytest.raises(DataError, match="no such query"):
        take_snapshot(Query(address, tmp_path / "missing.sql"), tmp_path / "s")
    (tmp_path / "bad.sql").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not a readable text file"):
        take_snapshot(Query(address, tmp_path / "bad.sql"), tmp_path / "s")


def test_a_disk_that_cannot_be_written_is_not_blamed_on_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = sqlite_file(tmp_path, "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pyarrow.parquet.ParquetWriter, "write_table", full)
    message = refusal(tmp_path, address, "SELECT a FROM t")
    assert "check the disk" in message

"""Queries that cannot be used are refused in our words, and change nothing."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from small_databases import SECRET, one_row, refusal, sqlite_file, taken

from cipherbayes.data.snapshots import Query, take_snapshot
from cipherbayes.data.statements import (
    POSTGRESQL,
    beyond_a_person,
    order_left_open,
    single_statement,
)
from cipherbayes.errors import DataError

duckdb = pytest.importorskip("duckdb", reason="needs cipherbayes[database]")

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

"""Tables that are queries of a real PostgreSQL, which the tests start themselves."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet
import pytest
from parties import small_study
from query_sites import with_sites

from cipherbayes.data import snapshots
from cipherbayes.data.databases import open_database, postgresql
from cipherbayes.data.omop import TRUTH
from cipherbayes.data.snapshots import Query, origin_of, remove_snapshot, take_snapshot
from cipherbayes.data.tables import open_table
from cipherbayes.errors import CipherbayesError, DataError, PrivacyError
from cipherbayes.results.result import Result
from cipherbayes.results.run import run
from cipherbayes.study.schema import Study
from conftest import logistic_frame
from postgres_server import PASSWORD, PostgresServer, running
from terminal import cipherbayes

dbapi = pytest.importorskip(
    "adbc_driver_postgresql.dbapi", reason="needs cipherbayes[database]"
)
pytestmark = pytest.mark.slow  # the server starts in seconds

SECRET = "HIV-67.1234"
WAIT = 600
"""Seconds that a client may wait for a server by its address."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running() as started:
        for seed, name in enumerate(("a", "b")):
            fill(started, name, logistic_frame(60, seed=seed))
        yield started


def fill(server: PostgresServer, table: str, frame: pd.DataFrame) -> None:
    rows = ",".join(
        f"({row.age!r}, '{row.sex}', {row.death})"
        for row in frame.astype({"age": float}).itertuples()
    )
    server.execute(
        f"DROP TABLE IF EXISTS {table}; "
        f"CREATE TABLE {table} (age double precision, sex text, death int); "
        f"INSERT INTO {table} VALUES {rows};"
    )


def query(folder: Path, server: PostgresServer, text: str, **who: str) -> Query:
    (folder / "cohort.sql").write_text(text)
    return Query(server.address(**who), folder / "cohort.sql")


def taken(folder: Path, server: PostgresServer, text: str) -> Path:
    remove_snapshot(folder / "snapshot")
    return take_snapshot(query(folder, server, text), folder / "snapshot")


def study_of(folder: Path, server: PostgresServer) -> Study:
    sites = {}
    for name in ("a", "b"):
        (folder / f"{name}.sql").write_text(f"SELECT age, sex, death FROM {name};\n")
        sites[name] = {
            "database": server.address(),
            "query": str(folder / f"{name}.sql"),
            "ledger": str(folder / f"{name}.ledger"),
        }
    return with_sites(small_study(("a", "b")), sites)


# -- runs ------------------------------------------------------------------------


def test_a_study_over_postgresql_gives_what_files_give(
    server: PostgresServer, tmp_path: Path
) -> None:
    over_queries = run(study_of(tmp_path, server), out=tmp_path / "run")
    tables = {n: logistic_frame(60, seed=s) for s, n in enumerate(("a", "b"))}
    over_frames = run(small_study(("a", "b")), tables)
    assert over_queries.record["posterior"] == over_frames.record["posterior"]
    assert not list(tmp_path.rglob("*.parquet"))
    assert not any(
        str(server.folder) in file.read_text(errors="ignore")
        for file in (tmp_path / "run").rglob("*")
        if file.is_file() and "sites" not in file.parts
    )


def test_another_address_of_the_same_database_is_the_same_table(
    server: PostgresServer, tmp_path: Path
) -> None:
    study = study_of(tmp_path, server)
    run(study)
    fill(server, "a", logistic_frame(61, seed=8))
    sites = study.model_dump(mode="json", exclude_none=True)["sites"]
    sites["a"]["database"] = (
        f"postgresql://owner@/?host={server.folder}&dbname=icu&port=5432"
    )
    (tmp_path / "other.sql").write_text("SELECT age, sex,\n  death FROM a;\n")
    sites["a"]["query"] = str(tmp_path / "other.sql")
    sites["a"]["ledger"] = str(tmp_path / "fresh.ledger")
    sites["b"]["budget"] = 50.0
    try:
        with pytest.raises(PrivacyError, match="has another ledger"):
            run(with_sites(study, sites))
    finally:
        fill(server, "a", logistic_frame(60, seed=0))


# -- types -----------------------------------------------------------------------


def test_types_become_numbers_or_text_and_the_rest_is_not_copied(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.execute("CREATE TYPE ward AS ENUM ('icu', 'ed');")
    text = """
        SELECT 1::smallint AS small, 9::bigint AS big, 0.1::numeric AS exact,
               123456789.123456789::numeric(30, 9) AS long, 'NaN'::numeric AS nan,
               0.5::real AS single, true AS flag, NULL::int AS gap, NULL AS untyped,
               'icu'::ward AS ward, 'F '::char(2) AS sex, 'x'::varchar AS note,
               now() AS moment, current_date AS day, interval '1 day' AS wait,
               ARRAY[1, 2] AS list, '3'::money AS money, '{}'::jsonb AS document,
               gen_random_uuid() AS id, '\\x00'::bytea AS bytes"""
    path = taken(tmp_path, server, text)
    table = pyarrow.parquet.read_table(path)
    (row,) = table.to_pylist()
    assert row["exact"] == 0.1
    assert row["long"] == 123456789.123456789
    assert row["nan"] != row["nan"]
    expected = {
        "small": 1, "big": 9, "single": 0.5, "flag": True, "gap": None, "ward": "icu",
        "sex": "F ", "note": "x", "untyped": None,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    unusable = {
        "moment": "dates or times", "day": "dates or times", "wait": "dates or times",
        "list": "lists", "money": "neither", "document": "neither", "id": "neither",
        "bytes": "neither",
    }  # fmt: skip
    for name, what in unusable.items():
        assert row[name] is None
        chunk = next(chunks := open_table(path).chunks({name: "number"}))
        with pytest.raises(DataError, match=f"column '{name}' holds {what}"):
            chunk.column(name)
        del chunks


def test_rows_are_read_by_one_process_from_the_first_page(
    server: PostgresServer, tmp_path: Path
) -> None:
    """How workers share rows out would change the last bits of other people's means."""
    text = """
        SELECT current_setting('max_parallel_workers_per_gather') AS workers,
               current_setting('synchronize_seqscans') AS anywhere,
               current_setting('enable_sort') AS sorting"""
    (row,) = pyarrow.parquet.read_table(taken(tmp_path, server, text)).to_pylist()
    assert row == {"workers": "0", "anywhere": "off", "sorting": "off"}


def test_two_columns_of_one_name_are_refused(
    server: PostgresServer, tmp_path: Path
) -> None:
    path = taken(tmp_path, server, "SELECT age AS x, death AS x FROM a")
    with pytest.raises(DataError, match="have the same name"):
        open_table(path)


# -- what goes wrong ---------------------------------------------------------------

BAD = {
    "SELECT * FROM nope": "a table in the query does not exist (SQLSTATE 42P01)",
    "SELECT nope FROM a": "a column in the query does not exist (SQLSTATE 42703)",
    "selec": "not one valid SELECT",
    "-- nothing": "not one valid SELECT",
    "SELECT 1; SELECT 2": "not one valid SELECT",
    "DELETE FROM a RETURNING age": "not one valid SELECT",
    "SELECT nextval('counter') AS a": "fails on some rows, writes",
    "SELECT age FROM a FOR UPDATE": "the query wants to write (SQLSTATE 25006)",
    "SELECT 1 / (death - death) AS a FROM a": "fails on some rows",
    f"SELECT '{SECRET}'::int AS a": "fails on some rows",
    f"SELECT CASE WHEN n > 99999 THEN ('{SECRET}' || n)::int ELSE n END AS a, "
    "repeat('x', 500) AS b FROM generate_series(1, 100000) AS n": "fails on some rows",
    "SELECT age FROM a WHERE age < 0": "returned no rows",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_query_is_refused_in_our_words(
    server: PostgresServer, tmp_path: Path, text: str
) -> None:
    server.execute("CREATE SEQUENCE IF NOT EXISTS counter;")
    with pytest.raises(DataError) as refused:
        taken(tmp_path, server, text)
    assert BAD[text] in str(refused.value)
    assert refused.value.remedy
    assert SECRET not in str(refused.value)
    assert not list(tmp_path.rglob("*.parquet*"))


def test_a_password_comes_from_the_environment_and_is_never_shown(
    server: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = query(tmp_path, server, "SELECT age FROM a", user="reader")
    monkeypatch.setenv("PGPASSWORD", "wrong-6713")
    with pytest.raises(DataError, match="does not let this user in") as refused:
        take_snapshot(asked, tmp_path / "s")
    assert "6713" not in str(refused.value)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with pytest.raises(DataError, match="does not let this user read it") as refused:
        take_snapshot(asked, tmp_path / "s")
    server.execute("GRANT SELECT ON a TO reader;")
    path = take_snapshot(asked, tmp_path / "s")
    origin = origin_of(path)
    assert origin is not None
    assert "reader" not in origin.name
    assert PASSWORD.encode() not in path.read_bytes()
    assert "6713" not in caplog.text


def test_a_server_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text("SELECT 1 AS a")
    asked = Query(f"postgresql:///icu?host={tmp_path}", tmp_path / "q.sql")
    with pytest.raises(DataError, match="cannot be reached"):
        take_snapshot(asked, tmp_path / "s")


def test_whoever_wants_no_rows_does_not_wait_for_a_server_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgresql, "PROBE_SECONDS", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # It accepts, and never answers.
        port = silent.getsockname()[1]
        address = f"postgresql://127.0.0.1:{port}/icu?connect_timeout={WAIT}"
        found = open_database(address)
        began = time.monotonic()
        with (
            pytest.raises(DataError, match="cannot be reached"),
            found.read("SELECT 1 AS a", "q", rows=False),
        ):
            pass
        assert time.monotonic() - began < WAIT / 2  # whoever waits, waits for all of it


def test_whoever_wants_no_rows_does_not_wait_for_a_slow_query(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "PROBE_SECONDS", 2)
    # While another session has the table, a query of it waits.
    server.execute("CREATE TABLE IF NOT EXISTS held (a int);")
    found = open_database(server.address())
    with closing(dbapi.connect(found.url, autocommit=False)) as other:  # type: ignore[attr-defined]
        with closing(other.cursor()) as cursor:
            cursor.execute("LOCK TABLE held IN ACCESS EXCLUSIVE MODE")
        with (
            pytest.raises(DataError, match="took too long"),
            found.read("SELECT a FROM held", "q", rows=False),
        ):
            pass
        other.rollback()


FUSE = (
    "SELECT n AS a, repeat('x', 500) AS b, CASE WHEN n = 90000 AND (SELECT lit FROM "
    "fuse) THEN pg_terminate_backend(pg_backend_pid()) END AS c "
    "FROM generate_series(1, 100000) AS n"
)


def test_a_connection_that_breaks_is_tried_again_from_the_beginning(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.execute("CREATE TABLE fuse AS SELECT true AS lit;")
    pauses: list[float] = []
    monkeypatch.setattr("cipherbayes.data.snapshots.time.sleep", pauses.append)
    with pytest.raises(CipherbayesError, match="the connection broke") as refused:
        taken(tmp_path, server, FUSE)
    assert "nothing was released" in str(refused.value)
    assert pauses == list(snapshots.PAUSES)
    assert not list(tmp_path.rglob("*.parquet*"))

    def put_out(_: float) -> None:
        server.execute("UPDATE fuse SET lit = false;")

    monkeypatch.setattr("cipherbayes.data.snapshots.time.sleep", put_out)
    table = pyarrow.parquet.read_table(taken(tmp_path, server, FUSE), columns=["a"])
    assert table["a"].to_pylist() == list(range(1, 100_001))


def test_a_connection_that_breaks_once_costs_a_run_nothing(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that breaks it comes after those of the first batches."""
    server.execute("CREATE TABLE tripwire AS SELECT true AS lit;")
    study = study_of(tmp_path, server)
    (tmp_path / "a.sql").write_text(
        "SELECT age, sex, death FROM a UNION ALL SELECT 1, 'F', 0 FROM "
        "generate_series(1, 100000) AS n WHERE CASE WHEN n = 100000 AND (SELECT lit "
        "FROM tripwire) THEN pg_terminate_backend(pg_backend_pid()) ELSE false END"
    )
    pauses = []

    def put_out(pause: float) -> None:
        server.execute("UPDATE tripwire SET lit = false;")
        pauses.append(pause)

    monkeypatch.setattr("cipherbayes.data.snapshots.time.sleep", put_out)
    over_queries = run(study, out=tmp_path / "run")
    assert len(pauses) == 1
    tables = {n: logistic_frame(60, seed=s) for s, n in enumerate(("a", "b"))}
    over_frames = run(small_study(("a", "b")), tables)
    assert over_queries.record["posterior"] == over_frames.record["posterior"]
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_run_needs_no_database_once_its_rows_are_read(
    server: PostgresServer, tmp_path: Path
) -> None:
    """All sessions are ended and the table dropped after the first round."""

    def drop(done: int, total: int) -> None:
        if done == 1:
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                "pid <> pg_backend_pid() AND datname = 'icu'; DROP TABLE a;"
            )

    try:
        result = run(study_of(tmp_path, server), out=tmp_path / "run", progress=drop)
    finally:
        fill(server, "a", logistic_frame(60, seed=0))
    tables = {n: logistic_frame(60, seed=s) for s, n in enumerate(("a", "b"))}
    expected = run(small_study(("a", "b")), tables)
    assert result.record["posterior"] == expected.record["posterior"]
    assert not list(tmp_path.rglob("*.parquet"))


# -- the page ------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[2] / "docs" / "databases.md"


def page_block(language: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def omop(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A data manager's folder and environment."""
    monkeypatch.setenv("PGHOST", str(server.folder))
    monkeypatch.setenv("PGUSER", "owner")
    (tmp_path / "study.toml").write_text(page_block('toml title="study.toml"'))
    yield tmp_path
    for name in ("north", "south", "west"):
        server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE);", "postgres")


def follow(server: PostgresServer, folder: Path, *, until: str, people: str) -> str:
    """Do what the page says; what the last command printed."""
    for line in page_block("bash").splitlines():
        program, *words = line.replace("4000", people).split()
        if program == "createdb":
            server.execute(f"CREATE DATABASE {words[0]};", "postgres")
            continue
        done = cipherbayes(*words, cwd=folder)
        assert done.returncode == 0, line + done.stderr
        if line.startswith(until):
            break
    return done.stdout


def test_the_page_leads_from_an_empty_server_to_a_plan_and_fitting_tables(
    server: PostgresServer, omop: Path
) -> None:
    told = follow(server, omop, until="cipherbayes plan", people="300")
    assert "(3, 1e-06)-differential privacy" in told
    site = 'data = { database = "postgresql:///north", query = "cohort.sql" }\n'
    (omop / "site.toml").write_text(f'{site}ledger = "north.ledger"\n')
    done = cipherbayes("site", "check", omop)
    assert "cohort.sql of postgresql:///north (300 rows): fits" in done.stdout


@pytest.mark.torture
def test_the_page_leads_from_an_empty_server_to_the_effects_that_were_drawn(
    server: PostgresServer, omop: Path
) -> None:
    told = follow(server, omop, until="cipherbayes ledger", people="4000")
    assert "spent ε = 3 of 3" in told
    folder = omop / "runs" / "mortality-30-days"
    rows: dict[str, Any] = {
        r["name"]: r for r in Result.load(folder).record["posterior"]
    }
    truth = {**TRUTH, "sex[M]": TRUTH["male"]}
    held = []
    for name in truth.keys() & rows.keys() - {"intercept"}:
        lower, upper = rows[name]["lower"], rows[name]["upper"]
        assert lower is not None
        assert upper is not None
        held.append(lower < truth[name] < upper)
    # Seven 90 % intervals: fewer than four hold the truth in 3 of 1000.
    assert len(held) == 7
    assert sum(held) >= 4
    assert not list(omop.rglob("*.parquet"))

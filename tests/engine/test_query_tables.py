"""A query is a table in a run: its snapshot, its end, what may be said of it."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from crashing import crash
from parties import small_study, trajectory, write_tables
from query_sites import QUERY, fill, spent, sqlite_study, with_entry, with_sites

from cipherbayes.data.snapshots import Query, short_snapshot
from cipherbayes.engine.run_folder import SNAPSHOTS
from cipherbayes.errors import (
    BudgetError,
    CipherbayesError,
    DataError,
    RunError,
    StudyError,
)
from cipherbayes.results.run import resume, run
from cipherbayes.study.schema import Study
from conftest import another_owner, logistic_frame
from terminal import cipherbayes

pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")

# -- the same as files -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "engine"),
    [
        ("secure-sum", "in-process"),
        ("pooled", "in-process"),
        pytest.param("secure-sum", "local-processes", marks=pytest.mark.torture),
    ],
)
def test_a_query_gives_the_theta_of_a_file(
    tmp_path: Path, protocol: str, engine: str
) -> None:
    header = {"protocol": protocol, "engine": engine}
    queries = sqlite_study(tmp_path / "q", header=header)
    files = small_study(("a", "b"), header=header)
    files = with_sites(files, {n: {"data": f"{tmp_path / n}.csv"} for n in ("a", "b")})
    for seed, name in enumerate(("a", "b")):
        logistic_frame(60, seed=seed).to_csv(tmp_path / f"{name}.csv", index=False)
    run(queries, out=tmp_path / "run")
    run(files, out=tmp_path / "other")
    assert trajectory(tmp_path / "run") == trajectory(tmp_path / "other")
    assert queries.fingerprint() == files.fingerprint()
    assert spent(tmp_path / "q" / "a.ledger") == spent(tmp_path / "a.csv.ledger") > 0.0


@pytest.mark.slow
def test_a_study_without_privacy_reads_queries_too(tmp_path: Path) -> None:
    study = sqlite_study(tmp_path, header={"protocol": "pooled"})
    document = study.model_dump(mode="json", exclude_none=True)
    del document["privacy"]
    result = run(Study.model_validate(document), out=tmp_path / "run")
    assert not (tmp_path / "run" / SNAPSHOTS).exists()
    assert not (tmp_path / "a.ledger").exists()
    assert len(result.record["posterior"]) == 3


def test_nothing_of_a_query_is_in_what_others_see(tmp_path: Path) -> None:
    run(sqlite_study(tmp_path / "q"), out=tmp_path / "run")
    for file in ("study.toml", "result.json", "run.json"):
        text = (tmp_path / "run" / file).read_text()
        assert "sqlite" not in text
        assert "admissions" not in text
        assert ".ledger" not in text


# -- the snapshot ----------------------------------------------------------------


def test_no_rows_are_left_when_a_run_ends(tmp_path: Path) -> None:
    run(sqlite_study(tmp_path / "q"), out=tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.parquet"))
    assert not (tmp_path / "run" / SNAPSHOTS).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        "after the ledger's commit",
        pytest.param("before the end", marks=pytest.mark.torture),
    ],
)
def test_a_killed_run_resumes_over_the_rows_it_began_with(
    tmp_path: Path, point: str
) -> None:
    study = sqlite_study(tmp_path / "q")
    run(sqlite_study(tmp_path / "p"), out=tmp_path / "undisturbed")
    another_owner()
    assert crash(study, tmp_path / "run", point, 1) == -signal.SIGKILL
    kept = tmp_path / "run" / SNAPSHOTS / "a"
    assert kept.stat().st_mode & 0o777 == 0o700
    # Meanwhile the database changes, and its query is edited.
    fill(tmp_path / "q" / "a.sqlite", logistic_frame(30, seed=9))
    (tmp_path / "q" / "a.sql").write_text("SELECT 1 AS age")
    if point == "before the end":
        with pytest.raises(RunError, match="is finished already"):
            resume(tmp_path / "run")
    else:
        resume(tmp_path / "run")
    assert trajectory(tmp_path / "run") == trajectory(tmp_path / "undisturbed")
    assert not (tmp_path / "run" / SNAPSHOTS).exists()


@pytest.mark.slow
def test_a_run_whose_rows_are_gone_says_so(tmp_path: Path) -> None:
    study = sqlite_study(tmp_path / "q")
    assert crash(study, tmp_path / "run", "after the ledger's commit", 1) < 0
    shutil.rmtree(tmp_path / "run" / SNAPSHOTS)
    with pytest.raises(DataError, match="gone or damaged"):
        resume(tmp_path / "run")


@pytest.mark.slow
def test_a_new_run_does_not_touch_the_rows_of_one_that_can_go_on(
    tmp_path: Path,
) -> None:
    study = sqlite_study(tmp_path / "q")
    assert crash(study, tmp_path / "run", "after the ledger's commit", 1) < 0
    with pytest.raises(RunError, match="resume"):
        run(study, out=tmp_path / "run")
    with pytest.raises(RunError, match="not empty"):
        run(write_tables(tmp_path / "t", small_study(("a", "b"))), out=tmp_path / "run")
    resume(tmp_path / "run")


@pytest.mark.parametrize(
    "text",
    ["SELECT * FROM nope", "SELECT age, sex FROM admissions", "SELECT 1 WHERE 0"],
)
def test_a_run_that_cannot_begin_leaves_no_rows_and_no_ledger(
    tmp_path: Path, text: str
) -> None:
    study = sqlite_study(tmp_path / "q")
    (tmp_path / "q" / "b.sql").write_text(text)
    with pytest.raises(DataError) as refused:
        run(study, out=tmp_path / "run")
    assert "b.sql of sqlite:" in str(refused.value)
    assert not list(tmp_path.rglob("*.parquet"))
    assert not list(tmp_path.rglob("*.ledger"))
    (tmp_path / "q" / "b.sql").write_text(QUERY)
    run(study, out=tmp_path / "run")


def test_a_run_that_a_budget_refuses_leaves_no_rows(tmp_path: Path) -> None:
    study = with_entry(sqlite_study(tmp_path / "q"), "a", budget=0.5)
    with pytest.raises(BudgetError):
        run(study, out=tmp_path / "run")
    assert not list(tmp_path.rglob("*.parquet"))


# -- what a study may say ------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('database = "sqlite:a.db", query = "a.sql"', "add ledger"),
        ('database = "sqlite:a.db", ledger = "l"', "add query"),
        ('query = "a.sql", ledger = "l"', "add database"),
        ('data = "a.csv", ledger = "l"', "not both"),
        ('data = "a.csv", database = "d", query = "q", ledger = "l"', "not both"),
        ('database = "postgresql://me:s3cret@h/icu", query = "q", ledger = "l"',
         "holds a password"),
        ('database = "oracle://h/icu", query = "q", ledger = "l"', "not the address"),
    ],
)  # fmt: skip
def test_a_site_that_names_no_usable_table_is_refused(
    tmp_path: Path, entry: str, words: str
) -> None:
    text = small_study(("a", "b")).to_toml().split("[sites.a]")[0]
    (tmp_path / "study.toml").write_text(f"{text}\n[sites]\na = {{ {entry} }}\n")
    with pytest.raises(StudyError, match=words) as refused:
        Study.load(tmp_path / "study.toml")
    assert "s3cret" not in str(refused.value)


def test_paths_of_a_query_are_relative_to_the_study(tmp_path: Path) -> None:
    study = small_study(("a",), header={"protocol": "pooled"})
    sites = {"a": {"database": "sqlite:a.db", "query": "a.sql", "ledger": "a.ledger"}}
    (tmp_path / "study.toml").write_text(with_sites(study, sites).to_toml())
    site = Study.load(tmp_path / "study.toml").sites["a"]
    assert site.database == f"sqlite:{tmp_path}/a.db"
    assert (site.query, site.ledger) == (f"{tmp_path}/a.sql", f"{tmp_path}/a.ledger")


# -- commands --------------------------------------------------------------------------


@pytest.mark.slow
def test_plan_and_run_know_queries(tmp_path: Path) -> None:
    study = sqlite_study(tmp_path)
    (tmp_path / "study.toml").write_text(study.to_toml())
    assert cipherbayes("plan", "study.toml", cwd=tmp_path).returncode == 0
    done = cipherbayes("run", "study.toml", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    planned = cipherbayes("plan", "study.toml", cwd=tmp_path).stdout
    assert "cannot pay for this study" in " ".join(planned.split())


def test_site_check_looks_at_a_query_and_leaves_no_rows(tmp_path: Path) -> None:
    study = sqlite_study(tmp_path)
    (tmp_path / "study.toml").write_text(study.without_paths().to_toml())
    (tmp_path / "site.toml").write_text(
        'data = { database = "sqlite:a.sqlite", query = "a.sql" }\n'
        'ledger = "a.ledger"\n'
    )
    done = cipherbayes("site", "check", tmp_path)
    assert done.returncode == 0, done.stdout
    assert "a.sql of sqlite:" in done.stdout
    assert "(60 rows): fits the study" in done.stdout
    (tmp_path / "a.sql").write_text("SELECT age, 'X' AS sex, death FROM admissions")
    done = cipherbayes("site", "check", tmp_path)
    assert done.returncode == 1
    assert "none of its levels" in done.stdout
    (tmp_path / "a.sql").write_text("SELECT nope FROM admissions")
    done = cipherbayes("site", "check", tmp_path)
    assert done.returncode == 1
    assert not (tmp_path / "a.ledger").exists()
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_checks_rows_are_below_the_sites_folder_and_never_left(
    tmp_path: Path,
) -> None:
    sqlite_study(tmp_path)
    query = Query(f"sqlite:{tmp_path / 'a.sqlite'}", tmp_path / "a.sql")
    with short_snapshot(query, tmp_path) as first:
        assert tmp_path in first.parents
        assert first.parent.stat().st_mode & 0o777 == 0o700
        # Another check leaves alone what is in use, and removes what is not.
        killed = tmp_path / ".checked-left"
        killed.mkdir(mode=0o700)
        (killed / "query.parquet").write_bytes(b"rows")
        with short_snapshot(query, tmp_path) as second:
            assert second != first
        assert first.exists()
        assert not killed.exists()
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_check_removes_what_a_killed_check_left(tmp_path: Path) -> None:
    study = sqlite_study(tmp_path)
    (tmp_path / "study.toml").write_text(study.without_paths().to_toml())
    (tmp_path / "site.toml").write_text(
        'data = { database = "sqlite:a.sqlite", query = "a.sql" }\n'
        'ledger = "a.ledger"\n'
    )
    (tmp_path / ".checked-left").mkdir()
    (tmp_path / ".checked-left" / "query.parquet").write_bytes(b"rows")
    assert cipherbayes("site", "check", tmp_path).returncode == 0
    assert not (tmp_path / ".checked-left").exists()


def test_errors_never_hold_what_a_driver_said(tmp_path: Path) -> None:
    study = sqlite_study(tmp_path)
    (tmp_path / "a.sql").write_text("SELECT secret_column FROM secret_table")
    with pytest.raises(CipherbayesError) as refused:
        run(study)
    assert "secret" not in str(refused.value)


def test_a_file_in_the_place_of_a_query_has_its_own_ledger(tmp_path: Path) -> None:
    study = sqlite_study(tmp_path / "q")
    for name in study.sites:
        logistic_frame(50, seed=ord(name)).to_csv(tmp_path / f"{name}.csv", index=False)
    run(study, {name: tmp_path / f"{name}.csv" for name in study.sites})
    assert (tmp_path / "a.csv.ledger").exists()
    assert not (tmp_path / "q" / "a.ledger").exists()

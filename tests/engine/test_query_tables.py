"""A query is a table in a run: its snapshot, its ledger, its end."""

from __future__ import annotations

import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from crashing import crash
from parties import small_study, trajectory, write_tables
from query_sites import QUERY, fill, sqlite_study, with_sites

from cipherbayes.data.snapshots import Query, short_snapshot
from cipherbayes.engine.run_folder import SNAPSHOTS
from cipherbayes.errors import (
    BudgetError,
    CipherbayesError,
    DataError,
    PrivacyError,
    RunError,
    StudyError,
)
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.results.run import resume, run
from cipherbayes.study.schema import Study
from conftest import another_owner, logistic_frame
from terminal import cipherbayes

pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")


def spent(ledger: Path) -> float:
    book = Ledger.read(ledger)
    try:
        return book.spent()
    finally:
        book.close()


def changed(study: Study, site: str, **fields: Any) -> Study:
    """The study with another entry for one site."""
    document = study.model_dump(mode="json", exclude_none=True)["sites"]
    return with_sites(study, {**document, site: {**document[site], **fields}})


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
    study = changed(sqlite_study(tmp_path / "q"), "a", budget=0.5)
    with pytest.raises(BudgetError):
        run(study, out=tmp_path / "run")
    assert not list(tmp_path.rglob("*.parquet"))


# -- one table, one ledger ---------------------------------------------------------


@pytest.fixture
def charged(tmp_path: Path) -> Study:
    """A study that has run once; the budgets pay for more."""
    study = sqlite_study(tmp_path / "q")
    for name in study.sites:
        study = changed(study, name, budget=50.0)
    run(study)
    return study


@pytest.mark.slow
def test_the_same_query_is_charged_to_its_ledger_again(
    charged: Study, tmp_path: Path
) -> None:
    once = spent(tmp_path / "q" / "a.ledger")
    run(charged)
    assert spent(tmp_path / "q" / "a.ledger") > once


@pytest.mark.slow
def test_rows_or_text_that_changed_keep_the_ledger(
    charged: Study, tmp_path: Path
) -> None:
    once = spent(tmp_path / "q" / "a.ledger")
    fill(tmp_path / "q" / "a.sqlite", logistic_frame(70, seed=5))
    run(charged)
    (tmp_path / "q" / "a.sql").write_text(QUERY.replace(";", "WHERE age < 80"))
    run(charged)
    assert spent(tmp_path / "q" / "a.ledger") > 1.5 * once


@pytest.mark.slow
def test_no_way_of_asking_again_gets_a_fresh_ledger(
    charged: Study, tmp_path: Path
) -> None:
    folder = tmp_path / "q"
    fresh = str(tmp_path / "fresh.ledger")
    again = changed(charged, "a", ledger=fresh)
    with pytest.raises(PrivacyError, match="has another ledger") as refused:
        run(again)
    assert str(folder / "a.ledger") in refused.value.remedy
    # Other rows under the same query.
    fill(folder / "a.sqlite", logistic_frame(70, seed=5))
    with pytest.raises(PrivacyError, match="has another ledger"):
        run(again)
    # Another text in the same file.
    (folder / "a.sql").write_text(QUERY.replace(";", "WHERE age < 80"))
    with pytest.raises(PrivacyError, match="has another ledger"):
        run(again)
    # The same rows in another database and another order, by another query.
    frame = logistic_frame(60, seed=0).sample(frac=1.0, random_state=3)
    fill(folder / "copy.sqlite", frame, "elsewhere")
    (folder / "copy.sql").write_text("SELECT age, sex, death FROM elsewhere")
    copy = changed(
        again,
        "a",
        database=f"sqlite:{folder / 'copy.sqlite'}",
        query=str(folder / "copy.sql"),
    )
    with pytest.raises(PrivacyError, match="has another ledger"):
        run(copy)
    # The same text in a file of another name, after the rows changed again.
    fill(folder / "a.sqlite", logistic_frame(80, seed=6))
    (folder / "renamed.sql").write_text(QUERY)
    with pytest.raises(PrivacyError, match="has another ledger"):
        run(changed(again, "a", query=str(folder / "renamed.sql")))
    assert not Path(fresh).exists()
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.slow
def test_a_ledger_that_is_gone_or_anothers_is_refused(
    charged: Study, tmp_path: Path
) -> None:
    swapped = changed(charged, "a", ledger=str(tmp_path / "q" / "b.ledger"))
    swapped = changed(swapped, "b", ledger=str(tmp_path / "q" / "a.ledger"))
    with pytest.raises(PrivacyError, match="has another ledger"):
        run(swapped)
    moved = tmp_path / "q" / "moved.ledger"
    for suffix in ("", "-wal", "-shm"):
        file = tmp_path / "q" / f"a.ledger{suffix}"
        if file.exists():
            file.rename(f"{moved}{suffix}")
    with pytest.raises(PrivacyError, match="the ledger is gone"):
        run(charged)
    run(changed(charged, "a", ledger=str(moved)))


@pytest.mark.slow
def test_a_ledger_of_another_table_is_refused(charged: Study, tmp_path: Path) -> None:
    other = sqlite_study(tmp_path / "new", names=("c",), rows=90)
    fill(tmp_path / "new" / "c.sqlite", logistic_frame(90, seed=77))
    study = with_sites(
        small_study(("c",), header={"protocol": "pooled"}),
        {
            "c": {
                **other.model_dump(mode="json", exclude_none=True)["sites"]["c"],
                "ledger": str(tmp_path / "q" / "a.ledger"),
            }
        },
    )
    with pytest.raises(PrivacyError, match="is the ledger of another table"):
        run(study)


@pytest.mark.slow
def test_a_database_that_moved_and_grew_goes_on_with_its_ledger(
    charged: Study, tmp_path: Path
) -> None:
    ledger = tmp_path / "q" / "a.ledger"
    once = spent(ledger)
    moved = tmp_path / "q" / "moved.sqlite"
    (tmp_path / "q" / "a.sqlite").rename(moved)
    fill(moved, logistic_frame(61, seed=0))
    study = changed(charged, "a", database=f"sqlite:{moved}")
    run(study)
    twice = spent(ledger)
    assert twice > once
    with pytest.raises(PrivacyError, match="has another ledger"):
        run(changed(study, "a", ledger=str(tmp_path / "fresh.ledger")))


@pytest.mark.slow
def test_the_owner_says_that_a_table_is_the_same_under_another_name(
    charged: Study, tmp_path: Path
) -> None:
    ledger = tmp_path / "q" / "a.ledger"
    once = spent(ledger)
    moved = tmp_path / "q" / "moved.sqlite"
    fill(moved, logistic_frame(61, seed=0))
    (tmp_path / "q" / "new name.sql").write_text(QUERY)
    study = changed(
        charged,
        "a",
        database=f"sqlite:{moved}",
        query=str(tmp_path / "q" / "new name.sql"),
    )
    with pytest.raises(PrivacyError, match="under another name or address") as refused:
        run(study)
    assert "of its own" not in refused.value.remedy
    command = refused.value.remedy.split("`")[1]
    done = cipherbayes(*shlex.split(command)[1:])
    assert done.returncode == 0, done.stderr
    assert spent(ledger) == once
    run(study)
    assert spent(ledger) > once


def test_two_sites_do_not_name_one_ledger(tmp_path: Path) -> None:
    study = sqlite_study(tmp_path / "q")
    ledger = str(tmp_path / "q" / "a.ledger")
    with pytest.raises(PrivacyError, match="the ledger of two sites, 'a' and 'b'"):
        run(changed(study, "b", ledger=ledger, query=str(tmp_path / "q" / "a.sql")))
    assert not Path(ledger).exists()


def test_two_sites_with_one_query_or_equal_rows_are_refused(tmp_path: Path) -> None:
    study = sqlite_study(tmp_path / "q")
    twice = changed(
        study,
        "b",
        database=f"sqlite:{tmp_path / 'q' / 'a.sqlite'}",
    )
    with pytest.raises(PrivacyError, match="have the same table"):
        run(twice)
    frame = logistic_frame(60, seed=0).sample(frac=1.0, random_state=3)
    fill(tmp_path / "q" / "b.sqlite", frame)
    with pytest.raises(PrivacyError, match="have the same table"):
        run(study)
    assert not list(tmp_path.rglob("*.ledger"))


# -- a file, and a query that reads it ---------------------------------------------


@pytest.fixture
def as_file(tmp_path: Path) -> Study:
    """A study of two files, in folders of their own."""
    pytest.importorskip("duckdb", reason="needs cipherbayes[database]")
    sites = {}
    for seed, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "north.csv"
        logistic_frame(60, seed=seed).to_csv(file, index=False)
        sites[name] = {"data": str(file), "budget": 50.0}
    return with_sites(small_study(("a", "b"), header={"protocol": "pooled"}), sites)


def as_query(
    study: Study, site: str, folder: Path, text: str = "SELECT * FROM north"
) -> Study:
    """The study whose site reads a query of a folder, with a fresh ledger."""
    (folder.parent / "q.sql").write_text(text)
    document = study.model_dump(mode="json", exclude_none=True)["sites"]
    query = {
        "database": f"duckdb:{folder}",
        "query": str(folder.parent / "q.sql"),
        "ledger": str(folder.parent / "fresh.ledger"),
        "budget": 50.0,
    }
    return with_sites(study, {**document, site: query})


@pytest.mark.slow
def test_a_query_of_a_file_is_charged_to_the_ledger_of_the_file(
    as_file: Study, tmp_path: Path
) -> None:
    run(as_file)
    ledger = tmp_path / "a" / "north.csv.ledger"
    once = spent(ledger)
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "a" / "north.csv", tmp_path / "copy" / "south.csv")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "north.csv").symlink_to(tmp_path / "a" / "north.csv")
    for folder, text in (
        ("a", "SELECT * FROM north"),
        ("a", "SELECT * FROM north ORDER BY age LIMIT 59"),
        ("copy", "SELECT * FROM south ORDER BY age"),
        ("links", "SELECT * FROM north WHERE CAST(age AS DOUBLE) < 80"),
    ):
        query = as_query(as_file, "a", tmp_path / folder, text)
        with pytest.raises(PrivacyError, match="has a ledger already") as refused:
            run(query)
        assert f'set ledger = "{ledger}"' in refused.value.remedy
    # It grew meanwhile.
    with (tmp_path / "a" / "north.csv").open("a") as file:
        file.write("50,F,1\n")
    query = as_query(as_file, "a", tmp_path / "a")
    with pytest.raises(PrivacyError, match="has a ledger already"):
        run(query)
    assert not (tmp_path / "fresh.ledger").exists()
    run(changed(query, "a", ledger=str(ledger)))
    run(as_file)  # by turns, and always the one ledger
    assert spent(ledger) > 1.5 * once


def test_a_file_that_a_query_has_read_gets_no_other_ledger(
    as_file: Study, tmp_path: Path
) -> None:
    run(
        as_query(
            as_file,
            "a",
            tmp_path / "a",
            "SELECT * FROM north WHERE CAST(age AS DOUBLE) < 80",
        )
    )
    with pytest.raises(PrivacyError, match="a query has read") as refused:
        run(as_file)
    assert str(tmp_path / "fresh.ledger") in refused.value.remedy
    assert not (tmp_path / "a" / "north.csv.ledger").exists()


def test_a_file_and_a_query_of_it_are_not_two_sites(
    as_file: Study, tmp_path: Path
) -> None:
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "b" / "north.csv", tmp_path / "copy" / "north.csv")
    for folder in ("b", "copy"):
        text = "SELECT * FROM north ORDER BY age LIMIT 59"
        with pytest.raises(PrivacyError, match="have the same table"):
            run(as_query(as_file, "a", tmp_path / folder, text))
    assert not list(tmp_path.rglob("*.ledger"))


def test_two_queries_of_one_file_are_two_tables(as_file: Study, tmp_path: Path) -> None:
    study = as_query(
        as_file,
        "a",
        tmp_path / "a",
        "SELECT * FROM north WHERE CAST(age AS DOUBLE) < 60",
    )
    (tmp_path / "old.sql").write_text(
        "SELECT * FROM north WHERE CAST(age AS DOUBLE) >= 60"
    )
    sites = study.model_dump(mode="json", exclude_none=True)["sites"]
    old = {"query": str(tmp_path / "old.sql"), "ledger": str(tmp_path / "old.ledger")}
    run(with_sites(study, {"a": sites["a"], "b": {**sites["a"], **old}}))
    assert spent(tmp_path / "old.ledger") > 0.0


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

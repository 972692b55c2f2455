"""A table has one ledger, by whatever query or file it is read."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from parties import small_study
from query_sites import QUERY, fill, spent, sqlite_study, with_entry, with_sites

from cipherbayes.errors import PrivacyError
from cipherbayes.results.run import run
from cipherbayes.study.schema import Study
from conftest import logistic_frame
from terminal import cipherbayes

pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")

# -- one table, one ledger ---------------------------------------------------------


@pytest.fixture
def charged(tmp_path: Path) -> Study:
    """A study that has run once; the budgets pay for more."""
    study = sqlite_study(tmp_path / "q")
    for name in study.sites:
        study = with_entry(study, name, budget=50.0)
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
    again = with_entry(charged, "a", ledger=fresh)
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
    copy = with_entry(
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
        run(with_entry(again, "a", query=str(folder / "renamed.sql")))
    assert not Path(fresh).exists()
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.slow
def test_a_ledger_that_is_gone_or_anothers_is_refused(
    charged: Study, tmp_path: Path
) -> None:
    swapped = with_entry(charged, "a", ledger=str(tmp_path / "q" / "b.ledger"))
    swapped = with_entry(swapped, "b", ledger=str(tmp_path / "q" / "a.ledger"))
    with pytest.raises(PrivacyError, match="has another ledger"):
        run(swapped)
    moved = tmp_path / "q" / "moved.ledger"
    for suffix in ("", "-wal", "-shm"):
        file = tmp_path / "q" / f"a.ledger{suffix}"
        if file.exists():
            file.rename(f"{moved}{suffix}")
    with pytest.raises(PrivacyError, match="the ledger is gone"):
        run(charged)
    run(with_entry(charged, "a", ledger=str(moved)))


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
    study = with_entry(charged, "a", database=f"sqlite:{moved}")
    run(study)
    twice = spent(ledger)
    assert twice > once
    with pytest.raises(PrivacyError, match="has another ledger"):
        run(with_entry(study, "a", ledger=str(tmp_path / "fresh.ledger")))


@pytest.mark.slow
def test_the_owner_says_that_a_table_is_the_same_under_another_name(
    charged: Study, tmp_path: Path
) -> None:
    ledger = tmp_path / "q" / "a.ledger"
    once = spent(ledger)
    moved = tmp_path / "q" / "moved.sqlite"
    fill(moved, logistic_frame(61, seed=0))
    (tmp_path / "q" / "new name.sql").write_text(QUERY)
    study = with_entry(
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
        run(with_entry(study, "b", ledger=ledger, query=str(tmp_path / "q" / "a.sql")))
    assert not Path(ledger).exists()


def test_two_sites_with_one_query_or_equal_rows_are_refused(tmp_path: Path) -> None:
    study = sqlite_study(tmp_path / "q")
    twice = with_entry(
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
    run(with_entry(query, "a", ledger=str(ledger)))
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

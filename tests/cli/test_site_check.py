"""``cipherbayes site check``: what is wrong with a table, told to its owner only."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from parties import small_study

from cipherbayes.engine.table_check import check_table
from cipherbayes.study.schema import Study
from conftest import logistic_frame
from terminal import cipherbayes


def study(**changes: Any) -> Study:
    return small_study(("a", "b"), **changes)


def spoilt(rows: int = 40) -> Any:
    """A table with a fault in every column."""
    frame = logistic_frame(rows, seed=3).astype(object)
    frame.loc[3, "age"] = "inf"
    frame.loc[5, "age"] = None
    frame.loc[4, "sex"] = "HIV-67.1234"
    frame.loc[6, "sex"] = None
    frame.loc[7, "death"] = 67
    return frame


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A site's folder before the lead has sent anything: a study and settings."""
    (tmp_path / "study.toml").write_text(study().to_toml())
    (tmp_path / "site.toml").write_text('data = "t.csv"')
    return tmp_path


def test_a_table_that_fits_is_said_to(kit: Path) -> None:
    logistic_frame(40).to_csv(kit / "t.csv", index=False)
    done = cipherbayes("site", "check", kit)
    assert done.returncode == 0
    assert "(40 rows): fits the study" in done.stdout


def test_everything_that_is_wrong_is_said_at_once_and_no_value(kit: Path) -> None:
    spoilt().to_csv(kit / "t.csv", index=False)
    done = cipherbayes("site", "check", kit)
    assert done.returncode == 1
    for words in (
        "column 'age' has an infinite value",
        "column 'age' has missing values",
        "column 'sex' has a value that is none of its levels",
        "column 'sex' has missing values",
        "outcome column 'death'",
        "5 problem(s)",
    ):
        assert words in done.stdout
    assert "67" not in done.stdout
    assert "HIV" not in done.stdout


def test_missing_columns_are_all_named(kit: Path) -> None:
    logistic_frame(40)[["age"]].to_csv(kit / "t.csv", index=False)
    done = cipherbayes("site", "check", kit)
    assert "has no column 'sex'" in done.stdout
    assert "has no column 'death'" in done.stdout


def test_more_rows_than_the_study_counts_on_are_said(kit: Path) -> None:
    logistic_frame(40).to_csv(kit / "t.csv", index=False)
    few = study(privacy={"records": 39})
    (kit / "few.toml").write_text(few.to_toml())
    done = cipherbayes("site", "check", kit, "--study", kit / "few.toml")
    assert done.returncode == 1
    assert "more rows than the study's 39" in done.stdout


def test_a_study_and_a_table_are_enough(tmp_path: Path, kit: Path) -> None:
    logistic_frame(40).to_parquet(tmp_path / "other.parquet")
    words = ("--study", kit / "study.toml", "--table", tmp_path / "other.parquet")
    done = cipherbayes("site", "check", *words, cwd=tmp_path.parent)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "has no rows"),
        (b"age,sex,death\n", "no rows"),
        (b"age,sex,death\n\xff\xfe,F,1\n", "text where a number"),
        (b"age;sex;death\n40;F;1\n", "commas"),
    ],
)
def test_a_file_that_is_no_table_is_said_to_be_none(
    kit: Path, content: Any, expected: Any
) -> None:
    (kit / "t.csv").write_bytes(content)
    done = cipherbayes("site", "check", kit)
    assert done.returncode == 1
    assert expected in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_checking_sends_nothing_and_writes_nothing(
    kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", connect)
    spoilt().to_csv(kit / "t.csv", index=False)
    before = {path: path.read_bytes() for path in kit.rglob("*") if path.is_file()}
    cipherbayes("site", "check", kit)
    after = {path: path.read_bytes() for path in kit.rglob("*") if path.is_file()}
    assert after == before


def test_a_table_fits_exactly_if_a_run_would_open_it(tmp_path: Path) -> None:
    from cipherbayes.errors import DataError
    from cipherbayes.study.tables import open_site

    good, bad = logistic_frame(40), spoilt()
    for number, frame in enumerate((good, bad, good.drop(columns="sex"), good[:0])):
        path = tmp_path / f"{number}.csv"
        frame.to_csv(path, index=False)
        try:
            open_site(study(), "a", str(path))
            opens = True
        except DataError:
            opens = False
        assert (check_table(study(), "a", str(path)).problems == ()) is opens


def test_too_few_rows_for_a_held_out_share_are_said(tmp_path: Path) -> None:
    logistic_frame(1).to_csv(tmp_path / "t.csv", index=False)
    held = study(evaluation={"holdout": 0.2, "holdout_is_public": True})
    found = check_table(held, "a", str(tmp_path / "t.csv"))
    assert any("too few rows" in problem for problem in found.problems)


def test_outcomes_out_of_range_are_said_although_a_run_would_hold_them(
    tmp_path: Path,
) -> None:
    import cipherbayes as cb

    frame = logistic_frame(40).rename(columns={"death": "event"})
    frame["days"] = 400.0
    frame.to_csv(tmp_path / "t.csv", index=False)
    survival = cb.Study(
        study={"protocol": "secure-sum"},
        model=cb.models.Weibull(time="days", event="event", horizon=1.0),
        features={"age": {"low": 18, "high": 100}},
        privacy={"epsilon": 3.0, "records": 1000},
        sites={"a": {}, "b": {}},
    )
    found = check_table(survival, "a", str(tmp_path / "t.csv"))
    assert any("beyond ten horizons" in problem for problem in found.problems)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_where_the_first_wrong_value_is_is_said(tmp_path: Path, ending: str) -> None:
    frame = logistic_frame(40, seed=3)
    frame["sex"] = frame["sex"].astype(object)
    frame.loc[4, "sex"] = "HIV-67.1234"
    frame.loc[[6, 9], "age"] = None
    path = tmp_path / f"t.{ending}"
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    of_sex, of_age = sorted(check_table(study(), "a", path).problems, reverse=True)
    word, header = ("line", 2) if ending == "csv" else ("row", 1)
    assert of_sex.endswith(f"(first in {word} {4 + header})")
    assert of_age.endswith(f"(first in {word} {6 + header})")


def test_a_run_says_all_that_is_wrong_with_its_tables_at_once(tmp_path: Path) -> None:
    """Of one's own tables; what leaves a site is another matter."""
    logistic_frame(40, seed=1).to_csv(tmp_path / "a.csv", index=False)
    spoilt().to_csv(tmp_path / "b.csv", index=False)
    text = study(privacy={"records": 80}).to_toml().partition("[sites")[0]
    text += '[sites]\na = { data = "a.csv" }\nb = { data = "b.csv" }\n'
    (tmp_path / "study.toml").write_text(text)
    for command in ("check", "run"):
        done = cipherbayes(command, "study.toml", cwd=tmp_path)
        assert done.returncode == 1
        said = done.stdout + done.stderr
        assert "column 'sex' has a value that is none of its levels" in said
        assert "column 'age' has missing values" in said
        assert "(first in line 6)" in said
        assert "HIV" not in said
        assert not list(tmp_path.glob("*.ledger"))
    assert "5 things are wrong with the tables" in said

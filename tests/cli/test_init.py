"""`cipherbayes init`: a study file from names and types, and from nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cipherbayes as cb
from cipherbayes.models.registry import registered
from cipherbayes.study.template import Wanted, first_study
from conftest import logistic_frame, survival_frame
from terminal import cipherbayes

FILLED = {"age": "{ low = 18, high = 100 }", "sex": '{ levels = ["F", "M"] }'}


def test_the_file_becomes_a_study_once_it_is_filled_in(tmp_path: Path) -> None:
    for site in ("north", "south"):
        logistic_frame().to_csv(tmp_path / f"{site}.csv", index=False)
    done = cipherbayes(
        "init", "north.csv", "south.csv", "--out", "study.toml", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "never from the rows" in done.stdout
    text = (tmp_path / "study.toml").read_text()
    assert "FILL_IN" in text
    for name, feature in FILLED.items():
        text = re.sub(rf"^{name} = .*$", f"{name} = {feature}", text, flags=re.M)
    text = text.replace("records = FILL_IN", "records = 800")
    (tmp_path / "study.toml").write_text(text)
    study = cb.Study.load(tmp_path / "study.toml")
    assert set(study.sites) == {"north", "south"}
    assert study.model.outcome_columns() == {"y": "death"}


def test_imputing_comes_before_a_stand_in_where_values_are_missing(
    tmp_path: Path,
) -> None:
    """A stand-in with an indicator biases the effects of other features."""
    logistic_frame().to_csv(tmp_path / "a.csv", index=False)
    text = first_study([tmp_path / "a.csv"], tmp_path)
    assert 0 < text.index('missing = "impute"') < text.index("indicator = true")


def test_decimal_commas_are_no_levels(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        'age,sex,bmi,death\n"58,5",F,"24,1",0\n61,M,,1\n"70,0",F,"22,0",1\n'
    )
    done = cipherbayes("init", "rows.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 columns have decimal commas (58,0) and are left out" in done.stdout
    text = (tmp_path / "study.toml").read_text()
    assert "# age: left out (decimal commas: write its numbers with points" in text
    assert "# bmi: left out (decimal commas" in text
    assert "sex = { levels = [FILL_IN, FILL_IN] }" in text


def test_an_unfilled_file_is_refused_with_the_line(tmp_path: Path) -> None:
    survival_frame().to_parquet(tmp_path / "one.parquet")
    cipherbayes("init", "one.parquet", cwd=tmp_path)
    done = cipherbayes("plan", "study.toml", cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(r"line \d+", done.stderr)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.integers(10_000, 99_999), min_size=3, max_size=8, unique=True))
def test_no_value_of_a_row_is_ever_written(tmp_path: Path, values: list[int]) -> None:
    frame = pd.DataFrame(
        {"dose": values, "ward": [f"w{v}" for v in values], "death": 0}
    )
    path = tmp_path / "rows.csv"
    frame.to_csv(path, index=False)
    text = first_study([path], tmp_path)
    assert not any(str(value) in text for value in values)


def test_the_file_depends_on_names_and_types_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    written = set()
    for seed in range(3):
        logistic_frame(50 + seed, seed=seed).to_csv(path, index=False)
        written.add(first_study([path], tmp_path))
    assert len(written) == 1


def test_a_table_without_a_header_line_is_refused(tmp_path: Path) -> None:
    logistic_frame().to_csv(tmp_path / "bare.csv", index=False, header=False)
    done = cipherbayes("init", "bare.csv", cwd=tmp_path)
    assert done.returncode == 1
    assert "header line" in done.stderr
    assert not (tmp_path / "study.toml").exists()


def test_a_study_file_that_exists_is_kept(tmp_path: Path) -> None:
    logistic_frame().to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "study.toml").write_text("mine")
    done = cipherbayes("init", "a.csv", cwd=tmp_path)
    assert done.returncode == 1
    assert (tmp_path / "study.toml").read_text() == "mine"


def test_a_column_typed_differently_at_two_sites_is_refused(tmp_path: Path) -> None:
    frame = logistic_frame()
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.assign(age="old").to_csv(tmp_path / "b.csv", index=False)
    done = cipherbayes("init", "a.csv", "b.csv", cwd=tmp_path)
    assert done.returncode == 1
    assert "'age'" in done.stderr
    assert "old" not in done.stderr


def test_a_model_can_be_asked_for_and_its_outcome_is_no_feature(tmp_path: Path) -> None:
    survival_frame().assign(dose=1.0).to_csv(tmp_path / "a.csv", index=False)
    words = ("init", "a.csv", "--kind", "logistic", "--outcome", "event")
    assert cipherbayes(*words, cwd=tmp_path).returncode == 0
    text = (tmp_path / "study.toml").read_text()
    assert 'kind = "logistic"\noutcome = "event"\n' in text
    features = text.partition("[features]")[2]
    assert not re.search(r"^(event|time) =", features, flags=re.M)
    assert re.search(r"^# time: left out", features, flags=re.M)


@pytest.mark.parametrize("kind", sorted(registered))
def test_every_model_has_a_first_study(tmp_path: Path, kind: str) -> None:
    import tomllib

    survival_frame().to_csv(tmp_path / "a.csv", index=False)
    text = first_study([tmp_path / "a.csv"], tmp_path, wanted=Wanted(kind))
    filled = tomllib.loads(
        text.replace("low = FILL_IN", "low = 1")
        .replace("classes = FILL_IN", "classes = 4")
        .replace("FILL_IN", "100")
    )
    del filled["privacy"], filled["sites"]
    assert cb.Study.model_validate(filled).model.kind == kind


def test_guesses_say_that_they_are_guesses(tmp_path: Path) -> None:
    survival_frame().to_csv(tmp_path / "a.csv", index=False)
    done = cipherbayes("init", "a.csv", cwd=tmp_path)
    assert "3 lines are guesses" in done.stdout
    text = (tmp_path / "study.toml").read_text()
    for key in ("kind", "time", "event"):
        assert re.search(rf"^{key} = .*# a guess", text, flags=re.M)


@pytest.mark.parametrize(
    ("time", "event", "person"),
    [
        ("years", "died", "pid"),
        ("Follow-up (years)", "Died?", "Patient No."),
        ("time_to_death", "death_30d", "patientNr"),
        ("OS (months)", "Status", "Case number"),
        ("time2event", "Event", "StudyID"),
    ],
)
def test_a_time_beside_an_event_is_a_survival_study_by_guess(
    tmp_path: Path, time: str, event: str, person: str
) -> None:
    frame = survival_frame(30).assign(person=range(30))
    names = {"time": time, "event": event, "person": person}
    frame.rename(columns=names).to_csv(tmp_path / "a.csv", index=False)
    text = first_study([tmp_path / "a.csv"], tmp_path)
    assert 'kind = "exponential"  # a guess' in text
    assert '"logistic" leaves the time aside' in text
    assert f'time = "{time}"  # a guess' in text
    assert f'event = "{event}"  # a guess' in text
    features = text.partition("[features]")[2]
    for name in (time, event):
        assert not re.search(rf'^"?{re.escape(name)}"? =', features, flags=re.M)
    assert re.search(rf'^# "?{re.escape(person)}"?: left out', features, flags=re.M)


def test_columns_with_a_word_of_time_or_event_alone_are_features(
    tmp_path: Path,
) -> None:
    names = ["smoking status", "age in years", "days_in_icu", "number of drugs"]
    pd.DataFrame({name: [1.0, 2.0] for name in [*names, "gone"]}).to_csv(
        tmp_path / "a.csv", index=False
    )
    text = first_study([tmp_path / "a.csv"], tmp_path)
    assert 'kind = "logistic"' in text
    for name in names:
        assert re.search(rf'^"?{name}"? = ', text, flags=re.M)


def test_a_time_without_an_event_names_the_alternative(tmp_path: Path) -> None:
    pd.DataFrame({"followup": [1.0, 2.0], "gone": [0, 1]}).to_csv(
        tmp_path / "a.csv", index=False
    )
    text = first_study([tmp_path / "a.csv"], tmp_path)
    assert '"followup" may be a time of follow-up: then --kind exponential' in text


def test_an_outcome_in_words_is_said_to_need_numbers(tmp_path: Path) -> None:
    pd.DataFrame({"Died?": ["yes", "no"], "age": [1.0, 2.0]}).to_csv(
        tmp_path / "a.csv", index=False
    )
    text = first_study([tmp_path / "a.csv"], tmp_path)
    assert re.search(r'^outcome = "Died\?"  # .*words .* as 1 and 0', text, flags=re.M)


def test_the_number_of_rows_is_suggested_to_the_owner_and_not_written(
    tmp_path: Path,
) -> None:
    for seed, site in enumerate(("a", "b")):
        logistic_frame(343, seed=seed).to_csv(tmp_path / f"{site}.csv", index=False)
    done = cipherbayes("init", "a.csv", "b.csv", cwd=tmp_path)
    assert "686 rows" in done.stdout
    assert "records = 690" in done.stdout
    assert "6" not in (tmp_path / "study.toml").read_text().replace("1e-6", "")


def test_columns_that_differ_in_capital_letters_are_named(tmp_path: Path) -> None:
    logistic_frame().to_csv(tmp_path / "a.csv", index=False)
    logistic_frame().rename(columns={"age": "Age"}).to_csv(
        tmp_path / "b.csv", index=False
    )
    done = cipherbayes("init", "a.csv", "b.csv", cwd=tmp_path)
    assert done.returncode == 1
    assert "column 'Age' is called 'age' in a.csv" in done.stderr


def test_a_column_that_one_site_lacks_is_named_in_the_file(tmp_path: Path) -> None:
    logistic_frame().assign(ward=1).to_csv(tmp_path / "a.csv", index=False)
    logistic_frame().to_csv(tmp_path / "b.csv", index=False)
    cipherbayes("init", "a.csv", "b.csv", cwd=tmp_path)
    assert (
        "# ward: left out (not in every table)" in (tmp_path / "study.toml").read_text()
    )


@pytest.mark.parametrize("name", ['we"ird', "a.b", "größe", "tab\there"])
def test_odd_column_names_are_written_as_toml_keys(tmp_path: Path, name: str) -> None:
    import tomllib

    pd.DataFrame({name: [1.0, 2.0], "death": [0, 1]}).to_parquet(tmp_path / "a.parquet")
    text = first_study([tmp_path / "a.parquet"], tmp_path).replace("FILL_IN", "1")
    assert name in tomllib.loads(text)["features"]


def test_what_can_be_no_feature_is_left_out_with_the_reason(tmp_path: Path) -> None:
    frame = logistic_frame(30).assign(
        PatID=range(30),
        steroid=1,
        born="03.04.1960",
        seen="2020-01-02",
        hollow=float("nan"),
    )
    half = frame.assign(half=float("nan"))
    frame.assign(half=2.0).to_csv(tmp_path / "a.csv", index=False)
    half.to_csv(tmp_path / "b.csv", index=False)
    text = first_study([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path)
    assert 'name = "my-study"' in text
    for column, why in {
        "PatID": "names a person",
        "born": "a date",
        "seen": "a date",
        "hollow": "empty",
        "half": "empty",
    }.items():
        assert re.search(rf"^# {column}: left out \(.*{why}", text, flags=re.M)
    assert re.search(r"^steroid = ", text, flags=re.M)


def test_an_outcome_that_nobody_named_is_no_guess(tmp_path: Path) -> None:
    logistic_frame().rename(columns={"death": "gone"}).to_csv(
        tmp_path / "a.csv", index=False
    )
    text = first_study([tmp_path / "a.csv"], tmp_path)
    assert "outcome = FILL_IN  # name the column; its values must be 0 and 1" in text

"""Effects under a formula: contrasts, groups and curves of a posterior."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cipherbayes as cb
from cipherbayes.errors import DataError, RunError
from cipherbayes.report.page import write_report
from cipherbayes.results.effects import step_words
from cipherbayes.results.export import export
from cipherbayes.results.made_up import MadeUp
from cipherbayes.results.result import Result
from cipherbayes.study.schema import Study

FEATURES: dict[str, Any] = {
    "age": {"low": 20, "high": 100},
    "grade": {"levels": ["I", "II", "III"]},
    "sex": {"levels": ["F", "M"]},
    "dose": {"low": 0.5, "high": 50, "per": 10},
}
FORMULA = "death ~ rcs(age, 4) * sex + C(grade, ref='II') + dose"


def frame_of(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "age": rng.normal(60.0, 12.0, rows).clip(20.0, 100.0),
            "grade": rng.choice(["I", "II", "III"], rows),
            "sex": rng.choice(["F", "M"], rows),
            "dose": rng.uniform(0.5, 50.0, rows),
        }
    )
    bend = ((frame["age"] - 60.0) / 20.0) ** 2 * (frame["sex"] == "M")
    eta = -1.0 + bend + 0.8 * (frame["grade"] == "III") + 0.02 * frame["dose"]
    frame["death"] = (rng.random(rows) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    return frame


@pytest.fixture(scope="module")
def result() -> Result:
    study = Study(
        model={"kind": "logistic", "formula": FORMULA},
        features=FEATURES,
        reference={"age": 60, "sex": "M"},
        prior={"scale": 5.0},
        inference={"rounds": 600},
    )
    return cb.run(study, {"all": frame_of(1500)})


def draws(result: Result, *names: str) -> Any:
    known = [row["name"] for row in result.summary()]
    theta = np.asarray(result.dataset["theta"]).reshape(-1, len(known))
    return theta[:, [known.index(name) for name in names]]


@pytest.mark.parametrize(
    ("name", "per", "words"),
    [
        ("age", "74 against 49", "age: 74 against 49"),
        ("sex[M]", "M against F", "sex: M against F"),
        ("age", "10 units of age", "10 units of age"),
    ],
)
def test_a_step_is_told_with_its_feature(name: str, per: str, words: str) -> None:
    row: Any = {"name": name, "per": per}
    assert step_words(row) == words


def test_effects_are_steps_from_the_reference_record(result: Result) -> None:
    rows = {row["name"]: row for row in result.effects()}
    assert list(rows) == ["age", "sex[M]", "grade[I]", "grade[III]", "dose"]
    assert rows["grade[III]"]["per"] == "III against II"
    assert rows["dose"]["per"] == "10 units of dose"
    ratios = np.exp(10.0 * draws(result, "dose")[:, 0])
    assert rows["dose"]["estimate"] == pytest.approx(np.median(ratios), rel=1e-3)
    ratios = np.exp(draws(result, "grade[III]")[:, 0])
    assert rows["grade[III]"]["lower"] == pytest.approx(
        np.quantile(ratios, 0.05), rel=1e-2
    )
    assert (rows["grade[III]"]["above"] or 0.0) > 0.99


def test_a_contrast_is_a_difference_of_two_records(result: Result) -> None:
    swapped = result.contrast("grade", "I", "III")
    both = draws(result, "grade[I]", "grade[III]")
    expected = np.median(np.exp(both[:, 0] - both[:, 1]))
    assert swapped["estimate"] == pytest.approx(expected, rel=1e-3)
    assert swapped["at"] == {
        "age": 60.0,
        "sex": "M",
        "dose": pytest.approx(25.7, abs=0.1),
    }
    # A log odds ratio is the difference of two predicted log odds, draw by draw.
    ages = pd.DataFrame({"age": [60.0, 85.0]}).assign(grade="II", sex="F", dose=10.0)
    model, rows = result.study.model, next(result.rows_of(ages))
    chance = model.predict(result.draws(), rows)
    odds = chance / (1.0 - chance)
    contrast = result.contrast("age", 85, 60, at={"sex": "F", "dose": 10.0})
    ratio = np.median(odds[:, 1] / odds[:, 0])
    assert contrast["estimate"] == pytest.approx(ratio, rel=1e-3)


def test_groups_are_contrasts_with_one_value_changed(result: Result) -> None:
    rows = [r for r in result.subgroups() if r["name"] == "age"]
    assert [(r["by"], r["at"]) for r in rows] == [("sex", "F"), ("sex", "M")]
    high, low = (float(part) for part in rows[0]["per"].split(" against "))
    for row in rows:
        same = result.contrast("age", high, low, at={"sex": row["at"]})
        assert row["estimate"] == same["estimate"]


def _nearest(curve: Any, value: float) -> Any:
    return min(curve, key=lambda point: abs(point["value"] - value))


def test_a_curve_is_one_at_the_reference_and_bends_where_the_truth_does(
    result: Result,
) -> None:
    whole, women, men = result.curves()
    assert (whole.by, women.level, men.level) == (None, "F", "M")
    assert whole.reference == 60.0
    for curve in (whole, women, men):
        (here,) = [point for point in curve if point["value"] == 60.0]
        assert (here["estimate"], here["lower"], here["upper"]) == (1.0, 1.0, 1.0)
    for value in (36.0, 84.0):
        point = _nearest(men, value)
        truth = np.exp(((point["value"] - 60.0) / 20.0) ** 2)
        assert point["lower"] is not None
        assert point["upper"] is not None
        # Half a log odds is about two standard deviations there.
        assert point["lower"] * np.exp(-0.5) < truth < point["upper"] * np.exp(0.5)
        assert point["lower"] > 1.5
    flat = [point for point in women if 40.0 < point["value"] < 80.0]
    assert all((p["lower"] or 2.0) < 1.3 and (p["upper"] or 0.0) > 0.7 for p in flat)


def test_a_curve_prints_as_a_short_table_and_becomes_a_frame(result: Result) -> None:
    curve = result.curve("age", at={"sex": "M"})
    first, *lines = repr(curve).splitlines()
    assert first.startswith("odds ratio of age against 60 (")
    assert 10 < len(lines) < 20
    assert any(line.split()[:2] == ["60", "1"] for line in lines)
    assert "<table>" in curve._repr_html_()
    frame = curve.to_frame()
    assert list(frame["value"]) == [point["value"] for point in curve]
    assert len(frame) > 50


def test_combinations_and_joint_probabilities_are_those_of_the_draws(
    result: Result,
) -> None:
    both = draws(result, "grade[I]", "grade[III]")
    row = result.combination({"grade[I]": -1.0, "grade[III]": 2.0})
    expected = both @ [-1.0, 2.0]
    assert row["mean"] == pytest.approx(expected.mean())
    assert row["sd"] == pytest.approx(expected.std(ddof=1))
    chance = result.probability(["grade[III]"], ["grade[I]"])
    assert chance == pytest.approx(((both[:, 1] > 0) & (both[:, 0] < 0)).mean())


def test_levels_are_listed_in_the_studys_order_everywhere(result: Result) -> None:
    row = {"age": [60.0], "grade": ["IV"], "sex": ["F"], "dose": [1.0]}
    with pytest.raises(DataError, match=r"levels \(I, II, III\)"):
        result.predict(pd.DataFrame(row))


def test_what_a_study_does_not_know_is_refused(result: Result) -> None:
    with pytest.raises(RunError, match="no feature"):
        result.contrast("bmi", 1, 2)
    with pytest.raises(RunError, match="levels I, II, III"):
        result.contrast("grade", "IV", "I")
    with pytest.raises(RunError, match="between low and high"):
        result.contrast("age", 60, 101)
    with pytest.raises(RunError, match="no feature"):
        result.contrast("age", 60, 70, at={"bmi": 3})
    with pytest.raises(RunError, match="no parameter"):
        result.combination({"bmi": 1.0})
    with pytest.raises(RunError, match="no number"):
        result.curve("sex")


def test_a_saved_result_has_the_same_contrasts_and_a_page_with_the_curve(
    result: Result, tmp_path: Path
) -> None:
    result.save(tmp_path / "out")
    loaded = Result.load(tmp_path / "out")
    assert loaded.study.fingerprint() == result.study.fingerprint()
    assert loaded.contrast("age", 80, 50) == result.contrast("age", 80, 50)
    assert loaded.curves() == result.curves()
    page = write_report(tmp_path / "out").read_text(encoding="utf-8")
    assert "Odds ratio by age, in groups of sex" in page
    # The reference is the second level: nothing calls it the first.
    assert "categories at their reference level" in page
    assert "against a reference level (grade II, sex F)" in page
    assert "before any record was read" not in page
    assert "Effects in groups" in page
    dose = result.record["reference"]["dose"]
    assert f"age 60, grade II, sex M, dose {dose:.3g}" in page
    files = {file.name for file in export(loaded, tmp_path / "csv", for_r=True)}
    assert {"curves.csv", "subgroups.csv"} <= files
    with (tmp_path / "csv" / "curves.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(curve) for curve in result.curves())
    assert set(rows[0]) >= {"feature", "level", "value", "estimate", "lower", "upper"}


def test_contrasts_need_no_formula() -> None:
    study = Study(
        model={"kind": "linear", "outcome": "death", "low": 0.0, "high": 1.0},
        features={name: FEATURES[name] for name in ("age", "sex")},
        reference={"age": 50},
        inference={"rounds": 300},
    )
    result = cb.run(study, {"all": frame_of(300)})
    slope = draws(result, "age")[:, 0]
    row = result.contrast("age", 80, 60)
    assert row["estimate"] == pytest.approx(np.median(20.0 * slope), rel=1e-2)
    assert "formula" not in result.record
    assert result.curves() == []
    assert result.curve("age").reference == 50.0


def test_the_reference_record_is_the_studys_then_what_was_released() -> None:
    study = Study(
        model={"kind": "logistic", "formula": "death ~ poly(age, 2) + sex + log(dose)"},
        features={name: FEATURES[name] for name in ("age", "sex", "dose")},
        reference={"sex": "M"},
    )
    public = MadeUp(study, None).reference
    assert public == {"age": 60.0, "sex": "M", "dose": pytest.approx(5.0)}
    # Means, then deviations, of age, sex and log(dose).
    moments = np.array([0.25, 0.5, -0.5, 0.3, 0.5, 0.2])
    released = MadeUp(study, moments)
    assert released.reference["age"] == 70.0
    assert released.reference["dose"] == pytest.approx(5.0 * 0.1**0.5)
    assert released.at("age", 1.0) == pytest.approx(60.0 + 40.0 * 0.55)
    assert released.at("age", 9.0) == 100.0
    # Without privacy those of the rows, which columns are not moved by.
    plain = MadeUp(study, None, spread=moments)
    assert plain.reference == released.reference
    assert plain.near("age", -1.0) == 58.0
    records = [plain.reference]
    assert not np.array_equal(plain.rows(records).x, released.rows(records).x)


def test_without_privacy_a_curves_effect_is_told_where_the_rows_are() -> None:
    """Not a quarter of a wide public range from its middle."""
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"age": rng.normal(62, 6, 300), "death": [0.0, 1.0] * 150})
    study = Study(
        model={"kind": "logistic", "formula": "death ~ rcs(age, [50, 60, 70])"},
        features={"age": {"low": 0, "high": 200}},
        inference={"rounds": 40, "chains": 1},
    )
    (row,) = cb.run(study, frame).effects()
    high, low = (float(word) for word in row["per"].split(" against "))
    assert 54 <= low <= 58
    assert 66 <= high <= 70


def test_values_that_differ_by_little_beside_their_size_are_kept_apart() -> None:
    """Sodium of 137 and 143, not 140 twice; an age of 48 and 72 as before."""
    study = Study(
        model={"kind": "logistic", "formula": "death ~ rcs(sodium, 3) + rcs(age, 3)"},
        features={"sodium": {"low": 110, "high": 170}, "age": FEATURES["age"]},
        privacy={"epsilon": 1.0, "records": 4000},
        sites={"a": {}, "b": {}, "c": {}},
    )
    moments = np.array([0.0, 0.0, 0.1, 0.3])
    made_up = MadeUp(study, moments)
    assert [made_up.near("sodium", d) for d in (-1.0, 1.0)] == [137.0, 143.0]
    assert [made_up.near("age", d) for d in (-1.0, 1.0)] == [48.0, 72.0]

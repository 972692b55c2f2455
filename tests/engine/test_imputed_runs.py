"""Whole studies between sites whose tables have gaps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cipherbayes as cb
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.plan_description import describe
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.validation.verify import verify

pytestmark = pytest.mark.slow
EFFECTS = {"age": 0.03, "bmi": 0.12}


def frame_of(rows: int, seed: int) -> pd.DataFrame:
    """A third of a column is missing, more often where the outcome was good."""
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, rows)
    bmi = 27 + 0.25 * (age - 60) + 4 * rng.standard_normal(rows)
    eta = EFFECTS["age"] * (age - 60) + EFFECTS["bmi"] * (bmi - 27)
    y = (rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(float)
    gone = rng.random(rows) < np.where(y == 1, 0.15, 0.5)
    return pd.DataFrame({"age": age, "bmi": np.where(gone, np.nan, bmi), "y": y})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three sites that may differ, described and checked."""
    folder = tmp_path_factory.mktemp("gaps")
    for k, name in enumerate("abc"):
        frame_of(1200, k).to_csv(folder / f"{name}.csv", index=False)
    (folder / "study.toml").write_text(
        """
        [model]
        kind = "logistic"
        outcome = "y"
        [features]
        age = { low = 20, high = 100 }
        bmi = { low = 5, high = 55, missing = "impute" }
        [privacy]
        epsilon = 8.0
        records = 3600
        randomness = "insecure-repeatable"
        [hierarchy]
        [describe]
        [evaluation]
        holdout = 0.25
        [sites]
        a = { data = "a.csv" }
        b = { data = "b.csv" }
        c = { data = "c.csv" }
        """,
        encoding="utf-8",
    )
    cb.run(cb.Study.load(folder / "study.toml"), out=folder / "out")
    return folder


def test_effects_come_back_where_gaps_depend_on_the_outcome(folder: Path) -> None:
    rows = {row["name"]: row for row in cb.Result.load(folder / "out").summary()}
    for name, effect in EFFECTS.items():
        mean, sd = rows[name]["mean"], rows[name]["sd"]
        assert mean is not None
        assert sd is not None
        assert abs(mean - effect) < 3.0 * sd
    whole = pd.concat([frame_of(1200, k) for k in range(3)])
    # A gap hides something: more than from as many complete records, where the
    # information about bmi is at most a quarter of its square for each.
    least = 1.0 / np.sqrt(0.25 * 0.75 * len(whole) * whole["bmi"].var())
    assert (rows["bmi"]["sd"] or 0.0) > 1.1 * least


def test_the_model_of_a_column_is_charged_and_planned(folder: Path) -> None:
    plan = plan_releases(cb.Study.load(folder / "study.toml"))
    told = describe(plan)
    assert told.record()["imputation"]["learnt"] == ["bmi"]
    assert told.record()["imputation"]["share"] == pytest.approx(0.05, abs=0.001)
    assert any("learnt with ε" in line for line in told.lines)
    book = Ledger.read(folder / "a.csv.ledger")
    assert "imputation" in {entry.purpose for entry in book.entries()}
    assert book.spent() <= 8.0


def test_a_table_of_the_records_counts_gaps_and_what_was_observed(
    folder: Path,
) -> None:
    whole = pd.concat([frame_of(1200, k) for k in range(3)])["bmi"]
    rows = cb.Result.load(folder / "out").record["describe"]
    found = {row["statistic"]: row for row in rows if row["column"] == "bmi"}
    assert found["missing share"]["mean"] == pytest.approx(
        whole.isna().mean(), abs=0.02
    )
    assert found["mean"]["lower"] <= whole.mean() <= found["mean"]["upper"]


def test_held_out_rows_with_gaps_are_scored_and_gaps_are_no_misfit(
    folder: Path,
) -> None:
    metrics = cb.Result.load(folder / "out").metrics
    assert metrics["rows"]["mean"] == pytest.approx(900, abs=120)
    assert 0.55 < metrics["auc"]["mean"] < 0.8
    assert {row["by"] for row in metrics["fit"]} == {"all", "age", "bmi", "site"}
    assert not any(row["misfit"] for row in metrics["fit"])


def test_a_prediction_without_a_value_is_the_mean_over_what_it_may_be(
    folder: Path,
) -> None:
    result = cb.Result.load(folder / "out")
    new = pd.DataFrame({"age": [60.0, 75.0, 60.0], "bmi": [27.0, np.nan, np.nan]})
    found = result.predict(new, site="a")
    whole = result.predict(
        pd.DataFrame({"age": 75.0, "bmi": 30.75 + 4.0 * np.linspace(-2.5, 2.5, 41)}),
        site="a",
    )
    weights = np.exp(-0.5 * np.linspace(-2.5, 2.5, 41) ** 2)
    expected = np.average(whole["mean"], weights=weights)
    assert found["mean"][1] == pytest.approx(expected, abs=0.03)
    assert found["lower"][1] < found["mean"][1] < found["upper"][1]
    alone = result.predict(new.iloc[1:2], site="a")
    assert alone["mean"][0] == pytest.approx(found["mean"][1], rel=1e-9)
    complete = result.predict(new.iloc[:1], site="a")
    assert complete["mean"][0] == pytest.approx(found["mean"][0], rel=1e-9)


def test_a_run_with_gaps_is_verified_from_its_signed_totals(folder: Path) -> None:
    assert not verify(folder / "out").failed

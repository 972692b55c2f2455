"""A study that checks and describes itself within its budget, from end to end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from checked_study import run_of, write
from typer.testing import CliRunner

import cipherbayes as cb
from cipherbayes.cli.main import app
from cipherbayes.errors import StudyError
from cipherbayes.models.metrics import auc
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.report.page import write_report
from cipherbayes.results.export import export
from cipherbayes.validation.verify import verify
from conftest import survival_frame


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federated run with the default method."""
    return run_of(tmp_path_factory.mktemp("checked"), "noise-aware")


@pytest.fixture(scope="module")
def point(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federated run of the quickest method."""
    return run_of(tmp_path_factory.mktemp("point"), "averaged")


def test_scores_are_close_to_those_of_the_rows_and_have_intervals(
    finished: Path,
) -> None:
    result = cb.Result.load(finished / "out")
    assert result.metrics["private"] is True
    rows = pd.concat([pd.read_csv(finished / f"{s}.csv") for s in ("north", "south")])
    predicted = result.predict(rows)["mean"]
    exact = auc(rows["death"].to_numpy(), predicted)
    assert exact is not None
    found = result.metrics["auc"]
    assert found["lower"] - 0.02 < exact < found["upper"] + 0.02
    assert found["lower"] < found["mean"] < found["upper"]
    assert result.metrics["rows"]["mean"] == pytest.approx(1800, rel=0.1)
    assert result.metrics["predicted_over_observed"]["mean"] == pytest.approx(
        1, abs=0.2
    )
    for score in ("brier", "log_score", "calibration_slope", "calibration_intercept"):
        assert set(result.metrics[score]) == {"mean", "lower", "upper"}
    assert len(result.metrics["calibration_table"]) >= 4
    assert {row["by"] for row in result.metrics["fit"]} == {"all", "age", "sex", "site"}
    assert not any(flag["code"] == "misfit" for flag in result.record["flags"])


def test_characteristics_are_near_the_rows_and_add_up(finished: Path) -> None:
    table = cb.Result.load(finished / "out").describe()
    found = {(r["column"], r["statistic"], r["group"]): r for r in table}
    rows = pd.concat([pd.read_csv(finished / f"{s}.csv") for s in ("north", "south")])
    age = found["age", "mean", "all"]
    assert age["lower"] - 1.0 < rows["age"].mean() < age["upper"] + 1.0
    assert found["", "rows", "all"]["mean"] == 6000.0
    groups = [found["", "rows", f"site: {s}"]["mean"] for s in ("north", "south")]
    assert sum(groups) == pytest.approx(6000.0)
    for group in ("all", "site: north", "site: south"):
        counts = [found["sex", f"count: {level}", group]["mean"] for level in "FM"]
        assert sum(counts) == pytest.approx(found["", "rows", group]["mean"], rel=0.02)
        shares = [found["sex", f"share: {level}", group]["mean"] for level in "FM"]
        assert sum(shares) == pytest.approx(1.0)
    assert all(row["lower"] <= row["mean"] <= row["upper"] for row in table)
    assert all(row["mean"] >= 0.0 for row in table)


def test_every_release_is_in_the_ledger_and_a_row_pays_for_one_part(
    finished: Path,
) -> None:
    ledger = Ledger.read(finished / "north.csv.ledger")
    purposes = [entry.purpose for entry in ledger.entries()]
    assert purposes[-3:] == ["describe", "check", "residuals"]
    assert ledger.spent() == pytest.approx(8.0, rel=1e-3)
    assert ledger.spent() <= 8.0 * (1 + 1e-9)
    result = cb.Result.load(finished / "out")
    assert result.certificate["certified"]
    covers = str(result.certificate["covers"])
    assert covers.startswith("every person with all their rows at a site, in every")


@pytest.mark.slow
def test_anybody_can_compute_scores_and_characteristics_again(point: Path) -> None:
    findings = verify(point / "out")
    assert not findings.failed
    record = json.loads((point / "out" / "result.json").read_text())
    record["metrics"]["auc"]["mean"] += 0.01
    record["describe"][1]["mean"] += 1.0
    changed = point / "changed"
    changed.mkdir()
    for name in ("study.toml", "posterior.nc"):
        (changed / name).write_bytes((point / "out" / name).read_bytes())
    (changed / "result.json").write_text(json.dumps(record))
    wrong = verify(point / "out", result=changed)
    assert {"scores", "characteristics"} <= {f.check for f in wrong.failed}


def test_the_page_and_the_files_have_it_all(finished: Path, tmp_path: Path) -> None:
    path = write_report(finished / "out", tmp_path / "page.html")
    page = path.read_text(encoding="utf-8")
    for text in (
        "Who the records are",
        "site: north",
        "What fits and what does not",
        "released with noise, within ε",
        "Calibration in the large",
        "Calibration by predicted bin",
        "All groups in numbers",
        "Missed (log odds)",
        "age below",
    ):
        assert text in page
    assert "declares them public" not in page
    result = cb.Result.load(finished / "out")
    files = {path.name: path for path in export(result, tmp_path / "csv")}
    written = {name: pd.read_csv(path) for name, path in files.items()}
    for name, table in (
        ("describe.csv", result.describe()),
        ("scores.csv", result.scores()),
        ("calibration.csv", result.calibration()),
        ("fit.csv", result.fit_groups()),
    ):
        assert list(written[name].columns) == list(table.columns)
        assert len(written[name]) == len(table) > 0
    (area,) = (row for row in result.scores() if row["score"] == "auc")
    assert area["mean"] == result.metrics["auc"]["mean"]
    # Every group of every test, each with an interval that holds its mean.
    groups = result.fit_groups()
    tests = result.metrics["fit"]
    assert len(groups) == sum(len(test["groups"]) for test in tests)
    for row in groups:
        assert None not in (row["mean"], row["lower"], row["upper"])


def test_a_bin_of_predictions_that_noise_may_have_made_is_told_and_not_drawn(
    finished: Path, tmp_path: Path
) -> None:
    result = cb.Result.load(finished / "out")
    bins = result.calibration()
    assert not all(row["within_noise"] for row in bins)
    record = json.loads((finished / "out" / "result.json").read_text())
    record["metrics"]["calibration_table"].append(
        {
            "rows": 1.2,
            "predicted": 0.991,
            "observed": 0.95,
            "lower": 0.7,
            "upper": 1.0,
            "within_noise": True,
        }
    )
    folder = tmp_path / "out"
    shutil.copytree(finished / "out", folder)
    (folder / "result.json").write_text(json.dumps(record))
    page = write_report(folder).read_text(encoding="utf-8")
    drawn = page.partition("Calibration: what was predicted")[2].partition("</figure>")
    shown = [row for row in bins if not row["within_noise"]]
    assert drawn[0].count("<circle") == len(shown)
    assert "1 (within noise)" in drawn[2]
    largest, smallest = (
        pick(shown, key=lambda row: row["rows"]) for pick in (max, min)
    )
    assert largest["rows"] > smallest["rows"]
    assert 'r="8"' in drawn[0]  # the fullest bin's point


def test_a_plan_says_what_fitting_checking_and_describing_get(finished: Path) -> None:
    study = str(finished / "checked.toml")
    said = CliRunner().invoke(app, ["plan", study]).output
    for word in ("fitting", "checking", "describing"):
        assert f"\n{word}" in said
    record = json.loads(CliRunner().invoke(app, ["plan", study, "--json"]).output)
    assert record["budget"]["fitting"]["rows"] == pytest.approx(0.7)
    assert record["budget"]["checking"]["epsilon_alone"] == pytest.approx(
        record["budget"]["fitting"]["epsilon_alone"], rel=1e-3
    )


def test_a_run_that_is_cut_in_a_check_goes_on_with_the_same_question(
    tmp_path: Path,
) -> None:
    study = cb.Study.load(write(tmp_path, "pooled", "averaged"))
    out = tmp_path / "out"

    class CutError(Exception):
        pass

    def progress(done: int, rounds: int) -> None:
        if done == rounds - 1:
            raise CutError

    with pytest.raises(CutError):
        cb.run(study, out=out, progress=progress)
    spent = Ledger.read(tmp_path / "north.csv.ledger").spent()
    result = cb.resume(out)
    assert result.metrics["private"] is True
    assert result.describe()
    assert Ledger.read(tmp_path / "north.csv.ledger").spent() == pytest.approx(spent)
    purposes = [e.purpose for e in Ledger.read(tmp_path / "north.csv.ledger").entries()]
    assert purposes.count("check") == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["survival", "number", "count"])
def test_other_outcomes_are_checked_too(kind: str) -> None:
    rng = np.random.default_rng(0)
    if kind == "survival":
        frames = {s: survival_frame(1500, k) for k, s in enumerate("ab")}
        model: Any = cb.models.Weibull(time="time", event="event", horizon=1500.0)
    else:
        frames = {}
        for site in "ab":
            age = rng.uniform(20, 90, 1500)
            mean = (age - 55.0) / 35.0
            y = 120.0 + 20.0 * mean + rng.normal(0, 8, age.size)
            if kind == "count":
                y = rng.poisson(np.exp(0.3 + 0.5 * mean)).astype(float)
            frames[site] = pd.DataFrame({"age": age, "y": y})
        model = cb.models.Linear(outcome="y", low=60.0, high=200.0)
        if kind == "count":
            model = cb.models.Poisson(outcome="y")
    study = cb.Study(
        study={"protocol": "pooled"},
        model=model,
        features={"age": {"low": 18, "high": 100}},
        privacy={"epsilon": 10.0, "records": 3000},
        inference={"method": "averaged"},
        evaluation={"holdout": 0.4},
        describe={},
        sites={"a": {}, "b": {}},
    )
    result = cb.run(study, frames)
    metrics = result.metrics
    assert metrics["private"] is True
    assert metrics["rows"]["mean"] == pytest.approx(1200, rel=0.15)
    if kind == "survival":
        assert 0.4 < metrics["c_index"]["mean"] < 1.0
        assert [at["time"] for at in metrics["auc_at"]][-1] == model.horizon
        assert len(metrics["observed_over_expected"]) == 16
    elif kind == "number":
        assert metrics["rmse"]["mean"] == pytest.approx(8.0, rel=0.5)
        assert metrics["mean_observed"]["mean"] == pytest.approx(120.0, abs=5.0)
    else:
        assert metrics["predicted_over_observed"]["mean"] == pytest.approx(1.0, abs=0.2)
    described = {(r["column"], r["statistic"]) for r in result.describe()}
    assert ("age", "median") in described


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"study": {"protocol": "encrypted-update"}}, "secure-sum"),
        ({"model": cb.models.GaussianMean(variance=1.0)}, "no private check"),
        ({"inference": {"method": "psgld", "batch": 50}}, "inference.batch"),
    ],
)
def test_what_cannot_be_checked_privately_is_refused(
    change: dict[str, Any], match: str
) -> None:
    sections: dict[str, Any] = {
        "study": {"protocol": "secure-sum"},
        "model": cb.models.Logistic(outcome="death"),
        "features": {"age": {"low": 18, "high": 100}},
        "privacy": {"epsilon": 1.0, "records": 1000},
        "evaluation": {"holdout": 0.2},
        "sites": {"a": {}, "b": {}},
    }
    with pytest.raises(StudyError, match=match):
        cb.Study(**sections | change)

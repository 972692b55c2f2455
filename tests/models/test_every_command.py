"""Every model runs under every protocol and command, and speaks its field's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import cipherbayes as cb
from cipherbayes.cli.main import app
from cipherbayes.errors import DataError, RunError
from cipherbayes.study.schema import Study

SURVIVAL = {"time": "days", "event": "died", "horizon": 40.0}
TABLES: dict[str, dict[str, Any]] = {
    "linear": {"outcome": "mmHg", "low": 60.0, "high": 200.0},
    "poisson": {"outcome": "falls", "exposure": "days", "per": 20.0},
    "negative-binomial": {"outcome": "falls", "exposure": "days", "per": 20.0},
    "ordinal": {"outcome": "stage", "classes": 3},
    "logistic": {"outcome": "died"},
    "exponential": SURVIVAL,
    "weibull": SURVIVAL,
    "gompertz": SURVIVAL,
    "piecewise": {**SURVIVAL, "cuts": [10.0, 25.0]},
}
MEASURES = {
    "linear": "difference",
    "poisson": "rate ratio",
    "negative-binomial": "rate ratio",
    "ordinal": "odds ratio",
    "logistic": "odds ratio",
}
FEATURES = {
    "age": {"low": 20, "high": 90},
    "sex": {"levels": ["F", "M"]},
    "dose": {"low": 1, "high": 16, "transform": "log"},
}


def frame(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.uniform(20, 90, n)
    time = rng.exponential(30.0 * np.exp(-0.02 * (age - 55)), n) + 0.01
    return pd.DataFrame(
        {
            "age": age,
            "sex": rng.choice(["F", "M"], n),
            "dose": rng.uniform(1, 16, n),
            "mmHg": 130 + 0.5 * (age - 55) + rng.normal(0, 12, n),
            "falls": rng.poisson(0.05 * np.minimum(time, 40.0)),
            "days": np.minimum(time, 40.0),
            "died": (time < 40.0).astype(int),
            "stage": np.searchsorted([12.0, 30.0], time),
        }
    )


def study_of(kind: str, **sections: Any) -> Study:
    return Study(
        model={"kind": kind, **TABLES[kind]},
        features=FEATURES,
        **sections,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", TABLES)
def test_a_study_file_can_be_run_planned_and_predicted_from(
    kind: str, tmp_path: Path
) -> None:
    frame(150, 1).to_csv(tmp_path / "all.csv", index=False)
    document = study_of(
        kind,
        inference={"rounds": 60, "chains": 1},
        evaluation={"holdout": 0.2},
        sites={"all": {"data": "all.csv"}},
    )
    (tmp_path / "study.toml").write_text(document.to_toml(), encoding="utf-8")
    runner = CliRunner()
    out = tmp_path / "out"
    ran = runner.invoke(app, ["run", str(tmp_path / "study.toml"), "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    record = json.loads((out / "result.json").read_text())
    assert record["metrics"]["rows"] > 0
    times = ["--times", "5,20"] if kind in _survival() else []
    predicted = runner.invoke(
        app, ["predict", str(out), str(tmp_path / "all.csv"), "--json", *times]
    )
    assert predicted.exit_code == 0, predicted.output
    rows = json.loads(predicted.output)
    assert len(rows) == 150 * (2 if times else 1)
    assert all(row["lower"] <= row["mean"] <= row["upper"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "method"), [*((kind, "psgld") for kind in TABLES), ("weibull", "averaged")]
)
def test_a_private_federated_study_runs_and_is_planned(kind: str, method: str) -> None:
    from cipherbayes.protocols.study_plan import plan_releases

    study = study_of(
        kind,
        privacy={"epsilon": 5.0, "delta": 1e-5, "records": 300},
        inference={"rounds": 3, "method": method},
        sites={"north": {}, "south": {}},
    )
    assert plan_releases(study).last_phase.rounds == 3
    result = cb.run(study, {"north": frame(150, 2), "south": frame(150, 3)})
    assert result.record["protocol"] == "secure-sum"
    assert np.isfinite(result.draws()).all()
    assert len(result.summary()) == result.draws().shape[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", TABLES)
def test_effects_are_ratios_of_the_users_steps(kind: str) -> None:
    data = frame(300, 4)
    result = cb.run(study_of(kind, inference={"rounds": 200}), {"all": data})
    effects = {row["name"]: row for row in result.effects()}
    assert {name: row["per"] for name, row in effects.items()} == {
        "age": "1 unit of age",
        "sex[M]": "M against F",
        "dose": "doubling of dose",
    }
    theta = result.posterior["posterior"]["theta"]
    for name, row in effects.items():
        assert row["measure"] == MEASURES.get(kind, "hazard ratio")
        draws = np.asarray(theta.sel(parameter=name)).reshape(-1)
        step = np.log(2.0) if name == "dose" else 1.0
        values = step * draws if kind == "linear" else np.exp(step * draws)
        assert row["estimate"] == pytest.approx(np.median(values), rel=0.01)
        lower, middle, upper = row["lower"], row["estimate"], row["upper"]
        assert None not in (lower, middle, upper)
        assert lower < middle < upper  # type: ignore[operator]
    baseline = result.baseline()
    if kind not in _survival():
        assert baseline is None
        return
    assert baseline is not None
    at = baseline["at"]
    assert at == result.record["reference"]
    assert at["sex"] == "F"
    assert at["age"] == pytest.approx(data["age"].mean(), rel=0.01)
    assert at["dose"] == pytest.approx(np.exp(np.log(data["dose"]).mean()), rel=0.01)
    curve = [float(row["estimate"] or 0.0) for row in baseline["survival"]]
    assert [row["time"] for row in baseline["survival"]][-1] == 40.0
    assert curve == sorted(curve, reverse=True)
    reference = pd.DataFrame({name: [value] for name, value in at.items()})
    direct = result.predict(reference, times=np.array([40.0]))
    assert direct["lower"][0, 0] <= curve[-1] <= direct["upper"][0, 0]
    (median,) = result.median_survival(reference)
    assert median["estimate"] == pytest.approx(
        baseline["median"]["estimate"], nan_ok=True
    )


@pytest.mark.slow
def test_a_median_beyond_the_horizon_is_said_not_to_be_reached(tmp_path: Path) -> None:
    data = frame(300, 5)
    data["died"] = np.where(np.arange(300) % 10 == 0, data["died"], 0)
    study = study_of("weibull", inference={"rounds": 200})
    result = cb.run(study, {"all": data}, out=tmp_path / "out")
    baseline = result.baseline()
    assert baseline is not None
    assert baseline["median"]["estimate"] is None
    assert baseline["median"]["not_reached"] > 0.5
    data.to_csv(tmp_path / "new.csv", index=False)
    runner = CliRunner()
    found = runner.invoke(
        app,
        ["predict", str(tmp_path / "out"), str(tmp_path / "new.csv"), "--median"],
    )
    assert found.exit_code == 0, found.output
    assert found.output.splitlines()[0] == "row,estimate,lower,upper,not_reached"


def test_a_point_estimate_has_effects_without_intervals() -> None:
    study = study_of("weibull", inference={"method": "averaged", "rounds": 5})
    effects = cb.run(study, {"all": frame(100, 6)}).effects()
    assert all(row["lower"] is None and row["upper"] is None for row in effects)


def test_predictions_of_a_point_are_written_without_intervals(tmp_path: Path) -> None:
    study = study_of("weibull", inference={"method": "averaged", "rounds": 5})
    data = frame(100, 6)
    cb.run(study, {"all": data}).save(tmp_path / "out")
    data[:3].to_csv(tmp_path / "new.csv", index=False)
    command = ["predict", str(tmp_path / "out"), str(tmp_path / "new.csv")]
    command += ["--times", "5,20"]
    rows = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert len(rows) == 6
    assert all(row["lower"] is None and row["upper"] is None for row in rows)
    header, *lines = CliRunner().invoke(app, command).stdout.splitlines()
    assert header == "row,time,mean,lower,upper"
    assert all(line.endswith(",,") for line in lines)
    assert [float(line.split(",")[2]) for line in lines] == pytest.approx(
        [row["mean"] for row in rows], rel=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "laplace", "student-t"])
def test_priors_reach_extra_parameters_by_name(kind: str) -> None:
    """The same study under various priors; a tight one holds the shape at its mean."""
    prior = {"kind": kind, "parameters": {"log_shape": {"mean": 0.25, "scale": 0.01}}}
    study = study_of("weibull", prior=prior, inference={"rounds": 600})
    rows = {r["name"]: r for r in cb.run(study, {"all": frame(200, 7)}).summary()}
    assert rows["log_shape"]["mean"] == pytest.approx(0.25, abs=0.03)


def _survival() -> set[str]:
    return {kind for kind, table in TABLES.items() if "horizon" in table}


def test_expected_counts_are_rates_times_exposures(tmp_path: Path) -> None:
    study = study_of("poisson", inference={"rounds": 40, "chains": 1})
    result = cb.run(study, frame(200, 1), out=tmp_path / "out")
    new = frame(5, 2)
    rates = result.predict(new)
    counts = result.predict(new, counts=True)
    for key, values in counts.items():
        assert values == pytest.approx(rates[key] * new["days"].to_numpy())
    new.to_csv(tmp_path / "new.csv", index=False)
    asked = ["predict", str(tmp_path / "out"), str(tmp_path / "new.csv"), "--json"]
    told = json.loads(CliRunner().invoke(app, [*asked, "--counts"]).output)
    assert [row["mean"] for row in told] == pytest.approx(counts["mean"].tolist())
    with pytest.raises(DataError, match="column 'days' has values that are missing"):
        result.predict(new.assign(days=[1.0, 2.0, np.nan, 1.0, 1.0]), counts=True)
    logistic = cb.run(
        study_of("logistic", inference={"rounds": 40, "chains": 1}), frame(200, 1)
    )
    with pytest.raises(RunError, match="counts with an exposure"):
        logistic.predict(new, counts=True)

"""Competing causes: a study of each, and cumulative incidences from all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lifelines import AalenJohansenFitter

import cipherbayes as cb
from cipherbayes.cli.run import print_effects
from cipherbayes.errors import DataError, RunError
from cipherbayes.report.page import render, write_report
from cipherbayes.report.run_contents import Contents
from cipherbayes.results.result import Result
from cipherbayes.study.schema import Study

TIMES = [2.0, 5.0, 9.0]


def frame_of(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(8)
    sex = rng.choice(["F", "M"], rows)
    relapse = rng.exponential(8.0 * np.where(sex == "M", 0.5, 1.0))
    death = rng.exponential(20.0, rows)
    censored = rng.uniform(3.0, 12.0, rows)
    days = np.minimum(np.minimum(relapse, death), censored)
    cause = np.where(days == censored, 0, np.where(days == relapse, 1, 2))
    return pd.DataFrame({"days": days + 1e-9, "cause": cause, "sex": sex})


def fitted(frame: pd.DataFrame, cause: int) -> Result:
    study = Study(
        model={
            "kind": "exponential",
            "formula": "Surv(days, cause) ~ sex",
            "horizon": 10.0,
            "cause": cause,
        },
        features={"sex": {"levels": ["F", "M"]}},
        prior={"scale": 5.0},
        inference={"rounds": 400},
    )
    return cb.run(study, {"all": frame})


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    frame = frame_of(2000)
    return {"relapse": fitted(frame, 1), "death": fitted(frame, 2)}


def test_incidences_are_those_of_aalen_and_johansen(
    results: dict[str, Result],
) -> None:
    frame = frame_of(2000)
    patients = pd.DataFrame({"sex": ["F", "M"]})
    found = cb.cumulative_incidence(results, patients, TIMES)
    for row, sex in enumerate(patients["sex"]):
        group = frame[frame["sex"] == sex]
        for code, cause in ((1, "relapse"), (2, "death")):
            fitter = AalenJohansenFitter(calculate_variance=False, seed=1)
            fitter.fit(group["days"], group["cause"], event_of_interest=code)
            curve = fitter.cumulative_density_.iloc[:, 0]
            expected = [curve[curve.index <= time].iloc[-1] for time in TIMES]
            # About three standard errors of a share of a thousand records.
            assert np.abs(found[cause]["mean"][row] - expected).max() < 0.045


@pytest.mark.slow
def test_incidences_and_no_event_are_everything(results: dict[str, Result]) -> None:
    patients = pd.DataFrame({"sex": ["F", "M"] * 9})
    found = cb.cumulative_incidence(results, patients, TIMES)
    assert np.allclose(sum(each["mean"] for each in found.values()), 1.0)
    for each in found.values():
        assert (each["lower"] <= each["mean"]).all()
        assert (each["mean"] <= each["upper"]).all()
    survival = results["relapse"].predict(patients, times=TIMES)["mean"]
    survival = survival * results["death"].predict(patients, times=TIMES)["mean"]
    assert np.allclose(found["none"]["mean"], survival, atol=2e-3)
    # Constant hazards: causes share what happened in proportion to them.
    share = found["relapse"]["mean"] / (1.0 - found["none"]["mean"])
    assert np.allclose(share[:, 0], share[:, -1], atol=1e-3)


def test_survival_of_one_cause_is_told_as_hypothetical(
    results: dict[str, Result], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = results["death"]
    baseline = result.record["baseline"]
    assert baseline is not None
    assert baseline["cause"] == 2
    print_effects(result.record)
    assert "if cause 2 were the only one (hypothetical)" in capsys.readouterr().out
    result.save(tmp_path / "death")
    page = render(Contents.load(tmp_path / "death"))
    assert "all other causes were taken away" in page


def test_a_report_shows_the_incidences_of_all_causes(
    results: dict[str, Result], tmp_path: Path
) -> None:
    for name, result in results.items():
        result.save(tmp_path / name)
    page = write_report(tmp_path / "relapse", causes=[tmp_path / "death"])
    text = page.read_text(encoding="utf-8")
    assert 'id="incidence"' in text
    assert "all causes at work" in text
    rows = pd.read_csv(tmp_path / "relapse" / "incidence.csv")
    last = rows[rows["time"] == rows["time"].max()].set_index(["record", "cause"])
    patients = pd.DataFrame({"sex": ["F", "M"]})
    found = cb.cumulative_incidence(results, patients, [float(rows["time"].max())])
    for row, sex in enumerate(patients["sex"]):
        told = last.loc[f"sex {sex}"]["mean"]
        assert abs(told["study, cause 1"] - found["relapse"]["mean"][row, 0]) < 0.01
        assert abs(told["study, cause 2"] - found["death"]["mean"][row, 0]) < 0.01
        assert told.sum() == pytest.approx(1.0, abs=1e-9)
    alone = write_report(tmp_path / "relapse").read_text(encoding="utf-8")
    assert 'id="incidence"' not in alone
    with pytest.raises(RunError, match="both of 'study, cause 1'"):
        write_report(tmp_path / "relapse", causes=[tmp_path / "relapse"])


def test_what_is_no_set_of_causes_is_refused(results: dict[str, Result]) -> None:
    table = pd.DataFrame({"sex": ["F"]})
    with pytest.raises(RunError, match="two or more causes"):
        cb.cumulative_incidence({"relapse": results["relapse"]}, table, TIMES)
    for times in ([], [2.0, 1.0], [0.0, 1.0]):
        with pytest.raises(RunError, match="must rise"):
            cb.cumulative_incidence(results, table, times)
    with pytest.raises(RunError, match="beyond the horizon"):
        cb.cumulative_incidence(results, table, [5.0, 10.5])
    relapse = results["relapse"]
    for twice in ({"a": relapse, "b": relapse}, {**results, "again": relapse}):
        with pytest.raises(RunError, match="model the same events"):
            cb.cumulative_incidence(twice, table, TIMES)
    with pytest.raises(DataError, match="no whole numbers"):
        fitted(frame_of(50).assign(cause=0.5), 1)


def test_without_a_cause_codes_of_causes_are_refused() -> None:
    study: dict[str, Any] = {
        "model": {
            "kind": "exponential",
            "time": "days",
            "event": "cause",
            "horizon": 10.0,
        },
        "features": {"sex": {"levels": ["F", "M"]}},
    }
    with pytest.raises(DataError, match="not binary"):
        cb.run(Study(**study), {"all": frame_of(200)})

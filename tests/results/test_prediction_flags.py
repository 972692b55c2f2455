"""Whoever predicts reads what was flagged, though they have not seen the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cipherbayes as cb
from cipherbayes.cli.main import app
from cipherbayes.cli.predict import latest_time
from cipherbayes.inference.flags import flag_record
from cipherbayes.results.predictions import flags_of_predictions
from cipherbayes.results.result import Result
from finished_runs import FinishedRuns, runs

__all__ = ["runs"]

FLAGS = [
    flag_record("mostly-prior", "wide", unusable=False, parameters=["age"]),
    flag_record(
        "baseline-hidden", "late", unusable=False, parameters=["log_hazard[500-]"]
    ),
    flag_record("misfit", "curved", unusable=False, parameters=["age"]),
    flag_record("not-mixed", "chains disagree", unusable=True),
]


@pytest.mark.parametrize(
    ("reach", "said"),
    [
        (400.0, ["curved", "chains disagree"]),
        (500.0, ["curved", "chains disagree"]),
        (501.0, ["late", "curved", "chains disagree"]),
        (None, ["late", "curved", "chains disagree"]),
    ],
)
def test_a_hidden_baseline_is_said_where_predictions_reach_it(
    reach: float | None, said: list[str]
) -> None:
    study = cb.Study(
        model=cb.models.Piecewise(
            time="days", event="died", horizon=1000.0, cuts=(200.0, 500.0)
        ),
        features={"age": {"low": 18, "high": 100}},
    )
    found = flags_of_predictions(study, FLAGS, reach)
    assert [flag["text"] for flag in found] == said


def test_what_is_mostly_prior_and_unusable_is_said() -> None:
    study = cb.Study(
        model=cb.models.Logistic(outcome="died"),
        features={"age": {"low": 18, "high": 100}},
    )
    flag = flag_record("mostly-prior", "prior of ranges", unusable=True)
    assert flags_of_predictions(study, [flag], None) == [flag]


def test_medians_reach_to_their_upper_ends() -> None:
    rows: list[dict[str, object]] = [
        {"row": 0, "estimate": 90.0, "upper": 120.0, "not_reached": 0.0},
        {"row": 1, "estimate": 300.0, "upper": 450.0, "not_reached": 0.0},
    ]
    assert latest_time(rows, None) == [120.0, 450.0]
    assert latest_time([*rows, {**rows[0], "upper": None}], None) is None
    assert latest_time([{"row": 0, "mean": 0.5}], [10.0]) == [10.0]


@pytest.mark.slow
def test_predict_repeats_the_flags_of_the_run_on_standard_error(
    runs: FinishedRuns, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(runs["open"], out)
    record = json.loads((out / "result.json").read_text())
    record["flags"], record["cautions"] = FLAGS[2:3], FLAGS[:2]
    (out / "result.json").write_text(json.dumps(record))
    loaded = Result.load(out)
    assert (loaded.flags, loaded.cautions) == (FLAGS[2:3], FLAGS[:2])
    table = runs["open"].parent / "north.csv"
    done = CliRunner().invoke(app, ["predict", str(out), str(table)])
    assert done.exit_code == 0
    assert "warning: flag misfit of the run: curved" in done.stderr
    assert "warning: caution baseline-hidden of the run: late" in done.stderr
    assert "mostly-prior" not in done.stderr
    assert "flag" not in done.stdout

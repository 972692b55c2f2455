"""What each model refuses, in words and never with a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from model_scenarios import CUTS, HIGH, HORIZON, LOW
from pydantic import TypeAdapter, ValidationError

import cipherbayes as cb
from cipherbayes.errors import DataError
from cipherbayes.models import (
    AnyModel,
    Linear,
    Model,
    Ordinal,
    Piecewise,
    Poisson,
    Weibull,
)
from cipherbayes.models.design import Design
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import open_site

SECRET = 123.456789
COUNTS = Poisson(outcome="falls", exposure="days")
GRID = Piecewise(
    time="days", event="died", horizon=HORIZON, cuts=CUTS, entry="enrolled"
)
RANGE = Linear(outcome="mmHg", low=LOW, high=HIGH)


@pytest.mark.parametrize(
    ("model", "raw", "words"),
    [
        (COUNTS, {"y": [-1.0], "offset": [1.0]}, "'falls' has negative counts"),
        (COUNTS, {"y": [SECRET], "offset": [1.0]}, "not whole"),
        (COUNTS, {"y": [np.nan], "offset": [1.0]}, "'falls' has missing"),
        (COUNTS, {"y": [1.0], "offset": [0.0]}, "'days' has zero or negative"),
        (COUNTS, {"y": [1.0], "offset": [np.nan]}, "'days' has missing"),
        (RANGE, {"y": [np.inf]}, "'mmHg' has infinite"),
        (
            GRID,
            {"time": [SECRET], "event": [1.0], "entry": [SECRET]},
            "entries at or after the time",
        ),
        (GRID, {"time": [SECRET], "event": [1.0], "entry": [-1.0]}, "negative times"),
        (GRID, {"time": [SECRET], "event": [1.0], "entry": [np.nan]}, "missing"),
        (GRID, {"time": [-SECRET], "event": [1.0], "entry": [0.0]}, "zero or negative"),
    ],
)
def test_impossible_rows_are_refused_without_their_values(
    model: Model, raw: dict[str, list[float]], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        model.prepare_outcome({role: np.array(v) for role, v in raw.items()})
    assert "123" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "raw", "words"),
    [
        (
            Poisson(outcome="falls", offset="logs"),
            {"y": [1.0], "offset": [1e4 * SECRET]},
            "natural log",
        ),
        (RANGE, {"y": [SECRET]}, "'mmHg' has values far outside"),
        (
            Weibull(time="days", event="died", horizon=HORIZON),
            {"time": [11.0 * HORIZON], "event": [1.0]},
            "'days' has times beyond ten horizons",
        ),
        (
            GRID,
            {"time": [12.0 * HORIZON], "event": [1.0], "entry": [11.0 * HORIZON]},
            "'days' has times beyond ten horizons",
        ),
    ],
)
def test_outcomes_out_of_range_are_told_to_their_owner_and_held_at_its_ends(
    model: Model, raw: dict[str, list[float]], words: str
) -> None:
    columns = {role: np.array(values) for role, values in raw.items()}
    told = model.out_of_range(columns)
    assert told is not None
    assert words in told
    assert "123" not in told
    prepared = model.prepare_outcome(columns)
    assert all(np.abs(values).max() <= 700.0 for values in prepared.values())
    within = {role: np.minimum(values, 1.0) for role, values in columns.items()}
    assert model.out_of_range(within) is None


@pytest.mark.parametrize("private", [False, True])
def test_a_private_study_does_not_refuse_because_of_an_outcome_out_of_range(
    private: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The refusal would tell that such a record is there, and so would a log."""
    study = cb.Study(
        model=Weibull(time="days", event="died", horizon=HORIZON),
        features={"age": {"low": 0, "high": 100}},
        privacy={"epsilon": 1.0, "records": 10} if private else None,
        sites={"a": {}},
    )
    frame = pd.DataFrame(
        {"age": [50.0, 60.0], "days": [HORIZON, 11.0 * HORIZON], "died": [1, 0]}
    )
    if not private:
        with pytest.raises(DataError, match="ten horizons"):
            open_site(study, "a", frame)
        return
    table = open_site(study, "a", frame)
    assert table.outcome()["time"].tolist() == [1.0, 10.0]
    assert caplog.text == ""


@pytest.mark.parametrize("private", [False, True])
def test_classes_coded_from_one_are_refused(private: bool) -> None:
    """A type error of the column, as an event that is neither 0 nor 1."""
    study = cb.Study(
        model=Ordinal(outcome="stage", classes=3),
        features={"age": {"low": 0, "high": 100}},
        privacy={"epsilon": 1.0, "records": 10} if private else None,
        sites={"a": {}},
    )
    frame = pd.DataFrame({"age": [50.0, 60.0, 70.0], "stage": [1, 2, 3]})
    with pytest.raises(DataError, match="take 1 off"):
        open_site(study, "a", frame)
    open_site(study, "a", frame.assign(stage=[0, 1, 2]))


@pytest.mark.parametrize(
    ("model", "outcome", "words"),
    [
        (COUNTS, {"y": [0.0, 0.0]}, "no events at all"),
        (RANGE, {"y": [0.3, 0.3]}, "same value in every row"),
        (GRID, {"time": [0.9, 0.95], "event": [1.0, 1.0]}, "misses the events"),
        (GRID, {"time": [0.9, 0.01], "event": [1.0, 0.0]}, "misses the events"),
        (GRID, {"time": [0.9, 0.01], "event": [0.0, 0.0]}, "no events at all"),
    ],
)
def test_outcomes_that_teach_nothing_are_refused(
    model: Model, outcome: dict[str, list[float]], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        model.check_outcomes({role: np.array(v) for role, v in outcome.items()})


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "linear", "outcome": "y", "low": 3.0, "high": 3.0},
        {"kind": "linear", "outcome": "y", "low": 0.0, "high": 1.0, "variance": 0.0},
        {"kind": "poisson", "outcome": "y", "exposure": "e", "offset": "o"},
        {"kind": "poisson", "outcome": "y", "per": 0.0},
        {"kind": "weibull", "time": "t", "event": "t", "horizon": 1.0},
        {"kind": "gompertz", "time": "t", "event": "c", "horizon": 0.0},
        {"kind": "piecewise", "time": "t", "event": "c", "horizon": 9.0},
        {"kind": "piecewise", "time": "t", "event": "c", "horizon": 9.0, "cuts": []},
        {"kind": "piecewise", "time": "t", "event": "c", "horizon": 9.0, "cuts": [9]},
        {"kind": "piecewise", "time": "t", "event": "c", "horizon": 9.0, "cuts": [0]},
        {
            "kind": "piecewise",
            "time": "t",
            "event": "c",
            "horizon": 9.0,
            "cuts": [3, 2],
        },
        {
            "kind": "piecewise",
            "time": "t",
            "event": "c",
            "horizon": 9.0,
            "cuts": [3],
            "intervals": 4,
        },
        {
            "kind": "piecewise",
            "time": "t",
            "event": "c",
            "horizon": 9.0,
            "intervals": 4,
            "entry": "t",
        },
        {"kind": "neural-logistic", "outcome": "y", "hidden": []},
    ],
)
def test_impossible_model_tables_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(AnyModel).validate_python(table)


def test_a_feature_may_not_have_the_name_of_a_parameter() -> None:
    design = Design(("intercept", "log_shape"), np.zeros(2), np.ones(2), 1.0)
    with pytest.raises(ValueError, match="rename the feature"):
        Weibull(time="t", event="c", horizon=1.0).parameters(design)


def test_equal_intervals_are_the_same_grid_as_their_cuts() -> None:
    common: dict[str, Any] = {"time": "t", "event": "c", "horizon": 10.0}
    equal, named = (
        Piecewise(**common, intervals=4),
        Piecewise(**common, cuts=(2.5, 5, 7.5)),
    )
    assert equal.starts == named.starts
    assert equal.extra_parameters() == (
        "log_hazard[0-2.5]",
        "log_hazard[2.5-5]",
        "log_hazard[5-7.5]",
        "log_hazard[7.5-]",
    )


def separated(n: int) -> pd.DataFrame:
    x = np.linspace(-1.0, 1.0, n)
    return pd.DataFrame({"x": x, "y": (x > 0.0).astype(int)})


@pytest.mark.parametrize(("n", "scale"), [(40, 1.0), (400, 1.0), (400, 20.0)])
def test_a_separated_posterior_is_finite_and_says_so(n: int, scale: float) -> None:
    study = Study(
        model=cb.models.Logistic(outcome="y"),
        features={"x": {"low": -1, "high": 1}},
        prior={"scale": scale},
        inference={"rounds": 600},
    )
    result = cb.run(study, {"all": separated(n)})
    assert all(np.isfinite(row["mean"]) for row in result.summary())
    assert any("perfect separation" in line for line in result.record["warnings"])


def test_a_posterior_that_the_data_decide_is_not_said_to_be_separated() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, 400)
    y = (rng.random(400) < 1.0 / (1.0 + np.exp(-2.0 * x))).astype(int)
    study = Study(
        model=cb.models.Logistic(outcome="y"),
        features={"x": {"low": -1, "high": 1}},
        inference={"rounds": 600},
    )
    result = cb.run(study, {"all": pd.DataFrame({"x": x, "y": y})})
    assert not any("separation" in line for line in result.record["warnings"])


def test_a_run_without_events_is_refused_with_the_column() -> None:
    frame = pd.DataFrame({"x": [0.1, 0.2], "t": [1.0, 2.0], "c": [0, 0]})
    study = Study(
        model=Weibull(time="t", event="c", horizon=2.0),
        features={"x": {"low": 0, "high": 1}},
    )
    with pytest.raises(DataError, match="no events at all"):
        cb.run(study, {"all": frame})

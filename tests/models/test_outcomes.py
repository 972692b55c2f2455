"""What a model says of its outcome columns, and what it predicts for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from model_scenarios import HORIZON, KINDS, rows_of, scenario
from pydantic import TypeAdapter, ValidationError

from cipherbayes.models import AnyModel, Exponential, GaussianMean, Logistic, Model
from cipherbayes.models.survival import require_survival_curves

LOGISTIC = Logistic(outcome="died")
SURVIVAL = Exponential(time="days", event="died", horizon=HORIZON)
SECRET = 123.456789


def refusal(model: Model, **raw: list[float]) -> str:
    columns = {role: np.array(values, dtype=float) for role, values in raw.items()}
    with pytest.raises(ValueError) as caught:
        model.prepare_outcome(columns)
    assert "123" not in str(caught.value), "a message must not hold a data value"
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.0, SECRET], "not binary"),
        ([0.0, -1.0], "not binary"),
        ([0.0, np.nan], "missing"),
        ([1.0, np.inf], "infinite"),
    ],
)
def test_a_label_that_is_not_binary_is_refused(values: list[float], words: str) -> None:
    assert words in refusal(LOGISTIC, y=values)
    assert "'died'" in refusal(LOGISTIC, y=values)
    assert words in refusal(SURVIVAL, time=[1.0, 2.0], event=values)
    assert "'died'" in refusal(SURVIVAL, time=[1.0, 2.0], event=values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([SECRET, 0.0], "zero or negative"),
        ([SECRET, -SECRET], "zero or negative"),
        ([SECRET, np.nan], "missing"),
        ([SECRET, np.inf], "infinite"),
    ],
)
def test_impossible_times_are_refused(values: list[float], words: str) -> None:
    assert words in refusal(SURVIVAL, time=values, event=[0.0, 1.0])
    assert "'days'" in refusal(SURVIVAL, time=values, event=[0.0, 1.0])


def test_times_are_divided_by_the_horizon_and_not_cut_at_it() -> None:
    raw = {"time": np.array([20.0, 40.0, 60.0]), "event": np.array([1.0, 0.0, 1.0])}
    prepared = SURVIVAL.prepare_outcome(raw)
    np.testing.assert_allclose(prepared["time"], [0.5, 1.0, 1.5])
    np.testing.assert_array_equal(prepared["event"], raw["event"])


@pytest.mark.parametrize("y", [[], [0.0, 0.0], [1.0, 1.0, 1.0]])
def test_a_table_with_one_class_is_refused(y: list[float]) -> None:
    with pytest.raises(ValueError, match=r"'died'.*both classes"):
        LOGISTIC.check_outcomes({"y": np.array(y)})


@pytest.mark.parametrize("event", [[], [0.0, 0.0]])
def test_a_table_without_events_is_refused(event: list[float]) -> None:
    outcome = {"time": np.ones(len(event)), "event": np.array(event)}
    with pytest.raises(ValueError, match=r"every row is censored in column 'died'"):
        SURVIVAL.check_outcomes(outcome)


def test_tables_that_can_be_learnt_from_pass() -> None:
    LOGISTIC.check_outcomes({"y": np.array([0.0, 1.0])})
    SURVIVAL.check_outcomes({"time": np.ones(2), "event": np.array([0.0, 1.0])})
    GaussianMean(variance=1.0).check_outcomes({})


def test_logistic_predicts_the_probability_of_each_draw_and_record() -> None:
    case = scenario("logistic", 5)
    draws = np.random.default_rng(1).normal(size=(4, case.rows.design.width))
    found = case.model.predict(draws, case.rows)
    assert found.shape == (4, case.rows.count)
    user = case.model.to_user_scale(draws, case.rows.design)
    eta = user[:, :1] + user[:, 1:] @ case.raw_x
    np.testing.assert_allclose(found, 1.0 / (1.0 + np.exp(-eta)), rtol=1e-9)
    with pytest.raises(ValueError, match="leave the times out"):
        case.model.predict(draws, case.rows, np.ones(1))


def test_exponential_predicts_survival_in_the_users_time() -> None:
    case = scenario("exponential", 5)
    draws = np.random.default_rng(1).normal(size=(4, case.rows.design.width))
    times = np.array([0.0, 3.0, 50.0])
    found = case.model.predict(draws, case.rows, times)
    assert found.shape == (4, case.rows.count, 3)
    user = case.model.to_user_scale(draws, case.rows.design)
    hazard = np.exp(user[:, :1] + user[:, 1:] @ case.raw_x)
    np.testing.assert_allclose(
        found, np.exp(-hazard[:, :, None] * times), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("times", [None, [-1.0], [np.nan], [np.inf]])
def test_survival_needs_sensible_times(times: list[float] | None) -> None:
    case = scenario("exponential", 5)
    draws = np.zeros((1, case.rows.design.width))
    with pytest.raises(ValueError, match="times"):
        case.model.predict(draws, case.rows, times and np.array(times))  # type: ignore[arg-type]


def test_fitted_values_rank_like_the_prediction() -> None:
    for kind in ("logistic", "exponential"):
        case = scenario(kind, 6, count=30)
        theta = np.random.default_rng(2).normal(size=case.rows.design.width)
        fitted = case.model.fitted(theta, case.rows)
        assert fitted is not None
        times = np.array([1.0]) if kind == "exponential" else None
        predicted = case.model.predict(theta[None], case.rows, times)[0].reshape(-1)
        likelier = predicted if kind == "logistic" else -predicted
        np.testing.assert_array_equal(np.argsort(fitted), np.argsort(likelier))


def test_a_gaussian_mean_has_nothing_to_predict() -> None:
    model, rows = GaussianMean(variance=1.0), rows_of(np.zeros((2, 3)), {})
    with pytest.raises(ValueError, match="no outcome to predict"):
        model.predict(np.zeros((1, 2)), rows)
    assert model.fitted(np.zeros(2), rows) is None
    with pytest.raises(ValueError, match="has no survival times"):
        require_survival_curves(model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_study_table_names_its_model_by_kind(kind: str) -> None:
    model = scenario(kind, 1).model
    table = model.model_dump()
    assert kind.startswith(table["kind"])
    assert TypeAdapter(AnyModel).validate_python(table) == model


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "unknown"},
        {"kind": "logistic"},
        {"kind": "logistic", "outcome": "y", "horizon": 3.0},
        {"kind": "gaussian", "variance": 0.0},
        {"kind": "gaussian", "variance": float("nan")},
        {"kind": "exponential", "time": "t", "event": "c"},
        {"kind": "exponential", "time": "t", "event": "c", "horizon": -1.0},
        {"kind": "exponential", "time": "t", "event": "t", "horizon": 1.0},
    ],
)
def test_impossible_model_tables_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(AnyModel).validate_python(table)


@pytest.mark.parametrize("kind", KINDS)
def test_outcome_columns_are_the_ones_the_study_names(kind: str) -> None:
    case = scenario(kind, 1)
    assert case.model.outcome_columns().keys() == case.raw_outcome.keys()
    assert set(case.model.outcome_columns().values()) <= {"died", "days", "enrolled"}
    assert case.rows.outcome.keys() == case.model.roles.keys()

"""A network in the place of the linear predictor, record by record."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from model_scenarios import HORIZON, prepared, raw_outcomes
from scipy.special import expit

import cipherbayes as cb
from cipherbayes.models import NeuralLogistic, NeuralWeibull, Rows, Weibull
from cipherbayes.models.neural import Neural, initial_weights
from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats
from conftest import needs

pytestmark = needs("jax")

BINARY = NeuralLogistic(outcome="died", hidden=(4,))
DEEP = NeuralLogistic(outcome="died", hidden=(3, 2))
TIMES = NeuralWeibull(time="days", event="died", horizon=HORIZON, hidden=(4,))


def case(model: Neural, seed: int = 0, count: int = 9) -> tuple[Rows, Floats]:
    rng = np.random.default_rng(seed)
    low, high = np.array([0.0, -5.0]), np.array([3.0, 5.0])
    raw_x = low[:, None] + (high - low)[:, None] * rng.random((2, count))
    head: Any = model.head
    if isinstance(head, Weibull):
        raw = raw_outcomes(head, rng, count)
    else:
        raw = {"y": rng.integers(0, 2, count).astype(float)}
    rows = prepared(model, raw_x, low, high, raw)
    return rows, rng.normal(0.0, 0.7, len(model.parameters(rows.design)))


def plain_network(model: Neural, theta: Floats, rows: Rows) -> Floats:
    """The same network in plain numpy, layer by layer."""
    width = rows.design.width
    start = initial_weights(model.seed, (width, *model.hidden))
    w = theta[width:].copy()
    w[: start.size] += start
    z = rows.x
    used = 0
    for depth, units in enumerate(model.hidden):
        inputs = z if depth == 0 else np.vstack([np.ones(rows.count), z])
        layer = w[used : used + units * len(inputs)].reshape(units, -1)
        used += layer.size
        z = np.tanh(layer @ inputs)
    v = w[used : used + model.hidden[-1]]
    return np.asarray(theta[:width] @ rows.x + v @ z / np.sqrt(model.hidden[-1]))


@pytest.mark.parametrize("model", [BINARY, DEEP, TIMES])
def test_the_network_is_the_one_its_docstring_states(model: Neural) -> None:
    rows, theta = case(model)
    np.testing.assert_allclose(
        model.predictor(theta, rows), plain_network(model, theta, rows), rtol=1e-12
    )


@pytest.mark.parametrize("model", [BINARY, DEEP, TIMES])
def test_gradients_of_each_record_equal_finite_differences(model: Neural) -> None:
    rows, theta = case(model, 1)
    gradients = model.gradients(theta, rows)
    assert gradients.score is not None
    assert gradients.extra is not None
    found = np.vstack([gradients.score * rows.x, gradients.extra])
    assert len(found) == theta.size == len(model.parameters(rows.design))
    step = 1e-5
    for j, unit in enumerate(np.eye(theta.size)):
        above = model.log_likelihood(theta + step * unit, rows)
        below = model.log_likelihood(theta - step * unit, rows)
        np.testing.assert_allclose(found[j], (above - below) / (2 * step), atol=1e-7)


@pytest.mark.parametrize("model", [BINARY, DEEP, TIMES])
def test_the_sum_by_matrix_products_is_the_sum_of_the_records_gradients(
    model: Neural,
) -> None:
    rows, theta = case(model, 6, count=700)
    thetas = np.array([theta, 0.5 * theta, -theta])
    sums = model.gradient_sums(thetas, rows)
    for each, found in zip(thetas, sums, strict=True):
        np.testing.assert_allclose(
            found, model.gradients(each, rows).weighted_sum(), rtol=1e-10, atol=1e-10
        )
    np.testing.assert_allclose(model.gradient_sum(theta, rows), sums[0], rtol=1e-12)


def test_a_record_has_the_same_gradient_alone_and_in_a_block() -> None:
    rows, theta = case(BINARY, 2, count=70)
    together = BINARY.gradients(theta, rows).extra
    one = slice(66, 67)
    alone = Rows(
        rows.design,
        rows.x[:, one],
        {"y": rows.outcome["y"][one]},
        rows.squared_norms[one],
    )
    found = BINARY.gradients(theta, alone).extra
    assert together is not None
    assert found is not None
    np.testing.assert_allclose(found[:, 0], together[:, 66], rtol=1e-12)


def test_the_network_without_output_weights_is_the_plain_model() -> None:
    rows, theta = case(BINARY, 3)
    theta[-BINARY.hidden[-1] :] = 0.0
    plain = cb.models.Logistic(outcome="died")
    np.testing.assert_allclose(
        BINARY.log_likelihood(theta, rows),
        plain.log_likelihood(theta[: rows.design.width], rows),
        rtol=1e-12,
    )


@pytest.mark.parametrize("model", [BINARY, TIMES])
@pytest.mark.parametrize("value", [0.0, 700.0, -700.0])
def test_extreme_weights_stay_finite(model: Neural, value: float) -> None:
    rows, theta = case(model, 4)
    theta[:] = value
    assert np.isfinite(model.log_likelihood(theta, rows)).all()
    assert np.isfinite(model.gradients(theta, rows).norms()).all()


def test_survival_curves_and_medians_follow_each_draws_own_network() -> None:
    rows, theta = case(TIMES, 5)
    draws = np.stack([theta, 0.5 * theta])
    curves = TIMES.predict(draws, rows, np.array([10.0, 40.0]))
    assert curves.shape == (2, rows.count, 2)
    hazard = np.exp(plain_network(TIMES, draws[1], rows))
    np.testing.assert_allclose(curves[1, :, 1], np.exp(-hazard), rtol=1e-9)
    assert TIMES.median(draws, rows).shape == (2, rows.count)


def test_the_public_start_is_fixed_for_ever() -> None:
    weights = initial_weights(1, (3, 4))
    assert weights.shape == (12,)
    np.testing.assert_allclose(
        weights[:2], initial_weights(1, (3, 2))[:2], rtol=0, atol=0
    )
    assert weights.std() == pytest.approx(1.0 / np.sqrt(3.0), rel=0.5)
    assert not np.array_equal(weights, initial_weights(2, (3, 4)))


@pytest.mark.slow
def test_jax_is_not_imported_by_the_package() -> None:
    code = (
        "import sys, cipherbayes.study.schema;"
        "from cipherbayes.models import NeuralLogistic;"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def xor_frame(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(-1.0, 1.0, (2, n))
    y = (rng.random(n) < expit(6.0 * a * b)).astype(int)
    return pd.DataFrame({"a": a, "b": b, "died": y})


def xor_study(model: Any, **sections: Any) -> Study:
    return Study(
        model=model,
        features={name: {"low": -1, "high": 1} for name in "ab"},
        prior={"scale": 2.0},
        evaluation={"holdout": 0.3, "holdout_is_public": True},
        **sections,
    )


@pytest.mark.slow
def test_a_network_learns_an_interaction_that_the_linear_model_cannot() -> None:
    frame = {"all": xor_frame(2000, 0)}
    linear = cb.run(
        xor_study(cb.models.Logistic(outcome="died"), inference={"rounds": 500}), frame
    )
    inference = {"rounds": 4000, "chains": 2, "thin": 10}
    network = cb.run(
        xor_study(NeuralLogistic(outcome="died"), inference=inference), frame
    )
    assert linear.metrics["auc"] < 0.6
    assert network.metrics["auc"] > 0.8
    assert network.metrics["log_score"] > linear.metrics["log_score"] + 0.1
    assert network.effects() == []


@pytest.mark.slow
def test_a_network_runs_under_the_secure_sum() -> None:
    halves = {"north": xor_frame(3000, 1), "south": xor_frame(3000, 2)}
    study = xor_study(
        NeuralLogistic(outcome="died", hidden=(4,)),
        privacy={"epsilon": 8.0, "delta": 1e-5, "records": 6000},
        inference={"method": "psgld", "rounds": 60},
    )
    result = cb.run(study, halves)
    assert result.record["protocol"] == "secure-sum"
    assert np.isfinite(result.draws()).all()
    assert result.certificate["certified"]

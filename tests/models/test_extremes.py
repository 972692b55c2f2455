"""No model overflows, whatever theta a sampler proposes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_scenarios import KINDS, MODELS, SURVIVAL_KINDS, scenario
from scipy.special import logsumexp

from cipherbayes.data.blocks import take
from cipherbayes.models import Gompertz, Survival
from cipherbayes.models.held_out import LOG_HAZARDS
from cipherbayes.models.influence import InfluenceBound, require_bounded_influence
from cipherbayes.models.shared_bins import shared_weights
from cipherbayes.models.survival import require_survival_curves

EXTREMES = [0.0, 1e-12, 3.0, -50.0, 350.0, 700.0, -700.0, 1e6, -1e6]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "gaussian"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_likelihoods_and_gradients_are_finite_for_extreme_parameters(
    kind: str, data: st.DataObject
) -> None:
    case = scenario(kind, data.draw(st.integers(0, 99)))
    values = st.lists(
        st.sampled_from(EXTREMES), min_size=case.dimension, max_size=case.dimension
    )
    theta = np.array(data.draw(values))
    assert np.isfinite(case.model.log_likelihood(theta, case.rows)).all()
    gradients = case.model.gradients(theta, case.rows)
    assert np.isfinite(gradients.norms()).all()
    assert np.isfinite(case.model.information_diagonal(theta, case.rows)).all()


@pytest.mark.parametrize("kind", [k for k in SURVIVAL_KINDS if "entry" not in k])
def test_held_out_records_are_binned_by_the_probability_that_is_predicted(
    kind: str,
) -> None:
    """The mean over draws, however far apart these are, and not that of log hazards."""
    case = scenario(kind, 3)
    check = case.model.held_out_check
    assert check is not None
    rng = np.random.default_rng(0)
    draws = 0.1 * rng.standard_normal((32, case.dimension))
    for place in case.model.constants(case.rows.design):
        draws[:, place] += rng.normal(-4.0, 8.0, len(draws))
    assert isinstance(case.model, Survival)
    hazards = case.model.cumulative_hazard(draws, case.rows, np.ones((1, 1)))[..., 0]
    chance = 1.0 - np.exp(-np.minimum(hazards, np.exp(3.0))).mean(axis=0)
    risk = np.log(-np.log1p(-chance))
    expected = shared_weights(LOG_HAZARDS, risk).sum(axis=0)
    found = check.sums(draws, case.rows).reshape(LOG_HAZARDS.size + 1, -1).sum(axis=1)
    assert found == pytest.approx(expected, abs=1e-5)
    apart = np.log(np.maximum(hazards, 1e-300)).mean(axis=0)
    assert np.abs(risk - apart).max() > 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_that_takes_records_answers_for_none(kind: str) -> None:
    """A block may have no complete record: one more must not decide whether a site
    answers."""
    case = scenario(kind, 1)
    model, rows = case.model, take(case.rows, np.arange(0))
    theta = np.full(case.dimension, 0.3)
    draws = np.stack([theta, -theta])
    assert model.log_likelihood(theta, rows).shape == (0,)
    assert model.gradients(theta, rows).norms().shape == (0,)
    assert not model.information_diagonal(theta, rows).any()
    check = model.held_out_check
    if check is not None:
        assert not np.any(check.sums(draws, rows))
        assert not np.any(check.sums(draws, rows, 5))
        for numbers in check.residuals(theta, rows):
            assert np.shape(numbers) == (check.kinds, 0)
    if kind != "gaussian":  # which bounds no influence
        bounded = require_bounded_influence(model)
        influence = bounded.at(theta, rows, InfluenceBound(1.0))
        assert influence.score.shape == influence.information.shape == (0,)


@pytest.mark.parametrize("kind", SURVIVAL_KINDS)
@pytest.mark.parametrize("value", EXTREMES)
def test_survival_curves_start_at_one_and_fall(kind: str, value: float) -> None:
    case = scenario(kind, 3)
    draws = np.full((2, case.dimension), value)
    times = np.array([0.0, 1e-9, 4.0, 40.0, 1e5])
    curve = case.model.predict(draws, case.rows, times)
    assert np.all(curve[:, :, 0] == 1.0)
    assert np.all(np.diff(curve, axis=2) <= 1e-12)
    assert np.all(curve >= 0.0)


@pytest.mark.parametrize("kind", SURVIVAL_KINDS)
def test_a_curve_is_one_half_at_the_median(kind: str) -> None:
    case = scenario(kind, 4)
    draws = np.random.default_rng(1).normal(0.5, 0.5, (20, case.dimension))
    medians = require_survival_curves(case.model).median(draws, case.rows)
    assert np.isfinite(medians).any()
    for s, i in np.argwhere(np.isfinite(medians)):
        curve = case.model.predict(draws[s : s + 1], case.rows, medians[s, i : i + 1])
        assert curve[0, i, 0] == pytest.approx(0.5, abs=1e-9)
    for s, i in np.argwhere(np.isinf(medians)):
        model = MODELS[kind][0]
        assert isinstance(model, Survival)
        end = np.array([model.horizon])
        assert case.model.predict(draws[s : s + 1], case.rows, end)[0, i, 0] > 0.5


@pytest.mark.parametrize("kind", [k for k in SURVIVAL_KINDS if "entry" not in k])
def test_the_density_is_the_slope_of_the_survival_curve(kind: str) -> None:
    """log p(t, event) = log(-S'(t)) and log p(t, censored) = log S(t)."""
    case = scenario(kind, 5)
    theta = np.random.default_rng(2).normal(0.0, 0.5, case.dimension)
    found = case.model.log_likelihood(theta, case.rows)
    for i, t in enumerate(case.raw_outcome["time"]):
        step = 1e-5 * t
        times = np.array([t - step, t, t + step])
        curve = case.model.predict(theta[None], case.rows, times)[0, i]
        event = case.raw_outcome["event"][i] == 1.0
        density = (curve[0] - curve[2]) / (2 * step) if event else curve[1]
        assert found[i] == pytest.approx(np.log(density), abs=1e-5)


@pytest.mark.parametrize("growth", [1e-3, 1e-6, 1e-9, 1e-300, 0.0, -1e-9, -1e-3])
def test_gompertz_is_smooth_through_no_growth(growth: float) -> None:
    case = scenario("gompertz", 6, count=40)
    theta = np.array([0.4, -0.2, 0.3, 0.1, growth])
    flat = np.append(theta[:-1], 0.0)
    model = case.model
    at_zero = model.log_likelihood(flat, case.rows)
    slope = model.gradients(flat, case.rows).extra
    assert slope is not None
    expected = at_zero + growth * slope[0]
    np.testing.assert_allclose(
        model.log_likelihood(theta, case.rows), expected, rtol=1e-5, atol=1e-12
    )


@pytest.mark.parametrize("growth", [-3.0, -0.5])
def test_a_dying_hazard_leaves_survivors(growth: float) -> None:
    case = scenario("gompertz", 7)
    theta = np.append(np.zeros(case.dimension - 1), growth)
    late = case.model.predict(theta[None], case.rows, np.array([1e9]))
    np.testing.assert_allclose(late, np.exp(-1.0 / abs(growth)), rtol=1e-12)
    assert isinstance(case.model, Gompertz)
    if -1.0 / growth < np.log(2.0):
        assert np.isinf(case.model.median(theta[None], case.rows)).all()


def test_poisson_probabilities_sum_to_one() -> None:
    case = scenario("poisson-exposure", 8, count=1)
    theta = np.random.default_rng(3).normal(0.0, 0.5, case.dimension)
    logs = []
    for y in range(400):
        raw = {"y": np.array([float(y)]), "offset": case.raw_outcome["offset"]}
        outcome = case.model.prepare_outcome(raw)
        rows = type(case.rows)(
            case.rows.design, case.rows.x, outcome, case.rows.squared_norms
        )
        logs.append(case.model.log_likelihood(theta, rows)[0])
    assert logsumexp(logs) == pytest.approx(0.0, abs=1e-10)

"""The posterior is reported in the units that the user's table is written in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from model_scenarios import HORIZON, INTERCEPT, KINDS, scenario

from cipherbayes.models import Design, Exponential, GaussianMean


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=5108)  # a Weibull shape of 200
def test_raw_data_with_user_coefficients_have_the_prepared_likelihood(
    kind: str, seed: int
) -> None:
    case = scenario(kind, seed)
    theta = np.random.default_rng(seed).normal(0.0, 1.5, case.dimension)
    user = case.model.to_user_scale(theta, case.rows.design)
    np.testing.assert_allclose(
        case.model.log_likelihood(theta, case.rows),
        case.plain(user, case.raw_x, **case.raw_outcome),
        rtol=1e-9,
        atol=1e-9,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_draws_of_any_shape_are_mapped_one_by_one(kind: str) -> None:
    case = scenario(kind, 3)
    draws = np.random.default_rng(4).normal(size=(2, 5, case.dimension))
    before = draws.copy()
    user = case.model.to_user_scale(draws, case.rows.design)
    assert user.shape == draws.shape
    np.testing.assert_array_equal(draws, before)
    alone = case.model.to_user_scale(draws[1, 4], case.rows.design)
    np.testing.assert_allclose(user[1, 4], alone, rtol=1e-13)


def test_the_intercept_of_an_exponential_is_the_log_hazard_per_unit_of_time() -> None:
    model = Exponential(time="t", event="c", horizon=HORIZON)
    design = Design(("intercept",), np.zeros(1), np.ones(1), INTERCEPT)
    per_horizon = np.log(HORIZON * 0.01) / INTERCEPT
    user = model.to_user_scale(np.array([per_horizon]), design)
    assert np.exp(user[0]) == pytest.approx(0.01)


def test_the_gaussian_mean_of_the_range_ends_is_the_range_ends() -> None:
    design = Design(("a", "b"), np.array([10.0, -3.0]), np.array([2.0, 0.5]), None)
    model = GaussianMean(variance=1.0)
    np.testing.assert_allclose(model.to_user_scale(np.ones(2), design), [12.0, -2.5])
    np.testing.assert_allclose(model.to_user_scale(-np.ones(2), design), [8.0, -3.5])


def test_a_gaussian_mean_refuses_an_intercept() -> None:
    design = Design(("intercept", "a"), np.zeros(2), np.ones(2), 1.0)
    with pytest.raises(ValueError, match="no intercept"):
        GaussianMean(variance=1.0).parameters(design)

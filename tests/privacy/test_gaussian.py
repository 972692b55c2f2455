"""The exact Gaussian curve, at every scale it is used at."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_ndtr

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy.gaussian import delta_of, epsilon_of, hockey_stick, mu_for

EPSILONS = st.floats(0.01, 50.0)
DELTAS = st.floats(-12.0, -3.0).map(lambda x: 10.0**x)


@pytest.mark.parametrize(
    ("epsilon", "mu"),
    [(0.1, 0.0325), (0.3, 0.0890), (1.0, 0.2681), (3.0, 0.7191), (10.0, 2.000)],
)
def test_mu_has_the_published_values(epsilon: float, mu: float) -> None:
    assert mu_for(epsilon, 1e-5) == pytest.approx(mu, abs=6e-5 if mu < 1 else 6e-4)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0, 50.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8, 1e-12])
def test_noise_agrees_with_the_analytic_gaussian_mechanism(
    epsilon: float, delta: float
) -> None:
    theirs = gaussian_mechanism.get_sigma_gaussian(epsilon, delta)
    assert 1.0 / mu_for(epsilon, delta) == pytest.approx(theirs, rel=1e-6)


@given(EPSILONS, st.floats(0.005, 20.0))
def test_the_curve_is_the_textbook_formula(epsilon: float, mu: float) -> None:
    first = log_ndtr(-epsilon / mu + mu / 2.0)
    second = epsilon + log_ndtr(-epsilon / mu - mu / 2.0)
    expected = first + math.log1p(-math.exp(second - first))
    found = delta_of(epsilon, mu)
    if found > 1e-290:
        assert math.log(found) == pytest.approx(expected, abs=1e-9)


def test_the_curve_is_exact_where_the_textbook_formula_cancels() -> None:
    # delta = integral over t in (0, mu) of phi(eps/mu' - ...) has no cancellation:
    # d delta / d mu = phi(eps/mu - mu/2) (van der Vaart's identity), integrated.
    epsilon, mu = 0.01, 1e-3
    grid = np.linspace(mu / 20000, mu, 20000)
    density = np.exp(-0.5 * (epsilon / grid - grid / 2.0) ** 2) / math.sqrt(2 * math.pi)
    assert delta_of(epsilon, mu) == pytest.approx(np.trapezoid(density, grid), rel=1e-6)


@given(EPSILONS, DELTAS)
def test_mu_is_certified_and_the_largest(epsilon: float, delta: float) -> None:
    mu = mu_for(epsilon, delta)
    assert delta_of(epsilon, mu) <= delta
    assert delta_of(epsilon, mu * (1.0 + 1e-9)) > delta


@given(st.floats(1e-4, 1e3), DELTAS)
def test_epsilon_is_certified_and_the_smallest(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    assert delta_of(epsilon, mu) <= delta
    if epsilon > 0.0:
        assert delta_of(epsilon * (1.0 - 1e-8), mu) > delta * (1.0 - 1e-9)


@given(EPSILONS, DELTAS, st.floats(1.001, 3.0))
def test_more_budget_allows_less_noise(
    epsilon: float, delta: float, factor: float
) -> None:
    mu = mu_for(epsilon, delta)
    assert mu_for(epsilon * factor, delta) > mu
    assert mu_for(epsilon, min(delta * factor, 0.5)) > mu


@given(st.floats(1e-3, 50.0), DELTAS, st.floats(1.001, 3.0))
def test_more_release_costs_more(mu: float, delta: float, factor: float) -> None:
    assert epsilon_of(mu * factor, delta) >= epsilon_of(mu, delta)
    assert epsilon_of(mu, delta * factor) <= epsilon_of(mu, delta)


def test_a_hundred_thousand_rounds_are_one_release_of_their_total() -> None:
    sigma = 3000.0
    total = math.sqrt(100_000) / sigma
    theirs = gaussian_mechanism.get_epsilon_gaussian(1.0 / total, 1e-5)
    assert epsilon_of(total, 1e-5) == pytest.approx(theirs, rel=1e-6)


def test_the_ends_of_the_scale() -> None:
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(math.inf, 1e-5) == math.inf
    assert delta_of(1.0, 0.0) == 0.0
    assert delta_of(1.0, math.inf) == 1.0
    assert epsilon_of(1e-9, 1e-3) == 0.0
    huge = epsilon_of(1e3, 1e-5)
    assert huge == pytest.approx(1e6 / 2.0 + 1e3 * 4.26489, rel=1e-5)


@given(st.floats(0.01, 30.0), st.floats(-40.0, 40.0))
def test_the_curve_of_negative_epsilons_is_the_reflected_one(
    mu: float, epsilon: float
) -> None:
    both = hockey_stick(np.array([epsilon, -epsilon]), mu)
    left = both[0] - math.exp(epsilon) * both[1]
    assert left == pytest.approx(-math.expm1(epsilon), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("epsilon", [-1.0, math.nan, math.inf])
def test_impossible_epsilons_are_refused(epsilon: float) -> None:
    with pytest.raises(PrivacyError):
        mu_for(epsilon, 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, math.nan])
def test_impossible_deltas_are_refused(delta: float) -> None:
    with pytest.raises(PrivacyError):
        mu_for(1.0, delta)
    with pytest.raises(PrivacyError):
        epsilon_of(1.0, delta)

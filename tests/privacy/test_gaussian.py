"""The exact Gaussian curve, against the same formula in fifty digits."""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy.gaussian import delta_of, epsilon_of, mu_for

EPSILONS = st.floats(0.01, 50.0)
LOG_DELTAS = st.floats(math.log(1e-12), math.log(1e-3))
MUS = st.floats(-4.0, 2.0).map(lambda exponent: 10.0**exponent)


def exact_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """Phi(-ε/μ + μ/2) - e^ε Phi(-ε/μ - μ/2), in fifty digits."""
    with mpmath.workdps(50):
        ratio, half = mpmath.mpf(epsilon) / mpmath.mpf(mu), mpmath.mpf(mu) / 2
        first = mpmath.erfc((ratio - half) / mpmath.sqrt(2)) / 2
        second = mpmath.erfc((ratio + half) / mpmath.sqrt(2)) / 2
        return first - mpmath.exp(mpmath.mpf(epsilon)) * second


@pytest.mark.parametrize(
    ("epsilon", "mu"),
    [(0.1, "0.0325"), (0.3, "0.0890"), (1.0, "0.2681"), (3.0, "0.7191")],
)
def test_mu_of_the_usual_budgets(epsilon: float, mu: str) -> None:
    assert f"{mu_for(epsilon, 1e-5):.4f}" == mu
    assert f"{mu_for(10.0, 1e-5):.3f}" == "2.000"


@pytest.mark.parametrize(
    ("epsilon", "delta", "sigma"),
    [(1.0, 1e-5, 3.730631634816464), (0.5, 1e-5, 7.0319), (10.0, 1e-5, 0.49988)],
)
def test_noise_is_that_of_the_analytic_gaussian_mechanism(
    epsilon: float, delta: float, sigma: float
) -> None:
    # Balle and Wang 2018; the first to all digits of their published code.
    assert 1.0 / mu_for(epsilon, delta) == pytest.approx(sigma, rel=1e-4)


@given(epsilon=st.floats(0.0, 60.0), mu=MUS)
def test_delta_is_the_exact_one(epsilon: float, mu: float) -> None:
    exact = exact_delta(epsilon, mu)
    computed = delta_of(epsilon, mu)
    if exact < 1e-290:
        assert computed < 1e-280
        return
    # The argument ε/μ - μ/2 is itself rounded, which counts u² times; and δ is the
    # difference of two terms u/μ times as large, by Mills' ratio.
    u = max(abs(epsilon / mu), mu)
    assert computed >= exact * (1 - 4 * u * u * 2.0**-53)
    assert computed <= exact * (1 + 4 * (u * u + max(u, 1) / mu) * 2.0**-50)


@given(mu=MUS, log_delta=LOG_DELTAS)
def test_epsilon_is_the_smallest_that_keeps_delta(mu: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    epsilon = epsilon_of(mu, delta)
    assert exact_delta(epsilon, mu) <= delta * (1 + 1e-12)
    if epsilon > 0.0:
        assert exact_delta(epsilon * (1.0 - 1e-6), mu) > delta


@given(epsilon=EPSILONS, log_delta=LOG_DELTAS)
def test_mu_is_the_largest_that_keeps_the_budget(
    epsilon: float, log_delta: float
) -> None:
    delta = math.exp(log_delta)
    mu = mu_for(epsilon, delta)
    assert exact_delta(epsilon, mu) <= delta * (1 + 1e-12)
    assert exact_delta(epsilon, mu * (1.0 + 1e-9)) > delta
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-8)


@given(mu=MUS, log_delta=LOG_DELTAS, more=st.floats(1.001, 10.0))
def test_epsilon_grows_with_mu_and_falls_with_delta(
    mu: float, log_delta: float, more: float
) -> None:
    delta = math.exp(log_delta)
    epsilon = epsilon_of(mu, delta)
    assert epsilon_of(mu * more, delta) >= epsilon
    assert epsilon_of(mu, delta / more) >= epsilon


def test_no_release_costs_nothing_and_no_noise_costs_everything() -> None:
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert delta_of(1.0, 0.0) == 0.0
    assert epsilon_of(math.inf, 1e-5) == math.inf
    assert delta_of(1.0, math.inf) == 1.0


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, math.nan, math.inf])
def test_a_delta_outside_zero_and_one_is_refused(delta: float) -> None:
    with pytest.raises(PrivacyError, match="delta is outside"):
        mu_for(1.0, delta)
    with pytest.raises(PrivacyError, match="delta is outside"):
        epsilon_of(1.0, delta)


@pytest.mark.parametrize("epsilon", [-0.1, math.nan, math.inf])
def test_an_impossible_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(PrivacyError, match="epsilon is negative"):
        mu_for(epsilon, 1e-5)
    with pytest.raises(PrivacyError, match="epsilon is negative"):
        delta_of(epsilon, 1.0)

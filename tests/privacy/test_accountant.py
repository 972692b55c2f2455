"""ε and σ, against closed forms, the library called directly and published numbers."""

from __future__ import annotations

import math
from itertools import product

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, common, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft, special, stats

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy import accountant
from cipherbayes.privacy.events import (
    Composed,
    Event,
    GaussianSum,
    PoissonSampled,
    Repeated,
)

SIGMAS = st.floats(-1.0, 3.0).map(lambda exponent: 10.0**exponent)
DELTAS = st.floats(-12.0, -3.0).map(lambda exponent: 10.0**exponent)
LARGE_DELTAS = st.floats(-8.0, -3.0).map(lambda exponent: 10.0**exponent)
RATES = st.floats(-4.0, -0.01).map(lambda exponent: 10.0**exponent)
MORE = st.floats(1.05, 8.0)


def full(sigma: float, rounds: int) -> Event:
    return Repeated(GaussianSum(sigma), rounds)


def sampled(sigma: float, rate: float, rounds: int) -> Event:
    return Repeated(PoissonSampled(rate, GaussianSum(sigma)), rounds)


def library_event(sigma: float, rate: float) -> dp_accounting.DpEvent:
    return dp_accounting.PoissonSampledDpEvent(
        rate, dp_accounting.GaussianDpEvent(sigma)
    )


def epsilon_of_the_sum(sigma: float, rate: float, rounds: int, delta: float) -> float:
    """A lower bound on ε: what an adversary gets who looks at Σ_t x_t only.

    S ~ Binomial(rounds, rate) + N(0, rounds σ²) with the record, N(0, rounds σ²)
    without; δ >= P(S > s) - e^ε Q(S > s) for any s.
    """
    sd = math.sqrt(rounds) * sigma
    taken = np.arange(rounds + 1)
    weights = stats.binom.logpmf(taken, rounds, rate)
    taken, weights = taken[weights > -50.0], weights[weights > -50.0]
    cuts = np.linspace(0.0, rate * rounds + 9.0 * sd, 500)
    tails = special.log_ndtr((taken[None] - cuts[:, None]) / sd)
    with_record = special.logsumexp(tails + weights, axis=1)
    without = special.log_ndtr(-cuts / sd)
    # P - e^ε Q > δ for every ε below log((P - δ) / Q).
    usable = with_record > math.log(delta) + 1e-9
    gain = np.exp(with_record[usable]) - delta
    return float(max(0.0, (np.log(gain) - without[usable]).max(initial=0.0)))


# -- full batches ------------------------------------------------------------


@given(sigma=SIGMAS, delta=DELTAS, rounds=st.integers(1, 100_000))
def test_epsilon_of_full_batches_is_the_closed_form_rounded_up(
    sigma: float, delta: float, rounds: int
) -> None:
    epsilon = accountant.epsilon(full(sigma, rounds), delta)
    with mpmath.workdps(60):
        mu = mpmath.sqrt(rounds) / mpmath.mpf(sigma)

        def exact(value: mpmath.mpf) -> mpmath.mpf:
            up = mpmath.ncdf(-value / mu + mu / 2)
            return up - mpmath.exp(value) * mpmath.ncdf(-value / mu - mu / 2)

        assert exact(mpmath.mpf(epsilon)) <= delta
        if epsilon > 0.0:
            assert exact(mpmath.mpf(epsilon) * (1 - mpmath.mpf(1e-6))) > delta


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
@pytest.mark.parametrize(("sigma", "rounds"), [(3.0, 1), (30.0, 400), (20.0, 12)])
def test_epsilon_of_full_batches_is_that_of_the_library(
    sigma: float, rounds: int, delta: float
) -> None:
    account = PLDAccountant()
    account.compose(dp_accounting.GaussianDpEvent(sigma), rounds)
    direct = account.get_epsilon(delta)
    ours = accountant.epsilon(full(sigma, rounds), delta)
    # The library rounds losses up to a grid of 1e-4.
    assert direct - 2e-4 <= ours <= direct + 1e-9


@given(sigma=SIGMAS, rounds=st.integers(1, 10_000), delta=DELTAS)
def test_rounds_compose_as_squares_in_any_order(
    sigma: float, rounds: int, delta: float
) -> None:
    whole = accountant.epsilon(full(sigma, rounds), delta)
    one = accountant.epsilon(GaussianSum(sigma / math.sqrt(rounds)), delta)
    assert whole == pytest.approx(one, rel=1e-9, abs=1e-15)
    parts = Composed((GaussianSum(5.0), full(sigma, rounds)))
    swapped = Composed((full(sigma, rounds), GaussianSum(5.0)))
    assert accountant.epsilon(parts, delta) == accountant.epsilon(swapped, delta)
    assert accountant.epsilon(parts, delta) >= whole


@given(epsilon=st.floats(0.01, 50.0), delta=DELTAS, rounds=st.integers(1, 100_000))
def test_calibrated_full_batches_spend_the_budget_and_no_more(
    epsilon: float, delta: float, rounds: int
) -> None:
    sigma = accountant.calibrate_noise(epsilon, delta, rounds)
    assert accountant.epsilon(full(sigma, rounds), delta) <= epsilon
    assert accountant.epsilon(full(sigma * (1 - 1e-8), rounds), delta) > epsilon
    assert accountant.delta(full(sigma, rounds), epsilon) <= delta


@given(sigma=SIGMAS, rounds=st.integers(1, 1000), delta=DELTAS, more=MORE)
def test_full_batches_are_monotone_in_everything(
    sigma: float, rounds: int, delta: float, more: float
) -> None:
    epsilon = accountant.epsilon(full(sigma, rounds), delta)
    assert accountant.epsilon(full(sigma * more, rounds), delta) <= epsilon
    assert accountant.epsilon(full(sigma, rounds + 1), delta) >= epsilon
    assert accountant.epsilon(full(sigma, rounds), delta / more) >= epsilon


def test_a_general_calibration_agrees_with_the_closed_form() -> None:
    sigma = accountant.calibrate_multiplier(lambda s: full(s, 40), 1.0, 1e-5)
    exact = accountant.calibrate_noise(1.0, 1e-5, 40)
    assert exact <= sigma <= exact * (1 + 1e-4)


# -- sampled batches ---------------------------------------------------------


def test_a_published_setting_lies_between_the_published_bounds() -> None:
    # MNIST with batches of 256, σ = 1.1, 60 epochs, δ = 1e-5: ε = 3.01 by the
    # moments accountant, 2.32 by the central limit theorem, which is no bound (Bu,
    # Dong, Long, Su 2020, Deep learning with Gaussian differential privacy).
    epsilon = accountant.epsilon(sampled(1.1, 256 / 60_000, 14_063), 1e-5)
    assert 2.32 < epsilon < 3.01
    assert epsilon == pytest.approx(2.384, abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "rate", "rounds", "delta"),
    [(2.0, 0.05, 1000, 1e-5), (5.0, 0.5, 50, 1e-8), (1.0, 0.01, 500, 1e-6)],
)
def test_epsilon_of_sampled_batches_is_that_of_the_library(
    sigma: float, rate: float, rounds: int, delta: float
) -> None:
    account = PLDAccountant(value_discretization_interval=1e-4)
    account.compose(library_event(sigma, rate), rounds)
    direct = account.get_epsilon(delta)
    ours = accountant.epsilon(sampled(sigma, rate, rounds), delta)
    assert ours == pytest.approx(direct, rel=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "rate", "rounds"),
    [(20.0, 0.1, 100_000), (300.0, 0.9, 100_000), (30.0, 0.2, 500), (50.0, 0.01, 1)],
)
def test_epsilon_of_sampled_batches_lies_between_independent_bounds(
    sigma: float, rate: float, rounds: int
) -> None:
    account = RdpAccountant(orders=(*range(2, 64), 96, 128, 256, 512, 1024))
    account.compose(library_event(sigma, rate), rounds)
    for delta in (1e-3, 1e-5, 1e-8, 1e-10, 1e-12):
        ours = accountant.epsilon(sampled(sigma, rate, rounds), delta)
        assert ours >= epsilon_of_the_sum(sigma, rate, rounds, delta)
        assert ours <= accountant.epsilon(full(sigma, rounds), delta)
        assert ours <= max(account.get_epsilon(delta), accountant.LEAST_RENYI) * 1.001


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "rate", "rounds", "hidden"),
    [(1.1, 256 / 60_000, 14_063, 0.001), (0.8, 1e-4, 100_000, 0.05)],
)
def test_rounding_hides_the_smallest_deltas_from_the_library_and_not_from_us(
    sigma: float, rate: float, rounds: int, hidden: float
) -> None:
    """The same losses cost something else when convolved in extended precision.

    Which of the two is larger changes with the grid.
    """
    delta = 1e-12
    losses = privacy_loss_distribution.from_gaussian_mechanism(
        sigma,
        value_discretization_interval=accountant._interval((((sigma, rate), rounds),)),
        sampling_prob=rate,
    )
    extended = max(
        _extended_epsilon(pmf.to_dense_pmf(), rounds, delta)
        for pmf in (losses._pmf_remove, losses._pmf_add)
    )
    library = losses.self_compose(rounds).get_epsilon_for_delta(delta)
    assert abs(library / extended - 1.0) > hidden
    assert accountant.epsilon(sampled(sigma, rate, rounds), delta) >= extended


def _extended_epsilon(pmf: object, rounds: int, delta: float) -> float:
    masses = np.asarray(pmf._probs)  # type: ignore[attr-defined]
    low, high = common.compute_self_convolve_bounds(masses, rounds, 1e-20)
    size = fft.next_fast_len(max(high - low + 1, masses.size))
    factor = fft.fft(masses.astype(np.longdouble), size)
    power = np.ones_like(factor)
    for bit in bin(rounds)[2:]:
        power = power * power * (factor if bit == "1" else 1.0)
    total = np.roll(np.real(fft.ifft(power)), -low)[: high - low + 1]
    first = pmf._lower_loss * rounds + low  # type: ignore[attr-defined]
    points = (first + np.arange(total.size)) * np.longdouble(
        pmf._discretization  # type: ignore[attr-defined]
    )
    lower, upper = 0.0, float(points[-1])
    for _ in range(50):
        middle = 0.5 * (lower + upper)
        above = points > middle
        spent = float((-np.expm1(middle - points[above]) * total[above]).sum())
        lower, upper = (middle, upper) if spent > delta else (lower, middle)
    return lower


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(
    sigma=st.floats(-0.1, 2.0).map(lambda exponent: 10.0**exponent),
    rate=st.floats(-3.0, -0.3).map(lambda exponent: 10.0**exponent),
    rounds=st.integers(1, 2000),
    delta=DELTAS,
    more=st.floats(1.2, 4.0),
)
def test_sampled_batches_are_monotone_in_everything(
    sigma: float, rate: float, rounds: int, delta: float, more: float
) -> None:
    epsilon = accountant.epsilon(sampled(sigma, rate, rounds), delta)
    # The grid of losses depends on σ and the rate: a tenth of a per cent of slack.
    slack = 1.001 * epsilon + 1e-9
    assert accountant.epsilon(sampled(sigma * more, rate, rounds), delta) <= slack
    assert accountant.epsilon(sampled(sigma, rate / more, rounds), delta) <= slack
    assert accountant.epsilon(sampled(sigma, rate, rounds), delta * 1.5) <= slack
    longer = math.ceil(rounds * more)
    assert accountant.epsilon(sampled(sigma, rate, longer), delta) >= epsilon * 0.999
    whole = accountant.epsilon(full(sigma, rounds), delta)
    assert epsilon <= whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "delta", "rounds", "rate"),
    [
        (1.0, 1e-5, 400, 0.05),
        (0.01, 1e-3, 100_000, 0.01),
        (50.0, 1e-5, 100, 0.5),
        pytest.param(1.0, 1e-12, 100, 0.01, marks=pytest.mark.torture),
        (0.01, 1e-12, 100_000, 1e-4),
        pytest.param(3.0, 1e-8, 100_000, 0.999, marks=pytest.mark.torture),
        (10.0, 1e-6, 1, 0.3),
    ],
)
def test_calibrated_sampled_batches_spend_the_budget_and_no_more(
    epsilon: float, delta: float, rounds: int, rate: float
) -> None:
    sigma = accountant.calibrate_noise(epsilon, delta, rounds, rate)
    spent = accountant.epsilon(sampled(sigma, rate, rounds), delta)
    assert 0.995 * epsilon <= spent <= epsilon
    assert sigma <= accountant.calibrate_noise(epsilon, delta, rounds) * (1 + 1e-4)


CORNERS = list(product((1, 100_000), (1e-4, 0.5), (0.01, 50.0), (1e-12, 1e-3)))
PAIRS = (0b0000, 0b0111, 0b1011, 0b1101, 0b1110)
"""Corners in which every two of the eight extremes meet."""


@pytest.mark.parametrize(
    ("rounds", "rate", "epsilon", "delta"),
    [
        pytest.param(
            *corner,
            marks=pytest.mark.slow if place in PAIRS else pytest.mark.torture,
        )
        for place, corner in enumerate(CORNERS)
    ],
)
def test_calibration_is_sane_in_every_corner(
    rounds: int, rate: float, epsilon: float, delta: float
) -> None:
    sigma = accountant.calibrate_noise(epsilon, delta, rounds, rate)
    assert sigma >= accountant.LEAST_NOISE
    assert accountant.epsilon(sampled(sigma, rate, rounds), delta) <= epsilon


@pytest.mark.slow
def test_a_delta_that_pays_for_everything_still_buys_some_noise() -> None:
    # A record takes part with probability 1e-4 < δ: even no noise would do.
    sigma = accountant.calibrate_noise(0.1, 1e-3, 1, 1e-4)
    assert sigma == accountant.LEAST_NOISE


def test_mixed_releases_cost_more_than_each_and_less_than_their_sum() -> None:
    gradients = sampled(2.0, 0.05, 200)
    moments = GaussianSum(6.0)
    both = accountant.epsilon(Composed((moments, gradients)), 1e-5)
    first = accountant.epsilon(moments, 1e-5)
    second = accountant.epsilon(gradients, 1e-5)
    assert max(first, second) < both < first + second


def test_a_rate_of_one_is_a_full_batch() -> None:
    event = Repeated(PoissonSampled(1.0, GaussianSum(5.0)), 20)
    assert accountant.epsilon(event, 1e-5) == accountant.epsilon(full(5.0, 20), 1e-5)
    nearly = accountant.epsilon(sampled(5.0, 1.0 - 1e-9, 20), 1e-5)
    assert nearly <= accountant.epsilon(event, 1e-5)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(epsilon=st.floats(0.1, 8.0))
def test_delta_and_epsilon_are_inverse_to_each_other(epsilon: float) -> None:
    event = sampled(1.5, 0.02, 300)
    delta = accountant.delta(event, epsilon)
    assert 0.0 <= delta < 1.0
    if 1e-9 < delta < 0.5:
        assert accountant.epsilon(event, delta) == pytest.approx(epsilon, rel=1e-2)


# -- refusals ----------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_an_impossible_epsilon_is_refused(epsilon: float, rate: float) -> None:
    with pytest.raises(PrivacyError, match="not a positive number"):
        accountant.calibrate_noise(epsilon, 1e-5, 10, rate)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_an_impossible_delta_is_refused(delta: float, rate: float) -> None:
    with pytest.raises(PrivacyError, match="delta is outside"):
        accountant.calibrate_noise(1.0, delta, 10, rate)
    with pytest.raises(PrivacyError, match="delta is outside"):
        accountant.epsilon(sampled(1.0, 0.1, 10), delta)


@pytest.mark.parametrize("rounds", [0, -3])
def test_no_rounds_are_refused(rounds: int) -> None:
    with pytest.raises(PrivacyError, match="at least one round"):
        accountant.calibrate_noise(1.0, 1e-5, rounds)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, math.nan])
def test_an_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(PrivacyError, match="sampling rate"):
        accountant.calibrate_noise(1.0, 1e-5, 10, rate)


def test_a_budget_that_is_spent_before_the_gradients_is_refused() -> None:
    with pytest.raises(PrivacyError, match="no amount of noise"):
        accountant.calibrate_multiplier(
            lambda s: Composed((full(1.0, 9), full(s, 1))), 1.0, 1e-5
        )


def test_what_is_not_understood_is_refused() -> None:
    with pytest.raises(PrivacyError, match="not a release"):
        accountant.epsilon("nothing is released", 1e-5)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="no μ"):
        accountant.total_mu(sampled(1.0, 0.1, 1))


def test_no_noise_costs_everything_and_nothing_but_noise_costs_nothing() -> None:
    assert accountant.epsilon(GaussianSum(0.0), 1e-5) == math.inf
    assert accountant.epsilon(GaussianSum(math.inf), 1e-5) == 0.0
    bare = PoissonSampled(0.1, GaussianSum(0.0))
    with pytest.raises(PrivacyError, match="positive, finite noise"):
        accountant.epsilon(bare, 1e-5)

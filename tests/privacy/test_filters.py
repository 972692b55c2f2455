"""ε of a ledger that takes studies which were chosen after seeing results."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st

from cipherbayes.privacy.accountant import calibrate_noise, compose, epsilon, renyi
from cipherbayes.privacy.events import Event, GaussianSum, PoissonSampled, Repeated
from cipherbayes.privacy.filters import LATER_SHARE, filter_epsilon, filter_orders
from cipherbayes.privacy.gaussian import delta_of, mu_for

DELTA = 1e-6


def full(sigma: float, rounds: int = 1) -> Event:
    return Repeated(GaussianSum(sigma), rounds)


def sampled(sigma: float, rate: float, rounds: int) -> Event:
    return Repeated(PoissonSampled(rate, GaussianSum(sigma)), rounds)


def test_nothing_costs_nothing() -> None:
    assert filter_epsilon([], DELTA, 1.0) == 0.0


@given(st.lists(st.floats(0.5, 50.0), min_size=1, max_size=6))
def test_full_batches_of_many_studies_have_the_exact_curve(sigmas: Any) -> None:
    runs = [full(sigma) for sigma in sigmas]
    mu = math.sqrt(sum(1.0 / sigma**2 for sigma in sigmas))
    found = filter_epsilon(runs, DELTA, 3.0)
    # δ of the exact Gaussian curve there, and no smaller ε would do.
    assert delta_of(found, mu) <= DELTA * (1.0 + 1e-9)
    assert found == 0.0 or delta_of(0.999 * found, mu) > DELTA


def test_one_run_that_samples_is_counted_as_its_plan_is() -> None:
    event = sampled(2.0, 0.1, 200)
    assert filter_epsilon([event], DELTA, 1.0) == epsilon(event, DELTA)


def test_a_second_run_beside_a_sampled_one_is_counted_by_the_filter() -> None:
    first, second = sampled(4.0, 0.05, 200), full(20.0)
    together = filter_epsilon([first, second], DELTA, 3.0)
    assert together > epsilon(first, DELTA)
    assert together > filter_epsilon([first], DELTA, 3.0)
    # It is a bound of the fixed sequence too, which is one way to choose.
    assert together >= epsilon(Repeated(first, 1), DELTA)


@settings(max_examples=20, deadline=None)
@given(
    st.floats(1.0, 10.0), st.floats(0.01, 0.5), st.integers(1, 300), st.floats(2.0, 30)
)
def test_the_filter_never_says_less_than_its_best_order(
    sigma: float, rate: float, rounds: int, other: Any
) -> None:
    runs = [sampled(sigma, rate, rounds), full(other)]
    counts = tuple(sorted({(sigma, rate): rounds, (other, 1.0): 1}.items()))
    orders = filter_orders(DELTA, 3.0)
    least = min(
        float(renyi(counts, (order,)).get_epsilon(DELTA * LATER_SHARE / len(orders)))
        for order in orders
    )
    assert filter_epsilon(runs, DELTA, 3.0) >= least * (1.0 - 1e-12)


@given(st.floats(1e-12, 1e-3), st.floats(0.05, 20.0))
def test_orders_depend_on_the_budget_alone(delta: float, budget: float) -> None:
    orders = filter_orders(delta, budget)
    assert orders == filter_orders(delta, budget)
    assert all(type(order) is int and order >= 2 for order in orders)


def test_two_sampled_studies_fit_a_budget_that_has_room_for_both() -> None:
    budget, rounds, rate = 4.0, 300, 0.05
    sigma = calibrate_noise(1.0, DELTA, rounds, rate)
    one = sampled(sigma, rate, rounds)
    assert filter_epsilon([one, one], DELTA, budget) <= budget


# -- whoever looks at an answer before choosing what to release next ---------


def losses(made: Any) -> tuple[Any, Any, float]:
    """A distribution of privacy losses: values, probabilities, mass at infinity."""
    found = made._pmf_remove.to_dense_pmf()
    values = (found._lower_loss + np.arange(found._probs.size)) * STEP
    return values, found._probs, found._infinity_mass


def later_delta(made: Any, at: Any) -> Any:
    """δ of a release at each of many ε, below zero too."""
    values, masses, infinite = losses(made)
    first = np.searchsorted(values, at, side="right")
    above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
    scaled = np.append(np.cumsum((masses * np.exp(-values))[::-1])[::-1], 0.0)
    return above[first] - np.exp(at) * scaled[first] + infinite


def delta_of_switching(mu: float) -> float:
    """δ at the budget's ε of a study that is left half-way for another, or not.

    Ten of twenty sampled rounds are answered. Then whoever asks goes on, or takes a
    full-batch release of parameter μ instead, whichever the losses so far make worse.
    """
    round_ = from_gaussian_mechanism(
        sigma(), sampling_prob=RATE, value_discretization_interval=STEP
    )
    half = round_.self_compose(HALF)
    other = from_gaussian_mechanism(1.0 / mu, value_discretization_interval=STEP)
    values, masses, infinite = losses(half)
    worse = np.maximum(
        later_delta(half, BUDGET - values), later_delta(other, BUDGET - values)
    )
    return float(masses @ worse + infinite)


def largest_admitted(figure: Callable[[list[Event]], float]) -> float:
    """The largest μ of a second run that a rule admits after the first ten rounds."""
    half = sampled(sigma(), RATE, HALF)
    low, high = 1e-4, 5.0
    for _ in range(20):
        middle = math.sqrt(low * high)
        fits = figure([half, full(1.0 / middle)]) <= BUDGET
        low, high = (middle, high) if fits else (low, middle)
    return low


BUDGET, RATE, HALF, STEP = 1.0, 0.05, 10, 2e-3
COARSE = 1e-3


@cache
def sigma() -> float:
    return calibrate_noise(BUDGET, COARSE, 2 * HALF, RATE)


@pytest.mark.slow
def test_a_switch_after_seeing_answers_breaks_a_plain_accountant_and_not_the_filter() -> None:  # noqa: E501  # fmt: skip
    plain = largest_admitted(lambda runs: epsilon(compose(*runs), COARSE))
    assert delta_of_switching(plain) > 1.2 * COARSE
    filtered = largest_admitted(lambda runs: filter_epsilon(runs, COARSE, BUDGET))
    assert filtered < plain
    assert delta_of_switching(filtered) <= (1.0 + LATER_SHARE) * COARSE


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_the_gaussian_filter_is_closed_under_splitting(mu: float) -> None:
    """δ of μ equals δ of any first part, averaged, with the rest after it."""
    grid = np.linspace(-12.0, 12.0, 8001)
    for part in (0.2, 0.7):
        one, rest = mu * math.sqrt(part), mu * math.sqrt(1.0 - part)
        # Under the null x ~ N(0, 1), loss L = one·x − one²/2.
        weights = (
            np.exp(-(grid**2) / 2.0) / math.sqrt(2 * math.pi) * (grid[1] - grid[0])
        )
        losses = one * grid - one**2 / 2.0
        total = 0.0
        for weight, loss in zip(weights, losses, strict=True):
            gap = 1.0 - loss
            value = (
                delta_of(gap, rest)
                if gap >= 0.0
                # H_{-ε}(P‖Q) = 1 − e^{-ε} + e^{-ε} H_{ε}, by symmetry.
                else 1.0 - math.exp(gap) + math.exp(gap) * delta_of(-gap, rest)
            )
            total += weight * math.exp(loss) * value
        assert total == pytest.approx(delta_of(1.0, mu), rel=1e-3)
    assert mu_for(1.0, delta_of(1.0, mu)) == pytest.approx(mu, rel=1e-3)

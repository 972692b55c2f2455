"""The bookkeeping's own rules."""

from __future__ import annotations

import numpy as np
import pytest

from cipherbayes.crypto.ckks.blocks import BlockPlan
from cipherbayes.crypto.ckks.bounds import Bounds, Tracked
from cipherbayes.crypto.ckks.parameters import CKKS_SETS
from cipherbayes.errors import CryptoError

PARAMETERS = CKKS_SETS["ckks-16384-hardened"]
BOUNDS = Bounds(PARAMETERS, 184)


def tracked(scale: float, size: float, source: int | None = None) -> Tracked:
    name = BOUNDS.new_source() if source is None else source
    one = np.ones(1)
    errors = {name: np.full((2, 1), size)}
    return Tracked(scale, PARAMETERS.levels, 2, -one, one, errors, np.zeros(1))


def test_one_error_on_two_ways_adds_up_and_two_errors_add_as_squares() -> None:
    a, b = tracked(2.0**40, 3.0), tracked(2.0**40, 4.0)
    assert BOUNDS.add(a, a).noise[0, 0] == pytest.approx(6.0)
    assert BOUNDS.add(a, b).noise[0, 0] == pytest.approx(5.0)
    again = BOUNDS.add(BOUNDS.add(a, b), b)
    assert again.noise[0, 0] == pytest.approx(np.hypot(3.0, 8.0))
    assert BOUNDS.square(a).noise[0, 0] == pytest.approx(2.0 * 2.0**40 * 3.0)


def test_products_of_errors_add_up() -> None:
    a, b = tracked(2.0**40, 3.0), tracked(2.0**40, 4.0)
    assert BOUNDS.multiply(a, b).cross[0] == pytest.approx(12.0)


def test_a_value_that_could_reach_half_the_modulus_is_refused() -> None:
    largest = PARAMETERS.modulus(PARAMETERS.levels)
    with pytest.raises(CryptoError, match="exceed its modulus"):
        BOUNDS.check(tracked(0.51 * largest, 1.0), "value")
    BOUNDS.check(tracked(0.49 * largest, 1.0), "value")


def test_a_past_that_is_divided_keeps_its_weights_to_many_digits() -> None:
    prime = PARAMETERS.primes[-1]
    plan = BlockPlan(0.9, 2.0**56, prime, 1e-9, divided=True)
    weights = np.array(plan.past_weights()) / prime
    exact = 0.9 ** (16.0 * np.arange(1, plan.past + 1))
    np.testing.assert_allclose(weights, exact, atol=1.0 / prime)
    assert exact[-1] * 0.9**16 < 1e-9
    assert plan.sum_scale(1) == pytest.approx(2.0**112 * 10.0)

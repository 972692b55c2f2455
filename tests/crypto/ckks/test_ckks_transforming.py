from __future__ import annotations

import numpy as np
import pytest

from cipherbayes.crypto.ckks.parameters import CKKS_SETS
from cipherbayes.crypto.ckks.scheme import ckks_scheme
from cipherbayes.crypto.ckks.transforming import (
    LARGEST,
    PLAIN_MODULUS,
    Transform,
    groups_of,
)
from cipherbayes.typing import Integers


def integers(ring: int, largest: int, seed: int) -> Integers:
    """Integers of all sizes below a largest one, and both ends."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, largest.bit_length(), ring)
    values = rng.integers(0, largest, ring) >> bits
    values *= rng.choice([-1, 1], ring)
    values[:4] = [largest - 1, 1 - largest, 0, -1]
    return values


@pytest.mark.parametrize("name", CKKS_SETS)
@pytest.mark.parametrize("largest", [2**30, LARGEST])
def test_a_polynomial_is_transformed_as_seal_transforms_a_ciphertext(
    name: str, largest: int
) -> None:
    scheme = ckks_scheme(CKKS_SETS[name])
    parameters = scheme.parameters
    plain = integers(parameters.ring, largest, seed=3)
    transform = Transform(parameters.ring, parameters.primes)
    cipher = scheme._transformed(plain)
    expected = scheme.coefficients(cipher, parameters.levels)[0]
    found = transform(plain)
    assert found is not None
    assert (found == expected).all()


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, 2**61, -(2**61)])
def test_a_coefficient_too_large_for_a_plaintext_is_added_all_the_same(
    value: int,
) -> None:
    scheme = ckks_scheme(CKKS_SETS["ckks-8192-fast"])
    parameters = scheme.parameters
    plain = np.zeros(parameters.ring, dtype=np.int64)
    plain[7] = value
    assert Transform(parameters.ring, parameters.primes)(plain) is None
    zero = np.zeros((2, parameters.levels, parameters.ring), dtype=np.uint64)
    total = scheme.added(zero, plain)
    cipher = scheme._transformed(plain)
    assert (total[0] == scheme.coefficients(cipher, parameters.levels)[0]).all()
    assert not total[1].any()


def test_every_prime_is_in_one_group_and_groups_are_as_seal_needs_them() -> None:
    large, other, small = PLAIN_MODULUS + 1, PLAIN_MODULUS + 3, 2**40 + 15
    assert groups_of([large, other]) == [(large, other)]
    assert groups_of([large, other, small]) == [(large,), (other, small)]
    assert groups_of([large, small, other]) == [(large, small, other)]
    assert groups_of([small, other]) == [(small, other)]
    for parameters in CKKS_SETS.values():
        groups = groups_of(parameters.primes)
        assert sum(groups, ()) == parameters.primes
        assert all(np.prod([float(q) for q in g]) > PLAIN_MODULUS for g in groups)

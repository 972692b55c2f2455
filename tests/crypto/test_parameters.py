from __future__ import annotations

import math

import pytest
import tenseal.sealapi as sealapi
from hypothesis import given
from hypothesis import strategies as st

from cipherbayes.crypto.bfv.parameters import (
    MAX_DIMENSION,
    PARAMETER_SETS,
    ParameterSet,
    choose,
    parameter_set,
)
from cipherbayes.crypto.identity.roster import MAX_SITES
from cipherbayes.errors import CryptoError

every_set = pytest.mark.parametrize(
    "parameters", PARAMETER_SETS.values(), ids=PARAMETER_SETS
)


def is_prime(n: int) -> bool:
    """Miller-Rabin with the bases that decide every n < 3.3e24."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41):
        power = pow(base, odd, n)
        chain = [power := power if i == 0 else power * power % n for i in range(twos)]
        if chain[0] != 1 and n - 1 not in chain:
            return False
    return True


@every_set
def test_the_moduli_are_distinct_primes_that_the_ring_can_use(
    parameters: ParameterSet,
) -> None:
    assert len(set(parameters.primes)) == len(parameters.primes)
    for prime in parameters.primes:
        assert is_prime(prime)
        assert prime % (2 * parameters.ring) == 1
        assert prime.bit_length() <= 60
    assert 2 <= parameters.plain_modulus < parameters.modulus


@every_set
def test_the_moduli_respect_the_standard_for_128_bits(
    parameters: ParameterSet,
) -> None:
    level = sealapi.SEC_LEVEL_TYPE.TC128
    allowed = sealapi.CoeffModulus.MaxBitCount(parameters.ring, level)
    assert parameters.modulus_bits <= allowed
    assert parameters.security_bits == 128


@every_set
def test_the_moduli_respect_the_guidelines_of_2024(parameters: ParameterSet) -> None:
    """Bossuat et al. (ePrint 2024/463): 128 bits, classical, ternary secrets."""
    assert parameters.modulus_bits <= {1024: 26, 2048: 53, 4096: 106}[parameters.ring]


@every_set
def test_the_largest_number_of_summands_is_the_last_that_is_proven(
    parameters: ParameterSet,
) -> None:
    n, q, w = parameters.ring, parameters.modulus, parameters.limb_bits

    def proven(summands: int) -> bool:
        """With the smallest t that holds so many limbs."""
        k = summands
        noise = 12.0 * math.sqrt(10.5 * (k + k * n + k * k * n))
        if len(parameters.primes) == 2:
            noise = noise / parameters.primes[1] + k * (n + 1) / 2
        return bool((k * (2**w - 1) + 1) * (noise + k) <= 0.25 * q)

    assert proven(parameters.max_summands)
    # The integer noise bound of the code may round up by at most one and a half.
    assert not proven(int(parameters.max_summands * 1.005) + 1)
    t = parameters.plain_modulus
    assert parameters.max_summands * (2**w - 1) < t
    worst = parameters.noise_bound(parameters.max_summands) + parameters.max_summands
    assert t * worst / q <= 0.25


@given(
    bound=st.integers(0, 2**63 - 1),
    summands=st.integers(1, 1104),
    dimension=st.integers(1, 20_000),
)
def test_the_choice_fits_and_nothing_smaller_does(
    bound: int, summands: int, dimension: int
) -> None:
    chosen = choose(bound, summands, dimension)
    assert 2 * bound < 2**chosen.word_bits
    assert summands <= chosen.max_summands
    for other in PARAMETER_SETS.values():
        if other.payload_bytes(dimension) < chosen.payload_bytes(dimension):
            assert not other.fits(bound, summands)


def test_the_largest_roster_has_a_set_with_a_small_ring() -> None:
    assert choose(2**63 - 1, MAX_SITES, 184).ring == 2048


def test_a_small_vector_takes_a_small_ring_whatever_its_range() -> None:
    for bits in (10, 20, 30, 40, 50, 60, 63):
        assert choose(2**bits - 1, 64, 184).ring == 2048
        assert choose(2**bits - 1, 2, 16).ring == 1024
        assert choose(2**bits - 1, 20, 16).ring == 1024


@pytest.mark.parametrize("sites", [1, 2, 5, 10])
def test_a_message_of_few_sites_takes_eight_kilobytes(sites: int) -> None:
    assert choose(2**34 - 1, sites, 184).payload_bytes(184) == 8192


@pytest.mark.parametrize("sites", [2, 20, 64, 180, 1000])
@pytest.mark.parametrize("bits", [20, 43, 63])
def test_a_message_of_the_design_dimension_stays_below_70_kb(
    sites: int, bits: int
) -> None:
    assert choose(2**bits - 1, sites, 184).payload_bytes(184) < 66_000


def test_long_vectors_take_fewer_bytes_in_a_large_ring() -> None:
    assert choose(2**38, 5, 10_000).ring == 4096


@pytest.mark.parametrize(
    ("bound", "summands", "dimension"),
    [
        (2**63, 1, 1),
        (1, 1105, 1),
        (-1, 1, 1),
        (1, 0, 1),
        (1, 1, 0),
        (1, 1, MAX_DIMENSION + 1),
    ],
)
def test_what_no_vetted_set_holds_is_refused(
    bound: int, summands: int, dimension: int
) -> None:
    with pytest.raises(CryptoError, match="; "):
        choose(bound, summands, dimension)


def test_a_set_outside_the_table_does_not_exist() -> None:
    with pytest.raises(CryptoError, match="vetted"):
        parameter_set("bfv-1024-64x1")

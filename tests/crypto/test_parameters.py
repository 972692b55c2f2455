from __future__ import annotations

from dataclasses import replace

import pytest
import tenseal.sealapi as sealapi
from hypothesis import given
from hypothesis import strategies as st

from cipherbayes.crypto.bfv.parameters import (
    ERROR_BOUND,
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
    moduli = (*parameters.primes, parameters.plain_modulus)
    assert len(set(moduli)) == len(moduli)
    for prime in moduli:
        assert is_prime(prime)
        assert prime % (2 * parameters.ring) == 1
        assert prime.bit_length() <= 60


@every_set
def test_the_moduli_respect_the_standard_for_128_bits(
    parameters: ParameterSet,
) -> None:
    level = sealapi.SEC_LEVEL_TYPE.TC128
    allowed = sealapi.CoeffModulus.MaxBitCount(parameters.ring, level)
    assert parameters.modulus_bits <= allowed
    assert parameters.security_bits == 128


@every_set
@pytest.mark.parametrize("limb_bits", [None, 1])
def test_the_largest_number_of_summands_is_the_last_that_is_proven(
    parameters: ParameterSet, limb_bits: int | None
) -> None:
    if limb_bits is not None:
        # Limbs so small that the noise alone decides.
        parameters = replace(parameters, limb_bits=limb_bits)
    n, q, t = parameters.ring, parameters.modulus, parameters.plain_modulus
    noise = ERROR_BOUND * (2 * n + 1)
    if len(parameters.primes) == 2:
        noise = noise / parameters.primes[1] + (n + 1) / 2  # type: ignore[assignment]

    def proven(summands: int) -> bool:
        exact = t * summands * (noise + 0.5) / q <= 0.25
        return exact and summands * (2**parameters.limb_bits - 1) < t

    assert proven(parameters.max_summands)
    # The integer noise bound of the code may round up by at most one and a half.
    assert not proven(int(parameters.max_summands * 1.001) + 2)
    assert parameters.max_summands >= 64


@every_set
def test_a_message_of_the_design_dimension_stays_below_70_kb(
    parameters: ParameterSet,
) -> None:
    assert parameters.payload_bytes(184) < 66_000


@given(
    bound=st.integers(0, 2**63 - 1),
    summands=st.integers(1, 1261),
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


def test_the_largest_roster_has_a_set_with_the_small_ring() -> None:
    assert choose(2**63 - 1, MAX_SITES, 184).ring == 2048


def test_a_small_vector_takes_the_small_ring_whatever_its_range() -> None:
    for bits in (10, 20, 30, 40, 50, 60, 63):
        assert choose(2**bits - 1, 64, 184).ring == 2048
    assert choose(2**30, 64, 10_000).ring == 4096


@pytest.mark.parametrize(
    ("bound", "summands", "dimension"),
    [
        (2**63, 1, 1),
        (1, 1262, 1),
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
        parameter_set("bfv-1024-64")

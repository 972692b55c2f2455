"""The compiled arithmetic of polynomials does what SEAL does, number for number."""

from __future__ import annotations

import numpy as np
import pytest
import tenseal.sealapi as sealapi
from hypothesis import given, settings
from hypothesis import strategies as st

from cipherbayes.crypto import rings
from cipherbayes.crypto.bfv import plaintexts
from cipherbayes.crypto.bfv.ciphertext import add
from cipherbayes.crypto.bfv.keys import KeyPair, SecretKey, generate_keys
from cipherbayes.crypto.bfv.parameters import PARAMETER_SETS, ParameterSet
from cipherbayes.crypto.bfv.scheme import bfv_scheme
from cipherbayes.typing import Integers

pytestmark = pytest.mark.skipif(not rings.COMPILED, reason="no C compiler here")

PAIRS = {name: generate_keys(each) for name, each in PARAMETER_SETS.items()}
NAMES = sorted(PARAMETER_SETS)


def left_to_seal(secret: SecretKey) -> SecretKey:
    """The same key without the compiled loops."""
    other = SecretKey(secret.parameters, secret.key_id, secret._coefficients)
    other._factors = None
    return other


def vector(parameters: ParameterSet, length: int, seed: int) -> Integers:
    edge = 2 ** (parameters.word_bits - 2)
    return np.random.default_rng(seed).integers(-edge, edge, length)


@pytest.mark.parametrize("name", NAMES)
@given(length=st.integers(1, 5000), seed=st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_a_message_is_opened_as_seal_opens_it(
    name: str, length: int, seed: int
) -> None:
    pair: KeyPair = PAIRS[name]
    one, other = (vector(pair.public.parameters, length, seed + k) for k in (0, 1))
    total = add([pair.public.encrypt(one), pair.public.encrypt(other)])
    seal = left_to_seal(pair.secret)
    for chunk in total.polynomials:
        words, budget = pair.secret._opened(chunk)
        expected, left = seal._opened(chunk)
        assert np.array_equal(words, expected)
        assert budget == left >= 1
    assert np.array_equal(pair.secret.decrypt(total), one + other)
    assert np.array_equal(seal.decrypt(total), one + other)


@pytest.mark.parametrize("name", NAMES)
def test_a_message_is_added_to_an_encryption_as_seal_adds_it(name: str) -> None:
    pair = PAIRS[name]
    parameters = pair.public.parameters
    parts, ring = bfv_scheme(parameters), parameters.ring
    rng = np.random.default_rng(0)
    for length in (1, ring // 3, ring):
        slots = rng.integers(0, parameters.plain_modulus, length).astype(np.uint64)
        slots[-1] = parameters.plain_modulus - 1
        zero = pair.public._zeros.take()
        cipher, plain = sealapi.Ciphertext(), sealapi.Plaintext()
        parts.ciphertext.write(cipher, zero, parts.context)
        parts.encoder.encode(slots.tolist(), plain)
        parts.evaluator.add_plain_inplace(cipher, plain)
        mine = zero.copy()
        plaintexts.add_message(mine, slots, parameters)
        assert np.array_equal(mine, parts.ciphertext.read(cipher))


@pytest.mark.parametrize("name", NAMES)
def test_a_noise_that_grows_is_noticed_where_seal_notices_it(name: str) -> None:
    """Multiples of a message's scale, from a small error to half of the modulus."""
    pair, seal = PAIRS[name], left_to_seal(PAIRS[name].secret)
    parameters = pair.public.parameters
    zero = pair.public._zeros.take()
    step = parameters.modulus // parameters.plain_modulus
    budgets = set()
    for shift in (0, 1, step // 64, step // 8, step // 4 - 1, step // 4, step // 2):
        polynomials = zero.copy()
        moved = (int(polynomials[0, 7]) + shift) % parameters.modulus
        polynomials[0, 7] = moved
        words, budget = pair.secret._opened(polynomials)
        expected, left = seal._opened(polynomials)
        assert max(budget, 0) == left
        assert np.array_equal(words, expected)
        budgets.add(left)
    assert 0 in budgets
    assert len(budgets) > 3


def test_without_a_compiler_all_of_it_is_left_to_seal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rings, "COMPILED", False)
    monkeypatch.setattr(rings, "compiled", None)
    pair = generate_keys(PARAMETER_SETS["bfv-2048-44"])
    values = vector(pair.public.parameters, 1500, 0)
    pair.public.prepare(len(values))
    assert np.array_equal(pair.secret.decrypt(pair.public.encrypt(values)), values)


def test_what_does_not_fit_is_refused() -> None:
    compiled = rings.compiled
    eight, four = np.zeros(8, dtype=np.uint64), np.zeros(4, dtype=np.uint64)
    for wrong in (four, np.zeros(8), np.zeros((8, 1), dtype=np.uint64), eight[::2]):
        with pytest.raises((ValueError, BufferError)):
            compiled.multiply(eight, wrong, eight, 17)
    with pytest.raises(ValueError, match="power of two"):
        compiled.multiply(*(np.zeros(6, dtype=np.uint64) for _ in range(3)), 17)
    for prime in (0, 2, 2**62, 2**64):
        with pytest.raises((ValueError, OverflowError)):
            compiled.multiply(eight, eight, eight, prime)
    with pytest.raises(TypeError):
        compiled.multiply(eight, eight, eight)
    frozen = eight.copy()
    frozen.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        compiled.multiply(frozen, eight, eight, 17)

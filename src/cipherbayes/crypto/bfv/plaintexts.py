"""BFV's plaintexts: packed into slots, added to encryptions of zero, opened.

A plaintext is a polynomial modulo X^n + 1 and the plaintext modulus t, and its slots
are its values: slot i is the one at ψ^(3^i), slot n/2 + i the one at ψ^(-3^i), as in
SEAL, ψ the smallest primitive 2n-th root of unity modulo t. All of this needs
:data:`cipherbayes.crypto.rings.COMPILED`.

Reference: Fan and Vercauteren 2012 (ePrint 2012/144).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from cipherbayes.crypto import rings
from cipherbayes.crypto.bfv.limbs import Words
from cipherbayes.crypto.bfv.parameters import ParameterSet
from cipherbayes.crypto.coefficients import Coefficients
from cipherbayes.crypto.rings import Factors, bit_reversed, ring_modulo


@cache
def _slot_places(size: int) -> NDArray[np.intp]:
    """Where among a ring's values each slot stands."""
    powers = np.array([pow(3, i, 2 * size) for i in range(size // 2)])
    exponents = np.concatenate([powers, 2 * size - powers])
    places: NDArray[np.intp] = bit_reversed(size)[exponents // 2]
    return places


def add_message(zero: Coefficients, slots: Words, parameters: ParameterSet) -> None:
    """Add round(q m / t) to an encryption of zero, in place.

    Parameters
    ----------
    zero
        Two polynomials modulo q, shape ``(2, n)``.
    slots
        The slots of the message m, up to n; the others are zero.
    """
    modulus = parameters.plain_modulus
    message = np.zeros(parameters.ring, dtype=np.uint64)
    message[_slot_places(parameters.ring)[: len(slots)]] = slots
    ring_modulo(modulus, parameters.ring).coefficients(message)
    rings.compiled.add_message(zero[0], message, parameters.modulus, modulus)


def open_message(
    polynomials: Coefficients, secret: Factors, parameters: ParameterSet
) -> tuple[Words, int]:
    """The slots of the message in a ciphertext, and the bits of SEAL's noise budget.

    With v = c_0 + c_1 s mod q the message is round(t v / q), and the budget is
    ⌊log₂ q⌋ - ⌈log₂ of the largest |t v - q m| + 1⌉, as SEAL counts it; below one bit
    the message is not to be trusted.

    Parameters
    ----------
    polynomials
        c_0 and c_1 modulo q, shape ``(2, n)``.
    secret
        The values of s modulo q.
    """
    constant, phase = polynomials[0], polynomials[1].copy()
    modulus, plain_modulus = parameters.modulus, parameters.plain_modulus
    ring = ring_modulo(modulus, parameters.ring)
    ring.values(phase)
    ring.multiply(phase, secret)
    ring.coefficients(phase)
    noise: int = rings.compiled.open(phase, constant, modulus, plain_modulus)
    budget = modulus.bit_length() - noise.bit_length() - 1
    ring_modulo(plain_modulus, parameters.ring).values(phase)
    return phase[_slot_places(parameters.ring)], budget

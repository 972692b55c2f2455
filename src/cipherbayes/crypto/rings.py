"""Polynomials modulo X^n + 1 and a prime, compiled where a C compiler was present.

What needs no randomness is done on the coefficients themselves: packing a message,
adding it to an encryption of zero, opening a ciphertext. SEAL gives and takes them
through files and lists of Python numbers, which takes longer than the arithmetic.
Randomness is always SEAL's: keys, and encryptions of zero. Without the extension
(:data:`COMPILED`) all of it is SEAL's.

An element of Z_p[X]/(X^n + 1), p = 1 (mod 2n), has n coefficients, or n values: those
at the odd powers of the smallest primitive 2n-th root of unity.

References: Longa and Naehrig 2016 (ePrint 2016/504).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cipherbayes.crypto.coefficients import Coefficients
from cipherbayes.typing import Integers

compiled: Any
try:
    compiled = import_module("cipherbayes.crypto._rings")
except ImportError:  # no C compiler when the package was installed
    compiled = None

COMPILED: bool = compiled is not None


@dataclass(frozen=True, eq=False)
class Factors:
    """Numbers below a prime to multiply with, ready for Shoup's multiplication."""

    values: Coefficients
    quotients: Coefficients

    @classmethod
    def of(cls, values: Coefficients, prime: int) -> Factors:
        """The factors, which must be reduced."""
        values = np.ascontiguousarray(values, dtype=np.uint64)
        quotients = np.empty_like(values)
        compiled.quotients(quotients, values, prime)
        return cls(values, quotients)


@dataclass(frozen=True, eq=False)
class Ring:
    """Z_p[X]/(X^n + 1), its elements as vectors of n coefficients or n values.

    Values come in the order of bit-reversed exponents, as SEAL keeps them in keys.
    """

    prime: int
    _roots: Factors
    _inverses: Factors

    def values(self, coefficients: Coefficients) -> None:
        """Turn coefficients into values, in place."""
        compiled.forward(
            coefficients, self._roots.values, self._roots.quotients, self.prime
        )

    def add(self, total: Coefficients, polynomial: Integers) -> None:
        """Add the values of a polynomial of 64-bit integers, in place."""
        reduced = np.empty_like(total)
        compiled.reduced(reduced, polynomial, self.prime)
        self.values(reduced)
        compiled.add(total, reduced, self.prime)

    def coefficients(self, values: Coefficients) -> None:
        """Turn values into coefficients, in place."""
        compiled.inverse(
            values, self._inverses.values, self._inverses.quotients, self.prime
        )

    def multiply(self, values: Coefficients, factors: Factors) -> None:
        """Multiply value by value, in place."""
        compiled.multiply(values, factors.values, factors.quotients, self.prime)


@cache
def ring_modulo(prime: int, size: int) -> Ring:
    """The ring of a prime with p = 1 (mod 2n)."""
    root = _smallest_root(prime, 2 * size)
    order = bit_reversed(size)
    powers = [1]
    for _ in range(2 * size - 1):
        powers.append(powers[-1] * root % prime)
    # The inverse of ψ^k is ψ^(2n - k); place 0, which no step uses, has 1 / n.
    inverses = [powers[-int(k)] if k else pow(size, -1, prime) for k in order]
    return Ring(
        prime,
        Factors.of(np.array([powers[k] for k in order], dtype=np.uint64), prime),
        Factors.of(np.array(inverses, dtype=np.uint64), prime),
    )


def _smallest_root(prime: int, order: int) -> int:
    """The smallest primitive root of unity of an order that is a power of two."""
    root = next(
        candidate
        for base in range(2, prime)
        if pow(candidate := pow(base, (prime - 1) // order, prime), order // 2, prime)
        == prime - 1
    )
    power, smallest = root, root
    for _ in range(order // 2):
        power = power * root * root % prime
        smallest = min(smallest, power)
    return smallest


def bit_reversed(size: int) -> NDArray[np.intp]:
    """The order in which values stand: exponent 2k + 1 at place k reversed."""
    order = np.zeros(1, dtype=np.intp)
    while len(order) < size:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order

"""Coefficients of polynomials modulo primes: as bytes, checked, and added.

What BFV and CKKS share, without any encryption library: a party that only adds
ciphertexts (the server) imports this and not SEAL. A coefficient takes the bytes that
its prime needs: no compression, no metadata, one encoding for one polynomial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Coefficients = NDArray[np.uint64]


def byte_width(prime: int) -> int:
    """Bytes that a number below ``prime`` takes."""
    return -(-prime.bit_length() // 8)


def pack_coefficients(coefficients: Coefficients, width: int) -> bytes:
    """The ``width`` low bytes of each coefficient, little endian."""
    words = np.ascontiguousarray(coefficients, dtype="<u8")
    return _low_bytes(words, width).tobytes()


def unpack_coefficients(data: bytes | memoryview, width: int) -> Coefficients:
    """The inverse of :func:`pack_coefficients`, one-dimensional."""
    packed = np.frombuffer(data, dtype=f"V{width}")
    words = np.zeros(len(packed), dtype="<u8")
    _low_bytes(words, width)[...] = packed
    return words.astype(np.uint64, copy=False)


def _low_bytes(words: Coefficients, width: int) -> NDArray[np.void]:
    """The ``width`` low bytes of each word, as opaque items of a shared view."""
    return np.ndarray((words.size,), f"V{width}", words, 0, (8,))


def pack_by_prime(coefficients: Coefficients, widths: Sequence[int]) -> list[bytes]:
    """Coefficients of shape (…, primes, n), one piece for each prime."""
    return [
        pack_coefficients(coefficients[..., index, :], widths[index])
        for index in range(coefficients.shape[-2])
    ]


def unpack_by_prime(
    data: memoryview, widths: Sequence[int], outer: tuple[int, ...], ring: int
) -> Coefficients:
    """The inverse of :func:`pack_by_prime`: shape (*outer, primes, n).

    The data must have exactly ``prod(outer) · ring · sum(widths)`` bytes.
    """
    words = np.empty((*outer, len(widths), ring), dtype=np.uint64)
    count, start = math.prod(outer) * ring, 0
    for index, width in enumerate(widths):
        end = start + width * count
        plane = unpack_coefficients(data[start:end], width)
        words[..., index, :] = plane.reshape((*outer, ring))
        start = end
    return words


def column(primes: Sequence[int]) -> Coefficients:
    """Primes as a column, to meet coefficients of shape (…, primes, n)."""
    return np.array(primes, dtype=np.uint64)[:, None]


def are_reduced(coefficients: Coefficients, primes: Sequence[int]) -> bool:
    """Whether coefficients of shape (…, primes, n) are below their primes."""
    return bool((coefficients < column(primes)).all())


def add_modulo(
    one: Coefficients,
    other: Coefficients,
    moduli: Coefficients | np.uint64,
    out: Coefficients | None = None,
) -> Coefficients:
    """The sum of reduced coefficients, reduced: for moduli below 2^63.

    Parameters
    ----------
    out
        Where it goes; a new array if not given.
    """
    total = np.add(one, other, out=out)
    # Both were below q < 2^63: subtracting q wraps to a huge value exactly when it
    # must not be subtracted.
    return np.asarray(np.minimum(total, total - moduli, out=total))

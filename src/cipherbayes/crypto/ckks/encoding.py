"""Slots into polynomials by an exactly linear map, in fixed point.

Integers v_j in the slots become the polynomial with coefficients

    m_i = Σ_j v_j g[i a_j mod 2n],    g[k] = round(2^F scale (2/n) cos(π k/n)),

a_j = 3^j mod 2n being where SEAL keeps slot j, in units of 2^(−F). g is one table of
integers, so the map is a matrix of integers: the encoding of a sum **is** the sum of
the encodings, to the last bit. A floating-point encoder does not have that property.
How it rounds a site's vector is a function of that vector alone, so a sum of rounded
encodings would tell more than the sum of the vectors does.

**Fast and exact.** For i = 2^v · (odd) the odd part is ±3^l modulo 2n/2^v, and
i a_j = ±2^v 3^(l+j): a cyclic correlation of the (folded) slots with a part of g, one
for each v. It is computed by floating-point FFTs on digits of 15 bits. With
‖a‖₂, ‖b‖₂ ≤ 2^20.5 for vectors of at most 2¹³ digits (up to 8 products are added
before one inverse transform) errors stay below 2^(41 + 3 − 53 + 7) < 1/2, so rounding
gives these very integers. What is left at the multiples of n/128, where correlations
are short, is a product with a matrix of digits: sums of 64 products of two digits,
which floating point holds exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cipherbayes.errors import CryptoError
from cipherbayes.typing import Floats, Integers

FRACTION_BITS = 30
"""F: bits of a coefficient behind the point."""
DIGIT_BITS = 15
SCALE_BITS = 40
"""Bits of a scale that count: machines whose last bits differ still agree."""
LARGEST_INTEGER = 2**48
"""The sum over all slots of larger integers might not fit into a word."""
LARGEST_COEFFICIENT = 2.0**61

DIRECT = 128
"""Coefficients that are computed without transforms."""

_PI = 3141592653589793238462643383279502884197169399375105820974944592307816406286
_PI_DIGITS = 75
_FIXED = 160

Transformed = npt.NDArray[np.complex128]


@dataclass(frozen=True)
class _Part:
    """The coefficients i = 2^v (odd), in the order of l; g is used at these as well."""

    period: int
    coefficients: Integers


@cache
def _parts(ring: int) -> tuple[_Part, ...]:
    """For each small power of two v, all i with that power, in the order of 3^l."""
    parts, step = [], 1
    while ring // step > DIRECT:
        modulus = 2 * ring // step
        powers = np.empty(modulus // 4, dtype=np.int64)
        powers[0] = 1
        for index in range(1, len(powers)):
            powers[index] = powers[index - 1] * 3 % modulus
        # cos is even: the table at −k is the table at k, and i = −2^v 3^l is
        # as good as i = 2^v 3^l.
        parts.append(_Part(len(powers), np.minimum(powers, modulus - powers) * step))
        step *= 2
    return tuple(parts)


@cache
def _direct_places(ring: int) -> Integers:
    """i a_j modulo 2n, as a place in the table of g, for the i that are left."""
    count = min(ring, DIRECT)
    powers = [pow(3, j, 2 * count) for j in range(count // 2)]
    places = np.outer(np.arange(count), powers) % (2 * count)
    # cos is even: the table at −k is the table at k.
    return np.asarray(np.minimum(places, 2 * count - places) * (ring // count))


@cache
def _cosines(ring: int) -> tuple[int, ...]:
    """cos(π k/n) for k = 0 … n in fixed point, by integers alone."""
    one = 1 << _FIXED
    angle = (_PI * one) // (10**_PI_DIGITS * ring)
    square = angle * angle >> _FIXED
    cos1, sin1, term_c, term_s, order = 0, 0, one, angle, 0
    while abs(term_c) > 1 or abs(term_s) > 1:
        cos1, sin1, order = cos1 + term_c, sin1 + term_s, order + 2
        term_c = -(term_c * square >> _FIXED) // (order * (order - 1))
        term_s = -(term_s * square >> _FIXED) // (order * (order + 1))
    values, c, s = [], one, 0
    for _ in range(ring // 2):
        values.append(c)
        c, s = (
            (c * cos1 - s * sin1) >> _FIXED,
            (s * cos1 + c * sin1) >> _FIXED,
        )
    return (*values, 0, *(-value for value in reversed(values)))


@lru_cache(maxsize=32)
def _table(ring: int, scale: float) -> list[int]:
    """g[k] for k = 0 … n."""
    mantissa, exponent = math.frexp(scale)
    kept = Fraction(round(mantissa * 2.0**SCALE_BITS)) * Fraction(2) ** (
        exponent - SCALE_BITS
    )
    factor = kept * 2 / ring * 2**FRACTION_BITS / 2**_FIXED
    times, shift = factor.numerator, factor.denominator.bit_length() - 1
    half = (1 << shift) >> 1
    # The denominator is a power of two: a shift divides by it, and rounds down.
    return [(cosine * times + half) >> shift for cosine in _cosines(ring)]


def _digits(values: Any, count: int) -> Any:
    """Balanced digits of DIGIT_BITS, lowest first: shape (count, …)."""
    base, half = 1 << DIGIT_BITS, 1 << (DIGIT_BITS - 1)
    rest, digits = values, []
    for _ in range(count):
        # Of negative numbers too the low bits are the rest of a division.
        digit = ((rest + half) & (base - 1)) - half
        digits.append(digit)
        rest = (rest - digit) >> DIGIT_BITS
    if np.any(rest != 0):
        raise CryptoError("a number has more digits than were counted")
    return np.stack(digits)


def _digit_count(largest: int) -> int:
    """Digits that are enough for balanced numbers up to ``largest``.

    k of them reach from −2^(15k−1) to a little below 2^(15k−1): one bit to spare.
    """
    return -(-(largest.bit_length() + 2) // DIGIT_BITS)


@dataclass(frozen=True)
class _Kernel:
    """g: the transforms of its digits for each part, and its digits for the rest."""

    transforms: tuple[Transformed, ...]
    direct: Floats


@lru_cache(maxsize=32)
def _kernel(ring: int, scale: float) -> _Kernel:
    table = np.array(_table(ring, scale), dtype=object)
    count = _digit_count(int(np.abs(table).max()))
    digits = _digits(table, count).astype(np.float64)
    transforms = tuple(
        np.fft.rfft(digits[:, part.coefficients], axis=1) for part in _parts(ring)
    )
    return _Kernel(transforms, digits[:, _direct_places(ring)])


def encode_exactly(
    slots: Integers, scale: float, ring: int, fractions: Integers | None = None
) -> Integers:
    """The integer coefficients of a polynomial with these slots.

    Parameters
    ----------
    slots
        n/2 integers.
    scale
        What a slot is multiplied with.
    fractions
        What is added to each coefficient before it is rounded, in units of 2^(−F):
        the fractional part of a mask. Nothing if not given.

    Formal guarantees
    -----------------
    Before rounding, the result is A v + fractions with a matrix A of integers that
    depends on ``ring`` and ``scale`` alone. Rounding is ⌊· / 2^F + 1/2⌋.

    Edge cases
    ----------
    Integers beyond 2⁴⁸, and such as could make a coefficient of 2⁶¹, are refused: a
    64-bit word would not hold their sums.
    """
    if slots.dtype != np.int64 or slots.shape != (ring // 2,):
        raise CryptoError("slots are as many 64-bit integers as the ring has slots")
    largest = max(int(slots.max()), -int(slots.min()))
    if largest > LARGEST_INTEGER or largest * scale >= LARGEST_COEFFICIENT:
        raise CryptoError(
            "an integer is too large for the encoder",
            remedy="use a coarser grid: 2^48 units at most",
        )
    kernel = _kernel(ring, scale)
    added = np.zeros(ring, dtype=np.int64) if fractions is None else fractions
    result = np.empty(ring, dtype=np.int64)
    half = 1 << (FRACTION_BITS - 1)
    folded = slots
    for part, transform in zip(_parts(ring), kernel.transforms, strict=True):
        folded = folded.reshape(-1, part.period).sum(axis=0)
        limbs = _correlated(folded, transform, part.period)
        where = part.coefficients
        result[where] = _rounded(limbs, added[where] + half)
    rest, width = slice(None, None, max(1, ring // DIRECT)), kernel.direct.shape[2]
    limbs = _multiplied(folded.reshape(-1, width).sum(axis=0), kernel.direct)
    result[rest] = _rounded(limbs, added[rest] + half)
    return result


def _multiplied(folded: Integers, direct: Floats) -> Integers:
    """Σ_j g[i a_j] folded_j for the i that are left, as limbs that may overlap."""
    count = _digit_count(int(np.abs(folded).max()))
    products = direct @ _digits(folded, count).astype(np.float64).T
    limbs = np.zeros((count + len(direct) - 1, direct.shape[1]), dtype=np.int64)
    for index in range(count):
        limbs[index : index + len(direct)] += products[..., index].astype(np.int64)
    return limbs


def _correlated(folded: Integers, transform: Transformed, period: int) -> Integers:
    """Σ_j folded_j g[l + j], as limbs of DIGIT_BITS that may overlap."""
    count = _digit_count(int(np.abs(folded).max()))
    digits = _digits(folded, count).astype(np.float64)
    spectra = np.fft.rfft(digits, axis=1).conj()
    sums = np.zeros((count + len(transform) - 1, spectra.shape[1]), dtype=complex)
    for index, spectrum in enumerate(spectra):
        sums[index : index + len(transform)] += spectrum * transform
    return np.rint(np.fft.irfft(sums, n=period, axis=1)).astype(np.int64)


def _rounded(limbs: Integers, added: Integers) -> Integers:
    """⌊(Σ_t limb_t 2^(15 t) + added) / 2^F⌋: the first two limbs are the fraction."""
    low = limbs[0] + added
    if len(limbs) > 1:
        low = low + (limbs[1] << DIGIT_BITS)
    high = low >> FRACTION_BITS
    for index, limb in enumerate(limbs[2:]):
        # Wraps around where it must: the result fits into 64 bits.
        high = high + (limb << (DIGIT_BITS * index))
    return np.asarray(high)

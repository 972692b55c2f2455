"""BFV parameter sets, and the choice of the smallest one that provably fits.

A site's integer is a *word* modulo M = 2^b. It is written in l limbs of w bits,
each a coefficient of the plaintext polynomial, so a coefficient of the sum of K words
is at most K (2^w - 1) < t and never wraps around the plaintext modulus t. (Only sums
are computed, so plaintexts need no slots, and t need not be prime.)

**Why decryption is exact.** Let q be the ciphertext modulus, s the secret key, n the
ring size. SEAL encrypts a polynomial m of the plaintext ring as c_0 + c_1 s =
round(q m / t) + v (mod q). The key's error e, the encryption's errors e_0, e_1 and its
u give v = e_0 + e_1 s - e u with u and s ternary. An error is a centred binomial with
21 coins on a side, hence sub-Gaussian with variance 21/2 (its alternative in SEAL, a
rounded Gaussian of deviation 3.2, is less). In a sum of K ciphertexts of one key, given
s and all u, a coefficient of the sum of v is a sum of independent errors: K times one,
K n times ±1, 0 (from e_1 s), n times an integer of size at most K (from e u). It is
sub-Gaussian with variance 21/2 (K + K n + K² n), and beyond

    E = 12 √(21/2 (K + K n + K² n))

with probability 2 e^-72 < 2^-102: 2^-60 for all coefficients of a run of up to 2^42.
With a special prime p, SEAL encrypts modulo q p and divides by p: that leaves
E / p + K (n + 1) / 2, the second term from rounding c_0 and c_1. Rounding q m / t adds
less than K, so

    c_0 + c_1 s = (q / t) (sum of m) + r,    |r| <= E + K.

Decryption multiplies by t / q and rounds; it is exact if t |r| / q < 1/2 - 1/γ
with γ SEAL's 61-bit auxiliary prime (one data prime: the base conversion is
exact). A set is used only for K with t (E + K) / q <= 1/4: half the radius.
Then SEAL's own noise budget is at least 1 bit, which decryption checks: a sum with more
noise is refused, unless it is so large that the sum looks like another one.

**Security.** The sets respect the bounds of the Homomorphic Encryption Standard
for 128 bits, ternary secrets (n = 1024: 27 bits of q p; n = 2048: 54; n = 4096: 109),
which SEAL enforces (``SEC_LEVEL_TYPE.TC128``), and those of the guidelines that follow
it (26, 53 and 106).

References: Fan and Vercauteren 2012 (ePrint 2012/144); Bajard, Eynard, Hasan and
Zucca 2016 (ePrint 2016/510); Albrecht et al. 2018, Homomorphic Encryption
Security Standard; Bossuat et al. 2024, Security Guidelines for Implementing Homomorphic
Encryption (ePrint 2024/463).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isqrt

from cipherbayes.crypto.coefficients import byte_width
from cipherbayes.crypto.rlwe import look_up
from cipherbayes.errors import CryptoError

ERROR_COINS = 21
"""Coins on each side of the centred binomial that SEAL draws errors from."""

DEVIATIONS = 12
"""Beyond so many deviations lies a sub-Gaussian number with probability 2^-102."""

MAX_DIMENSION = 2**20
"""Longest vector that is summed."""

WORD_BITS = 64
"""Bits of the longest word."""


@dataclass(frozen=True)
class ParameterSet:
    """One vetted way to encrypt vectors of integers modulo 2^b.

    Attributes
    ----------
    ring
        Ring size n: coefficients of a plaintext.
    primes
        The ciphertext modulus q, then SEAL's special prime if there is one.
    limb_bits
        w: bits of a word that go into one coefficient.
    limbs
        l: coefficients that a word takes.
    max_summands
        Largest K for which a sum of K ciphertexts provably decrypts exactly.
    security_bits
        Against classical attacks, by the standard's tables.
    """

    ring: int
    primes: tuple[int, ...]
    limb_bits: int
    limbs: int
    max_summands: int
    security_bits: int = 128

    @cached_property
    def id(self) -> str:
        """Its name in messages and files."""
        return f"bfv-{self.ring}-{self.limb_bits}x{self.limbs}"

    @property
    def word_bits(self) -> int:
        """b: words are integers modulo 2^b."""
        return min(self.limb_bits * self.limbs, WORD_BITS)

    @cached_property
    def plain_modulus(self) -> int:
        """t: no sum of limbs wraps around it."""
        return self.max_summands * self.limb_mask + 1

    @property
    def modulus(self) -> int:
        """q, the modulus of a ciphertext's coefficients."""
        return self.primes[0]

    @property
    def modulus_bits(self) -> int:
        """Bits of the product of all primes: what security depends on."""
        return sum(prime.bit_length() for prime in self.primes)

    @cached_property
    def limb_mask(self) -> int:
        """2^w - 1, the largest limb."""
        return (1 << self.limb_bits) - 1

    @cached_property
    def coefficient_bytes(self) -> int:
        """Bytes of one coefficient in a message."""
        return byte_width(max(self.primes))

    def noise_bound(self, summands: int) -> int:
        """E: the error of a sum of ``summands`` ciphertexts, but for 2^-102."""
        n, k = self.ring, summands
        variance = ERROR_COINS * (k + k * n + k * k * n)  # twice
        fresh = isqrt(DEVIATIONS**2 * variance // 2) + 1
        if len(self.primes) == 1:
            return fresh
        return -(-fresh // self.primes[1]) + k * (n + 2) // 2

    def chunks(self, dimension: int) -> int:
        """Ciphertexts that a vector of ``dimension`` words takes."""
        return -(-dimension * self.limbs // self.ring)

    def payload_bytes(self, dimension: int) -> int:
        """Bytes of all coefficients of an encrypted vector."""
        return self.chunks(dimension) * 2 * self.ring * self.coefficient_bytes

    def fits(self, bound: int, summands: int) -> bool:
        """Whether a sum of ``summands`` words with |sum| <= ``bound`` is exact."""
        return summands <= self.max_summands and 2 * bound < 1 << self.word_bits


_Q26 = 67104769
_Q53 = 9007199254614017
_Q60 = 1152921504606830593
_P46 = 70368743669761

# Ring, primes, bits of a limb and the most summands that the proof allows with it.
_LIMBS = (
    (1024, (_Q26,), 11, 2),
    (1024, (_Q26,), 9, 4),
    (1024, (_Q26,), 7, 10),
    (1024, (_Q26,), 5, 20),
    (2048, (_Q53,), 35, 5),
    (2048, (_Q53,), 32, 17),
    (2048, (_Q53,), 28, 68),
    (2048, (_Q53,), 22, 551),
    (2048, (_Q53,), 20, 1104),
    (4096, (_Q60, _P46), 40, 11),
    (4096, (_Q60, _P46), 36, 45),
    (4096, (_Q60, _P46), 32, 180),
)

_SETS = tuple(
    ParameterSet(ring, primes, limb_bits, limbs, summands)
    for ring, primes, limb_bits, summands in _LIMBS
    for limbs in range(1, -(-WORD_BITS // limb_bits) + 1)
)

PARAMETER_SETS = {parameters.id: parameters for parameters in _SETS}
"""The vetted sets by id; nothing outside this table is ever used."""


def parameter_set(name: str) -> ParameterSet:
    """The vetted set of that name."""
    return look_up(name, PARAMETER_SETS, "sets")


def choose(bound: int, summands: int, dimension: int) -> ParameterSet:
    """The vetted set with the smallest messages that provably fits.

    Parameters
    ----------
    bound
        B with |sum| <= B in every coordinate, from public numbers only (rows,
        clipping norm, grid, noise tail); single summands may be anything.
    summands
        K, the number of sites whose vectors are added.
    dimension
        d, the length of the vectors.

    Raises
    ------
    CryptoError
        If no vetted set fits.
    """
    if bound < 0 or summands < 1 or not 1 <= dimension <= MAX_DIMENSION:
        raise CryptoError(
            f"cannot encrypt {dimension} values of {summands} sites",
            remedy=f"give 1 to {MAX_DIMENSION} values, one site or more, a bound >= 0",
        )
    fitting = [each for each in _SETS if each.fits(bound, summands)]
    if not fitting:
        raise CryptoError(
            f"no vetted parameter set holds sums of {bound.bit_length() + 1} bits "
            f"over {summands} sites",
            remedy="use a coarser grid, a smaller clipping norm or fewer sites",
        )
    return min(fitting, key=lambda each: (each.payload_bytes(dimension), each.limbs))

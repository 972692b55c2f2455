"""BFV parameter sets, and the choice of the smallest one that provably fits.

A site's integer is a *word* modulo M = 2^b. It is written in l limbs of w bits,
each in its own plaintext slot, so a slot of the sum of K words holds at most
K (2^w - 1) < t and never wraps around the plaintext modulus t.

**Why decryption is exact.** Let q be the ciphertext modulus, s the secret key and
B = 21 the largest error SEAL samples (a centred binomial with 21 coins on a side;
its Gaussian alternative is cut at 19.2). SEAL encrypts a polynomial m of the
plaintext ring as c_0 + c_1 s = round(q m / t) + v (mod q). The key's error e, the
encryption's errors e_0, e_1 and its u give v = e_0 + e_1 s - e u with u and s
ternary, so ‖v‖ <= B (2n + 1) for ring size n (no averages, no tails). With a
special prime p, SEAL encrypts modulo q p and divides by p: ‖v‖ <=
B (2n + 1) / p + (n + 1) / 2, the second term from rounding c_0 and c_1. Call the
bound E. In a sum of K ciphertexts the roundings of q m / t add at most K / 2, so

    c_0 + c_1 s = (q / t) (sum of m) + r,    |r| <= K (E + 1/2).

Decryption multiplies by t / q and rounds; it is exact if t |r| / q < 1/2 - 1/γ
with γ SEAL's 61-bit auxiliary prime (one data prime: the base conversion is
exact). A set is used only for K with t K (E + 1/2) / q <= 1/4: half the radius.
Then SEAL's own noise budget is at least 1 bit, which decryption checks.

**Security.** The sets respect the bounds of the Homomorphic Encryption Standard
for 128 bits, ternary secrets (n = 2048: 54 bits of q p; n = 4096: 109), which SEAL
enforces (``SEC_LEVEL_TYPE.TC128``).

References: Fan and Vercauteren 2012 (ePrint 2012/144); Bajard, Eynard, Hasan and
Zucca 2016 (ePrint 2016/510); Albrecht et al. 2018, Homomorphic Encryption
Security Standard.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cipherbayes.crypto.coefficients import byte_width
from cipherbayes.crypto.rlwe import look_up
from cipherbayes.errors import CryptoError

ERROR_BOUND = 21
"""Largest absolute value SEAL's error distribution can take."""

MAX_DIMENSION = 2**20
"""Longest vector that is summed."""


@dataclass(frozen=True)
class ParameterSet:
    """One vetted way to encrypt vectors of integers modulo 2^b.

    Attributes
    ----------
    id
        Its name in messages and files.
    ring
        Ring size n: slots of a ciphertext.
    primes
        The ciphertext modulus q, then SEAL's special prime if there is one.
    plain_modulus
        t, a prime with t = 1 (mod 2n), so that slots exist.
    limb_bits
        w: bits of a word that go into one slot.
    word_bits
        b: words are integers modulo 2^b.
    security_bits
        Against classical attacks, by the standard's tables.
    """

    id: str
    ring: int
    primes: tuple[int, ...]
    plain_modulus: int
    limb_bits: int
    word_bits: int
    security_bits: int = 128

    @property
    def modulus(self) -> int:
        """q, the modulus of a ciphertext's coefficients."""
        return self.primes[0]

    @property
    def modulus_bits(self) -> int:
        """Bits of the product of all primes: what security depends on."""
        return sum(prime.bit_length() for prime in self.primes)

    @cached_property
    def limbs(self) -> int:
        """Slots a word takes."""
        return -(-self.word_bits // self.limb_bits)

    @cached_property
    def limb_mask(self) -> int:
        """2^w - 1, the largest limb."""
        return (1 << self.limb_bits) - 1

    @cached_property
    def coefficient_bytes(self) -> int:
        """Bytes of one coefficient in a message."""
        return byte_width(max(self.primes))

    @cached_property
    def noise_bound(self) -> int:
        """E: no fresh ciphertext has a larger error."""
        fresh = ERROR_BOUND * (2 * self.ring + 1)
        if len(self.primes) == 1:
            return fresh
        return -(-fresh // self.primes[1]) + (self.ring + 2) // 2

    @cached_property
    def max_summands(self) -> int:
        """Largest K for which a sum of K ciphertexts provably decrypts exactly.

        K <= q / (t (4 E + 2)) for the noise and K (2^w - 1) < t for the limbs.
        """
        noise = self.modulus // (self.plain_modulus * (4 * self.noise_bound + 2))
        limbs = (self.plain_modulus - 1) // self.limb_mask
        return min(noise, limbs)

    def chunks(self, dimension: int) -> int:
        """Ciphertexts that a vector of ``dimension`` words takes."""
        return -(-dimension * self.limbs // self.ring)

    def payload_bytes(self, dimension: int) -> int:
        """Bytes of all coefficients of an encrypted vector."""
        return self.chunks(dimension) * 2 * self.ring * self.coefficient_bytes

    def fits(self, bound: int, summands: int) -> bool:
        """Whether a sum of ``summands`` words with |sum| <= ``bound`` is exact."""
        return summands <= self.max_summands and 2 * bound < 1 << self.word_bits


_Q54 = 18014398509404161
_Q60 = 1152921504606830593
_P49 = 562949953216513

_SETS = (
    ParameterSet("bfv-2048-22", 2048, (_Q54,), 468492289, 22, 22),
    ParameterSet("bfv-2048-44", 2048, (_Q54,), 468492289, 22, 44),
    ParameterSet("bfv-2048-64", 2048, (_Q54,), 468492289, 22, 64),
    ParameterSet("bfv-2048-64-many", 2048, (_Q54,), 58552321, 16, 64),
    ParameterSet("bfv-2048-64-most", 2048, (_Q54,), 41500673, 15, 64),
    ParameterSet("bfv-4096-32", 4096, (_Q60, _P49), 776998002689, 32, 32),
    ParameterSet("bfv-4096-64", 4096, (_Q60, _P49), 776998002689, 32, 64),
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

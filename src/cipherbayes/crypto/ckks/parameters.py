"""CKKS parameter sets: ring, primes, and what is known about their noise.

The ciphertext modulus at level l is q_0 … q_{l−1}; SEAL keeps one more prime, the
special one, for key switching. All sets are inside the Homomorphic Encryption
Standard's bounds for 128 bits and ternary secrets (n = 8192: 218 bits; n = 16384:
438), which SEAL enforces (``SEC_LEVEL_TYPE.TC128``).

References: Cheon, Kim, Kim and Song 2017 (ePrint 2016/421); Cheon, Han, Kim, Kim
and Song 2018 (ePrint 2018/931); Albrecht et al. 2018, Homomorphic Encryption
Security Standard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from cipherbayes.crypto.coefficients import byte_width
from cipherbayes.crypto.rlwe import look_up

MAX_CHUNKS = 64
"""Most ciphertexts that one vector may take."""


@dataclass(frozen=True)
class CkksParameters:
    """One vetted ring and chain of primes.

    Attributes
    ----------
    id
        Its name in messages and files.
    ring
        n; a ciphertext has n/2 slots.
    primes
        q_0, …, q_{L−1}; rescaling drops the last one.
    special
        SEAL's special prime.
    security_bits
        Against classical attacks, by the standard's tables.
    """

    id: str
    ring: int
    primes: tuple[int, ...]
    special: int
    security_bits: int = 128

    @property
    def slots(self) -> int:
        """Values in a ciphertext."""
        return self.ring // 2

    @property
    def levels(self) -> int:
        """L: primes of a fresh ciphertext."""
        return len(self.primes)

    @property
    def all_primes(self) -> tuple[int, ...]:
        """The primes of keys: those of ciphertexts, then the special one."""
        return (*self.primes, self.special)

    @property
    def modulus_bits(self) -> int:
        """Bits of the product of all primes: what security depends on."""
        return math.prod(self.all_primes).bit_length()

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Bytes of a coefficient modulo each prime, the special one last."""
        return tuple(byte_width(prime) for prime in self.all_primes)

    def modulus(self, level: int) -> int:
        """q_0 … q_{level−1}."""
        return math.prod(self.primes[:level])

    def chunks(self, dimension: int) -> int:
        """Ciphertexts that a vector takes."""
        return -(-dimension // self.slots)

    def replicas(self, dimension: int) -> int:
        """How often a vector fits into the slots of its ciphertext."""
        return max(1, self.slots // dimension)

    def payload_bytes(self, dimension: int, size: int, level: int) -> int:
        """Bytes of all coefficients of a ciphertext of ``size`` polynomials."""
        polynomials = self.chunks(dimension) * size
        return polynomials * self.ring * sum(self.widths[:level])


_SETS = (
    CkksParameters(
        "ckks-16384-literal",
        16384,
        (
            36028797016178689,
            35184368877569,
            35184369893377,
            35184370155521,
            35184370352129,
            35184370941953,
            35184371138561,
        ),
        36028797017456641,
    ),
    CkksParameters(
        "ckks-8192-fast",
        8192,
        (1152921504606830593, 274877562881, 17179754497, 70368743669761),
        1099511480321,
    ),
    CkksParameters(
        "ckks-16384-hardened",
        16384,
        (
            1152921504600260609,
            1152921504604979201,
            1152921504605962241,
            1152921504606584833,
            1152921504606683137,
            281474976546817,
        ),
        1152921504606748673,
    ),
)

CKKS_SETS = {parameters.id: parameters for parameters in _SETS}
"""The vetted sets by id; nothing outside this table is ever used."""


def ckks_set(name: str) -> CkksParameters:
    """The vetted set of that name."""
    return look_up(name, CKKS_SETS, "CKKS sets")

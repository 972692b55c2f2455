"""CKKS ciphertexts as values: their bytes, their digest, their sum.

Adding ciphertexts is adding coefficients modulo each prime; it needs no key and no
encryption library. On the wire a coefficient takes the bytes its prime needs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cipherbayes.crypto import rlwe
from cipherbayes.crypto.ckks.parameters import MAX_CHUNKS, CkksParameters
from cipherbayes.crypto.coefficients import (
    Coefficients,
    add_modulo,
    column,
    pack_by_prime,
    unpack_by_prime,
)
from cipherbayes.crypto.wire.framing import Kind, encode_frame
from cipherbayes.crypto.wire.transcript import transcript
from cipherbayes.errors import CryptoError

# Set name and key id, then the length of the vector, its polynomials and its primes.
_HEADER = struct.Struct("<24s32sIBB")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, eq=False)
class CkksCiphertext:
    """An encrypted vector, in as many chunks as its length takes.

    Attributes
    ----------
    parameters
        The set it belongs to.
    key_id
        Which public key; a hash.
    dimension
        Length of the vector.
    polynomials
        Coefficients in SEAL's transformed order, shape
        ``(chunks, size, level, n)``: ``size`` polynomials modulo ``level`` primes.

    Edge cases
    ----------
    Any polynomials are a ciphertext of something: that an honest site made it is
    what the site's signature says, not this class.
    """

    parameters: CkksParameters
    key_id: bytes
    dimension: int
    polynomials: Coefficients

    def __post_init__(self) -> None:
        shape = self.polynomials.shape
        chunks = self.parameters.chunks(max(1, self.dimension))
        if self.dimension < 1 or chunks > MAX_CHUNKS:
            raise CryptoError("a ciphertext holds no such number of values")
        if (
            len(self.key_id) != rlwe.KEY_ID_BYTES
            or len(shape) != 4
            or shape[0] != chunks
            or shape[1] < 2
            or not 1 <= shape[2] <= self.parameters.levels
            or shape[3] != self.parameters.ring
        ):
            raise rlwe.parts_do_not_fit()
        largest = self.polynomials.max(axis=3)
        moduli = np.array(self.parameters.primes[: self.level], dtype=np.uint64)
        rlwe.require_sound(largest, reduced=bool((largest < moduli).all()))
        self.polynomials.flags.writeable = False

    @property
    def size(self) -> int:
        """Polynomials: 2 when fresh, more after products."""
        return int(self.polynomials.shape[1])

    @property
    def level(self) -> int:
        """Primes of its modulus."""
        return int(self.polynomials.shape[2])

    def _header(self) -> bytes:
        return _HEADER.pack(
            self.parameters.id.encode(),
            self.key_id,
            self.dimension,
            self.size,
            self.level,
        )

    def digest(self) -> bytes:
        """SHA-256 of what it is and of its raw coefficients: what replayers sign."""
        words = np.ascontiguousarray(self.polynomials, dtype="<u8")
        digest = hashlib.sha256(
            transcript("cipherbayes/ckks-ciphertext/1", self._header())
        )
        digest.update(words.data)
        return digest.digest()

    def to_bytes(self) -> bytes:
        """One CIPHERTEXT frame."""
        pieces = pack_by_prime(self.polynomials, self.parameters.widths)
        return encode_frame(Kind.CIPHERTEXT, self._header(), *pieces)

    @classmethod
    def from_bytes(
        cls,
        data: bytes | memoryview,
        *,
        parameters: CkksParameters,
        key_id: bytes,
        dimension: int,
        size: int = 2,
        level: int | None = None,
    ) -> CkksCiphertext:
        """The ciphertext in a frame, if it is exactly of the expected kind.

        Every expectation is known to an honest receiver beforehand
        (:meth:`~cipherbayes.crypto.ckks.circuit.Circuit.read_message`), so nothing
        in the bytes decides how much is allocated.

        Raises
        ------
        CryptoError
            If the bytes were damaged or are not of this kind.
        """
        level = parameters.levels if level is None else level
        expected = _HEADER.size + parameters.payload_bytes(dimension, size, level)
        body = rlwe.ciphertext_body(data, expected, parameters, key_id)
        _, _, length, polynomials, primes = _HEADER.unpack_from(body)
        if (length, polynomials, primes) != (dimension, size, level):
            raise CryptoError(
                f"a ciphertext of {length} values, {polynomials} polynomials and "
                f"{primes} primes, expected {dimension}, {size} and {level}",
            )
        words = unpack_by_prime(
            body[_HEADER.size :],
            parameters.widths[:level],
            (parameters.chunks(dimension), size),
            parameters.ring,
        )
        return cls(parameters, key_id, dimension, words)


def add_coefficients(ciphertexts: Sequence[CkksCiphertext]) -> Coefficients:
    """The encrypted sum: coefficientwise, modulo each prime.

    Raises
    ------
    CryptoError
        If they are not of one key, one parameter set and one shape.
    """
    if not ciphertexts:
        raise rlwe.nothing_to_add()
    first = ciphertexts[0]
    moduli = column(first.parameters.primes[: first.level])
    total = first.polynomials
    for other in ciphertexts[1:]:
        rlwe.require_addable(first, other)
        total = add_modulo(total, other.polynomials, moduli)
    return total

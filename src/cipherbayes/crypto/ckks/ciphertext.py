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

from cipherbayes.crypto.bfv.ciphertext import (
    KEY_ID_BYTES,
    Coefficients,
    pack_coefficients,
    unpack_coefficients,
)
from cipherbayes.crypto.ckks.parameters import MAX_CHUNKS, CkksParameters
from cipherbayes.crypto.wire.framing import Kind, decode_frame, encode_frame
from cipherbayes.crypto.wire.transcript import transcript
from cipherbayes.errors import CryptoError

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
            len(self.key_id) != KEY_ID_BYTES
            or len(shape) != 4
            or shape[0] != chunks
            or shape[1] < 2
            or not 1 <= shape[2] <= self.parameters.levels
            or shape[3] != self.parameters.ring
        ):
            raise CryptoError("a ciphertext's parts do not belong together")
        largest = self.polynomials.max(axis=3)
        if not (largest < _moduli(self.parameters, self.level)).all():
            raise CryptoError("a ciphertext has a coefficient that is not reduced")
        if not largest.all():
            # c_1 = 0 is an unencrypted value ("transparent"), c_0 = 0 a question
            # about the secret key; honest encryption makes neither.
            raise CryptoError("a ciphertext has an empty polynomial: not encrypted")
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
        widths = self.parameters.widths
        planes = [
            pack_coefficients(self.polynomials[:, :, index], widths[index])
            for index in range(self.level)
        ]
        return encode_frame(Kind.CIPHERTEXT, self._header(), *planes)

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
        payload = parameters.payload_bytes(dimension, size, level)
        body = decode_frame(data, Kind.CIPHERTEXT, limit=_HEADER.size + payload)
        if len(body) != _HEADER.size + payload:
            raise CryptoError(
                "a ciphertext does not have the size of the study's vectors",
                remedy="every party must use the same study and release",
            )
        name, key, length, polynomials, primes = _HEADER.unpack_from(body)
        if name != parameters.id.encode().ljust(24, b"\0"):
            raise CryptoError(
                "a ciphertext was made with other parameters",
                remedy=f"this run uses {parameters.id}",
            )
        if key != key_id:
            raise CryptoError(
                "a ciphertext was made with another key",
                remedy="every run has its own key: fetch the one of this run",
            )
        if (length, polynomials, primes) != (dimension, size, level):
            raise CryptoError(
                f"a ciphertext of {length} values, {polynomials} polynomials and "
                f"{primes} primes, expected {dimension}, {size} and {level}",
            )
        shape = (parameters.chunks(dimension), size, parameters.ring)
        words = np.empty((shape[0], size, level, shape[2]), dtype=np.uint64)
        start = _HEADER.size
        for index in range(level):
            width = parameters.widths[index]
            end = start + width * shape[0] * size * shape[2]
            plane = unpack_coefficients(body[start:end], width)
            words[:, :, index] = plane.reshape(shape)
            start = end
        return cls(parameters, key_id, dimension, words)


def _moduli(parameters: CkksParameters, level: int) -> Coefficients:
    return np.array(parameters.primes[:level], dtype=np.uint64)


def add_coefficients(ciphertexts: Sequence[CkksCiphertext]) -> Coefficients:
    """The encrypted sum: coefficientwise, modulo each prime.

    Raises
    ------
    CryptoError
        If they are not of one key, one parameter set and one shape.
    """
    if not ciphertexts:
        raise CryptoError("there is no ciphertext to add")
    first = ciphertexts[0]
    moduli = _moduli(first.parameters, first.level)[:, None]
    total = first.polynomials
    for other in ciphertexts[1:]:
        if (
            other.parameters != first.parameters
            or other.key_id != first.key_id
            or other.dimension != first.dimension
            or other.polynomials.shape != first.polynomials.shape
        ):
            raise CryptoError(
                "ciphertexts of different keys, parameters or dimensions cannot be "
                "added",
                remedy="every site must use the key of this run",
            )
        total = _reduced_sum(total, other.polynomials, moduli)
    return total


def added_modulo(
    one: Coefficients, other: Coefficients, primes: Sequence[int]
) -> Coefficients:
    """Reduced residues of shape (…, levels, n) added modulo their primes."""
    return _reduced_sum(one, other, np.array(primes, dtype=np.uint64)[:, None])


def _reduced_sum(
    one: Coefficients, other: Coefficients, moduli: Coefficients
) -> Coefficients:
    total = one + other
    # Both were below q < 2^63: subtracting q wraps to a huge value exactly when it
    # must not be subtracted.
    return np.asarray(np.minimum(total, total - moduli, out=total))

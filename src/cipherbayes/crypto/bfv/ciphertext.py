"""Encrypted vectors as values: their bytes, and their sum.

Adding BFV ciphertexts is adding their coefficients modulo q. It needs no key and
no encryption library, so whoever only adds (the server) imports neither. What is
on the wire are the coefficients alone, in a fixed number of bytes each: no
compression, no metadata of a library, one encoding for one ciphertext.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cipherbayes.crypto.bfv.parameters import MAX_DIMENSION, ParameterSet
from cipherbayes.crypto.wire.framing import Kind, decode_frame, encode_frame
from cipherbayes.crypto.wire.transcript import transcript
from cipherbayes.errors import CryptoError

Coefficients = NDArray[np.uint64]

KEY_ID_BYTES = 32

_HEADER = struct.Struct("<24s32sII")


def _low_bytes(words: Coefficients, width: int) -> NDArray[np.void]:
    """The ``width`` low bytes of each word, as opaque items of a shared view."""
    return np.ndarray((words.size,), f"V{width}", words, 0, (8,))


def public_key_id(frame: bytes) -> bytes:
    """Which public key: SHA-256 of its frame, known to parties without the library."""
    return hashlib.sha256(transcript("cipherbayes/public-key/2", frame)).digest()


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


@dataclass(frozen=True, eq=False)
class Ciphertext:
    """An encrypted vector of ``dimension`` words, or a sum of such vectors.

    Attributes
    ----------
    parameters
        The set it was encrypted with.
    key_id
        Which public key; a hash, see :class:`cipherbayes.crypto.bfv.scheme.PublicKey`.
    dimension
        Length of the vector.
    summands
        How many fresh encryptions were added; bounds the noise.
    polynomials
        Coefficients modulo q, shape ``(chunks, 2, n)``.

    Edge cases
    ----------
    Any pair of polynomials is a ciphertext of something: that it was made by an
    honest site with this key is what the site's signature says, not this class.
    """

    parameters: ParameterSet
    key_id: bytes
    dimension: int
    summands: int
    polynomials: Coefficients

    def __post_init__(self) -> None:
        expected = (self.parameters.chunks(self.dimension), 2, self.parameters.ring)
        if not 1 <= self.dimension <= MAX_DIMENSION:
            raise CryptoError(f"a ciphertext holds 1 to {MAX_DIMENSION} values")
        if not 1 <= self.summands <= self.parameters.max_summands:
            raise CryptoError(
                f"a sum of {self.summands} ciphertexts need not decrypt exactly",
                remedy=f"{self.parameters.id} allows {self.parameters.max_summands}",
            )
        if len(self.key_id) != KEY_ID_BYTES or self.polynomials.shape != expected:
            raise CryptoError("a ciphertext's parts do not belong together")
        largest = self.polynomials.max(axis=2)
        if int(largest.max()) >= self.parameters.modulus:
            raise CryptoError("a ciphertext has a coefficient that is not reduced")
        if not largest.all():
            # c_1 = 0 is an unencrypted value ("transparent"), c_0 = 0 a question
            # about the secret key; honest encryption makes neither.
            raise CryptoError("a ciphertext has an empty polynomial: not encrypted")
        self.polynomials.flags.writeable = False

    def to_bytes(self) -> bytes:
        """One CIPHERTEXT frame."""
        header = _HEADER.pack(
            self.parameters.id.encode(), self.key_id, self.dimension, self.summands
        )
        width = self.parameters.coefficient_bytes
        return encode_frame(
            Kind.CIPHERTEXT, header, pack_coefficients(self.polynomials, width)
        )

    @classmethod
    def from_bytes(
        cls,
        data: bytes | memoryview,
        *,
        parameters: ParameterSet,
        key_id: bytes,
        dimension: int,
        summands: int = 1,
    ) -> Ciphertext:
        """The ciphertext in a frame, if it is exactly of the kind that is expected.

        Every expectation is known to an honest receiver beforehand, so nothing in
        the bytes decides how much is allocated.

        Raises
        ------
        CryptoError
            If the bytes were damaged, or belong to other parameters, another key,
            another dimension or another number of summands.
        """
        payload = parameters.payload_bytes(dimension)
        body = decode_frame(data, Kind.CIPHERTEXT, limit=_HEADER.size + payload)
        if len(body) != _HEADER.size + payload:
            raise CryptoError(
                "a ciphertext does not have the size of the study's vectors",
                remedy="every party must use the same study and release",
            )
        name, key, length, count = _HEADER.unpack_from(body)
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
        if length != dimension or count != summands:
            raise CryptoError(
                f"a ciphertext of {length} values and {count} summands, expected "
                f"{dimension} and {summands}",
            )
        words = unpack_coefficients(body[_HEADER.size :], parameters.coefficient_bytes)
        shape = (parameters.chunks(dimension), 2, parameters.ring)
        return cls(parameters, key_id, dimension, summands, words.reshape(shape))


def add(ciphertexts: Sequence[Ciphertext]) -> Ciphertext:
    """The encrypted sum: coefficientwise, modulo q.

    Raises
    ------
    CryptoError
        If they are not of one key, one parameter set and one dimension, or so
        many that the sum need not decrypt exactly.
    """
    if not ciphertexts:
        raise CryptoError("there is no ciphertext to add")
    first = ciphertexts[0]
    modulus = np.uint64(first.parameters.modulus)
    total = first.polynomials.copy()
    for other in ciphertexts[1:]:
        if (
            other.parameters != first.parameters
            or other.key_id != first.key_id
            or other.dimension != first.dimension
        ):
            raise CryptoError(
                "ciphertexts of different keys, parameters or dimensions cannot be "
                "added",
                remedy="every site must use the key of this run",
            )
        total += other.polynomials
        # Both were below q < 2^63: subtracting q wraps to a huge value exactly
        # when it must not be subtracted.
        np.minimum(total, total - modulus, out=total)
    summands = sum(each.summands for each in ciphertexts)
    return Ciphertext(first.parameters, first.key_id, first.dimension, summands, total)

"""Encrypted vectors as values: their bytes, and their sum.

Adding BFV ciphertexts is adding their coefficients modulo q. It needs no key and
no encryption library, so whoever only adds (the server) imports neither. What is
on the wire are the coefficients alone, in a fixed number of bytes each: no
compression, no metadata of a library, one encoding for one ciphertext.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cipherbayes.crypto import rlwe
from cipherbayes.crypto.bfv.parameters import MAX_DIMENSION, ParameterSet
from cipherbayes.crypto.coefficients import (
    Coefficients,
    add_modulo,
    pack_coefficients,
    unpack_coefficients,
)
from cipherbayes.crypto.wire.framing import Kind, encode_frame
from cipherbayes.errors import CryptoError

# Set name and key id, then the length of the vector and the number of summands.
_HEADER = struct.Struct("<24s32sII")


def public_key_id(frame: bytes) -> bytes:
    """Which public key: SHA-256 of its frame, known to parties without the library."""
    return rlwe.hash_of_key("cipherbayes/public-key/2", frame)


@dataclass(frozen=True, eq=False)
class Ciphertext:
    """An encrypted vector of ``dimension`` words, or a sum of such vectors.

    Attributes
    ----------
    parameters
        The set it was encrypted with.
    key_id
        Which public key; a hash, see :class:`cipherbayes.crypto.bfv.keys.PublicKey`.
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
        if len(self.key_id) != rlwe.KEY_ID_BYTES or self.polynomials.shape != expected:
            raise rlwe.parts_do_not_fit()
        largest = np.maximum.reduce(self.polynomials, axis=2)
        reduced = max(largest.ravel().tolist()) < self.parameters.modulus
        rlwe.require_sound(largest, reduced=reduced)
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
        expected = _HEADER.size + parameters.payload_bytes(dimension)
        body = rlwe.ciphertext_body(data, expected, parameters, key_id)
        _, _, length, count = _HEADER.unpack_from(body)
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
        raise rlwe.nothing_to_add()
    first = ciphertexts[0]
    modulus = np.uint64(first.parameters.modulus)
    total = first.polynomials
    for other in ciphertexts[1:]:
        rlwe.require_addable(first, other)
        total = add_modulo(total, other.polynomials, modulus)
    summands = sum(each.summands for each in ciphertexts)
    return Ciphertext(first.parameters, first.key_id, first.dimension, summands, total)

"""What keys and ciphertexts of BFV and CKKS have in common, as frames and as values.

Both schemes rest on ring learning with errors: a key or a ciphertext is a few
polynomials, the name of a vetted parameter set and, in a ciphertext, the id of the key.
Nothing here needs an encryption library.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Protocol, TypeVar

from cipherbayes.crypto.coefficients import Coefficients
from cipherbayes.crypto.wire.framing import Kind, decode_frame
from cipherbayes.crypto.wire.transcript import transcript
from cipherbayes.errors import CryptoError

KEY_ID_BYTES = 32

_SET_NAME = struct.Struct("<24s")


class VettedSet(Protocol):
    """What a parameter set of either scheme has."""

    @property
    def id(self) -> str:
        """Its name in messages and files."""


class Encrypted(Protocol):
    """What a ciphertext of either scheme has."""

    @property
    def parameters(self) -> VettedSet:
        """The set it was made with."""

    @property
    def key_id(self) -> bytes:
        """Which public key."""

    @property
    def dimension(self) -> int:
        """Length of the vector."""

    @property
    def polynomials(self) -> Coefficients:
        """Its coefficients."""


AnySet = TypeVar("AnySet", bound=VettedSet)


# -- parameter sets ------------------------------------------------------------


def look_up(name: str, table: Mapping[str, AnySet], called: str) -> AnySet:
    """The vetted set of that name."""
    try:
        return table[name]
    except KeyError:
        raise CryptoError(
            f"the parameter set is not in the table of vetted {called}",
            remedy="install the same release at every party",
        ) from None


def set_name(parameters: VettedSet) -> bytes:
    """A set's name as frames hold it: 24 bytes."""
    return _SET_NAME.pack(parameters.id.encode())


# -- keys ----------------------------------------------------------------------


def split_set_name(body: memoryview) -> tuple[str, memoryview]:
    """The name of the set that a key's frame begins with, and what follows."""
    if len(body) < _SET_NAME.size:
        raise key_frame_too_short()
    name = bytes(body[: _SET_NAME.size]).rstrip(b"\0").decode("ascii", "replace")
    return name, body[_SET_NAME.size :]


def hash_of_key(label: str, frame: bytes) -> bytes:
    """The id of a public key: SHA-256 of its frame under the scheme's label."""
    return hashlib.sha256(transcript(label, frame)).digest()


def require_key_size(data: memoryview, expected: int) -> None:
    """Refuse a key with more or fewer bytes than its parameter set has."""
    if len(data) != expected:
        raise CryptoError(
            "a key does not have the size of its parameter set",
            remedy="restore the key, or make a new one",
        )


def key_frame_too_short() -> CryptoError:
    """A key's frame ends before its coefficients begin."""
    return CryptoError("a key frame is too short", remedy="restore the key")


def key_not_reduced() -> CryptoError:
    """A key has a coefficient that is no residue."""
    return CryptoError("a key has a coefficient that is not reduced")


# -- ciphertexts ---------------------------------------------------------------


def ciphertext_body(
    data: bytes | memoryview, expected: int, parameters: VettedSet, key_id: bytes
) -> memoryview:
    """The body of a CIPHERTEXT frame, if it is of this size, set and key.

    Its header begins with the set's name and the key's id. Every expectation is known
    to an honest receiver beforehand, so nothing in the bytes decides how much is
    allocated.
    """
    body = decode_frame(data, Kind.CIPHERTEXT, limit=expected)
    if len(body) != expected:
        raise CryptoError(
            "a ciphertext does not have the size of the study's vectors",
            remedy="every party must use the same study and release",
        )
    if body[: _SET_NAME.size] != set_name(parameters):
        raise CryptoError(
            "a ciphertext was made with other parameters",
            remedy=f"this run uses {parameters.id}",
        )
    if body[_SET_NAME.size : _SET_NAME.size + KEY_ID_BYTES] != key_id:
        raise CryptoError(
            "a ciphertext was made with another key",
            remedy="every run has its own key: fetch the one of this run",
        )
    return body


def require_sound(largest: Coefficients, *, reduced: bool) -> None:
    """Refuse coefficients that no honest encryption has.

    Parameters
    ----------
    largest
        The largest coefficient of each polynomial.
    reduced
        Whether all are below their modulus.
    """
    if not reduced:
        raise CryptoError("a ciphertext has a coefficient that is not reduced")
    if not largest.all():
        # c_1 = 0 is an unencrypted value ("transparent"), c_0 = 0 a question
        # about the secret key; honest encryption makes neither.
        raise CryptoError("a ciphertext has an empty polynomial: not encrypted")


def parts_do_not_fit() -> CryptoError:
    """A ciphertext's key id or polynomials have a shape that its set does not."""
    return CryptoError("a ciphertext's parts do not belong together")


def nothing_to_add() -> CryptoError:
    """A sum of no ciphertexts."""
    return CryptoError("there is no ciphertext to add")


def require_addable(first: Encrypted, other: Encrypted) -> None:
    """Refuse to add ciphertexts of different keys, sets or shapes."""
    if (
        other.parameters != first.parameters
        or other.key_id != first.key_id
        or other.dimension != first.dimension
        or other.polynomials.shape != first.polynomials.shape
    ):
        raise CryptoError(
            "ciphertexts of different keys, parameters or dimensions cannot be added",
            remedy="every site must use the key of this run",
        )

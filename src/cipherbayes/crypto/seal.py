"""Microsoft SEAL's objects as plain coefficients, through anonymous memory.

SEAL's binding reads and writes files only, checks nothing about their origin,
inflates whatever claims to be compressed and writes keys world-readable. So its
own format never leaves this module: objects are saved to a memory file, stripped
of SEAL's metadata and handed on as coefficients; what comes from outside reaches
SEAL only as coefficients between metadata that SEAL itself wrote here, for these
parameters.
"""

from __future__ import annotations

import fcntl
import math
import os
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Generic, NoReturn

import numpy as np
import pyarrow as pa
import tenseal.sealapi as sealapi

from cipherbayes.crypto.coefficients import Coefficients
from cipherbayes.crypto.memory_files import kept_file, memory_file
from cipherbayes.crypto.rlwe import AnySet
from cipherbayes.errors import CryptoError

# magic u16, header size u8, version u8 u8, compression u8, zero u16, size u64
_SEAL_HEADER = struct.Struct("<HBBBBHQ")
_COMPRESSION_AT = 5
_NONE, _ZLIB, _ZSTD = 0, 1, 2
_CODEC = pa.Codec("zstd")

SEAL_HEADER_BYTES = _SEAL_HEADER.size

_SET_PIPE_SIZE: int | None = getattr(fcntl, "F_SETPIPE_SZ", None)
_PIPE_SPARE = 2**14
_SEAL_SPARE = 2**10
_LARGEST_PIPE = 2**20
"""What Linux lets every user have."""


def not_understood() -> CryptoError:
    """SEAL wrote something else than the release that this was made for."""
    return CryptoError(
        "this build of SEAL writes a format that is not understood",
        remedy="install the tenseal release that the constraints file pins",
    )


def saved(thing: Any, most: int | None = None) -> bytes:
    """An object as SEAL saves it; only for what SEAL made here.

    Parameters
    ----------
    most
        Bytes that it has without compression, where that is known: a pipe may hold
        them then, which costs half of what a file in memory does.
    """
    data = None if most is None else _piped(thing, most)
    if data is None:
        with memory_file() as (path, descriptor):
            thing.save(path)
            data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    size = len(data)
    if size < _SEAL_HEADER.size or _SEAL_HEADER.unpack_from(data)[6] != size:
        raise not_understood()
    return data


def _piped(thing: Any, most: int) -> bytes | None:
    """What SEAL saves into a pipe; None where the system has none that holds it all.

    Nobody reads while SEAL writes, so the pipe must be large enough: each page of it
    takes what one write leaves in it, SEAL's stream writes 8 KiB at a time, and zstd
    makes what it cannot compress longer by less than a hundredth.
    """
    wanted = 2 * most + _PIPE_SPARE
    if _SET_PIPE_SIZE is None or wanted > _LARGEST_PIPE:
        return None
    try:
        reader, writer = os.pipe()
    except OSError:  # no more pipes for this user
        return None
    try:
        try:
            fcntl.fcntl(writer, _SET_PIPE_SIZE, wanted)
            thing.save(f"/proc/self/fd/{writer}")
        finally:
            os.close(writer)
        return os.read(reader, most + most // 100 + _SEAL_SPARE)
    except (OSError, RuntimeError):  # too many pipes, or SEAL writes to none
        return None
    finally:
        os.close(reader)


def inflate(data: bytes, size: int | None = None) -> bytes:
    """The members of a saved object; only ever SEAL's own output."""
    mode, body = data[_COMPRESSION_AT], memoryview(data)[_SEAL_HEADER.size :]
    if mode == _NONE:
        return bytes(body)
    if mode == _ZLIB:
        return zlib.decompress(body)
    if mode != _ZSTD:
        raise not_understood()
    if size is None:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            return bytes(stream.read())
    members: bytes = _CODEC.decompress(body, size, asbytes=True)
    return members


def uncompressed(data: bytes) -> bytes:
    """A saved object as SEAL saves it without compression."""
    members = inflate(data)
    fields = list(_SEAL_HEADER.unpack_from(data))
    fields[_COMPRESSION_AT - 1] = _NONE
    fields[6] = _SEAL_HEADER.size + len(members)
    return _SEAL_HEADER.pack(*fields) + members


def fill(thing: Any, content: bytes, context: Any, called: str) -> None:
    """Load an empty SEAL object from uncompressed content that was put together here.

    Parameters
    ----------
    called
        What the content is, for a refusal.
    """
    with memory_file(content) as (path, _):
        _load(thing, path, context, called)


def _load(thing: Any, path: str, context: Any, called: str) -> None:
    try:
        thing.load(context, path)
    except RuntimeError:  # pragma: no cover - everything was checked before
        raise CryptoError(f"SEAL refuses these {called}") from None
    if not sealapi.is_valid_for(thing, context):
        raise CryptoError(f"the {called} are not valid for the parameters")


@dataclass(frozen=True)
class SealLayout:
    """How SEAL stores one kind of object: fixed metadata, then the coefficients."""

    header: bytes
    metadata: bytes
    shape: tuple[int, ...]
    size: int

    @classmethod
    def learn(cls, example: Any, shape: tuple[int, ...]) -> SealLayout:
        """From an object SEAL made: all but the last coefficients is metadata."""
        data = uncompressed(saved(example))
        header, members = data[: _SEAL_HEADER.size], data[_SEAL_HEADER.size :]
        metadata = members[: len(members) - 8 * math.prod(shape)]
        return cls(header, metadata, shape, len(members))

    def read(self, thing: Any) -> Coefficients:
        """The coefficients of an object that SEAL made."""
        members = inflate(saved(thing, self.size), self.size)
        if len(members) != self.size or not members.startswith(self.metadata):
            raise not_understood()
        words = np.frombuffer(members, dtype="<u8", offset=len(self.metadata))
        return words.astype(np.uint64, copy=False).reshape(self.shape)

    def write(self, thing: Any, coefficients: Coefficients, context: Any) -> None:
        """Fill an empty SEAL object; SEAL sees no byte but these coefficients."""
        fill(thing, b"".join(self._parts(coefficients)), context, "coefficients")

    def rewrite(self, thing: Any, coefficients: Coefficients, context: Any) -> None:
        """The same, for what is no secret key: through a file that is kept."""
        if not hasattr(os, "memfd_create"):
            return self.write(thing, coefficients, context)
        path = kept_file().written(*self._parts(coefficients))
        return _load(thing, path, context, "coefficients")

    def _parts(self, coefficients: Coefficients) -> tuple[bytes, bytes, memoryview]:
        if coefficients.shape != self.shape:
            raise CryptoError("the coefficients do not have the shape of the object")
        words = np.ascontiguousarray(coefficients, dtype="<u8")
        return self.header, self.metadata, words.data.cast("B")


def seal_context(
    description: Any, ring: int, primes: tuple[int, ...], *, levels: bool
) -> Any:
    """SEAL's context for these parameters, at 128 bits of security.

    Parameters
    ----------
    description
        The scheme, and what belongs to it alone.
    levels
        Whether ciphertexts may drop primes.
    """
    description.set_poly_modulus_degree(ring)
    description.set_coeff_modulus([sealapi.Modulus(prime) for prime in primes])
    context = sealapi.SEALContext(description, levels, sealapi.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise CryptoError(
            f"SEAL refuses the parameters: {context.parameters_error_message()}"
        )
    return context


@dataclass(frozen=True)
class KeyLayouts:
    """SEAL's context for a parameter set, and how it stores the keys of that set."""

    context: Any
    public_key: SealLayout
    secret_key: SealLayout


def encryptor_of(scheme: KeyLayouts, coefficients: Coefficients) -> Any:
    """SEAL's encryptor with the public key of these coefficients."""
    if not coefficients.any(axis=2).all():
        raise CryptoError("a public key has an empty polynomial")
    key = sealapi.PublicKey()
    scheme.public_key.write(key, coefficients, scheme.context)
    return sealapi.Encryptor(scheme.context, key)


def decryptor_of(scheme: KeyLayouts, coefficients: Coefficients) -> Any:
    """SEAL's decryptor with the secret key of these coefficients."""
    key = sealapi.SecretKey()
    scheme.secret_key.write(key, coefficients, scheme.context)
    return sealapi.Decryptor(scheme.context, key)


class HeldSecretKey(Generic[AnySet]):
    """A secret key in memory: never printed, pickled or compared."""

    __slots__ = ("_coefficients", "_decryptor", "key_id", "parameters")

    def __init__(
        self,
        parameters: AnySet,
        scheme: KeyLayouts,
        key_id: bytes,
        coefficients: Coefficients,
    ) -> None:
        self.parameters = parameters
        self.key_id = key_id
        self._coefficients = coefficients
        self._decryptor = decryptor_of(scheme, coefficients)

    def __repr__(self) -> str:
        of = f"of {self.key_id.hex()[:16]}, {self.parameters.id}"
        return f"{type(self).__name__}({of})"

    def __reduce__(self) -> NoReturn:
        raise CryptoError("a secret key cannot be pickled")

"""Microsoft SEAL's objects as plain coefficients, through anonymous memory.

SEAL's binding reads and writes files only, checks nothing about their origin,
inflates whatever claims to be compressed and writes keys world-readable. So its
own format never leaves this module: objects are saved to a memory file, stripped
of SEAL's metadata and handed on as coefficients; what comes from outside reaches
SEAL only as coefficients between metadata that SEAL itself wrote here, for these
parameters.
"""

from __future__ import annotations

import math
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tenseal.sealapi as sealapi

from cipherbayes.crypto.bfv.ciphertext import Coefficients
from cipherbayes.crypto.bfv.parameters import ParameterSet
from cipherbayes.errors import CryptoError

# magic u16, header size u8, version u8 u8, compression u8, zero u16, size u64
_SEAL_HEADER = struct.Struct("<HBBBBHQ")
_COMPRESSION_AT = 5
_NONE, _ZLIB, _ZSTD = 0, 1, 2
_CODEC = pa.Codec("zstd")

_PROBLEM = "this build of SEAL writes a format that is not understood"
_REMEDY = "install the tenseal release that the constraints file pins"


@contextmanager
def memory_file(content: bytes = b"") -> Iterator[tuple[str, int]]:
    """A file in memory that no other user can open: its path and descriptor.

    Where the system has no ``memfd`` it is a 0600 file in a new 0700 folder.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("cipherbayes")
        try:
            _write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}", descriptor
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "object"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _write(descriptor, content)
            yield str(path), descriptor
        finally:
            os.close(descriptor)


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def saved(thing: Any) -> bytes:
    """An object as SEAL saves it; only for what SEAL made here."""
    with memory_file() as (path, descriptor):
        thing.save(path)
        size = os.fstat(descriptor).st_size
        data = os.pread(descriptor, size, 0)
    if len(data) < _SEAL_HEADER.size or _SEAL_HEADER.unpack_from(data)[6] != size:
        raise CryptoError(_PROBLEM, remedy=_REMEDY)
    return data


def inflate(data: bytes, size: int | None = None) -> bytes:
    """The members of a saved object; only ever SEAL's own output."""
    mode, body = data[_COMPRESSION_AT], memoryview(data)[_SEAL_HEADER.size :]
    if mode == _NONE:
        return bytes(body)
    if mode == _ZLIB:
        return zlib.decompress(body)
    if mode != _ZSTD:
        raise CryptoError(_PROBLEM, remedy=_REMEDY)
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


@dataclass(frozen=True)
class Layout:
    """How SEAL stores one kind of object: fixed metadata, then the coefficients."""

    header: bytes
    metadata: bytes
    shape: tuple[int, ...]
    size: int

    @classmethod
    def learn(cls, example: Any, shape: tuple[int, ...]) -> Layout:
        """From an object SEAL made: all but the last coefficients is metadata."""
        data = uncompressed(saved(example))
        header, members = data[: _SEAL_HEADER.size], data[_SEAL_HEADER.size :]
        metadata = members[: len(members) - 8 * math.prod(shape)]
        return cls(header, metadata, shape, len(members))

    def read(self, thing: Any) -> Coefficients:
        """The coefficients of an object that SEAL made."""
        members = inflate(saved(thing), self.size)
        if len(members) != self.size or not members.startswith(self.metadata):
            raise CryptoError(_PROBLEM, remedy=_REMEDY)
        words = np.frombuffer(members, dtype="<u8", offset=len(self.metadata))
        return words.astype(np.uint64, copy=False).reshape(self.shape)

    def write(self, thing: Any, coefficients: Coefficients, context: Any) -> None:
        """Fill an empty SEAL object; SEAL sees no byte but these coefficients."""
        if coefficients.shape != self.shape:
            raise CryptoError("the coefficients do not have the shape of the object")
        words = np.ascontiguousarray(coefficients, dtype="<u8")
        content = b"".join((self.header, self.metadata, words.tobytes()))
        with memory_file(content) as (path, _):
            try:
                thing.load(context, path)
            except RuntimeError:  # pragma: no cover - everything was checked before
                raise CryptoError("SEAL refuses these coefficients") from None
        if not sealapi.is_valid_for(thing, context):
            raise CryptoError("the coefficients are not valid for the parameters")


@dataclass(frozen=True)
class Scheme:
    """SEAL's context for a parameter set, with what depends on nothing else."""

    context: Any
    encoder: Any
    evaluator: Any
    ciphertext: Layout
    public_key: Layout
    secret_key: Layout


def scheme(parameters: ParameterSet) -> Scheme:
    """The context of a parameter set, built once per process."""
    return _scheme(parameters.ring, parameters.primes, parameters.plain_modulus)


@cache
def _scheme(ring: int, primes: tuple[int, ...], plain_modulus: int) -> Scheme:
    description = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.BFV)
    description.set_poly_modulus_degree(ring)
    description.set_coeff_modulus([sealapi.Modulus(prime) for prime in primes])
    description.set_plain_modulus(sealapi.Modulus(plain_modulus))
    context = sealapi.SEALContext(description, False, sealapi.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise CryptoError(
            f"SEAL refuses the parameters: {context.parameters_error_message()}"
        )
    data_primes = context.first_context_data().parms().coeff_modulus()
    if [prime.value() for prime in data_primes] != [primes[0]]:
        raise CryptoError("the parameters must leave one ciphertext prime")

    empty = sealapi.Ciphertext(context, context.first_parms_id(), 2)
    empty.resize(2)
    generator = sealapi.KeyGenerator(context)
    public_key = sealapi.PublicKey()
    generator.create_public_key(public_key)
    return Scheme(
        context,
        sealapi.BatchEncoder(context),
        sealapi.Evaluator(context),
        Layout.learn(empty, (2, ring)),
        Layout.learn(public_key, (2, len(primes), ring)),
        Layout.learn(generator.secret_key(), (len(primes), ring)),
    )

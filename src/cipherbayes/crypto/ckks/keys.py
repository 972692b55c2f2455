"""The CKKS key trio: a secret key for the CSP, public and evaluation keys for others.

Sites encrypt with the :class:`CkksPublicKey`; the server and replaying sites compute
with the :class:`EvaluationKeys`; only the CSP holds the :class:`CkksSecretKey`.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

import numpy as np
import tenseal.sealapi as sealapi

from cipherbayes.crypto.bfv.ciphertext import (
    Coefficients,
    pack_coefficients,
    unpack_coefficients,
)
from cipherbayes.crypto.ckks.parameters import CkksParameters, ckks_set
from cipherbayes.crypto.ckks.scheme import SwitchingKeyLayout, ckks_scheme
from cipherbayes.crypto.wire.framing import Kind, decode_frame, encode_frame
from cipherbayes.crypto.wire.transcript import transcript
from cipherbayes.errors import CryptoError

_NAME = struct.Struct("<24s")
_STEPS = struct.Struct("<H")
_STEP = struct.Struct("<I")
_MAX_STEPS = 32
MAX_SECRET_BYTES = 2**24
MAX_TRIO_BYTES = 2**28


def _pack(parameters: CkksParameters, coefficients: Coefficients) -> list[bytes]:
    """Coefficients of shape (…, primes, n), prime by prime."""
    return [
        pack_coefficients(coefficients[..., index, :], width)
        for index, width in enumerate(parameters.widths)
    ]


def _unpack(
    parameters: CkksParameters, data: memoryview, outer: tuple[int, ...]
) -> Coefficients:
    """The inverse of :func:`_pack`; refuses wrong sizes and unreduced numbers."""
    count = math.prod(outer) * parameters.ring
    if len(data) != count * sum(parameters.widths):
        raise CryptoError(
            "a key does not have the size of its parameter set",
            remedy="restore the key, or make a new one",
        )
    shape = (*outer, len(parameters.widths), parameters.ring)
    words = np.empty(shape, dtype=np.uint64)
    start = 0
    primes = (*parameters.primes, parameters.special)
    for index, (width, prime) in enumerate(zip(parameters.widths, primes, strict=True)):
        plane = unpack_coefficients(data[start : start + width * count], width)
        if int(plane.max()) >= prime:
            raise CryptoError("a key has a coefficient that is not reduced")
        words[..., index, :] = plane.reshape((*outer, parameters.ring))
        start += width * count
    return words


def _named(body: memoryview) -> tuple[CkksParameters, memoryview]:
    if len(body) < _NAME.size:
        raise CryptoError("a key frame is too short", remedy="restore the key")
    name = bytes(body[: _NAME.size]).rstrip(b"\0").decode("ascii", "replace")
    return ckks_set(name), body[_NAME.size :]


@dataclass(frozen=True, eq=False)
class CkksPublicKey:
    """What a site encrypts with.

    Attributes
    ----------
    parameters
        The set the key belongs to.
    key_id
        SHA-256 of its frame: names the key in ciphertexts.
    """

    parameters: CkksParameters
    key_id: bytes
    _coefficients: Coefficients = field(repr=False)
    _encryptor: Any = field(repr=False)

    @classmethod
    def of(
        cls, parameters: CkksParameters, coefficients: Coefficients
    ) -> CkksPublicKey:
        """The key with these coefficients."""
        if not coefficients.any(axis=2).all():
            raise CryptoError("a public key has an empty polynomial")
        parts = ckks_scheme(parameters)
        key = sealapi.PublicKey()
        parts.public_key.write(key, coefficients, parts.context)
        encryptor = sealapi.Encryptor(parts.context, key)
        frame = _public_frame(parameters, coefficients)
        text = transcript("cipherbayes/ckks-public-key/1", frame)
        return cls(parameters, hashlib.sha256(text).digest(), coefficients, encryptor)

    def encrypt_zero(self) -> Any:
        """A fresh encryption of zero, as a SEAL ciphertext: use it once.

        Formal guarantees
        -----------------
        IND-CPA under RLWE with the set's ring and modulus, 128 bits; randomness of
        the operating system.
        """
        cipher = sealapi.Ciphertext()
        self._encryptor.encrypt_zero(cipher)
        cipher.scale = 1.0
        return cipher

    def to_bytes(self) -> bytes:
        """One PUBLIC_KEY frame."""
        return _public_frame(self.parameters, self._coefficients)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> CkksPublicKey:
        """The key in a frame; whose it is, the CSP's signature must say."""
        body = decode_frame(data, Kind.PUBLIC_KEY, limit=MAX_SECRET_BYTES)
        parameters, rest = _named(body)
        return cls.of(parameters, _unpack(parameters, rest, (2,)))


def _public_frame(parameters: CkksParameters, coefficients: Coefficients) -> bytes:
    name = _NAME.pack(parameters.id.encode())
    return encode_frame(Kind.PUBLIC_KEY, name, *_pack(parameters, coefficients))


@cache
def _switching_layout(
    parameters: CkksParameters, steps: tuple[int, ...]
) -> SwitchingKeyLayout:
    """The layout of relinearisation keys (no steps) or of these rotations."""
    parts = ckks_scheme(parameters)
    generator = sealapi.KeyGenerator(parts.context)
    return SwitchingKeyLayout.learn(_make(generator, parameters, steps), parameters)


def _make(generator: Any, parameters: CkksParameters, steps: tuple[int, ...]) -> Any:
    if not steps:
        relin = sealapi.RelinKeys()
        generator.create_relin_keys(relin)
        return relin
    elements = [pow(3, step % parameters.slots, 2 * parameters.ring) for step in steps]
    galois = sealapi.GaloisKeys()
    generator.create_galois_keys(elements, galois)
    return galois


@dataclass(frozen=True, eq=False)
class EvaluationKeys:
    """What the server and replaying sites compute with; reveals nothing by itself.

    Attributes
    ----------
    parameters, key_id
        The set and the public key it belongs to.
    steps
        Rotations it allows, in slots (the literal circuit only).
    digest
        SHA-256 of its frame.
    """

    parameters: CkksParameters
    key_id: bytes
    steps: tuple[int, ...]
    digest: bytes
    relin: Any = field(repr=False)
    galois: Any = field(repr=False)
    _frame: bytes = field(repr=False)

    @classmethod
    def made_by(
        cls, generator: Any, public: CkksPublicKey, steps: tuple[int, ...]
    ) -> EvaluationKeys:
        """The keys that SEAL's generator of the secret key makes."""
        parameters = public.parameters
        wanted = [(), steps] if steps else [()]
        blocks = [
            _switching_layout(parameters, each).read(_make(generator, parameters, each))
            for each in wanted
        ]
        frame = encode_frame(
            Kind.EVALUATION_KEYS,
            _NAME.pack(parameters.id.encode()),
            public.key_id,
            _STEPS.pack(len(steps)),
            *(_STEP.pack(step) for step in steps),
            *_pack(parameters, np.concatenate(blocks)),
        )
        return cls.from_bytes(frame)

    def to_bytes(self) -> bytes:
        """One EVALUATION_KEYS frame."""
        return self._frame

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> EvaluationKeys:
        """The keys in a frame; whose they are, the CSP's signature must say."""
        body = decode_frame(data, Kind.EVALUATION_KEYS, limit=MAX_TRIO_BYTES)
        parameters, rest = _named(body)
        if len(rest) < 32 + _STEPS.size:
            raise CryptoError("a key frame is too short", remedy="restore the key")
        key_id, rest = bytes(rest[:32]), rest[32:]
        (count,) = _STEPS.unpack_from(rest)
        rest = rest[_STEPS.size :]
        if count > _MAX_STEPS or len(rest) < count * _STEP.size:
            raise CryptoError("evaluation keys allow an impossible set of rotations")
        steps = tuple(
            _STEP.unpack_from(rest, index * _STEP.size)[0] for index in range(count)
        )
        if any(not 0 < step < parameters.slots for step in steps) or list(
            steps
        ) != sorted(set(steps)):
            raise CryptoError("evaluation keys allow an impossible set of rotations")
        rest = rest[count * _STEP.size :]
        blocks = parameters.levels * (1 + len(steps))
        words = _unpack(parameters, rest, (blocks, 2))
        parts, split = ckks_scheme(parameters), parameters.levels
        relin, galois = sealapi.RelinKeys(), None
        layout = _switching_layout(parameters, ())
        layout.write(relin, words[:split], parts.context)
        if steps:
            galois = sealapi.GaloisKeys()
            layout = _switching_layout(parameters, steps)
            layout.write(galois, words[split:], parts.context)
        digest = hashlib.sha256(data).digest()
        return cls(parameters, key_id, steps, digest, relin, galois, bytes(data))


class CkksSecretKey:
    """What the CSP decrypts with. Never printed, pickled or compared."""

    __slots__ = ("_coefficients", "_decryptor", "key_id", "parameters")

    def __init__(
        self, parameters: CkksParameters, key_id: bytes, coefficients: Coefficients
    ) -> None:
        parts = ckks_scheme(parameters)
        key = sealapi.SecretKey()
        parts.secret_key.write(key, coefficients, parts.context)
        self.parameters = parameters
        self.key_id = key_id
        self._coefficients = coefficients
        self._decryptor = sealapi.Decryptor(parts.context, key)

    def decrypt(self, cipher: Any) -> Any:
        """The noisy plaintext in SEAL's form: for circuits, never for release."""
        plain = sealapi.Plaintext()
        self._decryptor.decrypt(cipher, plain)
        return plain

    def __repr__(self) -> str:
        return f"CkksSecretKey(of {self.key_id.hex()[:16]}, {self.parameters.id})"

    def __reduce__(self) -> NoReturn:
        raise CryptoError("a secret key cannot be pickled")


@dataclass(frozen=True, eq=False)
class CkksKeys:
    """The key trio of a run."""

    secret: CkksSecretKey
    public: CkksPublicKey
    evaluation: EvaluationKeys

    def to_secret_bytes(self) -> bytes:
        """All keys, framed: for :class:`~.key_folder.KeyFolder` only."""
        parameters = self.public.parameters
        evaluation = self.evaluation.to_bytes()
        return encode_frame(
            Kind.SECRET_KEY,
            _NAME.pack(parameters.id.encode()),
            *_pack(parameters, self.public._coefficients),
            *_pack(parameters, self.secret._coefficients),
            evaluation,
        )

    @classmethod
    def from_secret_bytes(cls, data: bytes | memoryview) -> CkksKeys:
        """The keys in a frame that only this user could have written."""
        body = decode_frame(data, Kind.SECRET_KEY, limit=MAX_TRIO_BYTES)
        parameters, rest = _named(body)
        block = parameters.ring * sum(parameters.widths)
        public = CkksPublicKey.of(
            parameters, _unpack(parameters, rest[: 2 * block], (2,))
        )
        secret = _unpack(parameters, rest[2 * block : 3 * block], ())
        evaluation = EvaluationKeys.from_bytes(rest[3 * block :])
        if evaluation.key_id != public.key_id:
            raise CryptoError("the keys of the trio do not belong together")
        return cls(CkksSecretKey(parameters, public.key_id, secret), public, evaluation)

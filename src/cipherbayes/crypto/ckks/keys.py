"""The CKKS key trio: a secret key for the CSP, public and evaluation keys for others.

Sites encrypt with the :class:`CkksPublicKey`; the server and replaying sites compute
with the :class:`EvaluationKeys`; only the CSP holds the :class:`CkksSecretKey`.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tenseal.sealapi as sealapi

from cipherbayes.crypto import rlwe
from cipherbayes.crypto.ckks.parameters import CkksParameters, ckks_set
from cipherbayes.crypto.ckks.scheme import (
    SwitchingKeyLayout,
    ckks_scheme,
    stored_keys,
)
from cipherbayes.crypto.coefficients import (
    Coefficients,
    are_reduced,
    pack_by_prime,
    unpack_by_prime,
)
from cipherbayes.crypto.seal import HeldSecretKey, encryptor_of
from cipherbayes.crypto.wire.framing import Kind, decode_frame, encode_frame
from cipherbayes.errors import CryptoError

_STEPS = struct.Struct("<H")
_STEP = struct.Struct("<I")
_MAX_STEPS = 32
MAX_SECRET_BYTES = 2**24
MAX_TRIO_BYTES = 2**28


def _unpack(
    parameters: CkksParameters, data: memoryview, outer: tuple[int, ...]
) -> Coefficients:
    """Coefficients of a key, prime by prime; refuses a wrong size or residue."""
    widths, ring = parameters.widths, parameters.ring
    rlwe.require_key_size(data, math.prod(outer) * ring * sum(widths))
    coefficients = unpack_by_prime(data, widths, outer, ring)
    if not are_reduced(coefficients, parameters.all_primes):
        raise rlwe.key_not_reduced()
    return coefficients


def _named(body: memoryview) -> tuple[CkksParameters, memoryview]:
    """The parameter set a key's frame begins with, and what follows."""
    name, rest = rlwe.split_set_name(body)
    return ckks_set(name), rest


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
        encryptor = encryptor_of(ckks_scheme(parameters), coefficients)
        frame = _public_frame(parameters, coefficients)
        key_id = rlwe.hash_of_key("cipherbayes/ckks-public-key/1", frame)
        return cls(parameters, key_id, coefficients, encryptor)

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
    pieces = pack_by_prime(coefficients, parameters.widths)
    return encode_frame(Kind.PUBLIC_KEY, rlwe.set_name(parameters), *pieces)


_LAYOUTS: dict[tuple[CkksParameters, tuple[int, ...]], SwitchingKeyLayout] = {}


def _switching_layout(
    parameters: CkksParameters, steps: tuple[int, ...], stored: bytes | None = None
) -> SwitchingKeyLayout:
    """The layout of relinearisation keys (no steps) or of these rotations.

    Learnt once, from keys that SEAL made here and ``stored``; if there are none, from
    others that serve nothing else.
    """
    if (parameters, steps) not in _LAYOUTS:
        if stored is None:
            generator = sealapi.KeyGenerator(ckks_scheme(parameters).context)
            stored = stored_keys(_make(generator, parameters, steps))
        _LAYOUTS[parameters, steps] = SwitchingKeyLayout.learn(stored, parameters)
    return _LAYOUTS[parameters, steps]


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
        made = {each: _make(generator, parameters, each) for each in {(), steps}}
        blocks = []
        for each in sorted(made):
            stored = stored_keys(made[each])
            layout = _switching_layout(parameters, each, stored)
            blocks.append(layout.read(stored))
        frame = encode_frame(
            Kind.EVALUATION_KEYS,
            rlwe.set_name(parameters),
            public.key_id,
            _STEPS.pack(len(steps)),
            *(_STEP.pack(step) for step in steps),
            *pack_by_prime(np.concatenate(blocks), parameters.widths),
        )
        galois = made[steps] if steps else None
        return cls._kept(parameters, public.key_id, steps, frame, made[()], galois)

    def to_bytes(self) -> bytes:
        """One EVALUATION_KEYS frame."""
        return self._frame

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> EvaluationKeys:
        """The keys in a frame; whose they are, the CSP's signature must say.

        Parties in one process that are given the same frame share one object, while
        any of them has it: the keys are large, and nobody changes them.
        """
        known = _OPENED.get(hashlib.sha256(data).digest())
        if known is not None:
            return known
        body = decode_frame(data, Kind.EVALUATION_KEYS, limit=MAX_TRIO_BYTES)
        parameters, rest = _named(body)
        if len(rest) < rlwe.KEY_ID_BYTES + _STEPS.size:
            raise rlwe.key_frame_too_short()
        key_id, rest = bytes(rest[: rlwe.KEY_ID_BYTES]), rest[rlwe.KEY_ID_BYTES :]
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
        return cls._kept(parameters, key_id, steps, bytes(data), relin, galois)

    @classmethod
    def _kept(
        cls,
        parameters: CkksParameters,
        key_id: bytes,
        steps: tuple[int, ...],
        frame: bytes,
        relin: Any,
        galois: Any,
    ) -> EvaluationKeys:
        """The keys, which the next party that opens the frame is given as well."""
        digest = hashlib.sha256(frame).digest()
        keys = cls(parameters, key_id, steps, digest, relin, galois, frame)
        _OPENED[digest] = keys
        return keys


_OPENED: WeakValueDictionary[bytes, EvaluationKeys] = WeakValueDictionary()
"""Evaluation keys that somebody in this process has, by the hash of their frame."""


class CkksSecretKey(HeldSecretKey[CkksParameters]):
    """What the CSP decrypts with. Never printed, pickled or compared."""

    __slots__ = ()

    def __init__(
        self, parameters: CkksParameters, key_id: bytes, coefficients: Coefficients
    ) -> None:
        super().__init__(parameters, ckks_scheme(parameters), key_id, coefficients)

    def decrypt(self, cipher: Any) -> Any:
        """The noisy plaintext in SEAL's form: for circuits, never for release."""
        plain = sealapi.Plaintext()
        self._decryptor.decrypt(cipher, plain)
        return plain


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
            rlwe.set_name(parameters),
            *pack_by_prime(self.public._coefficients, parameters.widths),
            *pack_by_prime(self.secret._coefficients, parameters.widths),
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

"""SEAL's CKKS context and the layouts of its objects, built once per process."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import tenseal.sealapi as sealapi

from cipherbayes.crypto.ckks.parameters import CkksParameters
from cipherbayes.crypto.ckks.transforming import Transform
from cipherbayes.crypto.coefficients import Coefficients, add_modulo, column
from cipherbayes.crypto.seal import (
    SEAL_HEADER_BYTES,
    KeyLayouts,
    SealLayout,
    fill,
    not_understood,
    saved,
    seal_context,
    uncompressed,
)
from cipherbayes.errors import CryptoError
from cipherbayes.typing import Integers

_KEYS_HEADER = struct.Struct("<32sQ")
_COUNT = struct.Struct("<Q")


@dataclass(frozen=True)
class CkksScheme(KeyLayouts):
    """SEAL's context for a set, with what depends on nothing else.

    Scales are ours to keep (:mod:`~cipherbayes.crypto.ckks.bounds`): every SEAL
    ciphertext here says 1, so that its metadata depends on size and level only.
    """

    parameters: CkksParameters
    encoder: Any
    evaluator: Any
    level_ids: dict[int, Any]
    _blank: Any
    _ciphertexts: dict[tuple[int, int], SealLayout] = field(default_factory=dict)

    def encrypted(self, zero: Any, plain: Integers) -> Coefficients:
        """SEAL's encryption of zero plus an integer polynomial, as coefficients."""
        total, moduli = self._transformed(plain), column(self.parameters.primes)
        self.evaluator.add_inplace(total, zero)
        first, second = self.coefficients(total, self.parameters.levels)
        # The 1 that _transformed has there is taken off.
        return np.stack((first, add_modulo(second, moduli - np.uint64(1), moduli)))

    def added(
        self, zero: Coefficients, plain: Integers, out: Coefficients | None = None
    ) -> Coefficients:
        """The same, of an encryption of zero whose coefficients are at hand."""
        out = np.empty_like(zero) if out is None else out
        words = self._transform(plain)
        if words is None:
            levels = self.parameters.levels
            words = self.coefficients(self._transformed(plain), levels)[0]
        add_modulo(zero[0], words, column(self.parameters.primes), out=out[0])
        out[1] = zero[1]
        return out

    @cached_property
    def _transform(self) -> Transform:
        return Transform(self.parameters.ring, self.parameters.primes)

    def _transformed(self, plain: Integers) -> Any:
        """A ciphertext that hides nothing: an integer polynomial, transformed, and 1.

        The polynomial is handed to SEAL modulo every prime, and SEAL transforms it. A
        second one that is zero SEAL refuses; of 1 the transform is 1 at every place.
        """
        primes = np.array(self.parameters.primes, dtype=np.int64)[:, None]
        words = np.zeros(self._untransformed.shape, dtype=np.uint64)
        if max(-int(plain.min()), int(plain.max())) < primes.min():
            words[0] = np.where(plain < 0, plain + primes, plain)
        else:
            words[0] = plain % primes
        words[1, :, 0] = 1
        cipher = sealapi.Ciphertext()
        self._untransformed.rewrite(cipher, words, self.context)
        self.evaluator.transform_to_ntt_inplace(cipher)
        return cipher

    @cached_property
    def _untransformed(self) -> SealLayout:
        """How SEAL stores a fresh ciphertext that is not transformed."""
        example = sealapi.Ciphertext()
        self.evaluator.transform_from_ntt(self._blank, example)
        shape = (2, self.parameters.levels, self.parameters.ring)
        return SealLayout.learn(example, shape)

    def ciphertext_layout(self, size: int, level: int) -> SealLayout:
        """How SEAL stores ``size`` polynomials modulo ``level`` primes."""
        key = (size, level)
        if key not in self._ciphertexts:
            example = sealapi.Ciphertext()
            self.evaluator.mod_switch_to(self._blank, self.level_ids[level], example)
            example.resize(self.context, self.level_ids[level], size)
            example.scale = 1.0
            shape = (size, level, self.parameters.ring)
            self._ciphertexts[key] = SealLayout.learn(example, shape)
        return self._ciphertexts[key]

    def load(self, coefficients: Coefficients) -> Any:
        """A SEAL ciphertext with these coefficients, shape (size, level, n)."""
        size, level, _ = coefficients.shape
        cipher = sealapi.Ciphertext()
        layout = self.ciphertext_layout(size, level)
        layout.rewrite(cipher, coefficients, self.context)
        return cipher

    def coefficients(self, cipher: Any, level: int) -> Coefficients:
        """The coefficients of a SEAL ciphertext whose scale says 1."""
        return self.ciphertext_layout(cipher.size(), level).read(cipher)


@cache
def ckks_scheme(parameters: CkksParameters) -> CkksScheme:
    """The context of a parameter set."""
    description = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.CKKS)
    ring, primes = parameters.ring, parameters.all_primes
    context = seal_context(description, ring, primes, levels=True)
    level_ids, data = {}, context.first_context_data()
    for level in range(parameters.levels, 0, -1):
        level_ids[level] = data.parms_id()
        data = data.next_context_data()
    generator = sealapi.KeyGenerator(context)
    public_key = sealapi.PublicKey()
    generator.create_public_key(public_key)
    blank = sealapi.Ciphertext()
    sealapi.Encryptor(context, public_key).encrypt_zero(blank)
    blank.scale = 1.0
    return CkksScheme(
        context,
        SealLayout.learn(public_key, (2, len(primes), ring)),
        SealLayout.learn(generator.secret_key(), (len(primes), ring)),
        parameters,
        sealapi.CKKSEncoder(context),
        sealapi.Evaluator(context),
        level_ids,
        blank,
    )


def stored_keys(keys: Any) -> bytes:
    """Relinearisation or rotation keys that SEAL made here, as it stores them."""
    return uncompressed(saved(keys))


@dataclass(frozen=True)
class SwitchingKeyLayout:
    """How SEAL stores relinearisation and rotation keys.

    A table of lists of public keys; between the blocks of coefficients lies
    metadata that depends on the parameters and on which entries exist only.
    """

    gaps: tuple[bytes, ...]
    shape: tuple[int, ...]

    @classmethod
    def learn(cls, members: bytes, parameters: CkksParameters) -> SwitchingKeyLayout:
        """From :func:`stored_keys` SEAL made: all but the blocks of coefficients."""
        block = 16 * (parameters.levels + 1) * parameters.ring
        _, entries = _KEYS_HEADER.unpack_from(members, SEAL_HEADER_BYTES)
        position = SEAL_HEADER_BYTES + _KEYS_HEADER.size
        gaps, start = [], 0
        for _ in range(entries):
            (keys,) = _COUNT.unpack_from(members, position)
            position += _COUNT.size
            for _ in range(keys):
                (length,) = _COUNT.unpack_from(members, position + 8)
                end = position + length
                gaps.append(members[start : end - block])
                position = start = end
        if start != len(members):
            gaps.append(members[start:])
        else:
            gaps.append(b"")
        shape = (len(gaps) - 1, 2, parameters.levels + 1, parameters.ring)
        return cls(tuple(gaps), shape)

    def read(self, data: bytes) -> Coefficients:
        """All coefficients of :func:`stored_keys`."""
        count, block = self.shape[0], 8 * int(np.prod(self.shape[1:]))
        words = np.empty((count, block // 8), dtype=np.uint64)
        position = 0
        for index, gap in enumerate(self.gaps):
            if data[position : position + len(gap)] != gap:
                raise not_understood()
            position += len(gap)
            if index < count:
                words[index] = np.frombuffer(data, "<u8", block // 8, position)
                position += block
        return words.reshape(self.shape)

    def write(self, thing: Any, coefficients: Coefficients, context: Any) -> None:
        """Fill empty keys; SEAL sees no byte but these coefficients."""
        if coefficients.shape != self.shape:
            raise CryptoError("the coefficients do not have the shape of the keys")
        words = np.ascontiguousarray(coefficients, dtype="<u8")
        parts = [self.gaps[0]]
        for block, gap in zip(words, self.gaps[1:], strict=True):
            parts += [block.tobytes(), gap]
        fill(thing, b"".join(parts), context, "keys")

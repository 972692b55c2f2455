"""The circuits' operations on SEAL ciphertexts, with scales kept on our side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tenseal.sealapi as sealapi

from cipherbayes.crypto.ckks.bounds import integer_weight
from cipherbayes.crypto.ckks.scheme import CkksScheme
from cipherbayes.typing import Floats


@dataclass(frozen=True)
class ScaledCiphertext:
    """A SEAL ciphertext with its scale and its level (number of primes)."""

    cipher: Any
    scale: float
    level: int


class SealArithmetic:
    """:class:`~cipherbayes.crypto.ckks.bounds.Arithmetic` on ciphertexts.

    ``evaluator`` is SEAL's, or one around it that counts what it does. Every operation
    is exact integer arithmetic modulo the primes, so equal inputs give equal outputs on
    every machine.
    """

    def __init__(
        self, scheme: CkksScheme, relin_keys: Any, evaluator: Any = None
    ) -> None:
        self._scheme = scheme
        self._keys = relin_keys
        self._evaluator = scheme.evaluator if evaluator is None else evaluator

    def _constant(self, value: float, level: int) -> Any:
        plain = sealapi.Plaintext()
        encode = self._scheme.encoder.encode
        encode(float(value), self._scheme.level_ids[level], 1.0, plain)
        return plain

    def add(self, a: ScaledCiphertext, b: ScaledCiphertext) -> ScaledCiphertext:
        out = sealapi.Ciphertext()
        self._evaluator.add(a.cipher, b.cipher, out)
        return ScaledCiphertext(out, a.scale, a.level)

    def add_constant(self, a: ScaledCiphertext, value: float) -> ScaledCiphertext:
        if value == 0.0:
            return a
        out = sealapi.Ciphertext()
        plain = self._constant(value * a.scale, a.level)
        self._evaluator.add_plain(a.cipher, plain, out)
        return ScaledCiphertext(out, a.scale, a.level)

    def encoded(self, slots: Floats, scale: float, level: int) -> Any:
        """A value for every slot, as :meth:`add_encoded` takes it."""
        plain = sealapi.Plaintext()
        encode = self._scheme.encoder.encode
        encode(slots.tolist(), self._scheme.level_ids[level], scale, plain)
        plain.scale = 1.0
        return plain

    def add_encoded(self, a: ScaledCiphertext, plain: Any) -> ScaledCiphertext:
        """Add a value to every slot, encoded at this scale and level."""
        out = sealapi.Ciphertext()
        self._evaluator.add_plain(a.cipher, plain, out)
        return ScaledCiphertext(out, a.scale, a.level)

    def add_vector(self, a: ScaledCiphertext, slots: Floats) -> ScaledCiphertext:
        """Add a value to every slot."""
        return self.add_encoded(a, self.encoded(slots, a.scale, a.level))

    def times(self, a: ScaledCiphertext, factor: int) -> ScaledCiphertext:
        if factor == 1:
            return a
        return ScaledCiphertext(self._multiple(a, factor), a.scale * factor, a.level)

    def weighted(
        self, a: ScaledCiphertext, weight: float, scale: float
    ) -> ScaledCiphertext:
        factor = integer_weight(a.scale, weight, scale)
        return ScaledCiphertext(self._multiple(a, factor), scale, a.level)

    def _multiple(self, a: ScaledCiphertext, factor: int) -> Any:
        out = sealapi.Ciphertext()
        plain = self._constant(factor, a.level)
        self._evaluator.multiply_plain(a.cipher, plain, out)
        return out

    def multiply(self, a: ScaledCiphertext, b: ScaledCiphertext) -> ScaledCiphertext:
        out = sealapi.Ciphertext()
        self._evaluator.multiply(a.cipher, b.cipher, out)
        return ScaledCiphertext(out, a.scale * b.scale, a.level)

    def square(self, a: ScaledCiphertext) -> ScaledCiphertext:
        out = sealapi.Ciphertext()
        self._evaluator.square(a.cipher, out)
        return ScaledCiphertext(out, a.scale * a.scale, a.level)

    def relinearise(self, a: ScaledCiphertext) -> ScaledCiphertext:
        out = sealapi.Ciphertext()
        self._evaluator.relinearize(a.cipher, self._keys, out)
        return ScaledCiphertext(out, a.scale, a.level)

    def rescale(self, a: ScaledCiphertext) -> ScaledCiphertext:
        out = sealapi.Ciphertext()
        self._evaluator.rescale_to_next(a.cipher, out)
        out.scale = 1.0
        prime = self._scheme.parameters.primes[a.level - 1]
        return ScaledCiphertext(out, a.scale / prime, a.level - 1)

    def drop(self, a: ScaledCiphertext, level: int) -> ScaledCiphertext:
        out = sealapi.Ciphertext()
        target = self._scheme.level_ids[level]
        self._evaluator.mod_switch_to(a.cipher, target, out)
        return ScaledCiphertext(out, a.scale, level)


def fill_slots(values: Floats, slots: int) -> Floats:
    """The vector again and again until the slots are full."""
    return np.resize(values, slots)

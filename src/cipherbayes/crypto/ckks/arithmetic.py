"""The circuits' operations on SEAL ciphertexts, with scales kept on our side."""

from __future__ import annotations

from collections.abc import Callable
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
    every machine. A result lies where the first operand lay, which is used up by it:
    SEAL would copy it otherwise, and fill the new place with zeros before.

    Attributes
    ----------
    constants
        Constants that a :class:`Rehearsal` encoded, by value and level.
    """

    def __init__(
        self, scheme: CkksScheme, relin_keys: Any, evaluator: Any = None
    ) -> None:
        self._scheme = scheme
        self._keys = relin_keys
        self._evaluator = scheme.evaluator if evaluator is None else evaluator
        self.constants: dict[tuple[float, int], Any] = {}

    def _constant(self, value: float, level: int) -> Any:
        known = self.constants.get((value, level))
        return self._encoded_constant(value, level) if known is None else known

    def _encoded_constant(self, value: float, level: int) -> Any:
        plain = sealapi.Plaintext()
        encode = self._scheme.encoder.encode
        encode(float(value), self._scheme.level_ids[level], 1.0, plain)
        return plain

    def copy(self, a: ScaledCiphertext) -> ScaledCiphertext:
        return self.drop(a, a.level)

    def add(self, a: ScaledCiphertext, b: ScaledCiphertext) -> ScaledCiphertext:
        self._evaluator.add_inplace(a.cipher, b.cipher)
        return a

    def add_constant(self, a: ScaledCiphertext, value: float) -> ScaledCiphertext:
        if value == 0.0:
            return a
        return self.add_encoded(a, self._constant(value * a.scale, a.level))

    def encoded(self, slots: Floats, scale: float, level: int) -> Any:
        """A value for every slot, as :meth:`add_encoded` takes it."""
        plain = sealapi.Plaintext()
        encode = self._scheme.encoder.encode
        encode(slots.tolist(), self._scheme.level_ids[level], scale, plain)
        plain.scale = 1.0
        return plain

    def add_encoded(self, a: ScaledCiphertext, plain: Any) -> ScaledCiphertext:
        """Add a value to every slot, encoded at this scale and level."""
        self._evaluator.add_plain_inplace(a.cipher, plain)
        return a

    def add_vector(self, a: ScaledCiphertext, slots: Floats) -> ScaledCiphertext:
        """Add a value to every slot."""
        return self.add_encoded(a, self.encoded(slots, a.scale, a.level))

    def times(self, a: ScaledCiphertext, factor: int) -> ScaledCiphertext:
        return self._multiple(a, factor, a.scale * factor)

    def weighted(
        self, a: ScaledCiphertext, weight: float, scale: float
    ) -> ScaledCiphertext:
        return self._multiple(a, integer_weight(a.scale, weight, scale), scale)

    def _multiple(
        self, a: ScaledCiphertext, factor: int, scale: float
    ) -> ScaledCiphertext:
        if factor != 1:
            plain = self._constant(factor, a.level)
            self._evaluator.multiply_plain_inplace(a.cipher, plain)
        return ScaledCiphertext(a.cipher, scale, a.level)

    def multiply(self, a: ScaledCiphertext, b: ScaledCiphertext) -> ScaledCiphertext:
        self._evaluator.multiply_inplace(a.cipher, b.cipher)
        return ScaledCiphertext(a.cipher, a.scale * b.scale, a.level)

    def square(self, a: ScaledCiphertext) -> ScaledCiphertext:
        self._evaluator.square_inplace(a.cipher)
        return ScaledCiphertext(a.cipher, a.scale * a.scale, a.level)

    def relinearise(self, a: ScaledCiphertext) -> ScaledCiphertext:
        self._evaluator.relinearize_inplace(a.cipher, self._keys)
        return a

    def rescale(self, a: ScaledCiphertext) -> ScaledCiphertext:
        self._evaluator.rescale_to_next_inplace(a.cipher)
        a.cipher.scale = 1.0
        prime = self._scheme.parameters.primes[a.level - 1]
        return ScaledCiphertext(a.cipher, a.scale / prime, a.level - 1)

    def drop(self, a: ScaledCiphertext, level: int) -> ScaledCiphertext:
        out = sealapi.Ciphertext()
        if level < a.level:
            # What SEAL does for several levels begins with a copy of all of them.
            self._evaluator.mod_switch_to_next(a.cipher, out)
            if level < a.level - 1:
                self._evaluator.mod_switch_to_inplace(
                    out, self._scheme.level_ids[level]
                )
        else:
            self._evaluator.mod_switch_to(a.cipher, self._scheme.level_ids[level], out)
        return ScaledCiphertext(out, a.scale, level)


class _IdleEvaluator:
    """Takes SEAL's evaluator's place and computes nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Rehearsal(SealArithmetic):
    """Runs a circuit on levels and scales alone, and keeps the constants it meets."""

    def __init__(self, scheme: CkksScheme) -> None:
        super().__init__(scheme, None, _IdleEvaluator())

    def node(self, scale: float, level: int) -> ScaledCiphertext:
        """What stands for a ciphertext."""
        return ScaledCiphertext(sealapi.Ciphertext(), scale, level)

    def _constant(self, value: float, level: int) -> Any:
        plain = self._encoded_constant(value, level)
        self.constants[value, level] = plain
        return plain


def fill_slots(values: Floats, slots: int) -> Floats:
    """The vector again and again until the slots are full."""
    return np.resize(values, slots)

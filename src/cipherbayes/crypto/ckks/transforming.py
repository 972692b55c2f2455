"""Integer polynomials in SEAL's transformed order, modulo every prime of a set.

SEAL transforms ciphertexts and plaintexts. A ciphertext has a second polynomial, which
costs as much as the first and tells nothing here; a plaintext has none, but its
coefficients lie below a plain modulus, which only BFV has. So there is a BFV context of
the same primes, used for nothing else: no key, no encryption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np
import tenseal.sealapi as sealapi

from cipherbayes.crypto.coefficients import Coefficients
from cipherbayes.crypto.seal import SealLayout, seal_context
from cipherbayes.typing import Integers

PLAIN_MODULUS = 2**60 - 2**24
"""T: SEAL allows 60 bits, and is fastest where all primes of a context are larger."""
LARGEST = PLAIN_MODULUS // 2
"""Coefficients below this size are transformed; SEAL takes k for k - T from T/2 on."""


def groups_of(primes: Sequence[int]) -> list[tuple[int, ...]]:
    """The primes that begin a set and are above T, all but the last; then the others.

    Modulo the former SEAL has nothing to reduce. The latter are at least two, unless
    there is one prime only, so that their product is above T, as BFV asks for.
    """
    above = list(takewhile(lambda prime: prime > PLAIN_MODULUS, primes))
    split = len(above) if len(above) == len(primes) else max(0, len(above) - 1)
    groups = tuple(primes[:split]), tuple(primes[split:])
    return [group for group in groups if group]


@dataclass(frozen=True)
class GroupTransform:
    """Polynomials modulo a few primes, transformed by SEAL."""

    ring: int
    primes: tuple[int, ...]

    @cached_property
    def _context(self) -> Any:
        description = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.BFV)
        description.set_plain_modulus(sealapi.Modulus(PLAIN_MODULUS))
        return seal_context(description, self.ring, self.primes, levels=False)

    @cached_property
    def _evaluator(self) -> Any:
        return sealapi.Evaluator(self._context)

    @cached_property
    def _layouts(self) -> tuple[SealLayout, SealLayout]:
        """How SEAL stores a plaintext, before and after it is transformed."""
        example = sealapi.Plaintext()
        example.resize(self.ring)
        before = SealLayout.learn(example, (self.ring,))
        self._transform(example)
        return before, SealLayout.learn(example, (len(self.primes), self.ring))

    def _transform(self, plain: Any) -> None:
        # All primes: SEAL keeps the last one of a context for keys otherwise.
        everything = self._context.key_parms_id()
        self._evaluator.transform_to_ntt_inplace(plain, everything)

    def __call__(self, words: Coefficients) -> Coefficients:
        """Coefficients modulo T, taken for the integers from -T/2 to T/2."""
        before, after = self._layouts
        plain = sealapi.Plaintext()
        before.rewrite(plain, words, self._context)
        self._transform(plain)
        return after.read(plain)


@dataclass(frozen=True)
class Transform:
    """Integer polynomials into SEAL's transformed order, modulo every prime."""

    ring: int
    primes: tuple[int, ...]

    @cached_property
    def _groups(self) -> list[GroupTransform]:
        return [GroupTransform(self.ring, group) for group in groups_of(self.primes)]

    def __call__(self, plain: Integers) -> Coefficients | None:
        """Shape (primes, n); None where a coefficient is too large.

        Formal guarantees
        -----------------
        Exactly the residues of the polynomial's values: what SEAL makes of a ciphertext
        that has this polynomial.
        """
        if not (int(plain.min()) > -LARGEST and int(plain.max()) < LARGEST):
            return None
        words = np.where(plain < 0, plain + PLAIN_MODULUS, plain).view(np.uint64)
        return np.concatenate([group(words) for group in self._groups])

"""Algorithms 4 and 5 of the paper under CKKS, as printed: **not private**.

What they decrypt is exact (N, column sums, variances, the largest norm), and the
masks of Algorithm 5 have a common factor. They are here to reproduce the paper.

*Standardisation* (Algorithm 4): Σ_k Enc(n_k), Σ_k Enc(n_k) Enc(x̄_k) with one
homomorphic product each, and Σ_k Enc(S_k).

*Normalisation* (Algorithm 5): with Enc(m_k) at scale Δ the server computes
(Δ m_k + r₁) r₂ for primes r₁ of 50 and r₂ of 25 bits at most, the CSP returns an
encryption of the largest, and the server takes the masks off again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import tenseal.sealapi as sealapi

from cipherbayes.crypto.ckks.arithmetic import ScaledCiphertext, SealArithmetic
from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext, add_coefficients
from cipherbayes.crypto.ckks.keys import CkksPublicKey, CkksSecretKey, EvaluationKeys
from cipherbayes.crypto.ckks.parameters import CkksParameters, ckks_set
from cipherbayes.crypto.ckks.scheme import ckks_scheme
from cipherbayes.errors import CryptoError
from cipherbayes.typing import Floats

SCALE = 2.0**45
LARGEST = 2.0**20
"""Values are below this: Δ · value then has room below any modulus used here."""
PARAMETERS: CkksParameters = ckks_set("ckks-16384-literal")
FIRST_BITS, SECOND_BITS = 50, 25
UNMASK_BITS = 20
"""Extra bits of 1/r₂, which is below 2⁻²⁴."""


def encrypt_values(public: CkksPublicKey, values: Floats) -> CkksCiphertext:
    """A vector of up to n/2 numbers at scale Δ."""
    if values.size > PARAMETERS.slots or np.abs(values).max() > LARGEST:
        raise CryptoError("too many or too large values for the precomputation")
    return _encrypted(public, values, SCALE)


def _encrypted(public: CkksPublicKey, values: Floats, scale: float) -> CkksCiphertext:
    scheme = ckks_scheme(PARAMETERS)
    plain, out = sealapi.Plaintext(), sealapi.Ciphertext()
    slots = np.zeros(PARAMETERS.slots)
    slots[: values.size] = values
    scheme.encoder.encode(slots.tolist(), scale, plain)
    plain.scale = 1.0
    scheme.evaluator.add_plain(public.encrypt_zero(), plain, out)
    words = scheme.coefficients(out, PARAMETERS.levels)
    return CkksCiphertext(PARAMETERS, public.key_id, values.size, words[None])


def decrypt_values(
    secret: CkksSecretKey, ciphertext: CkksCiphertext, scale: float
) -> Floats:
    """The vector as it decrypts: as printed, it is released like that."""
    scheme = ckks_scheme(PARAMETERS)
    plain = secret.decrypt(scheme.load(ciphertext.polynomials[0]))
    plain.scale = 1.0
    slots = np.asarray(scheme.encoder.decode_double(plain))
    return np.asarray(slots[: ciphertext.dimension] / scale)


def total(ciphertexts: Sequence[CkksCiphertext]) -> CkksCiphertext:
    """The encrypted sum."""
    first = ciphertexts[0]
    words = add_coefficients(ciphertexts)
    return CkksCiphertext(first.parameters, first.key_id, first.dimension, words)


PRODUCT_SCALE = SCALE * SCALE / PARAMETERS.primes[-1]


def weighted_total(
    counts: Sequence[CkksCiphertext],
    means: Sequence[CkksCiphertext],
    keys: EvaluationKeys,
) -> CkksCiphertext:
    """Σ_k Enc(n_k) · Enc(x̄_k), n_k in every slot; at ``PRODUCT_SCALE``."""
    a, scheme = _arithmetic(keys), ckks_scheme(PARAMETERS)
    products = []
    for count, mean in zip(counts, means, strict=True):
        product = a.multiply(_loaded(scheme, count), _loaded(scheme, mean))
        products.append(_stored(a.rescale(a.relinearise(product)), mean))
    return total(products)


class MaskedMaximum:
    """The server's side of Algorithm 5, with its two random numbers."""

    def __init__(self, keys: EvaluationKeys) -> None:
        self._keys = keys
        self._first = 1 + secrets.randbelow(2**FIRST_BITS)
        self._second = 2 ** (SECOND_BITS - 1) + secrets.randbelow(
            2 ** (SECOND_BITS - 1)
        )

    def masked(self, maxima: Sequence[CkksCiphertext]) -> list[CkksCiphertext]:
        """(Δ m_k + r₁) r₂ for every site, in random order."""
        a, scheme = _arithmetic(self._keys), ckks_scheme(PARAMETERS)
        hidden = []
        for each in maxima:
            shifted = a.add_constant(_loaded(scheme, each), self._first / SCALE)
            multiple = a.times(shifted, self._second)
            hidden.append(_stored(multiple, each))
        secrets.SystemRandom().shuffle(hidden)
        return hidden

    def unmasked(self, largest: CkksCiphertext) -> CkksCiphertext:
        """r₂⁻¹ · Enc(M) − r₁; M is encrypted at ``MASKED_SCALE``."""
        a, scheme = _arithmetic(self._keys), ckks_scheme(PARAMETERS)
        node = ScaledCiphertext(
            scheme.load(largest.polynomials[0]), MASKED_SCALE, largest.level
        )
        target = node.scale * PARAMETERS.primes[-1] * 2.0**UNMASK_BITS
        divided = a.rescale(a.weighted(node, 1.0 / self._second, target))
        return _stored(a.add_constant(divided, -self._first / SCALE), largest)


MASKED_SCALE = SCALE
UNMASKED_SCALE = MASKED_SCALE * 2.0**UNMASK_BITS


def largest_masked(
    secret: CkksSecretKey, public: CkksPublicKey, masked: Sequence[CkksCiphertext]
) -> CkksCiphertext:
    """The CSP's side: the largest of the masked values, encrypted anew."""
    values = [float(decrypt_values(secret, each, SCALE)[0]) for each in masked]
    return _encrypted(public, np.array([max(values)]), MASKED_SCALE)


def _arithmetic(keys: EvaluationKeys) -> SealArithmetic:
    return SealArithmetic(ckks_scheme(PARAMETERS), keys.relin)


def _loaded(scheme: Any, ciphertext: CkksCiphertext) -> ScaledCiphertext:
    return ScaledCiphertext(
        scheme.load(ciphertext.polynomials[0]), SCALE, ciphertext.level
    )


def _stored(node: ScaledCiphertext, like: CkksCiphertext) -> CkksCiphertext:
    words = ckks_scheme(PARAMETERS).coefficients(node.cipher, node.level)
    return CkksCiphertext(PARAMETERS, like.key_id, like.dimension, words[None])

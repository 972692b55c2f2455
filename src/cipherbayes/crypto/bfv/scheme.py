"""SEAL's BFV context and the layouts of its objects, built once per process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import tenseal.sealapi as sealapi

from cipherbayes.crypto.bfv.parameters import ParameterSet
from cipherbayes.crypto.seal import KeyLayouts, SealLayout, seal_context
from cipherbayes.errors import CryptoError


@dataclass(frozen=True)
class BfvScheme(KeyLayouts):
    """SEAL's context for a parameter set, with what depends on nothing else."""

    evaluator: Any
    plaintext: SealLayout
    ciphertext: SealLayout


def bfv_scheme(parameters: ParameterSet) -> BfvScheme:
    """The context of a parameter set; sets that differ in limbs only share it."""
    return _scheme(parameters.ring, parameters.primes, parameters.plain_modulus)


@cache
def _scheme(ring: int, primes: tuple[int, ...], plain_modulus: int) -> BfvScheme:
    description = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.BFV)
    description.set_plain_modulus(sealapi.Modulus(plain_modulus))
    context = seal_context(description, ring, primes, levels=False)
    data_primes = context.first_context_data().parms().coeff_modulus()
    if [prime.value() for prime in data_primes] != [primes[0]]:
        raise CryptoError("the parameters must leave one ciphertext prime")
    empty = sealapi.Ciphertext(context, context.first_parms_id(), 2)
    empty.resize(2)
    generator = sealapi.KeyGenerator(context)
    public_key = sealapi.PublicKey()
    generator.create_public_key(public_key)
    return BfvScheme(
        context,
        SealLayout.learn(public_key, (2, len(primes), ring)),
        SealLayout.learn(generator.secret_key(), (len(primes), ring)),
        sealapi.Evaluator(context),
        SealLayout.learn(sealapi.Plaintext(ring), (ring,)),
        SealLayout.learn(empty, (2, ring)),
    )

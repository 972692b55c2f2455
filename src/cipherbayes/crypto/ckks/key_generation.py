"""Drawing a key trio: random, and short enough for the noise bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tenseal.sealapi as sealapi

from cipherbayes.crypto.ckks.error_sizes import key_is_short
from cipherbayes.crypto.ckks.keys import (
    CkksKeys,
    CkksPublicKey,
    CkksSecretKey,
    EvaluationKeys,
)
from cipherbayes.crypto.ckks.parameters import CkksParameters
from cipherbayes.crypto.ckks.scheme import ckks_scheme
from cipherbayes.crypto.coefficients import Coefficients
from cipherbayes.crypto.seal import decryptor_of
from cipherbayes.errors import CryptoError
from cipherbayes.typing import Floats

_KEY_DRAWS = 1000


def generate_ckks_keys(
    parameters: CkksParameters, steps: Sequence[int] = (), dimension: int | None = None
) -> CkksKeys:
    """A fresh key trio from the operating system's randomness.

    Parameters
    ----------
    parameters
        The set.
    steps
        Rotations that the evaluation keys allow.
    dimension
        Length of the vectors: their copies decide which mean sizes the secret key
        must keep to. One value in each slot if not given.

    Formal guarantees
    -----------------
    The secret key is drawn again until it keeps to the bounds of
    :mod:`~cipherbayes.crypto.ckks.error_sizes`, which noise bounds rely on. Most
    keys do, so this costs less than a bit of security.
    """
    parts = ckks_scheme(parameters)
    for _ in range(_KEY_DRAWS):
        generator = sealapi.KeyGenerator(parts.context)
        secret = parts.secret_key.read(generator.secret_key())
        slots = key_slots(parameters, secret)
        if key_is_short(parameters, slots, dimension or parameters.slots):
            break
    else:  # pragma: no cover - probability below 2^-300
        raise CryptoError("no short secret key was found")
    key = sealapi.PublicKey()
    generator.create_public_key(key)
    public = CkksPublicKey.of(parameters, parts.public_key.read(key))
    return CkksKeys(
        CkksSecretKey(parameters, public.key_id, secret),
        public,
        EvaluationKeys.made_by(generator, public, tuple(sorted(set(steps)))),
    )


def key_slots(parameters: CkksParameters, secret: Coefficients) -> Floats:
    """|σ_j(s)| in every slot, from SEAL's transformed secret key.

    SEAL's number-theoretic transform modulo q₀ is undone by SEAL itself: the key is
    decrypted out of the ciphertext (0, 1), whose plaintext is s.
    """
    parts = ckks_scheme(parameters)
    one = np.zeros((2, 1, parameters.ring), dtype=np.uint64)
    one[1] = 1
    cipher, plain = parts.load(one), sealapi.Plaintext()
    decryptor_of(parts, secret).decrypt(cipher, plain)
    plain.scale = 1.0
    slots = np.asarray(parts.encoder.decode_complex(plain))
    return np.asarray(np.abs(slots), dtype=np.float64)

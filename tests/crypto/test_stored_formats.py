"""Keys and ciphertexts of a running study stay readable: their bytes never change.

Each hash is of the whole frame of an object with made-up coefficients. A change here
breaks runs that were begun with an older release, and needs a new format version.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from cipherbayes.crypto.bfv import keys as bfv
from cipherbayes.crypto.bfv.ciphertext import Ciphertext
from cipherbayes.crypto.bfv.parameters import PARAMETER_SETS
from cipherbayes.crypto.ckks import keys as ckks
from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.crypto.ckks.parameters import CKKS_SETS, CkksParameters
from cipherbayes.crypto.wire.framing import Kind, encode_frame

KEY_ID = bytes(range(32))


def made_up(primes: tuple[int, ...], ring: int, *outer: int) -> np.ndarray:
    """Reduced coefficients of shape (…, primes, n), all different and none zero."""
    count = int(np.prod(outer, dtype=np.int64)) * len(primes) * ring
    words = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    moduli = np.array(primes, dtype=np.uint64)[:, None]
    return words.reshape((*outer, len(primes), ring)) % moduli


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("name", "public", "key_id", "pair", "ciphertext"),
    [
        (
            "bfv-2048-44",
            "361649864272c2e1670d9f17b86b5a7ba1f90647bdda0097b0beb574fefbc08d",
            "5d3c9e83e43d21597998f25ed402a1676ec9df5d94e9069d7111209f29727095",
            "648e5f8cbbac9ed5bc4c906b1be2dda1318a86a12b9266340206bc473c390ef9",
            "c432331fa54236e7bf7877ae150e58c5e48a985d7711cdb8b4d6132501ee3375",
        ),
        (
            "bfv-4096-64",
            "fbe6e1c432c1b31ca9f4e73daf5028d028fe850caed35028f38bb1dc160a093e",
            "e6b5d927f1a4bddcbd590782cc01cf3f3d879b1de6705f69ed0b24f65964621d",
            "f892c7337d2142fa00ada4b12a4dff92495d38c884517b1add7a8d9ec95bf02e",
            "075eb7e5a8cfe815b4abe39ce5dec9553391ec780fb3b7f0657fb177e82738ac",
        ),
    ],
)
def test_bytes_of_bfv_keys_and_ciphertexts(
    name: str, public: str, key_id: str, pair: str, ciphertext: str
) -> None:
    parameters = PARAMETER_SETS[name]
    words = made_up(parameters.primes, parameters.ring, 3)
    key = bfv.PublicKey._of(parameters, words[:2])
    secret = bfv.SecretKey(parameters, key.key_id, words[2])
    vector = made_up((parameters.modulus,), parameters.ring, parameters.chunks(5000), 2)
    encrypted = Ciphertext(parameters, KEY_ID, 5000, 3, vector[:, :, 0])
    assert (
        sha256(key.to_bytes()),
        key.key_id.hex(),
        sha256(bfv.KeyPair(key, secret).to_secret_bytes()),
        sha256(encrypted.to_bytes()),
    ) == (public, key_id, pair, ciphertext)


def evaluation_frame(
    parameters: CkksParameters, key_id: bytes, steps: tuple[int, ...]
) -> bytes:
    primes = (*parameters.primes, parameters.special)
    blocks = parameters.levels * (1 + len(steps))
    words = made_up(primes, parameters.ring, blocks, 2)
    planes = []
    for index, prime in enumerate(primes):
        plane = np.ascontiguousarray(words[..., index, :], dtype="<u8")
        width = -(-prime.bit_length() // 8)
        planes.append(plane.reshape(-1, 1).view(np.uint8)[:, :width].tobytes())
    return encode_frame(
        Kind.EVALUATION_KEYS,
        parameters.id.encode().ljust(24, b"\0"),
        key_id,
        struct.pack(f"<H{len(steps)}I", len(steps), *steps),
        *planes,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps", "public", "key_id", "trio", "ciphertext", "digest"),
    [
        (
            "ckks-8192-fast",
            (),
            "7931516318a322ceaac97ee27118f9d9f2cffe42316544628ff2a10b43990e62",
            "688b3db33938dd196eba1d0b88c09316a8f5cc97860ac0f02e998268ffd549d8",
            "8ecf8b2803b407b3c79d4db1b5466d1aa6bca2a1ef27eee88ba0f644410c981b",
            "1a5680f6eaa115d0553cd27ae8a22079e853726c2c3dea086bb0b4e5ae685ed7",
            "783873cb525ca8f772f3138a367815efc525a73b72750321730b5d8b6215f07c",
        ),
        (
            "ckks-16384-literal",
            (1, 2),
            "4a54ea7fa991d1e0a6dd6a1a6f3b3a5525fb58433a0c465cd8adccd7b206de26",
            "02339a739cde8e9616076dfd9de065a4851245c402e4077093b638099d9dbc6b",
            "6085097d615c3fa8011e40d648c5ad9546bbba1221561bc21e0acf146f3b6819",
            "7e8c88be7da9e2f56d1b82107b141bfd843bd6cfbe6753e1dddf3bf020f6ff83",
            "7422bb2463dcde6f59ce33474f4f6dd5e6ddfae2d98593b3940ebafe1907a8d7",
        ),
    ],
)
def test_bytes_of_ckks_keys_and_ciphertexts(
    name: str, steps: tuple[int, ...], public: str, key_id: str, trio: str,
    ciphertext: str, digest: str,
) -> None:  # fmt: skip
    parameters = CKKS_SETS[name]
    primes = (*parameters.primes, parameters.special)
    words = made_up(primes, parameters.ring, 3)
    key = ckks.CkksPublicKey.of(parameters, words[:2])
    frame = evaluation_frame(parameters, key.key_id, steps)
    evaluation = ckks.EvaluationKeys.from_bytes(frame)
    assert evaluation.to_bytes() == frame
    secret = ckks.CkksSecretKey(parameters, key.key_id, words[2])
    dimension = parameters.slots + 1
    vector = made_up(parameters.primes[:2], parameters.ring, 2, 3)
    encrypted = CkksCiphertext(parameters, KEY_ID, dimension, vector)
    assert (
        sha256(key.to_bytes()),
        key.key_id.hex(),
        sha256(ckks.CkksKeys(secret, key, evaluation).to_secret_bytes()),
        sha256(encrypted.to_bytes()),
        encrypted.digest().hex(),
    ) == (public, key_id, trio, ciphertext, digest)

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
            "bfv-1024-7x5",
            "64012e8e65076f3f548163bfb934872de4b0322290d0ca2ac680f300c7eb7507",
            "81b8074fb735f4154341ce42ea17deb05b271b6d8d771ce455d81b217fe7266a",
            "9d66a7007c9bde7a6ea943d578786768689522da2f3d45f80c95904cd33023d5",
            "ccd55ee3d563527fe1d55a9cd360f05b22d18b368d91fc1335a2c11a4d437620",
        ),
        (
            "bfv-2048-22x2",
            "c195e919d2f18aa1ced33ccc91d744acacd2dc88d20392a8049edc3ced8b57ad",
            "7c39683ce355a6d99f027c30e37ab39d4d49687f6d2b6e69266277e771d9e1af",
            "65ec020bce216d8d9d7f0b7d97a6b93807b1807f9e2ac0ece10068ad9407afc6",
            "f3c573592d251a1d4b011db14a938c2143acee2f0c1739e647f3ab14446bbc3d",
        ),
        (
            "bfv-4096-32x2",
            "1c737b0006c2103002826ff4b46ccaec8d0ec51ecdd8e275b0270136ef01b97f",
            "f7e35f534a2dfac4c6afb03ce9350f564188917207c8e8b52421c7304334c4c3",
            "52fad8d8d011ccb96ef7e11347b16337d284b06e9035d56bc1fc613d20c4e38e",
            "ead4aa7f8a809577a7b8ab2d95653429405b4124773332ec6bb888faaf07d990",
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

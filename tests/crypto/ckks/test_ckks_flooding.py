from __future__ import annotations

import pickle

import numpy as np
import pytest

from cipherbayes.crypto.ckks.circuit import Update
from cipherbayes.crypto.ckks.circuits import make_circuit
from cipherbayes.crypto.ckks.keys import CkksKeys
from cipherbayes.crypto.ckks.polynomial import minimax
from cipherbayes.errors import CryptoError
from cipherbayes.privacy.noise import SecureNoise
from cipherbayes.protocols.encrypted_update.flooding import Flooding, flooding_bits
from cipherbayes_research.benchmarks.reference_update import ReferenceUpdate

CIRCUIT = make_circuit("fast", Update(64, 1, 2.0**-20, minimax(0.01)))
KEYS = CIRCUIT.generate_keys()
FLOODING = Flooding(bits=10.0, releases=5)


def test_released_values_are_flooded_and_on_the_grid() -> None:
    evaluator = CIRCUIT.evaluator(KEYS.evaluation)
    zeros = np.zeros(64, dtype=np.int64)
    message = CIRCUIT.encryptor(KEYS.public).encrypt(zeros, 1)
    out = evaluator.step(1, [message])
    exact = CIRCUIT.decrypt_exactly(KEYS.secret, out, 1)
    assert np.abs(exact).max() < CIRCUIT.noise_bound(1)
    draws = np.concatenate(
        [FLOODING.release(CIRCUIT, KEYS.secret, out, 1, SecureNoise()) for _ in "12345"]
    )
    units = draws / FLOODING.grid(CIRCUIT, 1)
    assert (units == np.rint(units)).all()
    assert draws.std() == pytest.approx(FLOODING.sd(CIRCUIT, 1), rel=0.25)


HARDENED = make_circuit("hardened", Update(184, 2, 2.0**-20, minimax(0.01), drift=0.2))


@pytest.mark.parametrize(
    ("bits", "releases", "share"), [(30.0, 20, 0.01), (39.0, 40, 0.14)]
)
def test_flooding_leaves_the_privacy_noise_about_as_wide_as_it_was(
    bits: float, releases: int, share: float
) -> None:
    """At 184 parameters; 0.14 of the noise beside it is 1 % more noise."""
    flooding = Flooding(bits, releases)
    widest = max(flooding.sd(HARDENED, t) for t in range(1, 33))
    smallest = HARDENED.update.polynomial(np.linspace(0.01, 1.0, 257)).min()
    assert widest < share * 0.1 * smallest


@pytest.mark.parametrize(("dimension", "releases"), [(1, 1), (64, 5), (184, 40)])
def test_flooding_covers_all_values_of_all_releases(
    dimension: int, releases: int
) -> None:
    """Divergence of the whole run with and without its errors: 2^(−s)/24 at most.

    d values that are each off by t, τ times: a shift of ℓ₂ norm √(τ d) t.
    """
    circuit = make_circuit("fast", Update(dimension, 1, 2.0**-20, minimax(0.01)))
    sd = Flooding(bits=10.0, releases=releases).sd(circuit, 1)
    shift = np.full((releases, dimension), circuit.noise_bound(1))
    divergence = float((shift**2).sum()) / (2.0 * sd**2)
    assert divergence <= 2.0**-10 / 24.0
    # And it is no wider than the grid of its noise makes necessary.
    assert divergence >= 2.0**-10 / 24.0 / (1.0 + 2.0**-4) ** 2


@pytest.mark.slow
def test_the_error_before_flooding_is_within_the_derived_bound() -> None:
    """In the first rounds and with a past, whose weights cost next to nothing."""
    keys = HARDENED.generate_keys()
    reference = ReferenceUpdate(HARDENED.update)
    evaluator = HARDENED.evaluator(keys.evaluation)
    encryptor = HARDENED.encryptor(keys.public)
    rng, half = np.random.default_rng(5), 2**19
    for t in range(1, 19):
        parts = rng.integers(-half, half, (2, 184))
        evaluator.absorb(t, [encryptor.encrypt(part, t) for part in parts])
        expected = reference.step(parts.sum(axis=0))
        if t in (1, 2, 17, 18):
            out = evaluator.output()
            found = HARDENED.decrypt_exactly(keys.secret, out, t)
            error = np.abs(found - expected).max()
            assert 0.0 < error < HARDENED.noise_bound(t)


def test_the_stated_bits_are_those_that_were_asked_for() -> None:
    sd, bound = FLOODING.sd(CIRCUIT, 1), CIRCUIT.noise_bound(1)
    assert 10.0 <= flooding_bits(sd, bound, 5, 64) <= 12.0


def test_the_trio_survives_its_bytes_and_hides_its_secret() -> None:
    again = CkksKeys.from_secret_bytes(KEYS.to_secret_bytes())
    assert again.evaluation.digest == KEYS.evaluation.digest
    values = np.arange(64, dtype=np.int64)
    out = CIRCUIT.evaluator(again.evaluation).step(
        1, [CIRCUIT.encryptor(again.public).encrypt(values, 1)]
    )
    assert np.isfinite(CIRCUIT.decrypt_exactly(again.secret, out, 1)).all()
    with pytest.raises(CryptoError):
        pickle.dumps(KEYS.secret)


def test_damaged_or_foreign_messages_are_refused() -> None:
    data = CIRCUIT.encryptor(KEYS.public).encrypt(np.ones(64, dtype=np.int64), 1)
    frame = bytearray(data.to_bytes())
    with pytest.raises(CryptoError, match="another key"):
        CIRCUIT.read_message(bytes(frame), bytes(32))
    with pytest.raises(CryptoError, match="at most"):
        CIRCUIT.read_output(bytes(frame), KEYS.public.key_id)
    frame[-1] ^= 1
    with pytest.raises(CryptoError, match="checksum"):
        CIRCUIT.read_message(bytes(frame), KEYS.public.key_id)

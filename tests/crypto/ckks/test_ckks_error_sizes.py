from __future__ import annotations

import numpy as np
import pytest

from cipherbayes.crypto.ckks.error_sizes import (
    KEY_TAIL,
    key_is_short,
    mean_errors,
    slot_errors,
)
from cipherbayes.crypto.ckks.parameters import CKKS_SETS
from cipherbayes.typing import Floats

PARAMETERS = CKKS_SETS["ckks-8192-fast"]


def key_slots(rng: np.random.Generator) -> Floats:
    """|σ_j(s)| of a random ternary key."""
    n = PARAMETERS.ring
    key = rng.integers(-1, 2, n) * np.exp(1j * np.pi * np.arange(n) / n)
    return np.abs(np.fft.fft(key))[: n // 2]


@pytest.mark.parametrize("dimension", [1, 7, 184, 1500, 4096, 9000])
def test_most_keys_keep_to_the_bounds_for_any_dimension(dimension: int) -> None:
    rng = np.random.default_rng(0)
    kept = [key_is_short(PARAMETERS, key_slots(rng), dimension) for _ in range(50)]
    assert np.mean(kept) >= 0.6


def test_a_key_with_one_long_slot_is_refused() -> None:
    slots = key_slots(np.random.default_rng(1))
    slots[5] = 1.01 * KEY_TAIL * np.sqrt(2.0 * PARAMETERS.ring / 3.0)
    assert not key_is_short(PARAMETERS, slots, 4096)


def test_means_over_copies_are_smaller_and_a_single_copy_is_never_larger() -> None:
    slot = slot_errors(PARAMETERS)
    for dimension in (8, 184, 4096):
        mean = mean_errors(PARAMETERS, dimension)
        for size in (2, 3, 4):
            assert mean.rescaling(size) <= slot.rescaling(size)
        assert mean.fresh(2) <= slot.fresh(2)
        assert mean.switching(3) <= slot.switching(3)


def test_rounding_errors_stay_within_the_size_of_a_mean() -> None:
    """Uniform rounding errors times a key that was accepted, averaged over copies."""
    rng, dimension, n = np.random.default_rng(2), 184, PARAMETERS.ring
    slots = key_slots(rng)
    while not key_is_short(PARAMETERS, slots, dimension):
        slots = key_slots(rng)
    copies = PARAMETERS.replicas(dimension)
    bound = mean_errors(PARAMETERS, dimension)
    worst = 0.0
    for _ in range(20):
        turned = rng.uniform(-0.5, 0.5, n) * np.exp(1j * np.pi * np.arange(n) / n)
        error = np.fft.fft(turned)[: n // 2] * slots**2
        held = error[: copies * dimension].reshape(copies, dimension)
        worst = max(worst, float(np.abs(held.real.mean(axis=0)).max()))
    limit = bound.rescaling(3) - bound.rescaling(2)
    assert 0.1 * limit < worst < limit

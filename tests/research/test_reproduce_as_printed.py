"""The paper's algorithm, simulated: what it does, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cipherbayes.protocols.paper_claim import PaperSetting
from cipherbayes_research.paper.as_printed import (
    SMALLEST,
    adjusted,
    preconditioner_polynomial,
    simulate,
)
from cipherbayes_research.paper.timing import theory

SETTING = PaperSetting(
    epsilon=10.0, delta=1e-5, records=1000, batch=100, epochs=50, scale=20.0
)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=5), st.floats(1.0, 1e4))
def test_adjusted_gradients_keep_their_sign_and_bounds(
    values: list[float], scale: float
) -> None:
    gradient = np.array(values)
    found = adjusted(gradient, scale, 1.0)
    assert (np.abs(found) >= SMALLEST).all()
    assert (np.abs(found) <= 1.0).all()
    moved = np.abs(gradient) > 0.0
    assert (np.sign(found) == np.sign(gradient))[moved].all()


def test_the_papers_polynomial_is_wrong_by_more_than_half() -> None:
    v = np.geomspace(1e-3, 1.0, 2000)
    error = np.abs(preconditioner_polynomial(1e-4)(v) * (1e-4 + np.sqrt(v)) - 1.0)
    assert 0.5 < error.max() < 0.7


@pytest.mark.parametrize("encrypted", [False, True])
def test_it_finds_a_mean_with_a_generous_claim(encrypted: bool) -> None:
    rng = np.random.default_rng(0)
    x = np.array([0.5, -0.5]) + 0.3 * rng.standard_normal((1000, 2))
    trace = simulate(
        SETTING,
        lambda theta, rows: x[rows].mean(axis=0) - theta,
        np.split(rng.permutation(1000), 2),
        dimension=2,
        seed=0,
        encrypted=encrypted,
    )
    assert np.abs(trace.mean - x.mean(axis=0)).max() < 0.1
    # A claim a thousand times smaller means a step a million times smaller.
    frozen = simulate(
        replace(SETTING, epsilon=0.01),
        lambda theta, rows: x[rows].mean(axis=0) - theta,
        np.split(rng.permutation(1000), 2),
        dimension=2,
        seed=0,
        encrypted=encrypted,
    )
    assert np.abs(frozen.mean - x.mean(axis=0)).max() > 0.2


def test_a_run_repeats_and_can_stop_early() -> None:
    def pull(theta: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return 1.0 - theta

    sites = [np.arange(1000)]
    words = {"dimension": 3, "seed": 4, "encrypted": False}
    one = simulate(SETTING, pull, sites, epochs=5, **words)  # type: ignore[arg-type]
    two = simulate(SETTING, pull, sites, epochs=5, **words)  # type: ignore[arg-type]
    assert np.array_equal(one.mean, two.mean)
    assert len(one.theta) == 50 == 1000 * 5 // 100


def test_the_theory_is_the_papers_table() -> None:
    assert theory(184, 10_000) == {"HM": 9, "SM": 8 + 5, "Rot": 6}
    assert theory(7, 10_000) == {"HM": 9, "SM": 8 + 1, "Rot": 8}
    assert theory(2, 3) == {"HM": 9, "SM": 8 + 1, "Rot": 2}

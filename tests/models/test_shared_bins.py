"""A record counts as one, however its prediction is shared between bins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cipherbayes.models.held_out import GRID, LOG_HAZARDS, LOG_ODDS
from cipherbayes.models.shared_bins import (
    SHARED_NORM,
    shared_bins,
    shared_weights,
)

EDGES = pytest.mark.parametrize("edges", [LOG_ODDS, LOG_HAZARDS])


@EDGES
@given(
    value=st.floats(allow_nan=True, allow_infinity=True)
    | st.floats(-6.0, 6.0)
    | st.integers(-40, 40).map(lambda k: k / 6.0)
)
def test_a_value_counts_as_one_and_by_no_more_than_the_bound(
    edges: np.ndarray, value: float
) -> None:
    nearest, weights = shared_bins(edges, np.array([value]))
    assert 1 <= nearest[0] <= edges.size - 1
    assert weights.min() >= 0.0
    assert weights.sum() == 1.0
    assert np.all(weights * GRID == np.rint(weights * GRID))
    assert np.sum(weights**2) <= SHARED_NORM**2


def test_the_bound_is_reached_and_not_passed() -> None:
    """At the centre of a bin, among a million places."""
    _, weights = shared_bins(LOG_ODDS, np.linspace(-5.5, 5.5, 1_000_001))
    largest = np.sqrt((weights**2).sum(axis=0).max())
    assert SHARED_NORM - 1e-4 < largest <= SHARED_NORM


@EDGES
def test_sums_tell_mean_and_variance_of_the_values(edges: np.ndarray) -> None:
    """To the roundings of weights, wherever within bins the values are."""
    rng = np.random.default_rng(0)
    values = np.append(rng.uniform(edges[0], edges[-1], 500), [edges[0], edges[-1]])
    width = edges[1] - edges[0]
    centres = np.append(edges - 0.5 * width, edges[-1] + 0.5 * width)
    weights = shared_weights(edges, values)
    assert weights @ centres == pytest.approx(values, abs=1e-5)
    square = values**2 + 0.25 * width**2
    assert weights @ centres**2 == pytest.approx(square, abs=1e-4)


def test_what_is_beyond_the_limits_counts_as_these() -> None:
    beyond = shared_weights(LOG_ODDS, np.array([-np.inf, -1e300, 5.5, np.inf, np.nan]))
    within = shared_weights(LOG_ODDS, np.array([-5.0, -5.0, 5.0, 5.0, 0.0]))
    assert np.array_equal(beyond, within)


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 70))
def test_weights_have_the_same_bits_wherever_a_value_stands(
    seed: int, size: int
) -> None:
    values = np.random.default_rng(seed).normal(0.0, 3.0, size)
    together = shared_weights(LOG_ODDS, values)
    alone = [shared_weights(LOG_ODDS, values[k : k + 1])[0] for k in range(size)]
    assert np.array_equal(together, np.stack(alone))

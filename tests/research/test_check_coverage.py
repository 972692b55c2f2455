"""Intervals of private checks hold the truth as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from cipherbayes_research.benchmarks.check_coverage import KINDS, binary, coverage


@pytest.mark.torture
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_ninety_per_cent_intervals_cover_close_to_ninety_per_cent(
    kind: str, epsilon: float
) -> None:
    """Of 250 repetitions two standard errors are 0.04."""
    found = coverage(kind, epsilon, rows=1600, repetitions=250, seed=1)
    for name, each in found.items():
        assert 0.84 <= each.covered <= 0.98, (name, each)
        assert abs(each.bias) < 0.4 * each.width, (name, each)


def test_a_simulated_check_has_a_cell_for_every_row() -> None:
    population = binary("calibrated", np.random.default_rng(0))
    assert population.cells.min() >= 0
    assert population.cells.max() < population.length
    assert 0.7 < population.truth["auc"] < 0.9

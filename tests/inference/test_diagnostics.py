"""R-hat and effective sample sizes beside those of ArviZ."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from cipherbayes.inference.diagnostics import rhat, rhat_and_ess
from cipherbayes.typing import Floats


def autoregression(chains: int, count: int, correlation: float, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    draws = rng.standard_normal((chains, count, 3))
    for t in range(1, count):
        draws[:, t] += correlation * draws[:, t - 1]
    draws[0, :, 1] += 0.5  # a chain elsewhere
    draws[:, :, 2] = np.round(draws[:, :, 2])  # ties
    return draws


@pytest.mark.parametrize("correlation", [-0.9, -0.3, 0.0, 0.6, 0.97])
@pytest.mark.parametrize(
    ("chains", "count"), [(4, 250), (8, 200), (2, 31), (1, 60), (3, 4), (2, 5), (2, 7)]
)
def test_both_are_those_of_arviz(chains: int, count: int, correlation: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arviz: Any = import_module("arviz_stats.base.array").array_stats
    draws = autoregression(chains, count, correlation, seed=chains * count)
    found, sizes = rhat_and_ess(draws)
    axes = {"chain_axis": 0, "draw_axis": 1}
    assert sizes == pytest.approx(arviz.ess(draws, **axes), rel=1e-9)
    if chains == 1:
        assert np.isnan(found).all()
    else:
        assert found == pytest.approx(arviz.rhat(draws, **axes), rel=1e-9)


def test_draws_that_say_nothing_are_said_to() -> None:
    draws = np.random.default_rng(0).standard_normal((4, 50, 3))
    draws[:, :, 0] = 2.0
    draws[1, 3, 1] = np.inf
    found, sizes = rhat_and_ess(draws)
    assert np.isnan(found).tolist() == [True, True, False]
    assert sizes[0] == 200.0
    assert np.isnan(sizes[1])
    assert np.isnan(rhat(draws[:, :3])).all()

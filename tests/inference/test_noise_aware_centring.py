"""Coordinates between centred and not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from cipherbayes.inference.noise_aware.centring import Centring, InverseGamma
from cipherbayes.typing import Floats

shares = st.floats(0.0, 1.0)


def drawn(seed: int) -> tuple[Floats, Floats, Floats]:
    """Five coordinates in each of three chains, with their μ and log σ.

    One log σ for all of a chain, or one for each.
    """
    rng = np.random.default_rng(seed)
    scales = rng.normal(size=(3, 5 if seed % 2 else 1))
    return rng.normal(size=(3, 5)), rng.normal(size=3), scales


@given(share=shares, seed=st.integers(0, 99))
def test_coordinates_come_back(share: float, seed: int) -> None:
    x, centre, log_scale = drawn(seed)
    form = Centring(share)
    y = form.from_coordinates(x, centre, log_scale)
    assert form.to_coordinates(y, centre, log_scale) == pytest.approx(x)


@given(share=shares, seed=st.integers(0, 99))
def test_the_law_of_x_does_not_depend_on_the_share(share: float, seed: int) -> None:
    """p(y) dy = p(x) dx, so that log p(y) = log N(x; μ, σ²) + log |dx / dy|."""
    y, centre, log_scale = drawn(seed)
    form = Centring(share)
    x = form.to_coordinates(y, centre, log_scale)
    law = norm.logpdf(x, centre[:, None], np.exp(log_scale)).sum(axis=1)
    stretched = (1.0 - share) * (log_scale * np.ones((3, 5))).sum(axis=1)
    constant = -2.5 * np.log(2.0 * np.pi)
    found = form.log_density(y, centre, log_scale)[0]
    assert found + constant == pytest.approx(law + stretched)


@given(share=shares, seed=st.integers(0, 99))
def test_a_law_has_its_slopes(share: float, seed: int) -> None:
    y, centre, log_scale = drawn(seed)
    form = Centring(share)
    _, slopes = form.log_density(y, centre, log_scale)
    each = log_scale * np.ones((3, 5))
    for which, slope in ((1, slopes[1]), (2, slopes[2].sum(axis=1))):
        ahead, behind = [y, centre, each], [y, centre, each]
        ahead[which], behind[which] = ahead[which] + 1e-6, behind[which] - 1e-6
        change = form.log_density(*ahead)[0] - form.log_density(*behind)[0]
        assert change / 2e-6 == pytest.approx(slope, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("log_scale", [-1.0, 0.0, 0.7])
def test_the_law_of_a_scale_has_its_slope(log_scale: float) -> None:
    law, at = InverseGamma(3.0, 0.4), np.array([log_scale])
    ahead, behind = law.log_density(at + 1e-6), law.log_density(at - 1e-6)
    assert (ahead - behind) / 2e-6 == pytest.approx(law.slope(at), rel=1e-6)

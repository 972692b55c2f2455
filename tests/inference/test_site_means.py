"""How the means of columns differ between sites."""

from __future__ import annotations

import numpy as np
import pytest

from cipherbayes.inference.noise_aware.layout import ExpectedMasses, SiteLayout
from cipherbayes.inference.noise_aware.site_means import Means, drawn_by_site
from cipherbayes.typing import Floats

SITES, COLUMNS, CHAINS = 30, 4, 6
LOADING = np.array([0.8, 0.3, -0.3, 0.0])


def layout(kinds: int = 1, own: bool = False) -> SiteLayout:
    others = np.full(COLUMNS, -1)
    if own:
        others[-1] = 3
    constants = np.tile(np.arange(SITES), kinds)
    masses = np.ones(constants.size)
    return SiteLayout(constants, others, ExpectedMasses(masses, masses))


def walked(sites: SiteLayout, means: Floats, sweeps: int = 200) -> list[Means]:
    rng = np.random.default_rng(1)
    everywhere = np.tile(means, (CHAINS, 1, 1))
    now = Means(np.zeros((CHAINS, 1)), np.full((CHAINS, 1), 0.3))
    found = []
    for _ in range(sweeps):
        now = drawn_by_site(sites, everywhere, now, rng)
        found.append(now)
    return found[sweeps // 4 :]


def selected() -> Floats:
    """Means of sites whose patients were selected by something they have in common."""
    rng = np.random.default_rng(2)
    means = rng.standard_normal((SITES, 1)) * LOADING
    return np.asarray(means + 0.05 * rng.standard_normal(means.shape))


def common_part(found: list[Means]) -> Floats:
    """The mean of λλ'."""
    each = [m.loading[:, 0] for m in found if m.loading is not None]
    return np.asarray(np.einsum("dci,dcj->ij", each, each) / (len(each) * CHAINS))


def test_columns_that_go_together_among_sites_are_found_to() -> None:
    found = walked(layout(), selected())
    direction = np.linalg.eigh(common_part(found))[1][:, -1]
    cosine = direction @ LOADING / np.linalg.norm(LOADING)
    assert abs(cosine) > 0.98
    spread = np.median([m.spread for m in found], axis=(0, 1))
    assert (spread[1:] < 0.15).all()


def test_unrelated_columns_are_left_to_themselves() -> None:
    means = 0.4 * np.random.default_rng(3).standard_normal((SITES, COLUMNS))
    related = common_part(walked(layout(), means))[np.triu_indices(COLUMNS, 1)]
    assert np.abs(related).max() < 0.5 * 0.4**2


def test_what_is_integrated_out_makes_the_precision_less() -> None:
    last = walked(layout(), selected(), 20)[-1]
    assert last.loading is not None
    along = last.along(SITES * COLUMNS).reshape(CHAINS, SITES, COLUMNS)
    scale = last.scale.reshape(along.shape)
    for chain, site in ((0, 0), (3, 7)):
        own, loading = np.diag(scale[chain, site] ** 2), last.loading[chain, site]
        a = along[chain, site]
        precision = np.diag(1.0 / np.diag(own)) - np.outer(a, a)
        expected = np.linalg.inv(own + np.outer(loading, loading))
        assert precision == pytest.approx(expected, rel=1e-8, abs=1e-8)


def test_later_intervals_and_columns_of_one_site_have_nothing_in_common() -> None:
    sites = layout(kinds=2, own=True)
    last = walked(sites, np.tile(selected(), (2, 1)), 20)[-1]
    assert last.loading is not None
    assert last.loading[:, :SITES, :3].all()
    assert not last.loading[:, SITES:].any()
    assert not last.loading[..., 3].any()


def test_two_sites_have_no_direction_in_common() -> None:
    sites = SiteLayout(
        np.arange(2), np.full(COLUMNS, -1), ExpectedMasses(np.ones(2), np.ones(2))
    )
    last = walked(sites, selected()[:2], 5)[-1]
    assert not last.along(2 * COLUMNS).any()


def test_what_is_known_of_how_means_differ_moves_their_centres_only() -> None:
    rng = np.random.default_rng(8)
    means, tilts = rng.normal(size=(3, 6, 4)), rng.normal(size=(6, 4))
    sites = SiteLayout(np.arange(6), np.full(4, -1), None)
    scale = np.full((3, 1), 0.5)
    plain, moved = Means(np.zeros((3, 1)), scale), Means(tilts.reshape(1, -1), scale)
    plain = drawn_by_site(sites, means, plain, np.random.default_rng(1))
    moved = drawn_by_site(sites, means + tilts, moved, np.random.default_rng(1), tilts)
    assert moved.scale == pytest.approx(plain.scale)
    assert moved.centre == pytest.approx(plain.centre + tilts.ravel())
    again = drawn_by_site(sites, means, plain, np.random.default_rng(2))
    shifted = drawn_by_site(
        sites, means + tilts, moved, np.random.default_rng(2), tilts
    )
    assert shifted.scale == pytest.approx(again.scale)
    assert shifted.centre == pytest.approx(again.centre + tilts.ravel())

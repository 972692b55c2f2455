"""The mean of a saturating score sum, and draws of θ from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.layout import (
    ExpectedMasses,
    InformationLayout,
    SiteLayout,
)
from cipherbayes.inference.noise_aware.saturation import (
    SaturatingBySite,
    SaturatingScore,
    flattened,
    pulled_back,
    unflattened,
)
from cipherbayes.inference.noise_aware.schedule import ROUNDS
from cipherbayes.inference.noise_aware.scores import next_bend
from cipherbayes.inference.noise_aware.shape import ScoreShape, saturating_bend
from cipherbayes.inference.noise_aware.slicing import slice_theta
from cipherbayes.typing import Floats
from cipherbayes.validation.simulation import release_rounds, simulate

D = 5
BEND = np.array([0.4, 3.0])


def finished() -> Evidence:
    rng = np.random.default_rng(0)
    return Evidence.of(*release_rounds(simulate("logistic", 3_000, D, rng), 1.0, rng))


def slopes(seed: int = 1) -> Floats:
    root = np.random.default_rng(seed).standard_normal((2, D, 2 * D))
    return np.asarray(60.0 * root @ root.transpose(0, 2, 1))


def test_flattening_is_undone() -> None:
    evidence, slope = finished(), slopes()
    for bend, information, original in zip(
        BEND, flattened(slope, evidence.place, BEND), slope, strict=True
    ):
        again = unflattened(information, evidence.place, float(bend))
        assert np.allclose(again, original)


def test_the_gradient_is_pulled_back_through_the_flattening() -> None:
    rng, place, slope = np.random.default_rng(2), finished().place, slopes()
    gradient, move = rng.standard_normal((2, 2, D, D))
    gradient, move = (each + each.transpose(0, 2, 1) for each in (gradient, move))

    def value(length: float) -> Floats:
        there = flattened(slope + length * move, place, BEND)
        return np.asarray((gradient * there).sum(axis=(1, 2)))

    found = (pulled_back(gradient, slope, place, BEND) * move).sum(axis=(1, 2))
    assert (value(1e-4) - value(-1e-4)) / 2e-4 == pytest.approx(found, rel=1e-6)


def test_the_slope_of_the_mean_at_its_place_is_the_information() -> None:
    evidence, slope = finished(), slopes()
    score = SaturatingScore.of(evidence, slope, BEND)
    here = np.tile(evidence.place, (2, 1))
    information = flattened(slope, evidence.place, BEND)
    assert np.allclose(score.derivative(here), information)
    numeric = np.empty((2, D, D))
    for j in range(D):
        move = 1e-6 * (np.arange(D) == j)
        ahead, behind = score.mean(here + move), score.mean(here - move)
        numeric[:, :, j] = (ahead - behind) / 2e-6
    assert np.allclose(numeric, information, rtol=1e-5, atol=1e-4)


def test_the_mean_of_a_logistic_score_is_close_far_from_where_it_was_taken() -> None:
    """Normal columns: a line misses by several times what the bent mean does."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((D, 40_000))
    place, truth = np.array([1.2, -0.6, 0.4, 0.0, 0.8]), np.array([2, -1, 1, 0.5, 1.5])

    def curvature(theta: Floats) -> Floats:
        p = expit(theta @ x)
        return np.asarray((x * (p * (1.0 - p))) @ x.T)

    information, start = curvature(place), curvature(np.zeros(D))
    bend = 0.0
    for _ in range(30):
        slope = unflattened(information, place, bend)
        fall = np.array(np.trace(slope) / np.trace(start))
        bend = 0.5 * (bend + float(saturating_bend(fall)))
    score = SaturatingScore(
        slope[None],
        np.array([bend / (place @ slope @ place)]),
        np.array([bend]),
        place[None],
    )
    expected = x @ (expit(truth @ x) - expit(place @ x))
    size = np.linalg.norm(expected)
    bent = np.linalg.norm(score.mean(truth[None])[0] - expected) / size
    line = np.linalg.norm(information @ (truth - place) - expected) / size
    assert bent < 0.06
    assert line > 4.0 * bent


def by_site(place: Floats, information: Floats, start: Floats) -> SaturatingBySite:
    """The score of two sites, with β from the fall of the curvature since θ = 0."""
    sites = SiteLayout(
        np.array([0, 1]), np.array([-1]), ExpectedMasses(np.ones(2), np.ones(2))
    )
    evidence = replace(
        finished(),
        place=place,
        information=information,
        prior_covariance=np.eye(3),
        visited=np.tile(place, (ROUNDS, 1)),
        layout=InformationLayout((0, 1), sites=sites),
    )
    shape = ScoreShape(np.eye(3), saturating_bend, (0, 1), level_values=np.ones(2))
    bend, first = np.zeros(1), np.array([np.trace(start)])
    for _ in range(30):
        found = next_bend(shape, evidence, information[None], bend, first)
        bend = 0.5 * (bend + found)
    return SaturatingBySite.of(evidence, information[None], bend, np.ones(2))


@pytest.mark.parametrize(
    "truth",
    [
        [-1.1, -5.0, 1.1],  # the small site's outcomes cannot be fewer than none
        [-2.0, -2.2, 1.0],  # both levels together
        [-0.2, 0.1, 1.0],
        [-1.0, -1.0, 1.5],
    ],
)
def test_levels_and_columns_of_sites_saturate_each_by_itself(
    truth: list[float],
) -> None:
    """Sites of 20,000 and 200 records: two in a hundred outcomes are missed at most."""
    rng = np.random.default_rng(5)
    site = np.repeat([0, 1], [20_000, 200])
    column = rng.standard_normal(site.size) + 0.5 * site
    x = np.stack([site == 0, site == 1, column]).astype(float)
    place, there = np.array([-1.0, -1.0, 1.0]), np.array(truth)
    p = expit(place @ x)
    information = (x * (p * (1.0 - p))) @ x.T
    score = by_site(place, information, 0.25 * x @ x.T)
    expected = x @ (expit(there @ x) - p)
    missed = np.abs(score.mean(there[None])[0] - expected)
    assert np.all(missed < 0.02 * np.array([20_000, 200, 20_000]))
    derivative = score.derivative(there[None])[0]
    for j in range(3):
        move = 1e-6 * (np.arange(3) == j)
        ahead, behind = (
            score.mean((there + move)[None]),
            score.mean((there - move)[None]),
        )
        numeric = (ahead - behind)[0] / 2e-6
        assert numeric == pytest.approx(derivative[:, j], rel=1e-4, abs=1e-4)


@pytest.mark.slow
def test_slices_of_a_score_that_is_a_line_have_the_moments_of_its_normal() -> None:
    evidence, slope = finished(), slopes()[:1]
    rng = np.random.default_rng(4)
    score = SaturatingScore.of(evidence, slope, np.zeros(1))
    root = np.eye(D) + 0.3 * np.eye(D, k=1)
    prior = root @ root.T
    theta = mode = evidence.place[None]
    drawn = np.empty((1_500, D))
    for k in range(len(drawn)):
        theta, mode = slice_theta(rng, evidence, score, slope, prior[None], theta, mode)
        drawn[k] = theta[0]
    total = slope[0] + evidence.variance * np.eye(D)
    weight = np.linalg.solve(total, slope[0]).T
    covariance = np.linalg.inv(prior + weight @ slope[0])
    mean = covariance @ weight @ (evidence.gradient + slope[0] @ evidence.place)
    sd = np.sqrt(np.diag(covariance))
    assert np.abs((drawn.mean(axis=0) - mean) / sd).max() < 0.2
    assert drawn.std(axis=0) / sd == pytest.approx(np.ones(D), abs=0.1)

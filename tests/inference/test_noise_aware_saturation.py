"""The mean of a saturating score sum, and draws of θ from it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.saturation import (
    SaturatingScore,
    SiteLevels,
    flattened,
    pulled_back,
    unflattened,
)
from cipherbayes.inference.noise_aware.shape import saturating_bend
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


def test_a_small_sites_own_outcomes_saturate_with_its_own_level() -> None:
    """A site of 200 among 20,200 records, its level a long way down: its outcomes
    cannot be fewer than none, which a line does not know."""
    rng = np.random.default_rng(5)
    site = np.repeat([0, 1], [20_000, 200])
    x = np.stack([site == 0, site == 1, rng.standard_normal(site.size)]).astype(float)
    place, truth = np.array([-1.0, -1.0, 0.4]), np.array([-1.1, -5.0, 0.5])
    p = expit(place @ x)
    information = (x * (p * (1.0 - p))) @ x.T
    levels = SiteLevels(np.array([0, 1]), np.ones(2), place, place[None, :2])
    score = SaturatingScore(
        information[None], np.zeros(1), np.zeros(1), place[None], levels
    )
    expected = x @ (expit(truth @ x) - p)
    line = information @ (truth - place)
    assert score.mean(truth[None])[0, :2] == pytest.approx(expected[:2], rel=0.1)
    assert line[1] < 2.0 * expected[1] < 0.0
    derivative = score.derivative(truth[None])[0]
    for j in range(3):
        move = 1e-6 * (np.arange(3) == j)
        ahead, behind = (
            score.mean((truth + move)[None]),
            score.mean((truth - move)[None]),
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

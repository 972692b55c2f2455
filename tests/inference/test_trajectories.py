"""Trajectories of θ given H, beside slices and independent formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from cipherbayes.inference.diagnostics import rhat_and_ess
from cipherbayes.inference.noise_aware import Effort, sample_posterior
from cipherbayes.inference.noise_aware.contrasts import evidence_of
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.slicing import slice_theta
from cipherbayes.inference.noise_aware.tilting import TiltedScore
from cipherbayes.inference.noise_aware.trajectories import Target, ThetaTrajectories
from cipherbayes.typing import Floats
from cipherbayes.validation.simulation import release_rounds, simulate

CHAINS = 4


def target_of(kind: str, dimension: int = 5) -> tuple[Evidence, Target, Floats]:
    """A finished study, θ given the estimate of its H, and that H for each chain."""
    rng = np.random.default_rng(3)
    study = simulate(kind, 1_500, dimension, rng, prior_scale=0.5)
    recursion, state = release_rounds(study, 1.0, rng)
    evidence, shape = evidence_of(recursion, state), recursion.shape
    assert shape.unit is not None
    h = np.tile(evidence.estimate, (CHAINS, 1, 1))
    score = TiltedScore.of(evidence, shape, shape.unit, h)
    precision = np.tile(np.linalg.inv(evidence.prior_covariance), (CHAINS, 1, 1))
    near = np.tile(evidence.place, (CHAINS, 1))
    return evidence, Target.of(evidence, score, h, precision, near), h


@pytest.mark.parametrize("kind", ["exponential", "weibull"])
def test_the_density_is_that_of_its_formula_and_so_is_its_gradient(kind: str) -> None:
    evidence, target, h = target_of(kind)
    rng = np.random.default_rng(1)
    root = np.linalg.cholesky(evidence.prior_covariance)
    theta = evidence.place + 0.3 * rng.standard_normal((CHAINS, 5)) @ root.T
    value, gradient = target.density(theta)
    growth = target.score.growth(theta)[0]
    covariance = evidence.score_covariance(h, growth)
    expected = [
        multivariate_normal(mean, spread).logpdf(evidence.gradient)
        + multivariate_normal(evidence.prior_mean, evidence.prior_covariance).logpdf(
            own
        )
        for mean, spread, own in zip(
            target.score.mean(theta), covariance, theta, strict=True
        )
    ]
    assert np.diff(value) == pytest.approx(np.diff(expected), rel=1e-8, abs=1e-8)
    for j in range(5):
        step = np.zeros((CHAINS, 5))
        step[:, j] = 1e-5
        ahead, behind = (target.density(theta + way * step)[0] for way in (1, -1))
        differences = (ahead - behind) / 2e-5
        assert gradient[:, j] == pytest.approx(differences, rel=1e-5, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exponential", "weibull"])
def test_trajectories_and_slices_have_the_same_distribution(kind: str) -> None:
    evidence, target, h = target_of(kind)
    rng = np.random.default_rng(2)
    theta = np.tile(evidence.place, (CHAINS, 1))
    walk, followed = ThetaTrajectories(theta), []
    for sweep in range(4_000):
        if sweep == 1_000:
            walk.stop_adapting()
        theta = walk.moved(rng, target, theta, adapting=sweep < 1_000)
        if sweep >= 1_000:
            followed.append(theta)
    theta = mode = np.tile(evidence.place, (CHAINS, 1))
    sliced = []
    for _ in range(3_000):
        theta, mode = slice_theta(
            rng, evidence, target.score, h, target.precision, theta, mode
        )
        sliced.append(theta)
    ours, others = np.stack(followed, axis=1), np.stack(sliced, axis=1)
    spread = others.std(axis=(0, 1))
    error = spread / np.sqrt(np.minimum(rhat_and_ess(ours)[1], rhat_and_ess(others)[1]))
    away = np.abs(ours.mean(axis=(0, 1)) - others.mean(axis=(0, 1)))
    # Five standard errors of a difference: one such test in 10⁵ fails by chance.
    assert (away < 5.0 * np.sqrt(2.0) * error).all()
    assert ours.std(axis=(0, 1)) == pytest.approx(spread, rel=0.1)


@pytest.mark.slow
def test_with_many_parameters_chains_mix() -> None:
    """Slices alone give 30 effective draws of these 600, trajectories 250 and more."""
    rng = np.random.default_rng(71)
    study = simulate("exponential", 8_000, 70, rng, prior_scale=0.4)
    effort = Effort(chains=4, warm_up=100, kept=150, doublings=0)
    finished = release_rounds(study, 1.0, rng)
    draws = sample_posterior(*finished, seed=1, effort=effort).draws.theta
    assert rhat_and_ess(draws)[1].min() > 100.0

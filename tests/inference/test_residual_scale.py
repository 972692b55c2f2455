"""A learnt residual scale where noise hides the coefficients."""

from __future__ import annotations

import numpy as np
import pytest

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.inference.noise_aware import sample_posterior
from cipherbayes.inference.noise_aware.contrasts import evidence_of
from cipherbayes.inference.noise_aware.posterior import SHORT
from cipherbayes.inference.noise_aware.recursion import window_averages
from cipherbayes.inference.noise_aware.residual_scale import ResidualScale
from cipherbayes.models import Design, Linear, Prior
from cipherbayes.typing import Floats
from cipherbayes.validation.simulation import Simulated, release_rounds

ROWS, COLUMNS, SD = 3000, 7, 0.02


def study(rng: np.random.Generator) -> Simulated:
    """Residuals with a fiftieth of the outcome's half range."""
    model = Linear(outcome="y", low=-1.0, high=1.0)
    x = np.vstack([np.ones(ROWS), rng.standard_normal((COLUMNS, ROWS))])
    truth = np.append(SD * rng.normal(0.0, 0.4, COLUMNS + 1), np.log(SD))
    y = truth[:-1] @ x + SD * rng.standard_normal(ROWS)
    names = ("intercept", *(f"x{j}" for j in range(COLUMNS)))
    design = Design(names, np.zeros(COLUMNS + 1), np.ones(COLUMNS + 1), 1.0)
    table = PreparedTable.from_arrays(design, x, {"y": y})
    prior = Prior(scale=0.5, intercept=5.0, shape=5.0).resolve(model.parameters(design))
    return Simulated(model, prior, table, truth, float(np.sqrt(COLUMNS + 3.0)))


def residual_scale(seed: int, epsilon: float) -> tuple[ResidualScale, Floats, Floats]:
    """What a study's rounds say, an H, and θ̄ with its Λ, in internal units."""
    recursion, state = release_rounds(
        study(np.random.default_rng(seed)), epsilon, np.random.default_rng(seed)
    )
    measured, turned = recursion.measured_at(window_averages(state)[0], state)
    evidence = evidence_of(measured, turned)
    found = ResidualScale.of(measured.shape, evidence)
    assert found is not None
    return found, evidence.estimate[None], evidence.place[None]


def test_a_scale_is_what_coefficients_that_are_off_leave_of_it() -> None:
    scale, information, place = residual_scale(0, 3.0)
    precision = np.eye(place.size)[None]
    at_mean = scale.told(information, place)[0, -1]
    off = place.copy()
    off[0, 1] += 0.5
    at_off = scale.told(information, off)[0, -1]
    assert at_off < at_mean <= place[0, -1]
    share = information[0, 1, 1] / information[0, 0, 0]
    ratio = np.exp(2.0 * scale.unit * (at_off - place[0, -1]))
    near = np.exp(2.0 * scale.unit * (at_mean - place[0, -1]))
    assert near - ratio == pytest.approx(0.25 * share, rel=1e-9)
    far = place.copy()
    far[0, 1] += 50.0
    assert np.isnan(scale.told(information, far)[0, -1])
    assert scale.log_weight(information, far, precision) == -np.inf
    assert np.isfinite(scale.log_weight(information, off, precision)).all()


@pytest.mark.slow
def test_a_scale_is_not_told_too_high_where_noise_hides_the_coefficients() -> None:
    away = []
    for seed in range(10):
        rng = np.random.default_rng([7, seed])
        simulated = study(rng)
        posterior = sample_posterior(
            *release_rounds(simulated, 0.5, rng), seed=seed, effort=SHORT
        )
        draws = posterior.draws.theta[..., -1].ravel()
        away.append((draws.mean() - simulated.truth[-1]) / draws.std())
    assert np.mean(np.abs(away) < 2.0) >= 0.7
    assert abs(np.mean(away)) < 1.2

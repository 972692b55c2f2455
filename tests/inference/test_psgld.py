"""The paper's sampler draws from the right distribution."""

from __future__ import annotations

import numpy as np
import pytest

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.inference import psgld
from cipherbayes.inference.chains import Draws, sample
from cipherbayes.inference.diagnostics import rhat_and_ess
from cipherbayes.inference.settings import Inference
from cipherbayes.inference.target import Target
from cipherbayes.models import Design, GaussianMean, Logistic
from cipherbayes.models.prior import Prior
from exact_posteriors import weighted


def ignore(done: int, total: int) -> None:
    pass


def gaussian_target(n: int = 400) -> tuple[Target, np.ndarray, np.ndarray]:
    """A conjugate target with its exact posterior mean and sd."""
    rng = np.random.default_rng(7)
    x = rng.normal([[0.5], [-0.5]], np.sqrt(0.1), (2, n))
    design = Design(("a", "b"), np.zeros(2), np.ones(2), None)
    prior = Prior(scale=1.0).resolve(("a", "b"))
    table = PreparedTable.from_arrays(design, x, {})
    target = Target(GaussianMean(variance=0.1), prior, [table])
    precision = n / 0.1 + 1.0
    return target, x.sum(axis=1) / 0.1 / precision, np.full(2, precision**-0.5)


def logistic_target(n: int = 600, width: int = 4) -> Target:
    rng = np.random.default_rng(3)
    x = np.vstack([np.ones(n), rng.uniform(-1, 1, (width - 1, n))])
    beta = np.linspace(-1.0, 1.5, width)
    y = (rng.random(n) < 1 / (1 + np.exp(-beta @ x))).astype(float)
    names = tuple(f"b{j}" for j in range(width))
    design = Design(names, np.zeros(width), np.ones(width), 1.0)
    table = PreparedTable.from_arrays(design, x, {"y": y})
    prior = Prior(scale=2.0).resolve(names)
    return Target(Logistic(outcome="y"), prior, [table])


def moments(draws: Draws) -> tuple[np.ndarray, np.ndarray]:
    flat = draws.theta.reshape(-1, draws.theta.shape[-1])
    return flat.mean(axis=0), flat.std(axis=0)


SETTLED = 1 / 6
"""Share of the rounds in which a chain gets from the prior mean to the posterior."""
SETTINGS = {
    "rmsprop, full batch": {"preconditioner": "rmsprop", "rounds": 3600},
    "rmsprop, Poisson batches": {
        "preconditioner": "rmsprop",
        "batch": 200,
        "rounds": 3600,
    },
    "rmsprop, fixed batches": {
        "preconditioner": "rmsprop",
        "batch": 200,
        "sampling": "fixed",
        "rounds": 3600,
    },
    "plain SGLD": {"preconditioner": "none", "rounds": 3600},
    "Fisher": {"preconditioner": "fisher", "rounds": 2400},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_conjugate_gaussian_posterior_matches_the_closed_form(name: str) -> None:
    target, mean, sd = gaussian_target()
    settings = Inference(chains=4, burn_in=SETTLED, **SETTINGS[name])
    draws = sample(target, settings, ignore)
    got_mean, got_sd = moments(draws)
    rhat, ess = rhat_and_ess(draws.theta)
    assert (rhat < 1.02).all()
    assert (ess > 300).all()
    # Four standard errors of the estimates, plus the bias that the automatic step
    # allows: 1/(1 − 0.05) and minibatch noise of 5 % in variance.
    assert (np.abs(got_mean - mean) < 4 * sd / np.sqrt(ess)).all()
    assert (got_sd / sd > 1 - 4 / np.sqrt(2 * ess)).all()
    assert (got_sd / sd < 1.055 + 4 / np.sqrt(2 * ess)).all()


@pytest.fixture(scope="module")
def numpyros() -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of the logistic posterior, written in another language."""
    import numpyro
    import numpyro.distributions as dist

    target = logistic_target()
    rows = next(iter(target.tables[0].blocks()))
    x, y = np.asarray(rows.x), np.asarray(rows.outcome["y"])

    def model() -> None:
        beta = numpyro.sample("beta", dist.Normal(0, 2.0).expand([x.shape[0]]))
        numpyro.sample("y", dist.Bernoulli(logits=beta @ x), obs=y)

    found = weighted(model, lambda place: ({"beta": place}, 0.0), len(x))
    assert found.worth > 10_000
    return found.of(found.draws)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rmsprop", "fisher"])
def test_logistic_posterior_matches_numpyros(
    kind: str, numpyros: tuple[np.ndarray, np.ndarray]
) -> None:
    settings = Inference(chains=4, preconditioner=kind, rounds=10_000)
    draws = sample(logistic_target(), settings, ignore)
    mean, sd = moments(draws)
    expected, expected_sd = numpyros
    assert (rhat_and_ess(draws.theta)[0] < 1.02).all()
    assert (np.abs(mean - expected) < 0.1 * expected_sd).all()
    np.testing.assert_allclose(sd, expected_sd, rtol=0.06)


def test_the_drift_climbs_the_log_posterior() -> None:
    target = logistic_target()
    state = psgld.init(target.start)
    rng = np.random.default_rng(0)
    before = target.log_density(state.theta)
    for _ in range(50):
        gradient = target.likelihood_gradient(state.theta) / target.records
        state, _ = psgld.step(
            rng.standard_normal(state.theta.shape),
            state,
            mean_gradient=gradient,
            prior_gradient=target.prior.gradient(state.theta),
            records=target.records,
            size=1e-3,
        )
    assert target.log_density(state.theta) > before + 10


def test_gamma_is_the_derivative_of_the_preconditioner() -> None:
    target = logistic_target()
    theta, alpha, floor = np.array([0.3, -0.2, 0.1, 0.5]), 0.9, 1e-4
    past = psgld.PsgldState(theta, np.full(4, 1e-3), 5)

    def preconditioner_at(point: np.ndarray) -> np.ndarray:
        mean = target.likelihood_gradient(point) / target.records
        moved = psgld.update_second_moment(past, mean, alpha)
        return psgld.preconditioner(moved, floor)

    mean = target.likelihood_gradient(theta) / target.records
    state = psgld.update_second_moment(past, mean, alpha)
    information = target.mean_information(theta)
    got = psgld.gamma(state, mean, information, alpha=alpha, floor=floor)
    for j in range(4):
        h = np.zeros(4)
        h[j] = 1e-6
        slope = preconditioner_at(theta + h) - preconditioner_at(theta - h)
        assert got[j] == pytest.approx(slope[j] / 2e-6, rel=1e-5)


@pytest.mark.slow
def test_privacy_noise_is_counted_into_the_langevin_noise() -> None:
    """Injected plus brought variance is η G, whatever the gradient's noise is."""
    rng = np.random.default_rng(1)
    size, scale, records, noise = 1e-3, 2.0, 100.0, 0.05
    steps = np.empty((20_000, 3))
    state = psgld.init(np.zeros(3))
    for i in range(len(steps)):
        moved, info = psgld.step(
            rng.standard_normal(state.theta.shape),
            state,
            mean_gradient=rng.normal(0.0, noise, 3),
            prior_gradient=np.zeros(3),
            records=records,
            size=size,
            scale=scale,
            noise_variance=noise**2,
        )
        steps[i] = moved.theta
    assert 0.0 < info.langevin_share < 1.0
    np.testing.assert_allclose(steps.var(axis=0), size * scale, rtol=0.05)


def test_burn_in_thinning_chains_and_seed_shape_the_draws() -> None:
    target, _, _ = gaussian_target(50)
    settings = Inference(chains=3, rounds=100, burn_in=0.5, thin=7, seed=4)
    draws = sample(target, settings, ignore)
    assert draws.theta.shape == (3, 8, 2)
    again = sample(target, settings, ignore)
    np.testing.assert_array_equal(draws.theta, again.theta)
    other = sample(target, settings.model_copy(update={"seed": 5}), ignore)
    assert not np.array_equal(draws.theta, other.theta)


def test_gamma_term_changes_the_chain_and_stays_finite() -> None:
    target, _, _ = gaussian_target(50)
    settings = Inference(chains=1, rounds=200, preconditioner="rmsprop", adapt="always")
    with_gamma = settings.model_copy(update={"gamma_term": True})
    plain = sample(target, settings, ignore).theta
    other = sample(target, with_gamma, ignore).theta
    assert np.isfinite(other).all()
    assert not np.array_equal(plain, other)


def test_a_step_far_too_large_is_refused_in_words() -> None:
    from cipherbayes.errors import RunError
    from cipherbayes.inference.settings import Step

    target = logistic_target()
    settings = Inference(
        chains=1, rounds=500, preconditioner="none", step=Step(size=1e300)
    )
    with (
        pytest.raises(RunError, match="lower the step size"),
        np.errstate(all="ignore"),
    ):
        sample(target, settings, ignore)

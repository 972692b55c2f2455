"""The compiled loops of the posterior beside those of numpy."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from cipherbayes.inference.diagnostics import rhat_and_ess
from cipherbayes.inference.noise_aware import Effort, compiled, sample_posterior
from cipherbayes.inference.noise_aware.compiled import TrajectoryLaw
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.information import InformationSampler
from cipherbayes.inference.noise_aware.layout import ExpectedMasses, SiteLayout
from cipherbayes.inference.noise_aware.recursion import NoiseAware, NoiseAwareState
from cipherbayes.inference.noise_aware.saturation import (
    SaturatingBySite,
    SaturatingScore,
)
from cipherbayes.inference.noise_aware.slicing import Score, sliced
from cipherbayes.inference.noise_aware.tilting import TiltedBySite, TiltedScore
from cipherbayes.inference.site_context import SiteContext
from cipherbayes.typing import Floats
from cipherbayes.validation.simulation import release_rounds, simulate

pytestmark = pytest.mark.skipif(
    not compiled.COMPILED, reason="the extension is not built"
)
CHAINS = 3


def finished(kind: str, dimension: int = 5) -> tuple[NoiseAware, NoiseAwareState]:
    rng = np.random.default_rng(3)
    scale = min(1.0, (10.0 / dimension) ** 0.5)
    alike = kind == "logistic" and dimension > 4
    study = simulate(kind, 1_500, dimension, rng, prior_scale=scale, alike=alike)
    return release_rounds(study, 1.0, rng)


def evidence_of(kind: str) -> tuple[NoiseAware, Evidence]:
    """Of a model; ``many``: with too many parameters for S; ``sites``, ``three``: by
    site; ``intervals``: by site and interval."""
    owned = {"sites": [0, 1], "three": [0, 1, 2], "intervals": [0, 1, 0, 1]}
    name = "logistic" if kind == "many" or kind in owned else kind
    recursion, state = finished(name, 64 if kind == "many" else 5)
    evidence = Evidence.of(recursion, state)
    if kind in owned:
        owners = np.array(owned[kind])
        b = owners.size
        masses = np.diag(evidence.information)[:b].clip(10.0)
        spread = np.array([0.4, 2.0, 0.4])[owners]
        sites = SiteLayout(owners, np.full(5 - b, -1), ExpectedMasses(masses, spread))
        layout = replace(evidence.layout, constants=tuple(range(b)), sites=sites)
        evidence = replace(evidence, layout=layout, first=None)
    return recursion, evidence


def followed_by(evidence: Evidence) -> SiteContext | None:
    """What the levels of these sites follow: all columns, the first in other units."""
    sites = evidence.layout.sites
    if sites is None:
        return None
    b, d = sites.constants.size, evidence.dimension
    count = len(set(sites.constants.tolist()))
    columns = np.tile(np.arange(b, d), (count, 1))
    loading = (np.arange(d)[:, None] % count == np.arange(count)) * 1.0
    loading[b:] = 0.0
    units = np.linspace(0.5, 1.5, d)
    scale = np.linspace(1.0, 3.0, d - b)
    tilts = np.linspace(-0.3, 0.3, columns.size).reshape(columns.shape)
    rows = np.arange(b).reshape(-1, count)
    return SiteContext(loading, rows, columns, tilts, scale, 0.5, units)


def sampler_of(evidence: Evidence) -> tuple[InformationSampler, Floats]:
    """Some way into its walk, and the prior's covariance of every chain."""
    follows = followed_by(evidence)
    rng = np.random.default_rng(1)
    sampler = InformationSampler(evidence, CHAINS, rng, 0.4, follows)
    sampler.chains.following = np.linspace(0.5, 1.0, CHAINS)
    prior = np.tile(evidence.prior_covariance, (CHAINS, 1, 1))
    for _ in range(5):
        sampler.sweep(prior, adapting=True)
    return sampler, prior


KINDS = [
    "logistic",
    "exponential",
    "weibull",
    "piecewise",
    "many",
    "sites",
    "three",
    "intervals",
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("correlated_prior", [False, True])
def test_densities_gradients_and_trajectories_are_those_of_numpy(
    kind: str, correlated_prior: bool
) -> None:
    sampler, prior = sampler_of(evidence_of(kind)[1])
    if correlated_prior:
        prior = prior + 0.2 * np.ones_like(prior)
    loops, here = sampler._loops, sampler.chains
    assert loops is not None
    law = TrajectoryLaw(here.means, prior, here.bend, here.following)
    assert (kind == "three") == bool(
        sampler.information_prior.normal(here.means)[2].any()
    )
    value, gradient, built = loops.density(here.moved, law)
    expected = sampler.density(here.moved, prior)
    assert value == pytest.approx(expected[0], rel=1e-11)
    largest = np.abs(expected[1]).max()
    assert gradient == pytest.approx(expected[1], rel=1e-9, abs=1e-10 * largest)
    assert built == pytest.approx(expected[2], rel=1e-10, abs=1e-10)

    rng = np.random.default_rng(2)
    momentum, step = rng.standard_normal(here.moved.shape), rng.uniform(0.05, 0.1, 3)
    found = loops.leapfrog(sampler._metric, step, 5, here.moved, momentum, law)
    wanted = sampler.leapfrog(step, 5, momentum, prior)
    for ours, numpys in zip(found, wanted, strict=True):
        assert ours == pytest.approx(numpys, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("kind", ["sites", "three", "intervals"])
@pytest.mark.parametrize("compiled_loops", [True, False])
def test_gradients_are_those_of_differences_where_levels_follow_means(
    kind: str, compiled_loops: bool
) -> None:
    sampler, prior = sampler_of(evidence_of(kind)[1])
    here, loops = sampler.chains, sampler._loops
    assert loops is not None
    law = TrajectoryLaw(here.means, prior, here.bend, here.following)

    def value(moved: Floats) -> tuple[Floats, Floats, Floats]:
        if compiled_loops:
            return loops.density(moved, law)
        return sampler.density(moved, prior)

    gradient = value(here.moved)[1]
    for j in range(here.moved.shape[1]):
        step = np.zeros_like(here.moved)
        step[:, j] = 1e-5
        ahead, behind = value(here.moved + step)[0], value(here.moved - step)[0]
        expected = (ahead - behind) / 2e-5
        assert gradient[:, j] == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("size", [-0.8, 0.0, 1.0, 2.5, 6.0])
def test_correlations_of_all_sizes_have_the_density_of_numpy(size: float) -> None:
    """By a polynomial, squared more and more often, and by eigenvalues in the end."""
    sampler, prior = sampler_of(evidence_of("logistic")[1])
    loops, here = sampler._loops, sampler.chains
    assert loops is not None
    here.moved[:, sampler.parts.entries] += size
    value, gradient, built = loops.density(
        here.moved, TrajectoryLaw(here.means, prior, here.bend, here.following)
    )
    expected = sampler.density(here.moved, prior)
    assert value == pytest.approx(expected[0], rel=1e-9)
    largest = np.abs(expected[1]).max()
    assert gradient == pytest.approx(expected[1], rel=1e-7, abs=1e-9 * largest)
    assert built == pytest.approx(expected[2], rel=1e-9, abs=1e-9)


def test_a_trajectory_that_leaves_all_bounds_is_refused_by_both() -> None:
    sampler, prior = sampler_of(evidence_of("logistic")[1])
    loops, here = sampler._loops, sampler.chains
    assert loops is not None
    here.moved[1, -1] = 800.0  # log ρ
    momentum, step = np.zeros_like(here.moved), np.array([0.1, 0.1, 400.0])
    momentum[2] = 10.0
    law = TrajectoryLaw(here.means, prior, here.bend, here.following)
    with np.errstate(all="ignore"):
        ours = loops.leapfrog(sampler._metric, step, 3, here.moved, momentum, law)[2]
        numpys = sampler.leapfrog(step, 3, momentum, prior)[2]
    assert np.isnan(ours).tolist() == [False, True, True]
    assert np.isnan(numpys).tolist() == [False, True, True]


def score_of(kind: str) -> tuple[Evidence, Score, Floats, Floats]:
    """A score, H of every chain and the prior's precision."""
    recursion, evidence = evidence_of("sites" if kind == "levels" else kind)
    sampler, prior = sampler_of(evidence)
    h, shape = sampler.information(), recursion.shape
    score: Score
    if kind == "levels":
        values, bend = np.array([1.0, 2.0]), sampler.chains.bend + 0.3
        score = SaturatingBySite.of(evidence, h, bend, values)
    elif kind == "sites":
        unit = np.array([1.0, 0.5, 0, 0, 0])
        shape = replace(shape, unit=unit, constants=(0, 1))
        score = TiltedBySite.of(evidence, shape, unit, h)
    elif shape.unit is not None:
        score = TiltedScore.of(evidence, shape, shape.unit, h)
    else:
        score = SaturatingScore.of(evidence, sampler.slope(), sampler.chains.bend)
    return evidence, score, h, np.asarray(np.linalg.inv(prior), dtype=np.float64)


@pytest.mark.parametrize(
    "kind", ["logistic", "exponential", "weibull", "sites", "levels"]
)
def test_slices_with_the_same_random_numbers_end_in_the_same_place(kind: str) -> None:
    evidence, score, h, precision = score_of(kind)
    assert isinstance(score, compiled.SCORES)
    rng = np.random.default_rng(4)
    theta = evidence.place + 0.1 * rng.standard_normal((CHAINS, 5))
    near = np.tile(evidence.place, (CHAINS, 1))
    kept = np.array([0.7, 0.35])
    numbers = (
        rng.standard_normal((CHAINS, 2, 5)),
        rng.random((CHAINS, 2)),
        rng.random((CHAINS, 2, 40)),
    )
    matrices = (h, precision)
    ours = compiled.slice_theta(evidence, score, matrices, kept, numbers, theta, near)
    numpys = sliced(evidence, score, matrices, kept, numbers, theta, near)
    for mine, other in zip(ours, numpys, strict=True):
        assert mine == pytest.approx(other, abs=1e-6)
    assert not np.allclose(ours[0], theta, atol=1e-3)


def test_a_slice_without_an_angle_left_stays_where_it_was() -> None:
    evidence, score, h, precision = score_of("logistic")
    assert isinstance(score, compiled.SCORES)
    theta = np.tile(evidence.place, (CHAINS, 1))
    kept, rng = np.array([0.7]), np.random.default_rng(0)
    impossible = np.full((CHAINS, 1), 1e300)
    numbers = (
        rng.standard_normal((CHAINS, 1, 5)),
        impossible,
        rng.random((CHAINS, 1, 3)),
    )
    for slicing in (compiled.slice_theta, sliced):
        found, _ = slicing(evidence, score, (h, precision), kept, numbers, theta, theta)
        assert found == pytest.approx(theta)


@pytest.mark.parametrize("kind", ["logistic", "weibull"])
def test_draws_do_not_depend_on_the_number_of_threads(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    effort = Effort(chains=4, warm_up=8, kept=4, doublings=0)
    draws = []
    for cores in (1, 2, 3):
        monkeypatch.setattr(compiled, "_cores", lambda cores=cores: cores)
        posterior = sample_posterior(*finished(kind), seed=5, effort=effort)
        draws.append(posterior.draws.theta)
    assert np.array_equal(draws[0], draws[1])
    assert np.array_equal(draws[0], draws[2])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logistic", "weibull"])
def test_draws_have_the_distribution_of_numpys(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Means and variances, from different seeds, within their Monte Carlo error.

    Each of the sixteen comparisons fails one time in 10,000 where the distributions
    are the same.
    """
    effort = Effort(chains=4, warm_up=40, kept=80, doublings=0)
    rounds, found = finished(kind, 4), []
    for seed in (1, 2):
        draws = sample_posterior(*rounds, seed=seed, effort=effort).draws.theta
        for each in (draws, (draws - draws.mean(axis=(0, 1))) ** 2):
            error = each.std(axis=(0, 1)) / np.sqrt(rhat_and_ess(each)[1])
            found.append((each.mean(axis=(0, 1)), error))
        monkeypatch.setattr(compiled, "COMPILED", False)
    limit = stats.norm.isf(0.5e-4)
    for ours, numpys in ((found[0], found[2]), (found[1], found[3])):
        apart = np.abs(ours[0] - numpys[0]) / np.hypot(ours[1], numpys[1])
        assert apart.max() < limit


def test_arrays_of_a_wrong_size_or_type_are_refused() -> None:
    sampler, prior = sampler_of(evidence_of("logistic")[1])
    loops, here = sampler._loops, sampler.chains
    assert loops is not None
    law = TrajectoryLaw(here.means, prior, here.bend, here.following)
    problem, laws = loops._problem(prior), loops._of_chains(law, slice(None))
    n, value = here.moved.shape[1], np.empty(CHAINS)
    gradient, built = np.empty((CHAINS, n)), np.empty((CHAINS, 5, 5))

    def density(*args: Any) -> None:
        compiled._loops.density(*args)

    density(problem, laws, here.moved, value, gradient, built)
    with pytest.raises(ValueError, match="moved: wrong size"):
        density(problem, laws, here.moved[:, 1:].copy(), value, gradient, built)
    with pytest.raises(ValueError, match="gradient"):
        density(problem, laws, here.moved, value, gradient.astype(np.float32), built)
    with pytest.raises(ValueError, match="contiguous"):
        density(problem, laws, here.moved[:, ::-1], value, gradient, built)
    with pytest.raises(TypeError, match="a tuple of 27"):
        density(problem[:-1], laws, here.moved, value, gradient, built)
    wrong = (*problem[:7], np.full_like(problem[7], 7), *problem[8:])
    with pytest.raises(ValueError, match="law_of: an index is out of range"):
        density(wrong, laws, here.moved, value, gradient, built)
    with pytest.raises(ValueError, match="wrong size"):
        density(
            (*problem[:1], 2, *problem[2:]), laws, here.moved, value, gradient, built
        )


def test_every_chain_has_its_turn_on_as_many_threads_as_there_are_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled, "_cores", lambda: 3)
    seen: list[tuple[int, int, int]] = []
    together = threading.Barrier(3, timeout=30.0)

    def run(some: slice) -> None:
        together.wait()
        seen.append((some.start, some.stop, threading.get_ident()))

    compiled.share_out(run, 8)
    covered = [c for start, stop, _ in seen for c in range(start, stop)]
    assert sorted(covered) == list(range(8))
    assert len({thread for _, _, thread in seen}) == 3

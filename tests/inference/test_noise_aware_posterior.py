"""The rounds and the posterior after them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import cipherbayes as cb
from cipherbayes.data.rescaled import rescaled_design
from cipherbayes.inference.flags import Flag
from cipherbayes.inference.noise_aware import (
    ROUNDS,
    Effort,
    NoiseAware,
    NoiseAwareState,
    posterior,
    rounds,
    sample_posterior,
)
from cipherbayes.inference.noise_aware.drawn_flags import DrawnNumbers
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.flags import (
    _thin_baseline,
    prior_of_ranges,
    rare_levels,
)
from cipherbayes.inference.noise_aware.information import InformationSampler
from cipherbayes.inference.noise_aware.posterior import _moderate
from cipherbayes.inference.noise_aware.schedule import BURN_IN
from cipherbayes.inference.released import Release
from cipherbayes.models import Design, Prior
from cipherbayes.typing import Bools, Floats
from cipherbayes.validation.calibration import _plain
from cipherbayes.validation.simulation import release_rounds, simulate
from conftest import logistic_frame


def finished(
    epsilon: float = 1.0, seed: int = 0, kind: str = "logistic"
) -> tuple[NoiseAware, NoiseAwareState]:
    rng = np.random.default_rng(seed)
    return release_rounds(simulate(kind, 3_000, 5, rng), epsilon, rng)


def test_the_shares_of_all_releases_add_to_one() -> None:
    total = sum(each.gradient_share + each.information_share for each in rounds())
    assert total == pytest.approx(1.0, abs=1e-14)
    assert len(rounds()) == ROUNDS


def test_a_state_survives_its_vector_and_goes_on_the_same() -> None:
    recursion, state = finished()
    again = NoiseAwareState.from_vector(state.to_vector())
    assert np.array_equal(again.to_vector(), state.to_vector())
    with pytest.raises(ValueError):
        NoiseAwareState.from_vector(state.to_vector()[:-1])
    with pytest.raises(ValueError):
        recursion.advance(state, Release(np.zeros(5), 1.0))


@pytest.mark.parametrize("kind", ["logistic", "weibull"])
def test_the_gradient_of_the_evidence_is_its_derivative(kind: str) -> None:
    recursion, state = finished(kind=kind)
    sampler = InformationSampler(
        Evidence.of(recursion, state), 2, np.random.default_rng(1)
    )
    place = sampler.chains.moved
    root = np.eye(5) + 0.3 * np.eye(5, k=1)
    prior = np.stack([np.eye(5), root @ root.T])
    _, slope, _ = sampler.density(place, prior)
    for j in range(place.shape[1]):
        move = 1e-5 * (np.arange(place.shape[1]) == j)
        ahead = sampler.density(place + move, prior)[0]
        behind = sampler.density(place - move, prior)[0]
        assert (ahead - behind) / 2e-5 == pytest.approx(slope[:, j], rel=1e-4, abs=1e-3)


def test_a_scale_that_overflows_has_no_density_and_raises_nothing() -> None:
    recursion, state = finished()
    sampler = InformationSampler(
        Evidence.of(recursion, state), 2, np.random.default_rng(1)
    )
    place = sampler.chains.moved.copy()
    place[1, -1] = 800.0  # log ρ
    with np.errstate(all="ignore"):
        value = sampler.density(place, np.stack([np.eye(5)] * 2))[0]
    assert np.isfinite(value[0])
    assert value[1] == -np.inf


def test_steps_that_leap_over_the_mode_and_back_are_halved() -> None:
    rng = np.random.default_rng(22)
    study = simulate("weibull", 5_000, 6, rng)
    recursion, state = release_rounds(study, 100.0, rng)
    mode, sd = _plain(study)
    window = recursion.shape.outside(state.visited[BURN_IN:])
    assert np.abs((window - mode) / sd).max() < 1.5


@pytest.mark.slow
def test_with_hardly_any_noise_the_posterior_is_the_plain_one() -> None:
    rng = np.random.default_rng(5)
    study = simulate("logistic", 5_000, 4, rng)
    recursion, state = release_rounds(study, 50.0, rng)
    draws = sample_posterior(recursion, state, seed=1, effort=Effort(4, 80, 150)).draws
    flat = draws.theta.reshape(-1, 4)
    mode, sd = _plain(study)
    assert np.abs((flat.mean(axis=0) - mode) / sd).max() < 0.6
    assert flat.std(axis=0) / sd == pytest.approx(np.ones(4), abs=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["laplace", "student-t"])
def test_other_priors_are_scale_mixtures(kind: str) -> None:
    recursion, state = finished()
    prior = Prior.model_validate({"kind": kind}).resolve(tuple("abcde"))
    other = NoiseAware(prior, recursion.shape)
    draws = sample_posterior(other, state, seed=1, effort=Effort(2, 20, 20)).draws
    assert np.isfinite(draws.theta).all()


@pytest.mark.slow
def test_columns_that_follow_from_each_other_are_named_and_have_wide_intervals() -> (
    None
):
    rng = np.random.default_rng(11)
    study = simulate("exponential", 8_000, 7, rng, alike=True)
    found = sample_posterior(
        *release_rounds(study, 1.0, rng), seed=1, effort=Effort(4, 80, 120, 1)
    )
    told = {flag.code: flag for flag in found.flags}
    assert told["columns-alike"].parameters == (1, 2, 4)
    flat = found.draws.theta.reshape(-1, 7)
    sd = flat.std(axis=0)
    assert sd[[1, 2, 4]].min() > 2.0 * sd[[3, 5, 6]].max()
    # Together they are known: a half of x1 and x2 each is about what x4 is.
    together = flat[:, 1] + 0.5 * flat[:, 4]
    assert together.std() < 0.5 * sd[1]


def test_columns_are_named_that_only_the_sums_say_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(evidence: Evidence, information: Floats) -> Bools:
        return np.zeros(information.shape[:2], dtype=bool)

    monkeypatch.setattr(posterior, "follows_from_others", none)
    rng = np.random.default_rng(11)
    study = simulate("exponential", 8_000, 7, rng, alike=True)
    found = sample_posterior(
        *release_rounds(study, 1.0, rng), seed=1, effort=Effort(2, 20, 10, 0)
    )
    told = {flag.code: flag for flag in found.flags}
    assert set(told["columns-alike"].parameters) <= {1, 2, 4}
    # Intervals of a posterior that denies it may be too narrow.
    assert not told["columns-alike"].caution


@pytest.mark.parametrize(
    ("seen", "possible", "chance", "said"),
    [
        ([], [], 0.3, [((1, 2), True)]),
        ([1, 2], [1, 2], 0.3, [((1, 2), False)]),
        ([1, 2], [1, 2], 0.7, [((1, 2), True)]),
        ([3], [3], 0.7, [((3,), False), ((1, 2), True)]),
        ([], [3], 0.0, [((3,), True)]),
        ([], [], 0.0, []),
    ],
)
def test_what_a_posterior_denies_of_alike_columns_is_a_flag(
    seen: list[int],
    possible: list[int],
    chance: float,
    said: list[tuple[tuple[int, ...], bool]],
) -> None:
    """Where it counts with it, or noise hides it, that is a caution."""
    drawn = DrawnNumbers(
        held=False,
        distance=0.0,
        share=np.zeros(5),
        seen=tuple(seen),
        possible=tuple(possible),
        chance=np.array([0.0, chance, chance, 0.0, 0.0]),
        largest_rhat=1.0,
        places=np.eye(5),
    )
    found = drawn.alike()
    assert [(flag.parameters, flag.caution) for flag in found] == said


def test_columns_of_their_own_are_not_called_alike() -> None:
    rng = np.random.default_rng(12)
    study = simulate("exponential", 8_000, 7, rng)
    found = sample_posterior(
        *release_rounds(study, 1.0, rng), seed=1, effort=Effort(2, 40, 20, 0)
    )
    assert "columns-alike" not in {flag.code for flag in found.flags}


@pytest.mark.parametrize(("scale", "conflict"), [(0.1, True), (2.0, False)])
def test_a_prior_that_the_releases_contradict_is_told(
    scale: float, conflict: bool
) -> None:
    rng = np.random.default_rng(4)
    study = simulate("logistic", 8_000, 4, rng)
    prior = Prior(scale=scale).resolve(study.model.parameters(study.table.design))
    recursion, state = release_rounds(replace(study, prior=prior), 3.0, rng)
    found = sample_posterior(recursion, state, seed=1, effort=Effort(2, 40, 20, 0))
    told = {flag.code: flag for flag in found.flags}
    assert ("beyond-the-prior" in told) == conflict
    if conflict:
        farthest = int(np.abs(study.truth).argmax())
        assert farthest in told["beyond-the-prior"].parameters
        assert told["beyond-the-prior"].unusable


def test_a_strong_effect_that_the_rows_settle_is_a_caution() -> None:
    """The prior is far off, and moves next to nothing."""
    rng = np.random.default_rng(4)
    study = simulate("logistic", 40_000, 4, rng)
    mean = np.array([0.0, 6.0, 0.0, 0.0])
    stated = Prior(scale=1.0).resolve(study.model.parameters(study.table.design))
    recursion, state = release_rounds(
        replace(study, prior=replace(stated, mean=mean)), 20.0, rng
    )
    found = sample_posterior(recursion, state, seed=1, effort=Effort(2, 40, 20, 0))
    (said,) = (flag for flag in found.flags if flag.code == "beyond-the-prior")
    assert said.caution
    assert not said.unusable
    assert 1 in said.parameters
    assert "standard deviation" in said.message


def test_levels_that_few_records_have_are_named_once_standardised() -> None:
    names = ("intercept", "age", "sex[M]", "mgus[1]")
    public = Design(names, np.zeros(4), np.array([1.0, 40.0, 1.0, 1.0]), 1.0)
    mean, sd = np.array([0.1, 0.5, 0.015]), np.array([0.15, 0.5, 0.12])
    (flag,) = rare_levels(public, rescaled_design(public, mean, sd))
    assert flag.parameters == (3,)
    assert "mgus[1]" in flag.as_record(names)["message"]
    assert rare_levels(public, rescaled_design(public, mean, np.full(3, 0.3))) == ()


def test_a_flag_names_every_parameter_that_it_is_about() -> None:
    names = tuple("abcdefgh")
    flag = Flag("code", "in words", unusable=False, parameters=tuple(range(7)))
    assert flag.as_record(names)["message"] == "in words: a, b, c, d, e, f, g"
    every = replace(flag, parameters=tuple(range(8)))
    assert every.as_record(names)["message"] == "in words: all parameters"


def test_mostly_prior_is_unusable_where_the_prior_is_of_public_ranges() -> None:
    others = Flag("columns-alike", "in words", unusable=False)
    mostly = Flag("mostly-prior", "in words", False, parameters=(1,), caution=True)
    found = prior_of_ranges([others, mostly])
    assert [flag.unusable for flag in found] == [False, True]
    assert not found[1].caution
    assert found[1].parameters == (1,)


def test_a_thin_baseline_is_named_by_its_place_in_one_sites_model() -> None:
    # Two sites, two intervals each, and an effect: of all parameters the first four.
    loading = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1.0]])
    evidence = SimpleNamespace(
        information=np.diag([90.0, 70.0, 12.0, 20.0, 8.0]),
        information_sd=10.0,
        layout=SimpleNamespace(constants=(0, 1, 2, 3)),
    )
    assert _thin_baseline(evidence, loading) == (1,)  # type: ignore[arg-type]
    alone = SimpleNamespace(
        information=np.diag([90.0, 12.0]),
        information_sd=10.0,
        layout=SimpleNamespace(constants=(0,)),
    )
    assert _thin_baseline(alone, np.eye(2)) == ()  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_baseline_interval_that_noise_hides_is_neither_thick_nor_empty() -> None:
    """What the other intervals have says about how much it may have."""
    effort, away = Effort(chains=4, warm_up=100, kept=100, doublings=0), []
    for seed in (3, 4, 5, 7):
        rng = np.random.default_rng(seed)
        study = simulate("piecewise", 2_000, 6, rng, prior_scale=2.0, truth_scale=0.5)
        recursion, state = release_rounds(study, 0.5, rng)
        posterior = sample_posterior(recursion, state, seed=1, effort=effort)
        found = posterior.draws.theta.reshape(-1, 6)[:, -1]
        away.append((found.mean() - study.truth[-1]) / found.std())
        # The prior's is 2.
        assert found.std() < 1.7
    assert np.mean(np.square(away)) < 2.0


def test_h_is_judged_by_effects_of_a_residual_at_most() -> None:
    """A prior of a public range that is many residuals wide is not held against H."""
    rng = np.random.default_rng(2)
    study = simulate("linear", 300, 4, rng, prior_scale=50.0)
    recursion, _ = release_rounds(study, 3.0, rng)
    wide = recursion.shape.prior_covariance(np.tile(study.prior.scale**2, (2, 1)))
    found = _moderate(recursion.shape, wide)
    assert found[:, 0, 0] == pytest.approx(wide[:, 0, 0])
    assert found[:, [1, 2, 3], [1, 2, 3]] == pytest.approx(1.0)
    narrow = 1e-6 * wide
    assert np.array_equal(_moderate(recursion.shape, narrow), narrow)


@pytest.mark.slow
def test_where_sites_differ_what_is_mostly_prior_has_its_own_name() -> None:
    """Names of common parameters are not looked up among those of all sites."""
    frames = {
        name: logistic_frame(40, seed=k).assign(rare=0.0)
        for k, name in enumerate(("a", "b"))
    }
    study = cb.Study(
        model=cb.models.Logistic(outcome="death"),
        features={"age": {"low": 18, "high": 100}, "rare": {"low": 0, "high": 1}},
        hierarchy={},
        preparation={"method": "public-bounds"},
        prior={"parameters": {"age": {"scale": 0.001}}},
        privacy={"epsilon": 8.0, "records": 80},
        study={"protocol": "pooled"},
        sites={name: {} for name in frames},
    )
    result = cb.run(study, frames)
    scale = {"intercept": 1.0, "age": 0.001, "rare": 1.0}
    draws = result.posterior["prepared"]["theta"].to_numpy().reshape(-1, 3)
    wide = {
        n for n, sd in zip(scale, draws.std(axis=0), strict=True) if sd > scale[n] / 2
    }
    (named,) = (
        f["parameters"] for f in result.record["flags"] if f["name"] == "mostly-prior"
    )
    assert set(named) == wide


def test_a_shape_whose_information_is_known_is_not_called_hidden() -> None:
    recursion, state = finished(0.5, kind="weibull")
    assert Evidence.of(recursion, state).hidden == (4,)
    found = sample_posterior(recursion, state, seed=1, effort=Effort(2, 20, 20, 0))
    assert "column-hidden" not in {flag.code for flag in found.flags}


@pytest.mark.slow
def test_tiny_budgets_are_flagged_as_mostly_prior() -> None:
    recursion, state = finished(epsilon=0.01)
    found = sample_posterior(recursion, state, seed=1, effort=Effort(2, 40, 60))
    (mostly,) = (flag for flag in found.flags if flag.code == "mostly-prior")
    assert mostly.caution

"""What rounds over sites that differ say of H and of the sites' parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from invented_hospitals import FEATURES, SITES, study

import cipherbayes as cb
from cipherbayes.inference.between_sites import SitePrior
from cipherbayes.inference.method import SiteRecords
from cipherbayes.inference.noise_aware import Effort
from cipherbayes.inference.noise_aware.contrasts import evidence_of
from cipherbayes.inference.noise_aware.coordinates import Coordinates
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.flags import _hidden_levels, hidden_columns
from cipherbayes.inference.noise_aware.information import InformationSampler
from cipherbayes.inference.noise_aware.information_prior import InformationPrior
from cipherbayes.inference.noise_aware.layout import (
    ExpectedMasses,
    InformationLayout,
    SiteLayout,
)
from cipherbayes.inference.noise_aware.posterior import sample_posterior
from cipherbayes.inference.noise_aware.recursion import NoiseAware, NoiseAwareState
from cipherbayes.inference.noise_aware.schedule import BURN_IN, EARLY_INFORMATION
from cipherbayes.inference.noise_aware.scores import estimated_score
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.inference.noise_aware.shrinkage import by_site, shrunk
from cipherbayes.inference.noise_aware.tilting import TiltedBySite
from cipherbayes.inference.noise_aware.without_privacy import expected_sd
from cipherbayes.inference.released import Release
from cipherbayes.models import Design, Exponential, Logistic, Piecewise, Prior
from cipherbayes.models.influence import InfluenceBound
from cipherbayes.models.packing import pack
from cipherbayes.study.tables import (
    preparation_of,
    resolve_prior,
    site_prior,
    slots_of,
)


def finished(
    slopes: tuple[str, ...] = (), sites: tuple[str, ...] = SITES
) -> tuple[NoiseAware, NoiseAwareState]:
    """Rounds of exact normal sums around a known matrix, with noise."""
    wanted = study(
        hierarchy={"slopes": slopes},
        prior=Prior(scale=1.0),
        sites={site: {} for site in sites},
    )
    slots = slots_of(wanted)
    assert slots is not None
    design: Design = preparation_of(wanted).design
    prior = site_prior(wanted, slots, resolve_prior(wanted, design))
    recursion = NoiseAware(prior, ScoreShape.of(wanted.model, design, slots))
    rng = np.random.default_rng(5)
    matrix = np.zeros((slots.dimension, slots.dimension))
    for site in slots.sites:
        root = rng.normal(size=(3, 40))
        root[0] = 1.0
        own = slots.of_site(site)
        matrix[np.ix_(own, own)] += root @ root.T
    truth, state = rng.normal(size=slots.dimension), recursion.init()
    for t in range(24):
        score = matrix @ (truth - state.theta) + rng.normal(size=truth.size)
        has = t >= BURN_IN or t in EARLY_INFORMATION
        noised = matrix + np.diag(rng.normal(size=truth.size))
        release = Release(score, 1.0, pack(noised) if has else None, 1.0 * has)
        state = recursion.advance(state, release)
    return recursion, state


@pytest.mark.parametrize("slopes", [(), ("x",)])
def test_the_gradient_where_sites_differ_is_the_derivative(
    slopes: tuple[str, ...],
) -> None:
    recursion, state = finished(slopes)
    evidence = Evidence.of(recursion, state)
    sampler = InformationSampler(evidence, 2, np.random.default_rng(1), 0.3)
    sampler.sweep(np.stack([evidence.prior_covariance] * 2), adapting=False)
    place = sampler.chains.moved
    prior = np.stack([evidence.prior_covariance] * 2)
    _, slope, built = sampler.density(place, prior)
    for j in range(place.shape[1]):
        move = 1e-5 * (np.arange(place.shape[1]) == j)
        ahead = sampler.density(place + move, prior)[0]
        behind = sampler.density(place - move, prior)[0]
        assert (ahead - behind) / 2e-5 == pytest.approx(slope[:, j], rel=1e-3, abs=1e-2)
    # Indicators of two sites never meet in one record.
    assert built[:, 0, 1] == pytest.approx(0.0, abs=1e-9)
    assert sampler.information() == pytest.approx(built)


def test_means_of_a_column_that_is_confounded_with_site_are_not_taken_for_its_own() -> (
    None
):
    """Information within sites, not between them, is what is left of a column."""
    masses, means = np.array([400.0, 300.0, 200.0, 100.0]), np.zeros((4, 3))
    means[:, 0] = (-1.5, -0.5, 0.5, 1.5)
    within = 1000.0 * np.diag([0.3, 1.0, 1.0])
    matrix = np.block(
        [
            [np.diag(masses), masses[:, None] * means],
            [(masses[:, None] * means).T, (means.T * masses) @ means + within],
        ]
    )
    sites = SiteLayout(
        np.arange(4), np.full(3, -1), ExpectedMasses(masses, np.full(4, 0.4))
    )
    rng = np.random.default_rng(0)
    noise = rng.normal(scale=20.0, size=(7, 7))
    noisy = matrix + np.triu(noise) / np.sqrt(2.0) + np.triu(noise).T / np.sqrt(2.0)
    found = shrunk(noisy, 20.0, InformationLayout((0, 1, 2, 3), sites=sites))
    own = found[4:, 4:] - found[4:, :4] @ np.linalg.inv(found[:4, :4]) @ found[:4, 4:]
    assert np.diag(own) == pytest.approx(np.diag(within), rel=0.25)
    assert found[:4, :4] == pytest.approx(np.diag(np.diag(found)[:4]))


def test_a_column_that_is_confounded_with_site_need_not_tell_as_much_as_others() -> (
    None
):
    """Within sites it tells less: its own information is not drawn to the others'."""
    recursion, state = finished()
    evidence = Evidence.of(recursion, state)
    count = len(evidence.layout.constants)
    others = evidence.dimension - count
    masses = np.linspace(200.0, 600.0, count)
    expected = ExpectedMasses(masses, np.full(count, 0.4))
    sites = SiteLayout(np.arange(count), np.full(others, -1), expected)
    layout = InformationLayout(tuple(range(count)), sites=sites)
    for spread, unlike in ((0.02, ()), (1.0, (count,))):
        means = np.zeros((count, others))
        means[:, 0] = spread * np.linspace(-1.0, 1.0, count)
        mixed = masses[:, None] * means
        within = masses.sum() * np.eye(others)
        within[0, 0] *= 0.6
        matrix = np.block(
            [[np.diag(masses), mixed], [mixed.T, means.T @ mixed + within]]
        )
        seen = replace(evidence, information=matrix, information_sd=20.0, layout=layout)
        assert seen.unlike == unlike


def test_a_slope_that_small_sites_hide_is_told_by_the_others() -> None:
    recursion, state = finished(("x",))
    prior = recursion.prior
    assert isinstance(prior, SitePrior)
    evidence = Evidence.of(recursion, state)
    for own, named in ((400.0, ()), (10.0, (1,))):
        sizes = np.full(evidence.dimension, 400.0)
        sizes[5:10] = own
        sizes[9] = 10.0
        seen = replace(evidence, information=np.diag(sizes), information_sd=40.0)
        assert 9 in seen.hidden
        assert hidden_columns(seen, prior.slots.loading) == named


@pytest.mark.parametrize(
    ("model", "ratio"),
    [
        (Logistic(outcome="y"), 0.0177 / 0.1966),
        (Exponential(time="t", event="y", horizon=1.0), np.exp(-3.0)),
    ],
)
def test_a_site_far_below_the_others_is_expected_to_tell_less(
    model: Any, ratio: float
) -> None:
    """Of as many records, what a level tells is what outcomes there vary by."""
    fields = {"model": model, "features": FEATURES, "hierarchy": {}}
    wanted = cb.Study(**fields, sites={site: {} for site in SITES})
    design, slots = preparation_of(wanted).design, slots_of(wanted)
    assert slots is not None
    shape = ScoreShape.of(model, design, slots)
    theta = np.zeros(slots.dimension)
    theta[:5] = -1.0
    theta[4] = -4.0
    noisy = 100.0 * np.eye(slots.dimension)
    for by_level, expected in ((False, 1.0), (True, ratio)):
        sites = shape.layout(theta, noisy, 10.0, by_level=by_level).sites
        assert sites is not None
        assert sites.masses is not None
        masses = sites.masses.values
        assert masses.sum() == pytest.approx(500.0)
        assert masses[4] / masses[0] == pytest.approx(expected, rel=0.01)


def test_where_most_have_the_event_a_higher_hazard_tells_little_more() -> None:
    """Of as many records; where events are rare it tells as much more as it is."""
    model = Exponential(time="t", event="y", horizon=1.0)
    fields = {"model": model, "features": FEATURES, "hierarchy": {}}
    wanted = cb.Study(**fields, sites={site: {} for site in SITES})
    design, slots = preparation_of(wanted).design, slots_of(wanted)
    assert slots is not None
    records = SiteRecords(np.full(5, 1_000.0), 1.0)
    shape = ScoreShape.of(model, design, slots, records)
    assert shape.unit is not None
    theta = np.zeros(slots.dimension)
    theta[4] = shape.unit[4]
    ratios = []
    for events in (10.0, 4_000.0):
        mass = events / 5.0 / shape.unit[0] ** 2
        noisy = mass * np.eye(slots.dimension)
        sites = shape.layout(theta, noisy, 1e-6, by_level=True).sites
        assert sites is not None
        assert sites.masses is not None
        masses = sites.masses.values
        assert masses.sum() == pytest.approx(5.0 * mass)
        ratios.append(masses[4] / masses[0])
    assert ratios[0] == pytest.approx(np.e, rel=0.01)
    chances = [1.0 - np.exp(-np.exp(level + 0.3424)) for level in (0.0, 1.0)]
    assert (4.0 * chances[0] + chances[1]) / 5.0 == pytest.approx(0.8, abs=0.002)
    assert ratios[1] == pytest.approx(chances[1] / chances[0], rel=0.01)


def test_an_interval_whose_mass_noise_hides_is_expected_to_have_some() -> None:
    """A mass of nearly nothing would let the next step be as long as it can be."""
    model = Piecewise(time="t", event="y", horizon=3.0, cuts=(1.0, 2.0))
    fields = {"model": model, "features": FEATURES, "hierarchy": {}}
    wanted = cb.Study(**fields, sites={site: {} for site in SITES})
    design, slots = preparation_of(wanted).design, slots_of(wanted)
    assert slots is not None
    shape, noise_sd = ScoreShape.of(model, design, slots), 100.0
    noisy = 400.0 * np.eye(slots.dimension)
    noisy[10:15] *= -0.1
    sites = shape.layout(np.zeros(slots.dimension), noisy, noise_sd).sites
    assert sites is not None
    assert sites.masses is not None
    totals = sites.masses.values.reshape(3, 5).sum(axis=1)
    # The third is the mean of N(-200, 5 · 100²) above zero.
    above = np.random.default_rng(1).normal(-200.0, np.sqrt(5.0) * noise_sd, 400_000)
    assert totals[2] == pytest.approx(above[above > 0.0].mean(), rel=0.01)
    assert totals[:2] == pytest.approx([2_000.0, 2_000.0], rel=1e-6)
    # However far below zero noise has put it.
    noisy[10:15] *= 1e6
    sites = shape.layout(np.zeros(slots.dimension), noisy, noise_sd).sites
    assert sites is not None
    assert sites.masses is not None
    assert 10.0 < sites.masses.values[10:].sum() < 100.0


def test_a_round_is_trusted_no_more_than_its_worst_known_parameter() -> None:
    """Columns have more information than levels, and a bent score is wrong there."""
    recursion, state = finished()
    straight = Evidence.of(recursion, state)
    score = estimated_score(recursion.shape, straight)
    assert score is not None
    line = (state.visited - straight.place) @ straight.estimate
    bend = score.mean(state.visited[:, None, :])[:, 0] - line
    evidence = evidence_of(recursion, state)
    variances = evidence.variance / evidence.weights
    least = state.gradient_sd**2 + (bend**2).max(axis=1)
    assert (variances >= least * (1.0 - 1e-9)).all()
    assert (bend**2).max() > 1.0


def test_how_much_means_differ_is_told_by_the_sites_that_know_it() -> None:
    """Fifteen small sites hide in their noise what five large ones say."""
    rng = np.random.default_rng(3)
    masses = np.array([40.0] * 15 + [400.0] * 5)
    expected = ExpectedMasses(masses, np.full(20, 0.01))
    sites = SiteLayout(np.arange(20), np.array([-1]), expected)
    explained = []
    for _ in range(40):
        means = rng.normal(scale=0.7, size=(20, 1))
        mixed = masses[:, None] * means + rng.normal(scale=49.0, size=(20, 1))
        corner = np.array([[3000.0 + float(masses @ means[:, 0] ** 2)]])
        noisy = np.block([[np.diag(masses), mixed], [mixed.T, corner]])
        rest = by_site(noisy, 69.0, tuple(range(20)), sites, expected)[2]
        explained.append(float(rest[0, 0]) / 3000.0 - 1.0)
    assert abs(np.mean(explained)) < 0.05
    assert np.std(explained) < 0.1


def test_a_sites_means_are_much_the_same_from_interval_to_interval() -> None:
    """However much sites differ: what is seen in one interval is expected in the next.

    Sites' means of -1 to 1 that do not change leave no room for a change, and differ
    by as much as ever from one site to the next.
    """
    sites = SiteLayout(
        np.tile(np.arange(4), 2),
        np.array([-1]),
        ExpectedMasses(np.ones(8), np.ones(8)),
    )
    parts = Coordinates(np.eye(9), tuple(range(8)))
    prior = InformationPrior(parts, (), (), sites)
    moved, means = prior.start(200)
    rng, seen = np.random.default_rng(4), np.array([-1.0, -0.3, 0.3, 1.0])
    found = {}
    for name, second in {"same": seen, "turned round": -seen}.items():
        moved[:, parts.means] = np.concatenate([seen, second])
        for _ in range(30):
            means = prior.drawn_means(moved, means, rng)
        scale = np.median(means.scale, axis=0)
        assert 0.2 < scale[:4].mean() < 1.0
        found[name] = scale[4:].max()
    assert found["same"] < 0.1 < 0.5 < found["turned round"]


def test_a_sites_own_level_counts_with_its_exponential() -> None:
    """Poisson counts of two sites: E g = M (e^δ - 1) in a slot, and a derivative."""
    wanted = study(
        model=Exponential(time="t", event="d", horizon=1.0), prior=Prior(scale=1.0)
    )
    slots = slots_of(wanted)
    assert slots is not None
    design = preparation_of(wanted).design
    shape = ScoreShape.of(wanted.model, design, slots)
    rng = np.random.default_rng(2)
    masses, means = rng.uniform(20.0, 200.0, 5), 0.4 * rng.normal(size=(5, 2))
    within = masses.sum() * np.array([[0.5, 0.1], [0.1, 0.8]])
    mixed = masses[:, None] * means
    matrix = np.block([[np.diag(masses), mixed], [mixed.T, means.T @ mixed + within]])
    place = 0.2 * rng.normal(size=7)
    recursion, state = finished()
    evidence = replace(
        Evidence.of(recursion, state),
        place=place,
        visited=np.tile(place, (24, 1)),
        weights=np.full(24, 1.0 / 24.0),
    )
    assert shape.unit is not None
    score = TiltedBySite.of(evidence, shape, shape.unit, matrix[None])
    assert score.mean(place[None]) == pytest.approx(np.zeros((1, 7)), abs=1e-9)
    away = np.zeros(7)
    away[1] = 0.3
    found = score.mean((place + away)[None])[0]
    assert found[1] == pytest.approx(masses[1] * np.expm1(0.3), rel=1e-2)
    assert found[5:] == pytest.approx(means[1] * found[1])
    assert found[[0, 2, 3, 4]] == pytest.approx(np.zeros(4), abs=1e-9)
    theta = place + 0.1 * rng.normal(size=7)
    slope = score.derivative(theta[None])[0]
    assert score.derivative(place[None])[0] == pytest.approx(matrix)
    for j in range(7):
        move = 1e-6 * (np.arange(7) == j)
        ahead, behind = (score.mean((theta + sign * move)[None])[0] for sign in (1, -1))
        assert (ahead - behind) / 2e-6 == pytest.approx(slope[:, j], rel=1e-5, abs=1e-4)


def test_masses_that_noise_has_made_negative_leave_a_posterior() -> None:
    """Small studies: of a level's information nothing but noise may be seen."""
    recursion, _ = finished()
    rng, state, noise_sd = np.random.default_rng(2), recursion.init(), 80.0
    width = state.theta.size
    for t in range(24):
        has = t >= BURN_IN or t in EARLY_INFORMATION
        noise = rng.normal(size=(width, width)) * noise_sd / 2.0
        hidden = noise + noise.T - noise_sd * np.eye(width)
        score = rng.normal(size=width) * noise_sd
        release = Release(
            score, noise_sd, pack(hidden) if has else None, noise_sd * has
        )
        state = recursion.advance(state, release)
    assert np.isfinite(state.theta).all()
    effort = Effort(chains=2, warm_up=20, kept=20, doublings=0)
    draws = sample_posterior(recursion, state, seed=1, effort=effort).draws
    assert np.isfinite(draws.theta).all()


def test_without_privacy_no_row_would_count_for_less() -> None:
    """So the same sums tell of narrower intervals where rows were weighted down."""
    recursion, state = finished()
    wanted = study()
    design = preparation_of(wanted).design
    memory = np.concatenate([np.zeros(len(SITES)), state.to_vector()])
    in_full, weighted = (
        np.array(expected_sd(memory, recursion.prior, wanted.model, design, each, None))
        for each in (None, InfluenceBound(2.0))
    )
    assert (weighted < in_full).all()
    assert (weighted > 0.7 * in_full).all()


@pytest.mark.parametrize(
    ("counts", "hidden"),
    [
        ([200.0, 200.0, 200.0, 200.0, 200.0], False),
        ([800.0, 120.0, 120.0, 1.0, 1.0], False),
        ([1_000.0, 120.0, 1.0, 1.0, 1.0], True),
    ],
)
def test_levels_are_hidden_where_most_sites_have_next_to_no_records(
    counts: list[float], hidden: bool
) -> None:
    """Though all sites together have plenty, and one with an equal share would too."""
    recursion, state = finished()
    known = SiteRecords(np.array(counts), 1.0)
    recursion = replace(recursion, shape=replace(recursion.shape, site_records=known))
    evidence = Evidence.of(recursion, state)
    prior = recursion.prior
    assert isinstance(prior, SitePrior)
    assert bool(_hidden_levels(recursion, evidence, prior.slots.loading)) == hidden

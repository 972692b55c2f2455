"""The multilevel fit without privacy, and the private one beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cipherbayes as cb
from cipherbayes.inference.between_sites import SitePrior
from cipherbayes.inference.method import SiteRecords
from cipherbayes.inference.multilevel import SiteTarget
from cipherbayes.inference.noise_aware import Effort
from cipherbayes.inference.noise_aware.contrasts import evidence_of
from cipherbayes.inference.noise_aware.coordinates import Coordinates
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.flags import hidden_columns
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
from cipherbayes.inference.site_context import FOLLOWED
from cipherbayes.models import Design, Exponential, Logistic, Piecewise, Prior
from cipherbayes.models.influence import InfluenceBound
from cipherbayes.models.packing import pack
from cipherbayes.results.run import target_of
from cipherbayes.study.tables import (
    open_sites,
    preparation_of,
    resolve_prior,
    site_prior,
    slots_of,
)
from cipherbayes.typing import Floats

FEATURES = {"x": {"low": -3, "high": 3}, "z": {"low": -3, "high": 3}}
SITES = ("a", "b", "c", "d", "e")
BETWEEN = 0.7


@pytest.fixture
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    less = Effort(chains=4, warm_up=60, kept=100, doublings=0)
    monkeypatch.setattr(Effort, "for_dimension", lambda _: less)


def tables(count: int = 300, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Five hospitals that differ in their level; x differs between them too."""
    rng = np.random.default_rng(seed)
    found = {}
    for k, site in enumerate(SITES):
        x = np.clip(rng.normal(0.3 * (k - 2), 1.0, count), -3, 3)
        z = np.clip(rng.normal(size=count), -3, 3)
        level = BETWEEN * np.sqrt(2.5) * (-1.0, 0.5, -0.5, 1.0, 0.0)[k]
        eta = -0.5 + level + 0.8 * x - 0.5 * z
        y = (rng.random(count) < 1.0 / (1.0 + np.exp(-eta))).astype(int)
        found[site] = pd.DataFrame({"x": x, "z": z, "y": y})
    return found


def study(**sections: Any) -> cb.Study:
    return cb.Study(
        features=FEATURES,
        **{
            "model": Logistic(outcome="y"),
            "hierarchy": {},
            "sites": {site: {} for site in SITES},
            **sections,
        },
    )


def told_of_sites(levels: Floats) -> tuple[Floats, Floats]:
    """Draws of a common level, N(0, 1), and of τ, half-normal, given levels, one a row.

    By quadrature over τ, with the common level integrated out.
    """
    rng, grid = np.random.default_rng(0), np.linspace(0.005, 5.0, 1_000)
    count, mean = levels.shape[1], levels.mean(axis=1)
    square = count * levels.var(axis=1)
    variance = 1.0 + grid**2 / count
    density = -0.5 * grid**2 - (count - 1) * np.log(grid) - 0.5 * np.log(variance)
    density = density - 0.5 * square[:, None] / grid**2
    density -= 0.5 * mean[:, None] ** 2 / variance
    density = np.exp(density - density.max(axis=1, keepdims=True))
    total = np.cumsum(density, axis=1)
    level = rng.random((len(total), 1)) * total[:, -1:]
    spread = grid[(total < level).sum(axis=1)]
    precision = 1.0 + count / spread**2
    common = count * mean / spread**2 / precision
    return common + rng.standard_normal(mean.size) / np.sqrt(precision), spread


@pytest.mark.slow
@pytest.mark.parametrize("context", [True, False])
def test_the_fit_without_privacy_is_that_of_numpyro(context: bool) -> None:
    pytest.importorskip("numpyro")
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    from exact_posteriors import weighted

    frames = tables()
    x = np.stack([f[["x", "z"]].to_numpy() / 3.0 for f in frames.values()])
    y = np.stack([f["y"].to_numpy() for f in frames.values()])
    away = x.mean(axis=1) - x.mean(axis=(0, 1))
    size = (away**2).mean(axis=0) + 0.3**2 * x.var(axis=(0, 1))
    away = context * away / np.sqrt(2.0 * size)
    own = np.sqrt(1.0 - FOLLOWED * (away**2).mean(axis=0).sum())

    def model() -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        gamma = numpyro.sample("gamma", dist.Normal(0.0, 1.0).expand([2]))
        followed = np.sqrt(FOLLOWED) * tau * (away @ gamma)
        level = numpyro.sample("level", dist.Normal(mean + followed, own * tau))
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]))
        numpyro.sample("y", dist.Bernoulli(logits=level[:, None] + x @ beta), obs=y)

    def named(place: Any) -> tuple[dict[str, Any], Any]:
        found = {"mean": place[0], "tau": jnp.exp(place[1]), "level": place[2:7]}
        return {**found, "beta": place[7:9], "gamma": place[9:]}, place[1]

    theirs = weighted(model, named, 11, 30_000)
    assert theirs.worth > 5_000
    mean, levels = theirs.draws[:, 0], theirs.draws[:, 2:7]
    spread = np.exp(theirs.draws[:, 1])
    if context:
        mean, spread = told_of_sites(levels)
    quick = {"rounds": 450, "burn_in": 0.1, "chains": 2}
    ours = cb.run(study(inference=quick, hierarchy={"context": context}), frames)
    rows = {row["name"]: row for row in ours.record["posterior"]}
    hierarchy = ours.hierarchy()
    assert hierarchy is not None
    pairs = [
        (rows["intercept"], mean),
        (rows["x"], theirs.draws[:, 7] / 3.0),
        (rows["z"], theirs.draws[:, 8] / 3.0),
        (hierarchy["between"][0], spread),
    ]
    pairs += [(row, levels[:, k] - mean) for k, row in enumerate(hierarchy["sites"])]
    for row, values in pairs:
        expected, sd = theirs.of(values)
        assert row["sd"] is not None
        assert abs(row["mean"] - expected) < 0.2 * sd
        assert row["sd"] == pytest.approx(sd, rel=0.2)


@pytest.mark.slow
def test_without_a_low_site_the_common_level_is_higher() -> None:
    quick = {"rounds": 150, "burn_in": 0.1, "chains": 1}
    found = cb.run(study(inference=quick), tables()).hierarchy()
    assert found is not None
    shifts = {
        row["site"]: row["shift"]
        for row in found["influence"]
        if row["name"] == "intercept"
    }
    levels = {row["site"]: row["mean"] for row in found["sites"]}
    assert min(levels, key=lambda site: levels[site]) == "a"
    assert max(levels, key=lambda site: levels[site]) == "d"
    assert shifts["a"] > 0.2
    assert shifts["d"] < -0.2


@pytest.mark.torture
@pytest.mark.usefixtures("fewer_draws")
def test_with_hardly_any_noise_the_private_fit_is_the_one_without_privacy() -> None:
    frames = tables(600, seed=1)
    private = cb.run(
        study(
            study={"protocol": "pooled"},
            privacy={"epsilon": 200.0, "records": 3000, "clip": 6.0},
            preparation={"method": "public-bounds"},
        ),
        frames,
    )
    plain = cb.run(
        study(inference={"rounds": 250, "burn_in": 0.1, "chains": 2}), frames
    )
    for ours, theirs in zip(
        private.record["posterior"], plain.record["posterior"], strict=True
    ):
        assert ours["sd"] is not None
        assert theirs["sd"] is not None
        assert abs(ours["mean"] - theirs["mean"]) < 0.4 * theirs["sd"]
        assert ours["sd"] == pytest.approx(theirs["sd"], rel=0.25)
    both = [each.hierarchy() for each in (private, plain)]
    assert both[0] is not None
    assert both[1] is not None
    for mine, other in zip(both[0]["sites"], both[1]["sites"], strict=True):
        assert mine["site"] == other["site"]
        assert abs(mine["mean"] - other["mean"]) < 0.4 * other["sd"]


# -- pieces ------------------------------------------------------------------


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


def test_sites_that_differ_draw_missing_values_at_their_own_parameters() -> None:
    """Where sites are alike it is that of one table, and the gradient is its slope."""
    found = tables(60)
    for table in found.values():
        table.loc[::4, "x"] = np.nan
    gaps = {**FEATURES, "x": {"low": -3, "high": 3, "missing": "impute"}}
    sites: dict[str, Any] = {site: {} for site in SITES}
    model = Logistic(outcome="y")
    alike = cb.Study(model=model, features=gaps, sites=sites)
    apart = cb.Study(model=model, features=gaps, sites=sites, hierarchy={})
    target = target_of(apart, open_sites(apart, found))
    whole = target_of(alike, open_sites(alike, found))
    assert isinstance(target, SiteTarget)
    slots = target.site_prior.slots
    own, theta = np.array([-0.4, 1.5, -1.0]), np.empty(slots.dimension)
    for site in SITES:
        theta[slots.of_site(site)] = own
    data = whole.log_density(own) - whole.prior.log_density(own)
    assert target.log_likelihood(theta) == pytest.approx(float(data))
    theta += 0.1 * np.arange(theta.size)
    for place, slope in enumerate(target.likelihood_slope(theta)):
        step = np.where(np.arange(theta.size) == place, 1e-5, 0.0)
        rise = target.log_likelihood(theta + step) - target.log_likelihood(theta - step)
        assert slope == pytest.approx(rise / 2e-5, rel=1e-4, abs=1e-4)


def test_without_noise_weighted_sums_would_vary_as_the_posterior_takes_them_to() -> (
    None
):
    """By V, which is less than H: else noise would seem to make intervals shorter."""
    recursion, state = finished()
    wanted = study()
    design = preparation_of(wanted).design
    memory = np.concatenate([np.zeros(len(SITES)), state.to_vector()])
    bound = InfluenceBound(2.0)
    full, weighted = (
        np.array(expected_sd(memory, recursion.prior, wanted.model, design, each))
        for each in (None, bound)
    )
    shape = ScoreShape.of(wanted.model, design, slots_of(wanted), bound=bound)
    varies = Evidence.of(replace(recursion, shape=shape), state).variation
    assert varies.max() < 0.99
    assert weighted[1:] / full[1:] == pytest.approx(varies[-2:], rel=0.05)

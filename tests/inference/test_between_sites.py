"""The prior of sites that may differ, and the moves of τ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import halfnorm, ks_2samp, kstest

from cipherbayes.inference.between_sites import Group, SitePrior
from cipherbayes.inference.site_comparison import (
    compare_sites,
    likely_spread,
    random_effects,
)
from cipherbayes.inference.site_context import FOLLOWED, FittedInformation
from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.models import Prior
from cipherbayes.typing import Floats

SITES = ("a", "b", "c", "d", "e")
SLOTS = SiteSlots(SITES, 3, (0, 2))
SCALE = 0.8


def fitted(information: Floats, leaning: float = 0.0) -> FittedInformation:
    """An H at θ = 1, whose records count by this derivative."""
    return FittedInformation(
        information, np.ones(len(information)), np.full(len(SITES), leaning)
    )


def site_prior(*, together: bool = False, follows: bool = False) -> SitePrior:
    common = Prior(scale=2.0).resolve(("intercept", "x", "z"))
    own = np.eye(SLOTS.dimension)
    groups = [
        Group("intercept", own[:, SLOTS.copies(0)], follows=True),
        Group("z", own[:, SLOTS.copies(2)]),
    ]
    if together:  # one deviation moves both slots of a site
        groups = [Group("both", own[:, SLOTS.copies(0)] + own[:, SLOTS.copies(2)])]
    prior = SitePrior.of(common, SLOTS, tuple(groups), SCALE)
    if not follows:
        return prior
    root = np.random.default_rng(9).standard_normal((SLOTS.dimension, 40))
    return prior.with_context(fitted(root @ root.T))


def deviating(
    prior: SitePrior, rng: np.random.Generator, between: Floats
) -> tuple[list[Floats], Floats]:
    """Draws of b of every group and of γ / σ, given τ."""
    count = len(between)
    deviations = [
        between[:, [g]] * rng.standard_normal((count, group.loading.shape[1]))
        for g, group in enumerate(prior.groups)
    ]
    if prior.follows is None or prior.context is None:
        return deviations, np.zeros((count, 0))
    explained = FOLLOWED * prior.follows.explained
    assert 0.0 < explained < FOLLOWED
    deviations[0] *= np.sqrt(1.0 - explained)
    white = rng.standard_normal((count, prior.context.shape[1]))
    return deviations, np.sqrt(FOLLOWED) * between[:, [0]] * white


def from_prior(prior: SitePrior, rng: np.random.Generator, count: int) -> list[Floats]:
    """τ, c and θ of so many draws."""
    between = SCALE * np.abs(rng.standard_normal((count, len(prior.groups))))
    common = prior.common.scale * rng.standard_normal((count, 3))
    theta = prior.joined(common, *deviating(prior, rng, between))
    theta += np.sqrt(prior._nugget) * rng.standard_normal(theta.shape)
    return [between, common, theta]


KINDS = [(False, False), (True, False), (False, True)]


@pytest.mark.parametrize(("together", "follows"), KINDS)
def test_the_covariance_is_that_of_draws(together: bool, follows: bool) -> None:
    prior, rng = (
        site_prior(together=together, follows=follows),
        np.random.default_rng(0),
    )
    between = np.full(len(prior.groups), 0.7)
    count = 200_000
    common = prior.common.scale * rng.standard_normal((count, 3))
    joined = prior.joined(common, *deviating(prior, rng, np.tile(between, (count, 1))))
    drawn = np.cov(joined, rowvar=False)
    assert prior.covariance(between) == pytest.approx(drawn, abs=0.06)


@pytest.mark.parametrize(("together", "follows"), KINDS)
def test_common_parameters_and_deviations_add_up_to_theta(
    together: bool, follows: bool
) -> None:
    prior, rng = (
        site_prior(together=together, follows=follows),
        np.random.default_rng(1),
    )
    between, _, theta = from_prior(prior, rng, 50)
    joined = prior.joined(*prior.split(rng, theta, between))
    # Slots that move together differ by the nugget.
    assert joined == pytest.approx(theta, abs=0.1 if together else 1e-9)


@pytest.mark.parametrize(("together", "follows"), KINDS)
def test_without_data_a_sweep_leaves_the_prior_as_it_is(
    together: bool, follows: bool
) -> None:
    """τ and c drawn from the prior, then updated: still from the prior."""
    prior, rng = (
        site_prior(together=together, follows=follows),
        np.random.default_rng(2),
    )
    between, _, theta = from_prior(prior, rng, 4_000)
    for _ in range(2):
        theta, between, common, spread = prior.update(
            rng, theta, between, lambda theta: np.zeros(len(theta))
        )
    for g in range(len(prior.groups)):
        assert kstest(between[:, g], halfnorm(scale=SCALE).cdf).pvalue > 1e-3
    for j in range(3):
        assert kstest(common[:, j] / 2.0, "norm").pvalue > 1e-3
    if not follows:
        assert spread is between


def test_levels_follow_the_means_of_columns() -> None:
    """Means of x of -2 to 2 at five sites, weighted by information."""
    slots = SiteSlots(SITES, 2, (0,))
    common = Prior(scale=0.5).resolve(("intercept", "x"))
    level = Group("intercept", np.eye(6)[:, :5], follows=True)
    masses, means = np.array([10.0, 20.0, 5.0, 8.0, 1.0]), np.arange(-2.0, 3.0)
    information = np.diag([*masses, 200.0])
    information[:5, 5] = information[5, :5] = masses * means
    prior = SitePrior.of(common, slots, (level,), SCALE)
    prior = prior.with_context(fitted(information))
    assert prior.context is not None
    mean = masses @ means / masses.sum()
    variance = 200.0 / masses.sum() - mean**2
    size = 1.0 / np.sqrt(2.0 + 0.3**2 * variance)
    assert prior.context[:, 0] == pytest.approx([*(size * means), 0.0])
    further = information.copy()
    further[1, 5] = further[5, 1] = 0.0
    both = prior.in_context(np.stack([information, further])).context
    assert both is not None
    assert both[0] == pytest.approx(prior.context)
    moved = np.array([-2.0, 0.0, 0.0, 1.0, 2.0]) - 0.2
    assert both[1][:5, 0] == pytest.approx(size * moved)
    fixed = SitePrior.of(common, slots, (), SCALE)
    assert fixed.with_context(fitted(information)) is fixed


@pytest.mark.parametrize("slope", [0.5, 2.0])
def test_sites_that_are_worse_where_patients_are_older_say_little_of_age(
    slope: float,
) -> None:
    """The pull of the levels on the effect of age, with and without γ.

    Sixteen sites, mean ages half a standard deviation apart, levels that follow them;
    the likelihood is normal around the truth.
    """
    rng, count = np.random.default_rng(7), 16
    slots = SiteSlots(tuple(f"s{k:02d}" for k in range(count)), 2, (0,))
    common = Prior(scale=0.5).resolve(("intercept", "age"))
    level = Group("intercept", np.eye(count + 1)[:, :count], follows=True)
    masses, means = rng.uniform(5.0, 40.0, count), 0.5 * rng.standard_normal(count)
    information = np.diag([*masses, 1.2 * masses.sum()])
    information[:count, count] = information[count, :count] = masses * means
    theta = np.array([*(slope * means + 0.2 * rng.standard_normal(count)), 0.3])
    prior = SitePrior.of(common, slots, (level,), SCALE)
    leaning = np.zeros(count)
    follows = prior.with_context(FittedInformation(information, theta, leaning))
    pulls = []
    for each in (follows, prior):
        precision = np.linalg.inv(each.covariance(np.array([theta[:count].std()])))
        found = np.linalg.solve(information + precision, information @ theta)
        pulls.append(found[count] - theta[count])
    assert pulls[1] > 0.02
    assert abs(pulls[0]) < 0.3 * pulls[1]


@pytest.mark.slow
def test_levels_do_not_follow_means_that_they_make_themselves() -> None:
    """Sites of which only the level differs: H of a logistic model, at the truth."""
    rng = np.random.default_rng(6)
    slots = SiteSlots(SITES, 3, (0,))
    common = Prior().resolve(("intercept", "x", "z"))
    level = Group("intercept", np.eye(7)[:, :5], follows=True)
    x = rng.multivariate_normal([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]], 40_000)
    theta = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 0.6, 0.3])
    information, leaning = np.zeros((7, 7)), np.empty(5)
    for k in range(5):
        eta = theta[k] + x @ theta[5:]
        chance = 1.0 / (1.0 + np.exp(-eta))
        rows = np.zeros((len(x), 7))
        rows[:, k], rows[:, 5:] = 1.0, x
        information += (rows * (chance * (1.0 - chance))[:, None]).T @ rows
        leaning[k] = 1.0 - 2.0 / (1.0 + np.exp(-theta[k]))
    prior = SitePrior.of(common, slots, (level,), SCALE)
    fit = FittedInformation(information, theta, leaning)
    untilted = replace(fit, leaning=np.zeros(5))
    found = [prior.with_context(each).context for each in (fit, untilted)]
    assert found[0] is not None
    assert found[1] is not None
    assert np.abs(found[0]).max() < 0.15 * np.abs(found[1]).max()


@pytest.mark.parametrize("columns", [1, 7])
def test_levels_differ_by_tau_whatever_they_follow(columns: int) -> None:
    """And whatever the units of the columns and their number."""
    rng = np.random.default_rng(4)
    slots = SiteSlots(SITES, 1 + columns, (0,))
    common = Prior().resolve(("intercept", *map(str, range(columns))))
    level = Group("intercept", np.eye(5 + columns)[:, :5], follows=True)
    for units in (0.01, 100.0):
        rows = rng.normal(size=(5, 30, columns)) + rng.normal(size=(5, 1, columns))
        rows = 0.01 * units * rows
        records = np.zeros((150, 5 + columns))
        records[np.arange(150), np.repeat(np.arange(5), 30)] = 1.0
        records[:, 5:] = rows.reshape(150, columns)
        prior = SitePrior.of(common, slots, (level,), SCALE)
        prior = prior.with_context(fitted(records.T @ records))
        assert prior.context is not None
        explained = (prior.context[:5] ** 2).sum(axis=1).mean()
        assert 0.3 < explained < 1.0
        alone = prior.told.covariance(np.array([0.7]))
        following = prior.covariance(np.array([0.7]))
        assert np.trace(following) == pytest.approx(np.trace(alone))


def test_what_is_told_of_sites_does_not_depend_on_what_levels_follow() -> None:
    """Given the levels, c and τ have the law that they have in a model without γ."""
    slots = SiteSlots(SITES, 2, (0,))
    common = Prior(scale=2.0).resolve(("intercept", "x"))
    level = Group("intercept", np.eye(6)[:, :5], follows=True)
    information = np.diag([9.0, 8.0, 7.0, 6.0, 5.0, 99.0])
    information[:5, 5] = information[5, :5] = [4.0, -3.0, 2.0, 0.0, 1.0]
    prior = SitePrior.of(common, slots, (level,), SCALE).with_context(
        fitted(information)
    )
    assert prior.context is not None
    theta = np.array([0.3, -0.2, 1.5, 0.4, -0.6, 1.0])
    rng, count = np.random.default_rng(5), 4_000
    told = prior._told(rng, np.tile(theta, (count, 1)), np.full((count, 1), 0.05))
    # By quadrature: c ~ N(0, 2²) and the levels N(c, τ²).
    grid = np.linspace(0.002, 5.0, 5_000)
    mean, square = theta[:5].mean(), 5.0 * theta[:5].var()
    variance = 4.0 + grid**2 / 5.0
    density = -0.5 * (grid / SCALE) ** 2 - 4.0 * np.log(grid) - 0.5 * square / grid**2
    density -= 0.5 * np.log(variance) + 0.5 * mean**2 / variance
    total = np.cumsum(np.exp(density - density.max()))
    drawn = np.interp(rng.random(count), total / total[-1], grid)
    precision = 0.25 + 5.0 / drawn**2
    level_of_all = 5.0 * mean / drawn**2 / precision
    level_of_all = level_of_all + rng.standard_normal(count) / np.sqrt(precision)
    assert ks_2samp(told[1][:, 0], drawn).pvalue > 1e-3
    assert ks_2samp(told[0][:, 0], level_of_all).pvalue > 1e-3
    assert told[0][:, 1] == pytest.approx(1.0)


def test_a_new_site_is_as_far_from_the_common_one_as_tau_says() -> None:
    prior, rng = site_prior(), np.random.default_rng(3)
    common = np.zeros((50_000, 3))
    found = prior.at_new_site(rng, common, np.tile([0.5, 1.5], (50_000, 1)))
    assert found.std(axis=0) == pytest.approx([0.5, 0.0, 1.5], rel=0.02)


def test_fixed_sites_tell_nothing_of_each_other() -> None:
    common = Prior(scale=2.0).resolve(("intercept", "x", "z"))
    prior = SitePrior.of(common, SLOTS, (), SCALE)
    assert prior.covariance(prior.start) == pytest.approx(4.0 * np.eye(11))
    theta = np.random.default_rng(4).normal(size=(2, 11))
    mean = prior.split(np.random.default_rng(0), theta, np.zeros((2, 0)))[0]
    assert mean[:, 0] == pytest.approx(theta[:, :5].mean(axis=1))
    assert mean[:, 1] == pytest.approx(theta[:, 10])


def test_a_meta_analysis_by_hand() -> None:
    """Three trials of DerSimonian and Laird's formula, worked out on paper."""
    mean, error, between = random_effects(
        np.array([0.0, 1.0, 2.0]), np.array([0.5, 0.5, 0.5])
    )
    # Weights 4: Q = 8, so τ² = (8 - 2) / (12 - 48 / 12) = 0.75.
    assert mean == pytest.approx(1.0)
    assert between == pytest.approx(np.sqrt(0.75))
    assert error == pytest.approx(np.sqrt((0.25 + 0.75) / 3.0))


def test_few_sites_leave_a_large_spread_open_and_many_do_not() -> None:
    """√E τ²: of the prior alone its scale, of many exact sites their own."""
    nothing = likely_spread(np.zeros(2), np.full(2, 100.0), 0.7)
    assert nothing == pytest.approx(0.7, rel=0.02)
    seen = np.random.default_rng(2).normal(0.0, 0.4, 400)
    assert likely_spread(seen, np.full(400, 0.01), 1.0) == pytest.approx(
        seen.std(), rel=0.02
    )
    few = likely_spread(np.array([-0.4, 0.0, 0.4]), np.full(3, 0.05), 1.0)
    assert few > 1.2 * np.std([-0.4, 0.0, 0.4], ddof=1)


def test_a_meta_analysis_is_that_of_statsmodels() -> None:
    combine = pytest.importorskip("statsmodels.stats.meta_analysis").combine_effects
    rng = np.random.default_rng(6)
    errors = rng.uniform(0.05, 0.6, 13)
    for between in (0.0, 0.4):
        estimates = rng.normal(0.3, np.hypot(errors, between))
        theirs = combine(estimates, errors**2, method_re="dl")
        row = theirs.summary_frame().loc["random effect"]
        mean, error, found = random_effects(estimates, errors)
        assert [mean, error] == pytest.approx([row["eff"], row["sd_eff"]])
        assert found == pytest.approx(np.sqrt(max(theirs.tau2, 0.0)))


def test_an_outlying_site_is_the_one_that_shifts_the_common_level() -> None:
    prior = site_prior()
    place = np.zeros(11)
    place[3] = 3.0  # the level of site d
    quadratic = 100.0 * np.eye(11)
    compared = compare_sites(prior, quadratic, quadratic @ place, prior.start)
    shifts = compared.influence[:, 0]
    assert np.argmax(np.abs(shifts)) == SITES.index("d")
    assert shifts[SITES.index("d")] < 0.0
    assert compared.common[0] == pytest.approx(0.6, abs=0.01)

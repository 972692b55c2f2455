"""Sites that differ with a baseline of several intervals: what noise hides of these."""

from __future__ import annotations

import numpy as np
import pytest

import cipherbayes as cb
from cipherbayes.inference.between_sites import NEIGHBOURS, SitePrior
from cipherbayes.inference.noise_aware.coordinates import Coordinates
from cipherbayes.inference.noise_aware.information_prior import (
    DROPPED,
    DROPPED_SPREAD,
    InformationPrior,
)
from cipherbayes.inference.noise_aware.layout import ExpectedMasses, SiteLayout
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.models import Piecewise
from cipherbayes.study.tables import (
    preparation_of,
    resolve_prior,
    site_prior,
    slots_of,
)
from cipherbayes.typing import Floats

SITES = ("a", "b", "c", "d")
CUTS = (1.0, 3.0)


def study(model: Piecewise, **sections: object) -> cb.Study:
    return cb.Study(
        model=model,
        features={"x": {"low": -3, "high": 3}},
        hierarchy={},
        sites={site: {} for site in SITES},
        **sections,
    )


def piecewise(entry: str | None = None) -> Piecewise:
    return Piecewise(time="t", event="y", horizon=5.0, cuts=CUTS, entry=entry)


def prior_of(wanted: cb.Study) -> SitePrior:
    slots = slots_of(wanted)
    assert slots is not None
    return site_prior(
        wanted, slots, resolve_prior(wanted, preparation_of(wanted).design)
    )


def of_masses(steps: Floats) -> tuple[InformationPrior, Floats]:
    """The prior of H of two intervals at four sites, and a vector that HMC moves."""
    expected = ExpectedMasses(
        np.array([40.0, 20.0, 30.0, 10.0] * 2), np.full(8, 0.2), steps
    )
    sites = SiteLayout(np.tile(np.arange(4), 2), np.array([-1]), expected)
    parts = Coordinates(np.diag([*expected.values, 100.0]), tuple(range(8)))
    prior = InformationPrior(parts, (), (), sites)
    return prior, prior.start(1)[0]


def density(prior: InformationPrior, moved: Floats) -> float:
    return float(prior.log_density(moved, prior.start(1)[1])[0][0])


def test_neighbouring_log_hazards_are_near_each_other() -> None:
    prior = prior_of(study(piecewise()))
    places = list(prior.intervals)
    assert len(places) == 3
    covariance = prior.common_covariance[np.ix_(places, places)]
    first = prior.common.scale[places[0]] ** 2
    steps = np.diff(np.eye(3), axis=0)
    assert covariance[0, 0] == pytest.approx(first)
    assert steps @ covariance @ steps.T == pytest.approx(NEIGHBOURS**2 * np.eye(2))
    assert (steps @ covariance[:, 0]) == pytest.approx(np.zeros(2))


def test_a_log_hazard_with_a_stated_prior_has_that_prior() -> None:
    stated = {"parameters": {"log_hazard[1-3]": {"scale": 0.3}}}
    prior = prior_of(study(piecewise(), prior=stated))
    assert prior.intervals == ()
    variances = np.diag(prior.common_covariance)
    assert prior.common_covariance == pytest.approx(np.diag(variances))
    assert np.sqrt(variances) == pytest.approx(prior.common.scale)
    assert 0.3 in np.sqrt(variances)


@pytest.mark.parametrize("kept", [False, True])
def test_common_log_hazards_given_those_of_sites_have_their_joint_law(
    kept: bool,
) -> None:
    """c drawn from the prior, or drawn again given θ: the same covariance."""
    prior, rng = prior_of(study(piecewise())), np.random.default_rng(2)
    count = 20_000
    root = np.linalg.cholesky(prior.common_covariance)
    common = rng.standard_normal((count, len(root))) @ root.T
    between = np.full((count, 1), 0.4)
    b = [0.4 * rng.standard_normal((count, len(SITES)))]
    theta = prior.joined(common, b, np.zeros((count, 0)))
    theta += np.sqrt(prior._nugget) * rng.standard_normal(theta.shape)
    if not kept:
        common = prior.split(rng, theta, between)[0]
    seen = np.cov(np.hstack([common, theta]).T)
    loading = prior.slots.loading
    mixed = loading @ prior.common_covariance
    expected = np.block(
        [
            [prior.common_covariance, mixed.T],
            [mixed, prior.covariance(between[0])],
        ]
    )
    sizes = np.sqrt(np.diag(expected))
    assert (seen - expected) / sizes / sizes[:, None] == pytest.approx(0.0, abs=0.04)


def test_the_mass_of_an_interval_is_not_taken_for_known() -> None:
    """What noise has put into it may be wrong: only sites' shares of it are expected.

    All masses of the second interval grow by a factor e with their total: little is
    said against that. One of them alone: much.
    """
    prior, moved = of_masses(np.zeros(0))
    here = density(prior, moved)
    together, alone = moved.copy(), moved.copy()
    together[0, 4:8] += 1.0
    together[0, -1] += 1.0
    alone[0, 4] += 1.0
    assert abs(density(prior, together) - here) < 1.0
    assert density(prior, alone) < here - 10.0


def test_records_only_drop_out_from_one_interval_to_the_next() -> None:
    steps = np.array([0.7])
    prior, moved = of_masses(steps)
    middle, away = moved.copy(), moved.copy()
    middle[0, -1] = middle[0, -2] + 0.7 - DROPPED
    away[0, -1] = middle[0, -1] + 2.0 * DROPPED_SPREAD
    away[0, 4:8] += away[0, -1] - middle[0, -1]
    assert density(prior, away) == pytest.approx(density(prior, middle) - 2.0)


def test_the_metric_is_the_curvature_of_the_prior_of_masses() -> None:
    prior, moved = of_masses(np.array([0.7]))
    means, totals = prior.start(1)[1], moved.shape[1] - 2 + np.arange(2)
    which = np.append(np.arange(8), totals)
    found = prior.precision(moved[0], means)[np.ix_(which, which)]
    numeric = np.empty((10, 10))
    for k, j in enumerate(which):
        move = 1e-4 * (np.arange(moved.shape[1]) == j)
        slopes = (prior.log_density(moved + s * move, means)[1][0] for s in (1, -1))
        ahead, behind = slopes
        numeric[:, k] = (behind - ahead)[which] / 2e-4
    assert found == pytest.approx(numeric, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("entry", [None, "from"])
def test_hazard_and_length_of_an_interval_say_what_mass_it_would_have(
    entry: str | None,
) -> None:
    """One, two and two years long; not where records come in later, too."""
    wanted = study(piecewise(entry))
    slots = slots_of(wanted)
    assert slots is not None
    shape = ScoreShape.of(wanted.model, preparation_of(wanted).design, slots)
    theta = np.zeros(slots.dimension)
    theta[4:8] = -0.5
    layout = shape.layout(theta, 100.0 * np.eye(theta.size), 1.0, by_level=True)
    assert layout.sites is not None
    assert layout.sites.masses is not None
    expected = [] if entry else [np.log(2.0) - 0.5, 0.5]
    assert layout.sites.masses.steps == pytest.approx(expected)

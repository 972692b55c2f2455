"""Sites that differ with a baseline of several intervals: the prior of log hazards."""

from __future__ import annotations

import numpy as np
import pytest

import cipherbayes as cb
from cipherbayes.inference.between_sites import NEIGHBOURS, SitePrior
from cipherbayes.models import Piecewise
from cipherbayes.study.tables import (
    preparation_of,
    resolve_prior,
    site_prior,
    slots_of,
)

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


def piecewise() -> Piecewise:
    return Piecewise(time="t", event="y", horizon=5.0, cuts=CUTS)


def prior_of(wanted: cb.Study) -> SitePrior:
    slots = slots_of(wanted)
    assert slots is not None
    return site_prior(
        wanted, slots, resolve_prior(wanted, preparation_of(wanted).design)
    )


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

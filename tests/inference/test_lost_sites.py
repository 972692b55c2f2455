"""A site that is lost on the way: what it had said is forgotten, and said to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cipherbayes as cb
from cipherbayes.inference.between_sites import SitePrior
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.method import PublicFacts, SiteRecords
from cipherbayes.inference.noise_aware import Effort
from cipherbayes.inference.noise_aware.lost_sites import places_left, with_lost_sites
from cipherbayes.inference.noise_aware.released import NoiseAwareRounds
from cipherbayes.inference.noise_aware.schedule import (
    BURN_IN,
    EARLY_INFORMATION,
    ROUNDS,
)
from cipherbayes.inference.released import Release
from cipherbayes.study.tables import preparation_of, resolve_prior, site_prior, slots_of
from cipherbayes.typing import Floats

SITES = ("a", "b", "c", "d", "e")
LEVELS = dict(zip(SITES, (-0.6, 0.4, -0.2, 0.5, 3.0), strict=True))
NOISE, ROWS = 2.0, 400.0


@pytest.fixture
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    less = Effort(chains=2, warm_up=40, kept=100, doublings=0)
    monkeypatch.setattr(Effort, "for_dimension", lambda _: less)


def rounds_of(**hierarchy: Any) -> tuple[NoiseAwareRounds, SitePrior]:
    study = cb.Study(
        model=cb.models.Logistic(outcome="y"),
        features={"x": {"low": -1, "high": 1}},
        hierarchy=hierarchy,
        sites={site: {} for site in SITES},
    )
    slots, design = slots_of(study), preparation_of(study).design
    assert slots is not None
    prior = site_prior(study, slots, resolve_prior(study, design))
    known = SiteRecords(np.full(5, ROWS), 1.0)
    facts = PublicFacts(
        study.inference, prior, study.model, design, 5.0 * ROWS, 24, 1.0, known
    )
    return NoiseAwareRounds(facts), prior


def played(last: int, levels: dict[str, float], **hierarchy: Any) -> Draws:
    """The posterior where e is in the sums of the first ``last`` rounds only."""
    recursion, prior = rounds_of(**hierarchy)
    slots, rng = prior.slots, np.random.default_rng(3)
    truth = {site: np.array([level, 0.7]) for site, level in levels.items()}
    own = 0.25 * ROWS * np.array([[1.0, 0.1], [0.1, 0.4]])
    state = recursion.start()
    for t in range(ROUNDS):
        score, packed = np.zeros(slots.dimension), np.zeros(slots.packed_length)
        present = [site for site in SITES if site != "e" or t < last]
        for site in present:
            away = truth[site] - state.theta[slots.of_site(site)]
            score += slots.spread(site, own @ away)
            upper = own[np.triu_indices(2)] * np.array([1.0, np.sqrt(2.0), 1.0])
            packed += slots.spread_packed(site, upper)
        score += NOISE * rng.normal(size=score.size)
        packed += NOISE * rng.normal(size=packed.size)
        has = t >= BURN_IN or t in EARLY_INFORMATION
        lost = () if len(present) == 5 else ("e",)
        release = Release(score, NOISE, packed if has else None, NOISE * has, lost)
        state = recursion.advance(state, release)
    draws = recursion.draws([], state)
    assert draws is not None
    return draws


def levels_of(draws: Draws) -> Floats:
    assert draws.sites is not None
    return np.asarray(draws.theta[..., :1] + draws.sites.effects[..., 0])


@pytest.mark.slow
@pytest.mark.usefixtures("fewer_draws")
@pytest.mark.parametrize(("last", "slopes"), [(4, ("x",)), (BURN_IN + 2, ())])
def test_the_posterior_is_that_of_the_sites_that_are_left(
    last: int, slopes: tuple[str, ...]
) -> None:
    """Whatever the lost site had said, and whenever it was lost."""
    draws = played(last, LEVELS, slopes=slopes)
    levels = levels_of(draws)
    means, sds = levels.mean(axis=(0, 1)), levels.std(axis=(0, 1))
    for k, site in enumerate(SITES[:-1]):
        assert abs(means[k] - LEVELS[site]) < 4.0 * sds[k]
        assert sds[k] < 0.3
    # e at 3 would have moved them all; it is told as a site that took no part.
    assert draws.sites is not None
    between = draws.sites.between[..., 0]
    assert np.median(between) < 1.2
    effects = draws.sites.effects[..., 4, 0]
    assert abs(effects.mean()) < 0.5
    assert effects.std() == pytest.approx(np.sqrt((between**2).mean()), rel=0.25)
    assert draws.sites.sites == SITES
    assert draws.comparison is not None
    assert np.array_equal(draws.comparison.influence[4], [0.0, 0.0])
    (flag,) = [flag for flag in draws.flags if flag.code == "site-lost"]
    assert f"site e was lost: {ROUNDS - last} of {ROUNDS} rounds count" in flag.message


@pytest.mark.slow
@pytest.mark.usefixtures("fewer_draws")
def test_a_fixed_site_that_was_lost_has_its_prior() -> None:
    draws = played(8, LEVELS, effects="fixed")
    levels = levels_of(draws)
    assert levels[..., 4].std() == pytest.approx(1.0, rel=0.2)
    assert levels[..., 0].mean() == pytest.approx(LEVELS["a"], abs=0.3)


def test_draws_without_sites_have_none_to_add() -> None:
    _, prior = rounds_of()
    draws = Draws(np.zeros((1, 1, 2)), np.zeros((1, 1)), is_point=False, rounds=ROUNDS)
    with pytest.raises(ValueError, match="no sites"):
        with_lost_sites(draws, prior, np.random.default_rng(1))


def test_a_lost_site_is_asked_about_no_more() -> None:
    recursion, prior = rounds_of()
    slots = prior.slots
    packed = np.full(slots.packed_length, 100.0)
    score = np.zeros(slots.dimension)
    score[slots.of_site("e")] = 50.0
    state = recursion.advance(recursion.start(), Release(score, 1.0, packed, 1.0))
    level = slots.of_site("e")[0]
    assert state.theta[level] > 0.1
    state = recursion.advance(state, Release(score, 1.0, lost=("e",)))
    assert state.theta[level] == prior.mean[level]
    # Since the second round, whoever reads the memory again.
    assert state.memory[: len(SITES)].tolist() == [0.0, 0.0, 0.0, 0.0, 2.0]
    state = recursion.advance(state, Release(score, 1.0, lost=("d", "e")))
    assert state.memory[: len(SITES)].tolist() == [0.0, 0.0, 0.0, 3.0, 2.0]


def test_numbers_of_the_sites_that_are_left_stand_where_they_stood() -> None:
    _, prior = rounds_of(slopes=("x",))
    names = np.array(prior.slots.names(("level", "x")))
    kept = places_left(prior.slots, ("b", "d"))
    assert list(names[kept]) == [
        *(f"level[{site}]" for site in "ace"),
        *(f"x[{site}]" for site in "ace"),
    ]

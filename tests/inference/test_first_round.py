"""What the first round's information sum says about correlations later."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cipherbayes.inference.influence import influence_sums
from cipherbayes.inference.noise_aware import (
    Effort,
    NoiseAware,
    NoiseAwareState,
    sample_posterior,
)
from cipherbayes.inference.noise_aware.coordinates import Coordinates
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.first_round import FirstRound
from cipherbayes.inference.noise_aware.layout import (
    ExpectedMasses,
    InformationLayout,
    SiteLayout,
)
from cipherbayes.inference.noise_aware.shrinkage import OtherCorrelations, shrunk
from cipherbayes.models.influence import InfluenceBound
from cipherbayes.models.packing import unpack
from cipherbayes.typing import Floats
from cipherbayes.validation.simulation import release_rounds, simulate

WITH_CONSTANT = InformationLayout((0,))


def records_of(columns: int, seed: int = 0) -> Floats:
    """An information sum of columns with a factor in common, and of a constant."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((2_000, columns)) + rng.standard_normal((2_000, 1))
    rows = np.hstack([np.ones((2_000, 1)), z])
    return np.asarray(rows.T @ rows)


def rare_study(seed: int) -> tuple[NoiseAware, NoiseAwareState, Floats]:
    """A hazard with events in few records: its rounds, and its H at the truth."""
    rng = np.random.default_rng([seed, 5])
    study = simulate(
        "exponential", 4_000, 8, rng, prior_scale=0.4, intercept=-3.0, alike=True
    )
    sums = influence_sums(
        study.model,
        study.truth,
        study.table,
        InfluenceBound(study.clip),
        with_information=True,
    )
    assert sums.information is not None
    return *release_rounds(study, 1.0, rng), unpack(sums.information)


def without_first(state: NoiseAwareState) -> NoiseAwareState:
    return replace(state, first_information_sd=np.zeros(1))


def correlations(matrix: Floats) -> Floats:
    root = np.sqrt(np.diag(matrix))
    return np.asarray(matrix / np.outer(root, root))


def within(matrix: Floats) -> Floats:
    """Correlations of the columns, their means taken off."""
    mixed = matrix[0, 1:]
    return correlations(matrix[1:, 1:] - np.outer(mixed, mixed) / matrix[0, 0])


@given(st.integers(0, 10**6), st.integers(2, 6))
def test_its_gradient_is_that_of_differences(seed: int, columns: int) -> None:
    first = FirstRound.of(records_of(columns, seed), 30.0, WITH_CONSTANT, columns + 1)
    assert first is not None
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((columns, 2 * columns))
    there = correlations(root @ root.T)
    value, slope = first.log_density(there[None])
    moved = rng.standard_normal((columns, columns))
    moved = 1e-5 * (moved + moved.T)
    ahead, behind = (
        first.log_density((there + way * moved)[None])[0][0] for way in (1.0, -1.0)
    )
    assert (slope[0] * moved).sum() == pytest.approx(0.5 * (ahead - behind), rel=1e-5)
    # Near R̃ its curvature is what `slopes` says it is.
    changes = first.slopes(moved[None])
    bent = ahead + behind - 2.0 * value[0]
    assert -(changes**2).sum() == pytest.approx(bent, rel=1e-3, abs=1e-13)


def test_correlations_seen_there_are_the_likeliest() -> None:
    truth = records_of(4)
    first = FirstRound.of(truth, 1e-3, WITH_CONSTANT, 5)
    assert first is not None
    there = within(truth)
    best = first.log_density(there[None])[0][0]
    assert best == pytest.approx(0.0, abs=1e-6)
    assert first.log_density(np.eye(4)[None])[0][0] < best - 10.0


def test_it_says_nothing_where_nothing_can_be_told() -> None:
    truth = records_of(3)
    masses = ExpectedMasses(np.array([2_000.0]), np.array([0.4]))
    sites = SiteLayout(np.zeros(1, dtype=np.int64), np.full(3, -1), masses)
    for_sites = InformationLayout((0,), sites=sites)
    assert FirstRound.of(truth, 10.0, WITH_CONSTANT, 4) is not None
    assert FirstRound.of(truth, 0.0, WITH_CONSTANT, 4) is None  # not released
    assert FirstRound.of(truth, 10.0, for_sites, 4) is None
    assert FirstRound.of(truth, 10.0, WITH_CONSTANT, 2) is None  # one column alone
    assert FirstRound.of(truth, 2_000.0, WITH_CONSTANT, 4) is None  # a hidden mass


def test_with_rare_events_correlations_are_known_from_it() -> None:
    """What the window says of them is mostly noise."""
    errors = np.zeros(2)
    for seed in range(8):
        recursion, state, exact = rare_study(seed)
        for k, each in enumerate((state, without_first(state))):
            evidence = Evidence.of(recursion, each)
            errors[k] += np.abs(within(evidence.estimate) - within(exact)).mean()
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.slow
def test_with_rare_events_intervals_are_narrower_for_it() -> None:
    effort = Effort(chains=4, warm_up=100, kept=100, doublings=0)
    ratios = []
    for seed in range(6):
        recursion, state, _ = rare_study(seed)
        sds = [
            sample_posterior(recursion, each, seed=1, effort=effort)
            .draws.theta.reshape(-1, 8)
            .std(axis=0)
            for each in (state, without_first(state))
        ]
        ratios.append(np.median(sds[0] / sds[1]))
    assert np.median(ratios) < 0.95


@given(st.integers(0, 10**6), st.floats(20.0, 2_000.0), st.integers(1, 4))
def test_an_estimate_has_coordinates_whatever_noise_hides(
    seed: int, noise_sd: float, constants: int
) -> None:
    """Constants exclude each other in it, however little is seen of them."""
    rng = np.random.default_rng(seed)
    d, inside = constants + 5, tuple(range(constants))
    noise = rng.standard_normal((d, d))
    noisy = 300.0 * np.eye(d) + noise_sd * (noise + noise.T) / 2.0
    strong = correlations(records_of(5, seed)[1:, 1:])
    other = OtherCorrelations(tuple(range(constants, d)), strong, 0.01)
    found = shrunk(noisy, noise_sd, InformationLayout(inside), other)
    assert np.linalg.eigvalsh(found).min() > 0.0
    block = found[:constants, :constants]
    assert np.count_nonzero(block - np.diag(np.diag(block))) == 0
    parts = Coordinates(found, inside)
    again = parts.build(parts.reference[None]).matrix[0]
    assert again == pytest.approx(found, rel=1e-6, abs=1e-6 * np.abs(found).max())

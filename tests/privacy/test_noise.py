"""The noise has the law that is accounted for, and nobody can predict it."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from scipy import stats

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy.noise import (
    PIECE,
    InsecureRepeatableNoise,
    SecureNoise,
    poisson_sample,
)
from cipherbayes.privacy.release import ReleasePlan
from cipherbayes.typing import Floats, Integers

# Every statistical test here raises a false alarm once in a million runs.
FALSE_ALARM = 1e-6


def discrete_gaussian(scale: float, reach: int) -> tuple[Integers, Floats]:
    """Integers up to ``reach`` and their exact probabilities."""
    support = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (support / scale) ** 2)
    return support, weights / weights.sum()


def chi_square(sample: Integers, support: Integers, masses: Floats) -> float:
    """p-value of a sample against exact masses, rare values put together."""
    expected = masses * sample.size
    common = expected >= 10.0
    observed = np.array([(sample == value).sum() for value in support[common]])
    seen = np.append(observed, sample.size - observed.sum())
    wanted = np.append(expected[common], sample.size - expected[common].sum())
    if wanted[-1] < 1.0:
        seen, wanted = seen[:-1], wanted[:-1] * seen[:-1].sum() / wanted[:-1].sum()
    return float(stats.chisquare(seen, wanted).pvalue)


def variance_is(sample: Integers, variance: float) -> bool:
    """Whether a sample's variance fits a Gaussian of that variance."""
    chi = float((sample.astype(float) ** 2).sum()) / variance
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], sample.size)
    return bool(low <= chi <= high)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.4, 1.0, 3.7])
def test_a_share_is_a_discrete_gaussian(scale: float) -> None:
    sample = SecureNoise().share(20_000, scale)
    assert sample.dtype == np.int64
    assert chi_square(sample, *discrete_gaussian(scale, 60)) > FALSE_ALARM


@pytest.mark.parametrize("scale", [5000.0, 2.0**30])
def test_a_share_of_a_studys_scale_is_gaussian(scale: float) -> None:
    sample = SecureNoise().share(20_000, scale)
    assert stats.kstest(sample / scale, "norm").pvalue > FALSE_ALARM
    assert variance_is(sample, scale**2)
    assert abs(sample.mean()) < 5.0 * scale / math.sqrt(sample.size)


@pytest.mark.slow
def test_a_sum_of_shares_has_the_law_of_one_larger_share() -> None:
    # Parameters 4 each: sums of discrete Gaussians are discrete Gaussians.
    total = sum(SecureNoise().share(20_000, 4.0) for _ in range(4))
    assert chi_square(total, *discrete_gaussian(8.0, 80)) > FALSE_ALARM  # type: ignore[arg-type]


@pytest.mark.parametrize(("sites", "colluders", "dropouts"), [(4, 1, 1), (3, 2, 0)])
def test_without_any_colluders_and_dropouts_the_certified_noise_is_left(
    sites: int, colluders: int, dropouts: int
) -> None:
    plan = ReleasePlan(
        clip=1.0,
        dimension=4000,
        noise_multiplier=2.0,
        rounds=1,
        rate=1.0,
        sites=sites,
        colluders=colluders,
        dropouts=dropouts,
        records=100,
        depth=100,
    )
    shares = [SecureNoise().share(4000, plan.share_scale) for _ in range(sites)]
    certified = (plan.noise_multiplier * plan.sensitivity) ** 2
    honest = sites - colluders - dropouts
    for left in itertools.combinations(shares, honest):
        rest = np.sum(left, axis=0)
        assert variance_is(rest, honest * plan.share_scale**2)
        assert stats.kstest(rest / math.sqrt(certified), "norm").pvalue > FALSE_ALARM
    assert variance_is(np.sum(shares, axis=0), sites * plan.share_scale**2)
    assert plan.noise_sd(sites) == pytest.approx(
        plan.share_scale * math.sqrt(sites) * plan.step
    )


@pytest.mark.slow
def test_coordinates_and_shares_are_uncorrelated() -> None:
    first, second = (SecureNoise().share(20_000, 1000.0) for _ in range(2))
    for a, b in [(first, second), (first[:-1], first[1:])]:
        assert stats.pearsonr(a, b).pvalue > FALSE_ALARM


def test_a_long_share_is_drawn_in_pieces_none_of_which_is_another() -> None:
    drawn = SecureNoise().share(5 * PIECE + 3, 1e6)
    assert drawn.shape == (5 * PIECE + 3,)
    pieces = [drawn[start : start + PIECE] for start in range(0, 5 * PIECE, PIECE)]
    for one, other in itertools.combinations(pieces, 2):
        # Of independent ones a place in 3.5 million has the same value in both.
        assert np.count_nonzero(one == other) < 10
    assert variance_is(drawn, 1e12)


def test_no_seed_influences_secure_noise() -> None:
    draws = []
    for _ in range(2):
        np.random.seed(1)
        random.seed(1)
        draws.append(SecureNoise().share(50, 1e6, "round 1"))
    assert not np.array_equal(*draws)  # type: ignore[arg-type]
    samples = []
    for _ in range(2):
        np.random.seed(1)
        random.seed(1)
        samples.append(poisson_sample(500, 0.5))
    assert not np.array_equal(*samples)  # type: ignore[arg-type]


def test_repeatable_noise_repeats_and_says_that_it_is_insecure() -> None:
    noise = InsecureRepeatableNoise("1/north")
    share = noise.share(50, 1e6, "round 1")
    again = InsecureRepeatableNoise("1/north").share(50, 1e6, "round 1")
    assert np.array_equal(share, again)
    assert not np.array_equal(share, noise.share(50, 1e6, "round 2"))
    other = InsecureRepeatableNoise("1/south").share(50, 1e6, "round 1")
    assert not np.array_equal(share, other)
    assert noise.insecure
    assert not SecureNoise().insecure


def test_repeatable_noise_has_the_right_size() -> None:
    sample = InsecureRepeatableNoise("1/north").share(20_000, 5000.0, "round 1")
    assert variance_is(sample, 5000.0**2)


@pytest.mark.parametrize("source", [SecureNoise(), InsecureRepeatableNoise("1")])
@pytest.mark.parametrize(
    ("dimension", "scale"),
    [(1, 0.0), (1, -1.0), (1, math.nan), (1, math.inf), (1, 2.0**55), (0, 1.0)],
)
def test_an_impossible_scale_or_length_is_refused(
    source: SecureNoise, dimension: int, scale: float
) -> None:
    with pytest.raises(PrivacyError, match="impossible scale or length"):
        source.share(dimension, scale, "round 1")


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3, 0.999])
def test_each_record_takes_part_with_the_stated_probability(rate: float) -> None:
    count = 200_000
    taken = poisson_sample(count, rate)
    assert stats.binomtest(taken.size, count, rate).pvalue > FALSE_ALARM
    assert np.all(np.diff(taken) > 0)
    assert taken[0] >= 0
    assert taken[-1] < count


def test_records_take_part_independently_of_each_other_and_of_other_rounds() -> None:
    taken = np.zeros((2, 100_000), dtype=bool)
    for row in taken:
        row[poisson_sample(row.size, 0.3)] = True
    pairs = [(taken[0], taken[1]), (taken[0, :-1], taken[0, 1:])]
    for a, b in pairs:
        table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
        assert stats.chi2_contingency(table).pvalue > FALSE_ALARM
    # A fixed batch size would have no spread at all.
    sizes = [poisson_sample(1000, 0.3).size for _ in range(400)]
    chi = np.var(sizes) * len(sizes) / (1000 * 0.3 * 0.7)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(sizes) - 1)
    assert low <= chi <= high


def test_the_extreme_rates_take_nobody_and_everybody() -> None:
    assert poisson_sample(1000, 0.0).size == 0
    assert poisson_sample(1000, 1.0).tolist() == list(range(1000))
    assert poisson_sample(1000, 1.0 - 2.0**-53).size == 1000
    assert poisson_sample(1000, 5e-324).size == 0
    assert poisson_sample(0, 0.5).size == 0
    assert poisson_sample(0, 1.0).dtype == np.int64
    assert poisson_sample(10, 0.5).dtype == np.int64


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan, math.inf])
def test_an_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(PrivacyError, match="sampling rate"):
        poisson_sample(10, rate)

"""Windows and scales from noised histograms: bounded, and near the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cipherbayes.data.windows import (
    LEAST_BINARY,
    LEAST_SD,
    Numbers,
    hidden_scales,
    histograms,
    scales_of,
    sums_inside,
    windows_of,
)
from cipherbayes.typing import Floats

RECORDS = 5000
NOISE = 0.015 * RECORDS


def numbers(count: int, *, stand_in: float = np.nan, others: int = 0) -> Numbers:
    places = tuple(range(count))
    return Numbers(count + others, places, (stand_in,) * count, 64)


def found(z: Floats, which: Numbers, seed: int, noise: float = NOISE) -> Floats:
    """Means and scales after the three rounds, each with noise."""
    rng = np.random.default_rng(seed)
    windows: Floats | None = None
    records = float(z.shape[1])
    for _ in range(2):
        counts = histograms(z, which, windows)
        counts += noise * rng.normal(size=counts.size)
        windows = windows_of(counts, noise, records, which, windows)
    sums = sums_inside(z, which, windows)
    sums += noise * rng.normal(size=sums.size)
    return scales_of(sums, noise, records, which, windows)


@pytest.mark.parametrize("width", [1, 3, 10, 30, 100])
def test_scales_are_found_however_wide_the_range_is(width: int) -> None:
    rng = np.random.default_rng(width)
    normal = 0.3 + rng.normal(size=(20, RECORDS))
    truth = 1.0 / (4.0 * width)
    z = np.clip(normal * truth, -1.0, 1.0)
    ratios = [found(z, numbers(20), seed)[20:] / truth for seed in range(5)]
    assert np.mean(np.abs(np.log(ratios)) > np.log(2.0)) <= 0.03
    assert np.median(ratios) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("width", [1, 10])
def test_heavy_tails_and_equal_values_keep_a_usable_scale(width: int) -> None:
    """Too small a scale makes every interval wide; too large a one is like a range."""
    rng = np.random.default_rng(1)
    zeros = rng.random(RECORDS) < 0.85
    columns = np.stack(
        [
            rng.standard_t(2, RECORDS) / 8.0,
            np.where(zeros, 0.0, rng.exponential(0.2, RECORDS)),
            (rng.random(RECORDS) < 0.03) * 1.0,
            np.zeros(RECORDS),
        ]
    )
    z = np.clip(columns / width, -1.0, 1.0)
    sd = z.std(axis=1)
    for seed in range(5):
        scale = found(z, numbers(4), seed)[4:]
        assert np.all(scale[:3] > 0.3 * sd[:3])
        assert scale[3] >= LEAST_SD


@pytest.mark.parametrize("width", [1, 3, 10, 30])
@pytest.mark.parametrize("zeros", [0.5, 0.7, 0.9])
def test_many_zeros_do_not_leave_a_column_the_scale_of_its_range(
    zeros: float, width: int
) -> None:
    """Too large a scale would have the prior deny its effect."""
    rng = np.random.default_rng(4)
    values = np.where(rng.random(RECORDS) < zeros, 0.0, rng.gamma(1.5, 1.0, RECORDS))
    z = (2.0 * values / (width * values.max()) - 1.0)[None]
    ratios = [found(z, numbers(1), seed)[1] / z.std() for seed in range(200)]
    assert np.mean(np.array(ratios) > 2.0) <= 0.05
    assert 0.5 < np.median(ratios) < 1.2


@pytest.mark.parametrize("share", [0.03, 0.1, 0.3])
def test_a_number_that_is_0_or_1_keeps_its_scale(share: float) -> None:
    rng = np.random.default_rng(5)
    z: Floats = np.where(rng.random(RECORDS) < share, 1.0, -1.0)[None]
    ratios = [found(z, numbers(1), seed)[1] / z.std() for seed in range(200)]
    assert np.mean(np.array(ratios) < 0.5) <= 0.1


def test_where_noise_hides_the_few_that_differ_the_scale_is_said_to_be_hidden() -> None:
    rng = np.random.default_rng(6)
    z = np.stack(
        [np.where(rng.random(RECORDS) < 0.99, 0.0, 0.1), rng.normal(size=RECORDS) / 9]
    )
    windows = windows_of(
        histograms(z, numbers(2), None), NOISE, float(RECORDS), numbers(2), None
    )
    counts = histograms(z, numbers(2), windows)
    hidden, seen = hidden_scales(counts, NOISE, float(RECORDS), numbers(2))
    assert hidden == pytest.approx(0.99, abs=0.01)
    assert seen == 0.0
    whole = windows_of(counts, NOISE, float(RECORDS), numbers(2), windows)
    assert (whole[0], whole[2]) == (0.0, 1.0)


def test_what_stands_in_for_missing_values_does_not_hide_the_others() -> None:
    rng = np.random.default_rng(2)
    missing = rng.random(RECORDS) < 0.5
    z = np.where(missing, 0.25, 0.25 + 0.02 * rng.normal(size=RECORDS))[None]
    which = numbers(1, stand_in=0.25)
    counts = histograms(z, which, None)
    assert counts.sum() == np.sum(~missing)
    for seed in range(5):
        mean, scale = found(z, which, seed)
        assert mean == pytest.approx(0.25, abs=0.02)
        assert 0.5 < scale / z.std() < 2.0


def test_levels_keep_a_scale_that_does_not_blow_them_up() -> None:
    rng = np.random.default_rng(3)
    z = np.stack([rng.random(RECORDS) < 0.5, rng.random(RECORDS) < 0.001]).astype(float)
    mean, scale = found(z, numbers(0, others=2), 0, noise=10.0).reshape(2, 2)
    assert mean == pytest.approx([0.5, 0.0], abs=0.02)
    assert scale == pytest.approx([0.5, LEAST_BINARY], abs=0.01)


@given(
    windows=st.tuples(st.floats(-1.0, 1.0), st.floats(LEAST_SD, 1.0)),
    values=st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=5),
    bits=st.lists(st.booleans(), min_size=5, max_size=5),
    stand_in=st.sampled_from([np.nan, 0.0, 0.5]),
)
def test_a_record_adds_no_more_than_the_bounds(
    windows: tuple[float, float], values: list[float], bits: list[bool], stand_in: float
) -> None:
    count = len(values)
    which = numbers(count, stand_in=stand_in, others=5)
    z = np.concatenate([values, np.array(bits, dtype=float)])[:, None]
    seen = np.repeat(windows, count)
    ones = histograms(z, which, seen)
    assert set(ones.tolist()) <= {0.0, 1.0}
    assert np.linalg.norm(ones) <= which.histogram_bound * (1.0 + 1e-15)
    assert np.linalg.norm(sums_inside(z, which, seen)) <= which.sums_bound * (
        1.0 + 1e-15
    )


def test_noise_alone_leaves_the_public_range() -> None:
    which = numbers(3)
    loud = windows_of(
        np.random.default_rng(0).normal(size=192) * 400.0, 400.0, 5000.0, which, None
    )
    assert np.array_equal(loud, which.whole)

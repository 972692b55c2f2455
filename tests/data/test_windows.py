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

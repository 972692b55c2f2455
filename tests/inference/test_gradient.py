"""Every record's part in a gradient sum is bounded, roundings and overflow counted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cipherbayes.data.blocks import BLOCK_ROWS
from cipherbayes.data.preparation import Feature, Preparation
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.tables import open_table
from cipherbayes.inference.gradient import (
    bounded_sum,
    gradient_sum,
    information_diagonal,
    log_likelihood_sum,
    summation_depth,
)
from cipherbayes.models import (
    Design,
    Exponential,
    GaussianMean,
    Logistic,
    Model,
    RecordGradients,
    Rows,
)
from cipherbayes.typing import Floats

LOGISTIC = Logistic(outcome="y")


def design(width: int) -> Design:
    names = tuple(f"b{j}" for j in range(width))
    return Design(names, np.zeros(width), np.ones(width), None)


def table_of(x: Floats, **outcome: Floats) -> PreparedTable:
    return PreparedTable.from_arrays(design(x.shape[0]), x, outcome)


def simulated(rows: int, width: int = 5, seed: int = 0) -> PreparedTable:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(width, rows))
    return table_of(x, y=(rng.random(rows) < 0.4).astype(float))


class Stated(Model):
    """Gradients that the test states: score in ``s``, two more in ``a`` and ``b``."""

    family: ClassVar[str] = "vector"
    kind: str = "stated"
    extended: bool = False

    def prepare_outcome(self, raw: Mapping[str, Floats]) -> dict[str, Floats]:
        return dict(raw)

    def parameters(self, design: Design) -> tuple[str, ...]:
        return (*design.names, "a", "b") if self.extended else design.names

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        return np.zeros(rows.count)

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        extra = np.stack([rows.outcome["a"], rows.outcome["b"]])
        return RecordGradients(
            rows, rows.outcome["s"], extra if self.extended else None
        )

    def information_diagonal(self, theta: Floats, rows: Rows) -> Floats:
        return np.zeros(len(self.parameters(rows.design)))


def square_of_norm(vector: Floats) -> Fraction:
    return sum((Fraction(float(v)) ** 2 for v in vector), Fraction(0))


finite = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=True),
    st.sampled_from([0.0, -0.0, 5e-324, 1e-200, 1e-160, 1e-150, 1.0, 1e154, 1.7e308]),
)
anything = st.one_of(finite, st.sampled_from([np.nan, np.inf, -np.inf]))
clips = st.one_of(st.floats(1e-100, 1e100), st.sampled_from([1e-100, 1.0, 1e100]))


@pytest.mark.slow
@pytest.mark.parametrize("extended", [False, True])
@given(
    x=arrays(np.float64, st.integers(0, 6), elements=finite),
    score=anything,
    extra=st.tuples(anything, anything),
    clip=clips,
)
@example(x=np.array([1e-170, 1e-170]), score=1e300, extra=(0.0, 0.0), clip=1.0)
@example(x=np.array([1e-165]), score=1e165, extra=(1e-3, 0.0), clip=1e-3)
@example(x=np.array([1e153, 1e153]), score=5e-324, extra=(1e-100, 0.0), clip=1e-100)
@example(x=np.array([1.0, 1.0]), score=1.7e308, extra=(1.7e308, 1.7e308), clip=1e-100)
@settings(max_examples=400)
def test_one_records_contribution_never_exceeds_the_clip(
    extended: bool, x: Floats, score: float, extra: tuple[float, float], clip: float
) -> None:
    outcome = {k: np.array([v]) for k, v in zip("sab", (score, *extra), strict=True)}
    table = table_of(x[:, None], **outcome)
    model = Stated(extended=extended)
    theta = np.zeros(len(model.parameters(table.design)))
    # With a single record the sum is its contribution.
    found = gradient_sum(model, theta, table, clip=clip)
    assert np.isfinite(found).all()
    assert square_of_norm(found) <= Fraction(clip) ** 2


@pytest.mark.parametrize("extended", [False, True])
@given(
    x=arrays(np.float64, 3, elements=st.floats(-1e3, 1e3)),
    score=st.floats(-1e3, 1e3),
    extra=st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)),
    clip=st.floats(1e-3, 1e6),
)
def test_a_gradient_is_shortened_to_the_clip_and_no_further(
    extended: bool, x: Floats, score: float, extra: tuple[float, float], clip: float
) -> None:
    outcome = {k: np.array([v]) for k, v in zip("sab", (score, *extra), strict=True)}
    model = Stated(extended=extended)
    found = gradient_sum(
        model,
        np.zeros(5 if extended else 3),
        table_of(x[:, None], **outcome),
        clip=clip,
    )
    gradient = np.array([*(score * x), *(extra if extended else ())])
    norm = float(np.linalg.norm(gradient))
    expected = gradient * min(1.0, clip / norm) if norm > 0 else gradient
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-140)


@pytest.mark.slow
@given(data=st.data(), extended=st.booleans())
@settings(max_examples=150)
def test_removing_any_record_moves_the_sum_by_at_most_the_clip(
    data: st.DataObject, extended: bool
) -> None:
    m = data.draw(st.integers(1, 12))
    x = data.draw(arrays(np.float64, (3, m), elements=finite))
    columns = {
        name: data.draw(arrays(np.float64, m, elements=anything)) for name in "sab"
    }
    clip = data.draw(st.floats(1e-6, 1e6))
    gone = data.draw(st.integers(0, m - 1))
    model, theta = Stated(extended=extended), np.zeros(5 if extended else 3)
    whole = gradient_sum(model, theta, table_of(x, **columns), clip=clip)
    rest = table_of(
        np.delete(x, gone, axis=1),
        **{k: np.delete(v, gone) for k, v in columns.items()},
    )
    difference = whole - gradient_sum(model, theta, rest, clip=clip)
    # Both sums carry the rounding that summation_depth bounds, in each coordinate.
    slack = 2 * summation_depth(m) * 2.0**-53 * m * clip * np.sqrt(len(theta)) * 1.01
    assert np.linalg.norm(difference) <= clip + slack


def test_infinite_and_undefined_gradients_contribute_nothing() -> None:
    x = np.array([[1.0, 1.0, 1.0, 1e200], [2.0, 2.0, 2.0, 1.0]])
    score = np.array([np.nan, np.inf, 0.5, 1.0])
    more = np.zeros(4)
    for extended in (False, True):
        found = gradient_sum(
            Stated(extended=extended),
            np.zeros(2),
            table_of(x, s=score, a=more, b=more),
            clip=100.0,
        )
        np.testing.assert_allclose(found[:2], [0.5, 1.0])
    a = np.array([np.nan, 3.0, np.inf, 1e250])
    found = gradient_sum(
        Stated(extended=True), np.zeros(4), table_of(x, s=more, a=a, b=more), clip=1.0
    )
    np.testing.assert_allclose(found, [0.0, 0.0, 1.0, 0.0])


def test_zero_gradients_and_no_records_give_zero() -> None:
    zero = np.zeros(3)
    found = gradient_sum(
        Stated(),
        np.zeros(2),
        table_of(np.zeros((2, 3)), s=zero, a=zero, b=zero),
        clip=1.0,
    )
    assert found.tolist() == [0.0, 0.0]
    empty = table_of(np.empty((2, 0)), y=np.empty(0))
    assert gradient_sum(LOGISTIC, np.ones(2), empty, clip=1.0).tolist() == [0.0, 0.0]
    assert gradient_sum(LOGISTIC, np.ones(2), empty).tolist() == [0.0, 0.0]
    assert log_likelihood_sum(LOGISTIC, np.ones(2), empty) == 0.0
    assert information_diagonal(LOGISTIC, np.ones(2), empty).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("clip", [0.0, -1.0, np.inf, np.nan, 1e-101, 1e101])
def test_a_clip_that_cannot_be_kept_is_refused(clip: float) -> None:
    with pytest.raises(ValueError, match="clip must lie between"):
        gradient_sum(LOGISTIC, np.ones(5), simulated(10), clip=clip)


@pytest.mark.parametrize(
    ("model", "table"),
    [
        (LOGISTIC, simulated(200)),
        (
            Exponential(time="t", event="e", horizon=1.0),
            table_of(
                np.random.default_rng(1).normal(size=(5, 200)),
                time=np.random.default_rng(2).exponential(size=200),
                event=np.random.default_rng(3).integers(0, 2, 200).astype(float),
            ),
        ),
        (GaussianMean(variance=0.5), simulated(200)),
    ],
    ids=["logistic", "exponential", "gaussian"],
)
def test_the_clipped_sum_is_the_sum_of_clipped_gradients(
    model: Model, table: PreparedTable
) -> None:
    theta = np.linspace(-0.5, 0.5, 5)
    (block,) = table.blocks()
    gradients = model.gradients(theta, block)
    each = [
        gradients.weighted_sum((np.arange(block.count) == i).astype(float))
        for i in range(block.count)
    ]
    np.testing.assert_allclose(
        gradient_sum(model, theta, table), np.sum(each, axis=0), rtol=1e-12
    )
    for clip in (0.01, 0.7, 1e3):
        expected = [g * min(1.0, clip / np.linalg.norm(g)) for g in each]  # type: ignore[operator]
        np.testing.assert_allclose(
            gradient_sum(model, theta, table, clip=clip),
            np.sum(expected, axis=0),
            rtol=1e-11,
        )


def test_a_large_clip_changes_nothing_beyond_rounding() -> None:
    table, theta = simulated(50_000), np.linspace(-1, 1, 5)
    np.testing.assert_allclose(
        gradient_sum(LOGISTIC, theta, table, clip=1e6),
        gradient_sum(LOGISTIC, theta, table),
        rtol=1e-12,
    )


def test_sums_over_selected_rows_are_sums_over_the_subset() -> None:
    table, theta = simulated(40_000), np.linspace(-1, 1, 5)
    rows = np.flatnonzero(np.random.default_rng(5).random(40_000) < 0.6)
    part = table.subset(rows)
    for clip in (None, 1.0):
        found = gradient_sum(LOGISTIC, theta, table, rows=rows, clip=clip)
        assert (found == gradient_sum(LOGISTIC, theta, part, clip=clip)).all()
    assert log_likelihood_sum(LOGISTIC, theta, table, rows=rows) == pytest.approx(
        sum(LOGISTIC.log_likelihood(theta, b).sum() for b in part.blocks())
    )
    np.testing.assert_allclose(
        information_diagonal(LOGISTIC, theta, table, rows=rows),
        sum(LOGISTIC.information_diagonal(theta, b) for b in part.blocks()),
    )


def test_the_sum_has_the_same_bits_however_it_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 300_000
    rng = np.random.default_rng(0)
    frame = pa.table(
        {
            "a": rng.normal(size=rows),
            "b": rng.normal(size=rows),
            "y": rng.integers(0, 2, rows),
        }
    )
    pq.write_table(frame, tmp_path / "t.parquet", row_group_size=70_001)
    features = {"a": Feature(low=-2, high=2), "b": Feature(low=-3, high=1)}
    preparation = Preparation(features, intercept=1.0)
    theta = np.array([0.1, -0.7, 0.4])
    found = set()
    for threads in ("1", "2", "7"):
        monkeypatch.setenv("CIPHERBAYES_THREADS", threads)
        for source in (frame, tmp_path / "t.parquet"):
            for limit in (0, 1 << 30):
                table = PreparedTable(
                    open_table(source), preparation, LOGISTIC, memory_limit=limit
                )
                total = gradient_sum(LOGISTIC, theta, table, clip=1.0)
                found.add(total.tobytes())
    assert len(found) == 1


@given(
    rows=st.sampled_from([1, 2, 17, BLOCK_ROWS, BLOCK_ROWS + 1, 5 * BLOCK_ROWS + 3]),
    seed=st.integers(0, 2**32 - 1),
    spread=st.floats(0, 30),
)
@settings(max_examples=25, deadline=None)
def test_the_summation_error_stays_below_the_stated_bound(
    rows: int, seed: int, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    # Terms of very different sizes that nearly cancel: the worst for a sum.
    score = rng.choice([-1.0, 1.0], rows) * np.exp(rng.uniform(-spread, 0, rows))
    x = np.ones((1, rows))
    found = gradient_sum(
        Stated(), np.zeros(1), table_of(x, s=score, a=score, b=score), clip=2.0
    )
    exact, size = math.fsum(score), math.fsum(np.abs(score))
    depth = summation_depth(rows) * 2.0**-53
    assert abs(found[0] - exact) <= depth / (1 - depth) * size


def test_the_summation_depth_counts_a_block_and_the_blocks() -> None:
    assert summation_depth(0) == 0
    assert summation_depth(1) == 1
    assert summation_depth(BLOCK_ROWS) == BLOCK_ROWS
    assert summation_depth(BLOCK_ROWS + 1) == BLOCK_ROWS + 1
    assert summation_depth(10**7) == BLOCK_ROWS + 610
    depths = [summation_depth(n) for n in range(0, 200_000, 777)]
    assert depths == sorted(depths)


def test_bounded_sums_of_no_columns_are_empty() -> None:
    rows = Rows(design(0), np.empty((0, 4)), {}, np.zeros(4))
    assert bounded_sum(RecordGradients(rows, np.ones(4)), 1.0).shape == (0,)

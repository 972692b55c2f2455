"""How much sums of weighted scores vary, told from their slope."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.inference.noise_aware.down_weighting import RowLengths, variation
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.models.influence import InfluenceBound, require_bounded_influence
from cipherbayes.typing import Floats
from cipherbayes.validation.simulation import Simulated, simulate

KINDS = (
    "logistic",
    "exponential",
    "weibull",
    "gompertz",
    "piecewise",
    "poisson",
    "linear",
    "learnt-variance",
)


def scores_and_slope(study: Simulated, bound: InfluenceBound) -> tuple[Floats, Floats]:
    """Every record's score at the truth, and the sum of their information."""
    bounded = require_bounded_influence(study.model)
    scores, total = [], np.zeros((len(study.truth),) * 2)
    for rows in study.table.blocks():
        found = bounded.at(study.truth, rows, bound)
        width = len(rows.x)
        own = found.score * rows.x
        total[:width, :width] += (found.information * rows.x) @ rows.x.T
        if found.extra is not None:
            assert found.cross is not None
            assert found.corner is not None
            own = np.vstack([own, found.extra])
            total[:width, width:] += rows.x @ found.cross.T
            total[width:, width:] += found.corner.sum(axis=-1)
        scores.append(own)
    total[width:, :width] = total[:width, width:].T
    return np.concatenate(scores, axis=1), total


def with_tails(study: Simulated, rng: np.random.Generator) -> Simulated:
    """The same with rows of a heavy tail, and outcomes that know nothing of them."""
    x = np.concatenate([rows.x for rows in study.table.blocks()], axis=1)
    x[1:] *= 0.7 * rng.chisquare(4.0, x.shape[1]) ** -0.5 / 0.45
    outcome = {"y": np.asarray(rng.integers(0, 2, x.shape[1]), dtype=np.float64)}
    table = PreparedTable.from_arrays(study.table.design, x, outcome)
    return replace(study, table=table, truth=np.zeros(len(x)))


def in_full(mean: float, variance: float) -> tuple[float, float]:
    return 1.0, 1.0


def all_kept(told: float, mean: float, variance: float) -> tuple[float, float]:
    return 1.0, 1.0


def told(study: Simulated, bound: InfluenceBound, slope: Floats) -> Floats:
    shape = ScoreShape.of(study.model, study.table.design, bound=bound)
    return shape.variation(shape.inside(study.truth), slope, 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_slope_tells_how_much_weighted_scores_vary(kind: str) -> None:
    rng = np.random.default_rng(3)
    study = simulate(kind, 20_000, 9, rng, prior_scale=0.3)
    # Half of the rows are weighted down.
    bound = InfluenceBound(study.clip * 0.75)
    scores, slope = scores_and_slope(study, bound)
    ratio = np.diag(scores @ scores.T) / np.diag(slope)
    found = told(study, bound, slope) ** 2
    # Taken to vary in full they would vary too much by a seventh.
    assert ratio.mean() < 0.93
    assert found.mean() == pytest.approx(ratio.mean(), abs=0.06)
    assert (found > ratio - 0.14).all()
    assert (found < 1.0).all()


def test_heavy_tails_are_not_taken_to_vary_too_little() -> None:
    rng = np.random.default_rng(5)
    study = with_tails(simulate("logistic", 30_000, 8, rng), rng)
    bound = InfluenceBound(np.sqrt(8.0))
    scores, slope = scores_and_slope(study, bound)
    ratio = np.diag(scores @ scores.T) / np.diag(slope)
    found = told(study, bound, slope) ** 2
    assert (found > ratio - 0.1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_where_no_record_counts_for_less_only_the_model_bounds_scores(
    kind: str,
) -> None:
    study = simulate(kind, 4_000, 6, np.random.default_rng(1), prior_scale=0.3)
    bound = InfluenceBound(30.0)
    scores, slope = scores_and_slope(study, bound)
    ratio = np.diag(scores @ scores.T) / np.diag(slope)
    found = told(study, bound, slope) ** 2
    assert found.mean() == pytest.approx(ratio.mean(), abs=0.05)


def test_huber_scores_vary_by_less_than_their_slope() -> None:
    """By e / v and Var chi / k of standard normal residuals."""
    study = simulate("learnt-variance", 100, 4, np.random.default_rng(1))
    bounded = require_bounded_influence(study.model)
    coefficients, scale = bounded.variance_shares(InfluenceBound(3.0), 0.0, 0.0)
    z = np.random.default_rng(2).standard_normal(400_000)
    held = np.clip(z, -2.0, 2.0)
    inside = np.abs(z) < 2.0
    share = held.var() / inside.mean()
    assert coefficients == pytest.approx(share, rel=0.01)
    share = (held**2).var() / (2.0 * (z**2 * inside).mean())
    assert scale == pytest.approx(share, rel=0.02)


def test_large_counts_are_held_close_to_their_means_and_vary_by_less() -> None:
    study = simulate("poisson", 20_000, 5, np.random.default_rng(4), prior_scale=0.2)
    x = np.concatenate([rows.x for rows in study.table.blocks()], axis=1)
    truth = study.truth + np.log(8.0) * np.eye(5)[0]
    counts = np.random.default_rng(5).poisson(np.exp(truth @ x)).astype(np.float64)
    outcome = {"y": counts, "offset": np.zeros(counts.size)}
    table = PreparedTable.from_arrays(study.table.design, x, outcome)
    study, bound = replace(study, table=table, truth=truth), InfluenceBound(30.0)
    scores, slope = scores_and_slope(study, bound)
    ratio = np.diag(scores @ scores.T) / np.diag(slope)
    assert ratio.mean() < 0.4
    assert told(study, bound, slope) ** 2 == pytest.approx(ratio, rel=0.2)


@pytest.mark.parametrize("noise", [1e-9, 30.0, 1e9])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_whatever_noise_says_scores_vary_by_some_and_not_by_more(
    noise: float, size: float
) -> None:
    lengths = RowLengths(9.0, 1.0, 1.0, 3, (1, 2, 3), 4, in_full, all_kept)
    found = variation(lengths, np.diag([100.0, *[100.0 * size] * 3]), noise, (0,))
    assert ((found > 0.1) & (found <= 1.0)).all()


def test_without_a_constant_or_columns_nothing_is_taken_off() -> None:
    lengths = RowLengths(9.0, 0.0, 1.0, 4, (0, 1, 2, 3), 4, in_full, all_kept)
    assert (variation(lengths, np.eye(4), 1.0, ()) == 1.0).all()
    alone = RowLengths(9.0, 1.0, 1.0, 0, (), 1, in_full, all_kept)
    assert (variation(alone, np.eye(1), 1.0, (0,)) == 1.0).all()

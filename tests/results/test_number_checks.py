"""Predicted classes and counts are checked, within what a record may move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import cipherbayes as cb
from cipherbayes.models.held_out import HeldOutCheck
from cipherbayes.models.rows import Rows
from cipherbayes.protocols.rounds import Closing
from cipherbayes.results.checking import scores_of
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats

ROWS, NOISE = 20_000, 3.0


def checked(
    model: Any, theta: Floats, x: Floats, outcome: dict[str, Floats]
) -> tuple[HeldOutCheck, Rows, dict[str, Any]]:
    """The scores of predictions with these parameters, with a little noise."""
    study = cb.Study(
        model=model,
        features={"x": {"low": -1.0, "high": 1.0}},
        preparation={"method": "public-bounds"},
        privacy={"epsilon": 1.0, "records": ROWS},
        evaluation={"holdout": 0.5},
    )
    check = study.model.held_out_check
    assert check is not None
    design = preparation_of(study).design
    columns = np.stack([np.ones_like(x), x])
    rows = Rows(design, columns, outcome, (columns**2).sum(axis=0))
    draws = np.tile(theta, (32, 1))
    total = check.sums(draws, rows)
    noised = total + np.random.default_rng(1).normal(0.0, NOISE, total.size)
    found = scores_of(check, Closing(noised, NOISE), draws, design, 0.01, float(x.size))
    return check, rows, dict(found)


def holds(interval: dict[str, float], value: float, width: float) -> bool:
    low, high = interval["lower"], interval["upper"]
    return low <= value <= high and high - low <= width


def within_its_bound(check: HeldOutCheck, theta: Floats, rows: Rows) -> None:
    """And residuals are zero on average, as spread as their variances say."""
    residual, variance = check.residuals(theta, rows)
    norms = np.sqrt((residual**2).sum(axis=0) + (variance**2).sum(axis=0))
    assert norms.max() <= check.residual_bound
    assert abs(residual.sum()) < 4.0 * np.sqrt(variance.sum())
    assert (residual**2).sum() <= 1.05 * variance.sum()


def test_counts_that_vary_more_than_a_poisson() -> None:
    rng = np.random.default_rng(0)
    x, theta = rng.uniform(-1.0, 1.0, ROWS), np.array([0.5, 0.8, np.log(0.5)])
    mean = np.exp(theta[0] + theta[1] * x)
    y = rng.poisson(mean * rng.gamma(2.0, 0.5, ROWS)).astype(np.float64)
    model = cb.models.NegativeBinomial(outcome="y")
    outcome = {"y": y, "offset": np.zeros(ROWS)}
    check, rows, found = checked(model, theta, x, outcome)
    assert holds(found["mean_observed"], y.mean(), 0.3)
    assert holds(found["mean_predicted"], mean.mean(), 0.2)
    assert holds(found["predicted_over_observed"], 1.0, 0.2)
    assert all(each["rows"] > 0.0 for each in found["calibration_table"])
    within_its_bound(check, theta, rows)
    (column,) = check.outcomes
    assert column.levels is not None


def test_classes_by_their_mean() -> None:
    rng = np.random.default_rng(1)
    x, theta = rng.uniform(-1.0, 1.0, ROWS), np.array([1.0, 1.5, 0.0, 0.3])
    cuts = np.array([0.0, 1.0, 1.0 + np.exp(0.3)])
    above = expit(theta[0] + theta[1] * x - cuts[:, None])
    y = (rng.random(ROWS) < above).sum(axis=0).astype(np.float64)
    model = cb.models.Ordinal(outcome="y", classes=4)
    check, _, found = checked(model, theta, x, {"y": y})
    assert holds(found["mean_observed"], y.mean(), 0.1)
    assert holds(found["mean_predicted"], above.sum(axis=0).mean(), 0.1)
    assert holds(found["rmse"], float(np.sqrt(np.mean((y - above.sum(0)) ** 2))), 0.1)
    (column,) = check.outcomes
    assert column.levels == ("0", "1", "2", "3")
    assert np.array_equal(column.bins({"y": y}), y.astype(int))


@pytest.mark.parametrize("grade", [0.0, 3.0])
def test_the_residual_of_a_class_is_the_slope_of_its_log_probability(
    grade: float,
) -> None:
    theta, step = np.array([0.2, 0.7, 0.1, -0.4]), 1e-5
    model = cb.models.Ordinal(outcome="y", classes=4)
    x = np.linspace(-1.0, 1.0, 7)
    check, rows, _ = checked(model, theta, x, {"y": np.full(7, grade)})
    residual, _ = check.residuals(theta, rows)
    more, less = (theta + sign * step * np.eye(4)[0] for sign in (1.0, -1.0))
    slope = model.log_likelihood(more, rows) - model.log_likelihood(less, rows)
    assert residual[0] == pytest.approx(slope / (2.0 * step), abs=1e-4)

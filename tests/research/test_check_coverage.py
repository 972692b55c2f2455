"""Intervals of private checks hold the truth as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from cipherbayes_research.benchmarks.check_coverage import coverage
from cipherbayes_research.benchmarks.check_tables import population


@pytest.mark.torture
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("name", ["skewed", "weibull", "skewed errors", "poisson"])
def test_ninety_per_cent_intervals_cover_close_to_ninety_per_cent(
    name: str, epsilon: float
) -> None:
    """Of 250 repetitions two standard errors are 0.04."""
    found = coverage(population(name, 1, None), epsilon, 1600, 250, seed=1)
    for score, each in found.items():
        assert each.covered >= 0.84, (score, each)
        assert each.covered <= 0.99, (score, each)
        assert abs(each.off) < 0.4 * each.width, (score, each)


def test_a_repeated_check_is_counted_with_what_somebody_sees_who_sees_the_rows() -> (
    None
):
    found = coverage(population("poisson", 1, None), 3.0, 800, 20, seed=1)
    overall = {"mean_observed", "mean_predicted", "predicted_over_observed"}
    assert overall | {"curve 3"} <= set(found)
    for name, each in found.items():
        assert 0.5 <= each.covered <= 1.0
        assert 0.5 <= each.plain <= 1.0
        # A bin learns from its neighbours, everything together from nobody.
        assert each.ratio > 1.0 or name not in overall


@pytest.mark.slow
def test_what_is_seen_of_censored_rows_says_what_would_be_without_censoring() -> None:
    table = population("weibull", 1, None)
    seen = table.exact(np.arange(4000))
    for name in ("c_index", "auc_at 0.5", "brier_at 1", "o/e high 1", "log_score"):
        assert seen[name] == pytest.approx(table.truth[name], rel=0.06), name


@pytest.mark.slow
def test_intervals_hold_where_predictions_are_few_values_and_wrong() -> None:
    """With 90 % coverage 29 or fewer of 40 hold in two of a thousand trials; where only
    the bin of a prediction was counted, calibration in the large held in half."""
    found = coverage(population("illnesses", 1, None), 3.0, 1000, 40, seed=1)
    for score in ("calibration_in_the_large", "predicted_over_observed", "auc"):
        assert found[score].covered > 29.5 / 40.0, score


@pytest.mark.parametrize("name", ["two binary", "lumpy survival"])
def test_a_misfitted_table_has_few_predictions_and_scores_that_say_so(
    name: str,
) -> None:
    table = population(name, 1, None)
    assert np.unique(table.score.round(6)).size == 4
    assert all(np.isfinite(value) for value in table.truth.values())
    ranked = table.truth.get("auc", table.truth.get("c_index", 0.0))
    assert 0.55 < ranked < 0.75

"""A plan says what checking and describing buy, and where they buy nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import cipherbayes as cb
from cipherbayes.inference.recalibration import recalibrate
from cipherbayes.models.held_out import LOG_ODDS
from cipherbayes.models.shared_bins import shared_weights
from cipherbayes.protocols.budget_words import (
    beyond_trials,
    budget_cautions,
    budget_lines,
    budget_uses,
)
from cipherbayes.protocols.check_forecast import USUAL, expected_widths
from cipherbayes.protocols.study_plan import StudyPlan, plan_releases

MODELS: dict[str, Any] = {
    "logistic": cb.models.Logistic(outcome="y"),
    "weibull": cb.models.Weibull(time="days", event="died", horizon=5.0),
    "linear": cb.models.Linear(outcome="y", low=0.0, high=40.0),
    "ordinal": cb.models.Ordinal(outcome="y", classes=4),
    "poisson": cb.models.Poisson(outcome="y"),
    "negative-binomial": cb.models.NegativeBinomial(outcome="y"),
}


def planned(
    kind: str = "logistic",
    *,
    epsilon: float = 3.0,
    records: int | None = 6000,
    holdout: float = 0.2,
    by: list[str] | None = None,
) -> StudyPlan:
    privacy: dict[str, Any] = {"epsilon": epsilon, "delta": 1e-6}
    if records is not None:
        privacy["records"] = records
    study = cb.Study(
        study={"protocol": "pooled"},
        model=MODELS[kind],
        features={"age": {"low": 18, "high": 100}, "sex": {"levels": ["F", "M"]}},
        privacy=privacy,
        evaluation={"holdout": holdout},
        describe={"by": by or []},
        sites={name: {} for name in ("east", "north", "south", "west")},
    )
    plan = plan_releases(study)
    assert isinstance(plan, StudyPlan)
    return plan


@pytest.mark.parametrize("kind", MODELS)
def test_more_rows_and_less_noise_make_every_score_better_known(kind: str) -> None:
    check = MODELS[kind].held_out_check
    few, many, noisy = (
        expected_widths(check, rows, noise * check.bound)[USUAL]
        for rows, noise in ((400.0, 2.4), (2000.0, 2.4), (2000.0, 12.0))
    )
    assert few.keys() == many.keys()
    for score in many:
        assert many[score] < 0.7 * few[score]
        assert many[score] < 0.8 * noisy[score]


def test_scores_of_rows_are_known_as_well_as_the_plan_says() -> None:
    """Rows of the kind that it assumes, held out and noised again and again."""
    rng, rows, noise = np.random.default_rng(3), 1200, 2.4
    expected = expected_widths(MODELS["logistic"].held_out_check, rows, noise)[USUAL]
    found = []
    for _ in range(8):
        score = rng.normal(-1.6, 1.0, rows)
        died = rng.random(rows) < expit(score)
        both = np.stack([~died, died], axis=1).astype(float)
        counts = (shared_weights(LOG_ODDS, score).T @ both).ravel()
        counts += rng.normal(0.0, noise, counts.size)
        fit = recalibrate(counts, noise, tuple(LOG_ODDS.tolist()), float(rows))
        draws = fit.auc, fit.calibration_slope, fit.calibration_in_the_large
        found.append([0.5 * np.ptp(np.quantile(each, [0.05, 0.95])) for each in draws])
    names = ("auc", "calibration_slope", "calibration_in_the_large")
    told = [expected[name] for name in names]
    assert told == pytest.approx(np.mean(found, axis=0).tolist(), rel=0.2)


def test_a_plan_says_how_many_rows_are_held_out_and_how_well_scores_are_known() -> None:
    lines = "\n".join(text for _, text in budget_lines(planned()))
    assert "20 % (about 1,200)" in lines
    assert "scores to about, with events in a fifth of the rows: AUC ±0.0" in lines
    assert "the same with events in a twentieth: AUC ±0.0" in lines
    assert budget_cautions(planned()) == []
    larger = budget_uses(planned(holdout=0.5))["checking"]["half_widths"]
    smaller = budget_uses(planned(holdout=0.1))["checking"]["half_widths"]
    assert larger["auc"] < 0.6 * smaller["auc"]


def test_small_shares_of_rows_are_not_rounded_away() -> None:
    (_, fitting), (_, checking), *_ = budget_lines(planned(holdout=0.0005))
    assert "99.95 % of the rows" in fitting
    assert "0.05 %" in checking


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"holdout": 0.001}, "about 6 rows are held out"),
        ({"holdout": 0.001, "kind": "weibull"}, "concordance is known to ±0."),
        ({"holdout": 0.001, "kind": "linear"}, "root mean squared error"),
        ({"holdout": 0.001, "kind": "poisson"}, "predicted over observed"),
        ({"epsilon": 0.01}, "describing will tell next to nothing: a count is known"),
        ({"epsilon": 0.1, "by": ["site"]}, "nothing of groups: a count is known to"),
        ({"holdout": 0.99}, "leaves 1 % of the rows (about 60) to the fit"),
    ],
)
def test_a_plan_warns_of_checks_and_tables_that_tell_nothing(
    changes: dict[str, Any], words: str
) -> None:
    assert any(words in caution for caution in budget_cautions(planned(**changes)))


def test_the_noise_of_groups_adds_up_in_a_count_of_all_records() -> None:
    noise = {
        tuple(by): budget_uses(planned(by=by))["describing"]
        for by in ([], ["site"], ["site", "sex"])
    }
    alone = noise[()]
    assert alone["count_noise_of_all"] == alone["count_noise"]
    sites = noise["site",]
    assert sites["count_noise_of_all"] == pytest.approx(2.0 * sites["count_noise"])
    # Two groupings tell of all records twice: with the noise of four groups, of two.
    both = noise["site", "sex"]
    assert both["count_noise_of_all"] == pytest.approx(
        both["count_noise"] / np.sqrt(1.0 / 4.0 + 1.0 / 2.0)
    )
    lines = dict(budget_lines(planned(by=["site"])))
    assert "one of all records to ±" in lines["describing"]
    assert "all records" not in dict(budget_lines(planned()))["describing"]


def test_without_a_public_number_of_records_nothing_is_said_of_widths() -> None:
    plan = planned(records=None)
    assert "half_widths" not in budget_uses(plan)["checking"]
    assert "about" not in "".join(text for _, text in budget_lines(plan))
    assert budget_cautions(plan) == []


@pytest.mark.parametrize(
    ("kind", "epsilon", "said"),
    [
        ("weibull", 0.3, "wider than they need be"),
        ("weibull", 1.0, None),
        ("poisson", 0.3, "where predictions end abruptly"),
        ("poisson", 1.0, None),
        ("logistic", 0.3, None),
    ],
)
def test_a_plan_says_where_intervals_do_not_hold_as_often_as_they_say(
    kind: str, epsilon: float, said: str | None
) -> None:
    """800 rows held out, as in the trials."""
    found = beyond_trials(planned(kind, epsilon=epsilon, records=4000))
    assert (found is None) == (said is None)
    if found is not None and said is not None:
        assert said in found
        assert found in [text for _, text in budget_lines(planned(kind, epsilon=0.3))]

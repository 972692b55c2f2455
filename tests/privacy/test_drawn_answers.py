"""What a record with drawn values adds to checks and descriptions, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import logit

import cipherbayes as cb
from cipherbayes.data.imputing import DRAWS
from cipherbayes.models.held_out import LOG_HAZARDS, LOG_ODDS
from cipherbayes.models.shared_bins import shared_weights
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.releases import QUESTION_DRAWS
from cipherbayes.protocols.study_plan import StudyPlan, plan_releases
from cipherbayes.study.tables import imputing_of, open_site
from cipherbayes.typing import Floats

MODELS: dict[str, Any] = {
    "logistic": cb.models.Logistic(outcome="y"),
    "exponential": cb.models.Exponential(time="days", event="y", horizon=5.0),
}


def plan_of(name: str, **bmi: Any) -> StudyPlan:
    study = cb.Study(
        study={"protocol": "secure-sum"},
        model=MODELS[name],
        features={
            "age": {"low": 20, "high": 100},
            "bmi": {"low": 5, "high": 55, "missing": "impute", **bmi},
        },
        preparation={"method": "public-bounds"},
        privacy={"epsilon": 1.0, "records": 4_000},
        evaluation={"holdout": 0.5},
        describe={},
        sites={"a": {}, "b": {}},
    )
    return plan_releases(study)


def phase_of(plan: StudyPlan, purpose: str) -> Phase:
    (phase,) = (each for each in plan.phases if each.purpose == purpose)
    return phase


def models_of(constant: float, slope: float = 0.0, sd: float = 0.2) -> Floats:
    """A model of bmi: coefficients, their errors, its sd and the share of gaps."""
    return np.array([constant, slope, 0.0, 0.0, sd, 0.3])


def added(
    plan: StudyPlan, purpose: str, frame: pd.DataFrame, theta: Floats, models: Floats
) -> Floats:
    """What records add that are all held out."""
    table = open_site(plan.study, "a", frame)
    given = Contributions.of_site(
        plan.study, "a", table.subset(np.empty(0, dtype=np.int64)), table
    )
    phase = phase_of(plan, purpose)
    if purpose == "check":
        theta = np.tile(theta, QUESTION_DRAWS)
    return given.total(phase, Question(theta, models))


@pytest.mark.parametrize("name", MODELS)
def test_a_record_with_gaps_is_one_record_where_its_mean_prediction_is(
    name: str,
) -> None:
    plan = plan_of(name)
    frame = pd.DataFrame({"age": [70.0], "bmi": [np.nan], "y": [1.0], "days": [2.0]})
    theta, models = np.array([-3.7, 1.0, 6.0]), models_of(0.1, 0.4, 0.3)
    found = added(plan, "check", frame, theta, models)
    assert found.sum() == 1.0
    assert np.count_nonzero(found) == 3
    imputing = imputing_of(plan.study)
    assert imputing is not None
    block = next(iter(open_site(plan.study, "a", frame).blocks()))
    eta = theta @ imputing.drawn(block, models).x
    assert eta.size == DRAWS
    if name == "logistic":
        mean = np.mean(1.0 / (1.0 + np.exp(-eta)))
        edges, value, kinds, kind = LOG_ODDS, logit(mean), 2, 1
        # Not that of the mean value.
        assert abs(value - eta.mean()) > 0.3
    else:
        mean = np.log(-np.log(np.mean(np.exp(-np.exp(eta)))))
        edges, value, kinds, kind = LOG_HAZARDS, mean, 9, 1
    expected = np.zeros((edges.size + 1, kinds))
    expected[:, kind] = shared_weights(edges, np.array([value]))[0]
    assert found == pytest.approx(expected.ravel(), abs=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_residuals_of_a_record_with_gaps_reach_their_bound_and_go_no_further(
    name: str,
) -> None:
    plan = plan_of(name)
    phase = phase_of(plan, "residuals")
    frame = pd.DataFrame({"age": [70.0], "bmi": [np.nan], "y": [1.0], "days": [2.0]})
    # All draws at one end of the range, and an event that nobody expected.
    models = models_of(10.0)
    found = added(plan, "residuals", frame, np.array([-40.0, 0.0, 0.0]), models)
    norm = np.linalg.norm(found)
    assert phase.cells is not None
    reached = np.sqrt(len(phase.cells.features) + 1.0)
    assert norm <= reached <= phase.sums.clip
    assert norm > reached * (1.0 - 1e-5)
    # Spread over groups it is less, and its parts are those of one record.
    spread = added(
        plan, "residuals", frame, np.array([-40.0, 0.0, 0.0]), models_of(0.0, sd=1.0)
    )
    assert np.linalg.norm(spread) < norm
    kinds = phase.cells.check.kinds
    sums = spread.reshape(2, kinds, -1)[0].sum(axis=0)
    assert sums[:5].sum() == pytest.approx(1.0, abs=1e-5)
    assert sums[5:10].sum() == pytest.approx(1.0, abs=1e-4)
    assert np.count_nonzero(sums[5:10]) > 1


def test_residuals_are_even_where_gaps_depend_on_the_outcome() -> None:
    """A group of the records with gaps alone would show what is no misfit."""
    plan, rng, rows = plan_of("logistic"), np.random.default_rng(3), 6_000
    age, noise = rng.normal(60, 10, rows), rng.standard_normal(rows)
    bmi = 27.0 + 0.25 * (age - 60) + 4.0 * noise
    x = np.stack([np.ones(rows), (age - 60) / 40, (bmi - 30) / 25])
    theta = np.array([0.3, 1.2, 2.5])
    y = (rng.random(rows) < 1 / (1 + np.exp(-theta @ x))).astype(float)
    gone = rng.random(rows) < np.where(y == 1.0, 0.1, 0.6)
    frame = pd.DataFrame({"age": age, "bmi": np.where(gone, np.nan, bmi), "y": y})
    # 27 + 0.25 (age - 60) ± 4 in units of the public ranges.
    models = models_of(-3 / 25, 0.25 * 40 / 25, 4 / 25)
    found = added(plan, "residuals", frame, theta, models)
    residuals, variances = found.reshape(2, -1)
    told = variances > 20.0
    assert np.count_nonzero(told[5:10]) >= 2
    assert np.abs(residuals[told] / np.sqrt(variances[told])).max() < 3.5
    # Observed records alone are chosen by their outcome.
    alone = added(plan, "residuals", frame[~gone], theta, models)
    residuals, variances = alone.reshape(2, -1)
    assert np.abs(residuals[told] / np.sqrt(variances[told])).max() > 5.0


def test_a_gap_is_described_as_a_gap_and_its_stand_in_is_not() -> None:
    plan = plan_of("logistic")
    phase = phase_of(plan, "describe")
    assert phase.characteristics is not None
    age, bmi, _ = phase.characteristics.sizes
    assert (age, bmi) == (16, 17)
    frame = pd.DataFrame(
        {"age": [70.0] * 3, "bmi": [np.nan, 30.5, np.nan], "y": [1.0, 0.0, 0.0]}
    )
    found = added(plan, "describe", frame, np.zeros(1), models_of(0.0))
    counts = found[age : age + bmi]
    assert counts[-1] == 2.0
    assert counts.sum() == 3.0

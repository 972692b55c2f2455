"""One record moves what is released after a posterior by at most Δ, whatever is asked.

And it moves one part of its table only: that the parts may be set beside each other
rests on it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cipherbayes as cb
from cipherbayes.models.score_difference import difference_sums
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.study_plan import StudyPlan, plan_releases
from cipherbayes.study.rival import KEPT
from cipherbayes.study.tables import open_site, preparation_of, rival_study, split_site
from cipherbayes.validation.neighbours import invented_columns

SURVIVAL: dict[str, Any] = {"time": "days", "event": "died", "horizon": 40.0}
MODELS: dict[str, Any] = {
    "logistic": cb.models.Logistic(outcome="y"),
    "linear": cb.models.Linear(outcome="y", low=-3.0, high=5.0),
    "poisson": cb.models.Poisson(outcome="y", exposure="years"),
    "negative-binomial": cb.models.NegativeBinomial(outcome="y"),
    "ordinal": cb.models.Ordinal(outcome="y", classes=4),
    "exponential": cb.models.Exponential(**SURVIVAL),
    "weibull": cb.models.Weibull(**SURVIVAL),
    "gompertz": cb.models.Gompertz(**SURVIVAL),
    "piecewise": cb.models.Piecewise(**SURVIVAL, cuts=(5.0, 12.5)),
}
CLASSES = ("logistic", "ordinal")
"""Whose outcomes have few values."""
FEATURES: dict[str, dict[str, Any]] = {
    "age": {"low": 18, "high": 100},
    "sex": {"levels": ["F", "M", "other"]},
    "bmi": {"low": 10, "high": 60, "missing": 25, "indicator": True},
    "dose": {"low": 1, "high": 16, "transform": "log", "missing": 2.0},
}
GAPS: dict[str, dict[str, Any]] = {
    "sex": {"missing": {"shares": {"F": 0.5, "M": 0.4, "other": 0.1}}},
    "bmi": {"missing": "impute", "indicator": False},
}
PRIVACY: dict[str, Any] = {"epsilon": 1.0, "records": 40_000}
NAMED = {**PRIVACY, "unit": "who"}
"""Records of persons with one row each."""
WITH_GAPS = ("logistic", "linear", "poisson", "ordinal", "weibull", "piecewise")


@cache
def plan_of(name: str, preparation: str) -> StudyPlan:
    name, _, variant = name.partition(", ")
    features, privacy = FEATURES, PRIVACY
    evaluation: dict[str, Any] = {"holdout": 0.5}
    if variant == "gaps":
        features = {k: {**f, **GAPS.get(k, {})} for k, f in FEATURES.items()}
    elif variant != "alike":
        privacy = NAMED
        evaluation["against"] = rival(name, preparation)
    study = cb.Study(
        study={"protocol": "pooled" if variant == "pooled" else "secure-sum"},
        model=MODELS[name],
        features=features,
        preparation={"method": preparation},
        privacy=privacy,
        evaluation=evaluation,
        describe={"by": ["site", "sex"]},
        sites={"a": {}, "b": {}, "c": {}},
    )
    return plan_releases(study)


def rival(name: str, preparation: str) -> dict[str, Any]:
    """An earlier fit of other columns, with draws that no posterior would have."""
    model = MODELS[name]
    features = {"bmi": FEATURES["bmi"], "age": FEATURES["age"]}
    study = cb.Study(
        model=model,
        features=features,
        preparation={"method": preparation},
        privacy=NAMED,
        evaluation={"holdout": 0.5},
    )
    design = preparation_of(study).design
    size = len(model.parameters(design))
    draws = [
        [0.0] * size,
        [1e-3] * size,
        [-3.0, 2.0] * (size // 2) + [5.0] * (size % 2),
    ]
    found: dict[str, Any] = {
        "name": "earlier",
        "study_hash": "0" * 64,
        "study": {part: study.document()[part] for part in KEPT},
        "draws": draws,
    }
    if preparation == "private-scales":
        found["scales"] = [0.1] * design.moved + [0.05] * design.moved
    return found


def invented(study: cb.Study, rows: int, rng: np.random.Generator) -> dict[str, Any]:
    """Records of as many persons."""
    columns: dict[str, Any] = dict(invented_columns(study, rows, rng))
    return {**columns, "who": [str(k) for k in range(rows)]}


def totals(plan: StudyPlan, columns: Any, question: Question, phase: Phase) -> Any:
    """A site's sums on the grid, as it parts its own table."""
    table = open_site(plan.study, "b", pa.table(columns))
    parts = split_site(plan.study, "b", table)
    given = Contributions.of_site(plan.study, "b", *parts)
    return phase.on_grid(given.total(phase, question))


def asked(plan: StudyPlan, phase: Phase, rng: np.random.Generator) -> Question:
    size = plan.question_size(phase)
    totals = [rng.integers(-p.bound, p.bound, p.dimension) for p in plan.preparatory]
    scales = plan.scales(phase, plan.facts(totals))
    if size == 1:
        return Question(np.zeros(1), scales)
    farthest = np.tile(plan.farthest_theta, size // plan.farthest_theta.size)
    theta = farthest * rng.uniform(-1.0, 1.0, size)
    theta *= rng.choice([0.0, 1e-310, 1e-3, 1.0])
    return Question(theta, scales)


@pytest.mark.slow
@pytest.mark.parametrize("preparation", ["public-bounds", "private-scales"])
@pytest.mark.parametrize(
    "name",
    [
        *MODELS,
        *(f"{n}, gaps" for n in WITH_GAPS),
        *(f"{n}, pooled" for n in ("logistic", "weibull")),
        *(f"{n}, alike" for n in ("logistic", "poisson", "weibull")),
    ],
)
def test_one_record_moves_one_part_by_at_most_its_sensitivity(
    name: str, preparation: str
) -> None:
    plan = plan_of(name, preparation)

    @given(seed=st.integers(0, 2**32 - 1), rows=st.sampled_from([1, 2, 5, 17, 65]))
    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
    def holds(seed: int, rows: int) -> None:
        rng = np.random.default_rng(seed)
        columns = invented(plan.study, rows, rng)
        few = any(each in name for each in CLASSES)
        if rng.random() < 0.3 and "y" in columns and not few:
            columns["y"][0] = 2.0**53
        if name.endswith("alike"):
            few_kinds = rng.integers(min(rows, 3), size=rows)
            columns = {k: [v[i] for i in few_kinds] for k, v in columns.items()}
        fewer = {key: values[1:] for key, values in columns.items()}
        moved = set()
        for phase in plan.closing:
            question = asked(plan, phase, rng)
            assert plan.usable_theta(phase, question.theta)
            change = totals(plan, columns, question, phase).astype(np.float64)
            if rows > 1:
                change = change - totals(plan, fewer, question, phase)
            assert np.linalg.norm(change) <= phase.sums.sensitivity
            if phase.rows is None:
                # Described it is, whichever part it is in.
                assert np.any(change != 0.0)
            elif np.any(change != 0.0):
                moved.add(phase.rows)
        phase = plan.last_phase
        question = asked(plan, phase, rng)
        if not plan.preparatory:
            question = Question(np.zeros(plan.question_size(phase)), None)
        change = totals(plan, columns, question, phase)
        if rows > 1:
            change = change - totals(plan, fewer, question, phase)
        # A fit's sums have rounding errors; one record out moves them far more.
        if np.linalg.norm(change) > 100.0 * np.sqrt(change.size):
            moved.add("training")
        assert len(moved) <= 1

    holds()


def test_both_parts_are_asked_and_either_may_be_empty() -> None:
    plan = plan_of("logistic", "public-bounds")
    columns = invented(plan.study, 1, np.random.default_rng(0))
    table = open_site(plan.study, "a", pa.table(columns))
    train, held = split_site(plan.study, "a", table)
    assert sorted([train.count, held.count]) == [0, 1]
    given = Contributions.of_site(plan.study, "a", train, held)
    for phase in plan.phases:
        question = Question(np.zeros(plan.question_size(phase)))
        assert given.total(phase, question).shape == (phase.dimension,)


@pytest.mark.parametrize("sites_differ", [False, True])
def test_a_held_out_record_moves_nothing_that_the_fit_releases(
    sites_differ: bool,
) -> None:
    """Also where the number of records is released: it is that of the training rows."""
    hierarchy = {"hierarchy": {"intercept": True}} if sites_differ else {}
    plan = plan_releases(
        cb.Study(
            study={"protocol": "secure-sum"},
            model=MODELS["logistic"],
            features=FEATURES,
            preparation={"method": "private-scales"},
            privacy={"epsilon": 1.0},
            evaluation={"holdout": 0.5},
            describe={},
            sites={"a": {}, "b": {}, "c": {}},
            **hierarchy,
        )
    )
    assert plan.phases[0].purpose == "records"
    rng = np.random.default_rng(3)
    columns = invented(plan.study, 40, rng)
    table = open_site(plan.study, "b", pa.table(columns))
    train, held = split_site(plan.study, "b", table)
    assert train.count + held.count == 40
    fewer_held = held.subset(np.arange(1, held.count))
    fewer_train = train.subset(np.arange(1, train.count))
    for phase in plan.phases:
        question = asked(plan, phase, rng)
        sums = [
            Contributions.of_site(plan.study, "b", *parts).total(phase, question)
            for parts in ((train, held), (train, fewer_held), (fewer_train, held))
        ]
        moved = [not np.array_equal(sums[0], each) for each in sums[1:]]
        if phase.rows == "training":
            assert not moved[0], phase.purpose
        elif phase.rows == "held-out":
            assert not moved[1], phase.purpose
        else:
            assert all(moved), phase.purpose


def test_a_study_holds_out_the_rows_of_the_one_that_it_is_compared_with() -> None:
    """Which columns it has itself does not move a record, nor does its place."""
    plan = plan_of("logistic", "public-bounds")
    columns = invented(plan.study, 200, np.random.default_rng(1))
    columns["y"] = np.arange(200) % 2
    earlier = rival_study(plan.study)
    assert earlier is not None
    turned = {name: values[::-1] for name, values in columns.items()}
    sides = []
    for study, held in ((plan.study, columns), (earlier, columns), (earlier, turned)):
        table = open_site(study, "a", pa.table(held))
        sides.append(split_site(study, "a", table)[1].outcome()["y"])
    assert 0 < sides[0].size < 200
    assert np.array_equal(sides[0], sides[1])
    assert np.array_equal(sides[0], sides[2][::-1])


def test_a_difference_is_that_of_the_log_scores_and_bounded() -> None:
    first = np.array([-0.2, -3.0, np.nan, -np.inf, -0.5])
    second = np.array([-0.4, -0.1, -1.0, -1.0, -0.5])
    total, squares = difference_sums(first, second, None)
    assert total == pytest.approx(0.4 - 1.0 + 0.0 - 1.0 + 0.0, abs=1e-5)
    assert squares == pytest.approx(0.5 * (0.4**2 + 1.0 + 1.0), abs=1e-5)


def test_the_budget_is_spent_by_either_part_and_by_no_row_twice() -> None:
    from cipherbayes.privacy.accountant import epsilon

    plan = plan_of("logistic", "public-bounds")
    assert [phase.purpose for phase in plan.closing] == [
        "describe",
        "check",
        "residuals",
        "difference",
    ]
    assert epsilon(plan.event, 1e-5) == pytest.approx(1.0, rel=1e-3)
    assert epsilon(plan.event, 1e-5) <= 1.0
    assert plan.epsilon_after(plan.rounds) == epsilon(plan.event, 1e-5)


def test_a_check_is_asked_at_so_many_draws_within_reach_and_nothing_else() -> None:
    plan = plan_of("logistic", "public-bounds")
    describe, check, residuals, _ = plan.closing
    rng = np.random.default_rng(0)
    draws = 1e9 * rng.standard_normal((500, plan.farthest_theta.size))
    for phase in plan.closing:
        question = plan.closing_question(phase, draws)
        assert plan.usable_theta(phase, question)
        assert not plan.usable_theta(phase, question[:-1])
        assert not plan.usable_theta(phase, np.full(question.size, 1e10))
    assert plan.closing_question(describe, draws).tolist() == [0.0]
    assert plan.closing_question(check, draws[:1]).size == plan.question_size(check)
    assert plan.question_size(residuals) == plan.farthest_theta.size

"""One record moves a sum by at most Δ, whatever is asked, on every path of the code.

Neighbouring tables, questions meant to hurt (overflow, cancellation, denormal
numbers, scales that nobody released, tables one record longer than a register, a
power of two or a block): both tables are answered, and their sums on the grid differ
by no more than the sensitivity that the noise is made for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cipherbayes as cb
from cipherbayes.data import spool
from cipherbayes.data.blocks import BLOCK_ROWS
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.tables import open_table
from cipherbayes.models import NeuralLogistic, NeuralWeibull, Rows, kernels
from cipherbayes.models.influence import InfluenceBound
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.study_plan import StudyPlan, plan_releases
from cipherbayes.study.tables import preparation_of
from cipherbayes.validation.neighbours import invented_columns

HORIZON = 40.0
SURVIVAL: dict[str, Any] = {"time": "days", "event": "died", "horizon": HORIZON}
MODELS = {
    "logistic": cb.models.Logistic(outcome="y"),
    "linear": cb.models.Linear(outcome="y", low=-3.0, high=5.0),
    "linear, known variance": cb.models.Linear(
        outcome="y", low=-3.0, high=5.0, variance=2.0
    ),
    "poisson": cb.models.Poisson(outcome="y", exposure="years"),
    "poisson, offset": cb.models.Poisson(outcome="y", offset="log_years"),
    "negative-binomial": cb.models.NegativeBinomial(outcome="y", exposure="years"),
    "ordinal": cb.models.Ordinal(outcome="y", classes=4),
    "exponential": cb.models.Exponential(**SURVIVAL),
    "weibull": cb.models.Weibull(**SURVIVAL),
    "gompertz": cb.models.Gompertz(**SURVIVAL),
    "piecewise": cb.models.Piecewise(**SURVIVAL, cuts=(5.0, 12.5), entry="enrolled"),
    "gaussian": cb.models.GaussianMean(variance=2.5),
    "neural-logistic": NeuralLogistic(outcome="y", hidden=(5, 3)),
    "neural-weibull": NeuralWeibull(**SURVIVAL, hidden=(4,)),
    "formula": cb.models.Logistic(
        outcome="y",
        formula="y ~ rcs(age, 4) * sex + log(creatinine) * bs(bmi, df=4) + poly(pulse)",
    ),
}
FEATURES: dict[str, dict[str, Any]] = {
    "age": {"low": 18, "high": 100},
    "sex": {"levels": ["F", "M", "other"]},
    "creatinine": {"low": 0.1, "high": 20, "transform": "log"},
    "bmi": {"low": 10, "high": 60, "missing": 25, "indicator": True},
    "pulse": {"low": -1e-9, "high": 1e9},
}
NUMBERS = ("age", "creatinine", "bmi", "pulse")
PATHS = ("compiled", "numpy", "spooled")
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 63, 64, 65, 511, 512, 513, 1024, 1025)

ODD_NUMBERS = (0.0, -1e308, 1e308, 5e-324, -5e-324, 1e-160, 18.0, 100.0)
ODD_TIMES = (5e-324, 1e-300, 1e-9, 1.0, HORIZON, 10.0 * HORIZON, 1e308)
ODD_OUTCOMES = {
    "binary": (0.0, 1.0),
    "number": (-1e308, -3.0, 1e-310, 5.0, 1e308),
    "count": (0.0, 1.0, 4.0, 5.0, 2.0**53, 1e308),
    "ordered": (0.0, 1.0, 3.0),
}


def method_names(model: cb.models.Model) -> tuple[str, ...]:
    if model.kind == "gaussian" or "neural" in model.kind:
        return ("averaged",)
    # Of these, columns or bounded scores are new; gradients are clipped as all are.
    if model.formula is not None or model.kind in ("negative-binomial", "ordinal"):
        return ("noise-aware",)
    return ("averaged", "noise-aware")


CASES = [
    pytest.param(name, method, preparation, id=f"{name}, {method}, {preparation}")
    for name, model in MODELS.items()
    for method in method_names(model)
    for preparation in ("public-bounds", "private-moments", "private-scales")
]


HIERARCHIES: dict[str, Any] = {
    "logistic": {"slopes": ["age", "sex"]},
    "poisson": {"intercept": False, "slopes": ["bmi"]},
    "exponential": {"effects": "fixed", "groups": {"both": ["a", "b"]}},
    "piecewise": {"baseline": "stratified"},
}
CASES += [
    pytest.param(f"{name}, sites differ", "noise-aware", "private-scales")
    for name in HIERARCHIES
]
GAPS: dict[str, dict[str, Any]] = {
    "sex": {"missing": {"shares": {"F": 0.5, "M": 0.4, "other": 0.1}}},
    "creatinine": {"missing": "impute"},
    "bmi": {"missing": "impute", "indicator": False},
}
CASES += [
    pytest.param(f"{name}, gaps", "noise-aware", preparation)
    for name, preparation in [
        ("logistic", "public-bounds"),
        ("logistic", "private-scales"),
        ("linear", "private-scales"),
        ("negative-binomial", "private-scales"),
        ("weibull", "private-scales"),
        ("formula", "private-scales"),
    ]
]
CASES += [
    pytest.param(f"{name}, gaps, sites differ", "noise-aware", "private-scales")
    for name in ("logistic", "exponential")
]


@cache
def plan_of(name: str, method: str, preparation: str) -> StudyPlan:
    name, *more = name.split(", ") if name not in MODELS else [name]
    gaps, differ = "gaps" in more, "sites differ" in more
    hierarchy = {"hierarchy": HIERARCHIES[name]} if differ else {}
    features = FEATURES
    if gaps:
        features = {k: {**f, **GAPS.get(k, {})} for k, f in FEATURES.items()}
    if MODELS[name].formula is not None:  # which says itself what is transformed
        features = {k: {**f, "transform": None} for k, f in features.items()}
    study = cb.Study(
        **hierarchy,
        study={"protocol": "secure-sum"},
        model=MODELS[name],
        features=features,
        preparation={"method": preparation},
        privacy={"epsilon": 1.0, "records": 40_000},
        inference={"method": method},
        sites={"a": {}, "b": {}, "c": {}},
    )
    return plan_releases(study)


@contextmanager
def on_path(path: str) -> Iterator[None]:
    """The code as it runs with or without the compiled loops, and without a spool."""
    with pytest.MonkeyPatch.context() as patch:
        if path == "streamed":
            patch.setattr(spool, "spool_folder", lambda beside: None)
        if path == "numpy":
            patch.setattr(kernels, "_compiled", None)
        elif not kernels.COMPILED:
            pytest.skip("no compiled extension here")
        yield


def prepared(
    plan: StudyPlan, columns: dict[str, list[Any]], path: str, folder: Path
) -> PreparedTable:
    """A table as a site holds it; read from a file in every pass where the path says
    so: from the table's own, or from a spool."""
    source: Any = pa.table(columns)
    limit = 2 << 30
    if path in ("streamed", "spooled"):
        limit = 0
        pyarrow.csv.write_csv(source, folder / "table.csv")
        source = folder / "table.csv"
    study = plan.study
    table = open_table(source, "table")
    return PreparedTable(table, preparation_of(study), study.model, limit, strict=False)


def sums(plan: StudyPlan, phase: Phase, table: PreparedTable, asked: Question) -> Any:
    total = Contributions.of_site(plan.study, "b", table).total(phase, asked)
    return phase.on_grid(total)


def assert_moves_by_at_most_the_sensitivity(
    phase: Phase, present: Any, absent: Any
) -> None:
    pieces = phase.split(present - absent)
    for part, piece in zip(phase.parts, pieces, strict=True):
        assert np.linalg.norm(piece.astype(np.float64)) <= part.sensitivity


@st.composite
def tables(draw: st.DrawFn, plan: StudyPlan) -> tuple[dict[str, list[Any]], int]:
    """Raw columns with odd values in places, and the record that may be left out."""
    rows = draw(st.sampled_from(SIZES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    columns: dict[str, list[Any]] = invented_columns(plan.study, rows, rng)
    model = plan.study.model
    places = st.integers(0, rows - 1)
    odd: dict[str, tuple[float, ...]] = dict.fromkeys(NUMBERS, ODD_NUMBERS)
    for role, column in model.outcome_columns().items():
        if role == "time":
            odd[column] = ODD_TIMES
        elif role == "y":
            odd[column] = ODD_OUTCOMES[model.family]
        elif role == "offset":
            odd[column] = (1e-300, 1.0, 700.0)
    for column, values in odd.items():
        for _ in range(draw(st.integers(0, 3))):
            columns[column][draw(places)] = draw(st.sampled_from(values))
    if "enrolled" in columns:
        ends = zip(columns["enrolled"], columns["days"], strict=True)
        columns["enrolled"] = [min(start, 0.5 * end) for start, end in ends]
    return columns, draw(places)


@st.composite
def released(draw: st.DrawFn, plan: StudyPlan) -> Any:
    """What any totals that a CSP could sign amount to."""
    totals = []
    for phase in plan.preparatory:
        value = draw(st.sampled_from([-phase.bound, 0, 1, phase.bound]))
        total = np.full(phase.dimension, value)
        if draw(st.booleans()):  # as if all values were in one place
            total = np.zeros(phase.dimension, dtype=np.int64)
            total[draw(st.integers(0, 63)) % phase.dimension :: 64] = phase.bound
        totals.append(total)
    return plan.facts(totals)


@st.composite
def questions(draw: st.DrawFn, plan: StudyPlan, row: Any) -> Question:
    """Anything that a server and a CSP together could ask within the study's rules."""
    farthest = plan.farthest_theta
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = rng.integers(6, size=farthest.size)
    choices = (
        np.zeros(farthest.size),
        farthest * rng.choice([-1.0, 1.0], farthest.size),
        np.nextafter(farthest, 0.0),
        rng.choice([5e-324, -5e-324, 1e-310], farthest.size),
        rng.normal(size=farthest.size),
        farthest * rng.uniform(-1.0, 1.0, farthest.size),
    )
    theta = np.choose(kinds, choices)
    if draw(st.booleans()):
        # Orthogonal to the record's row: what is left of η is rounding errors.
        padded = np.zeros(farthest.size)
        padded[: row.size] = row[: farthest.size]
        theta = theta - padded * (theta @ padded) / max(padded @ padded, 1e-300)  # type: ignore[operator]
        theta = np.clip(theta, -farthest, farthest)
    return Question(theta, plan.scales(None, draw(released(plan))))


ON_PATHS = [
    pytest.param(*case.values, path, id=", ".join(map(str, [*case.values, path])))
    for case in CASES
    for path in PATHS
    # Scales are met after a spool and before a loop: one preparation stands for all.
    if path == "compiled" or case.values[-1] == "private-scales"
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method", "preparation", "path"), ON_PATHS)
def test_one_record_moves_a_sum_by_at_most_its_sensitivity_whatever_is_asked(
    name: str,
    method: str,
    preparation: str,
    path: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    plan = plan_of(name, method, preparation)
    folder = tmp_path_factory.mktemp("tables")

    @given(data=st.data())
    @settings(
        max_examples=8 if path == "compiled" else 4,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def holds(data: st.DataObject) -> None:
        columns, place = data.draw(tables(plan))
        with on_path(path):
            present = prepared(plan, columns, path, folder)
            others = np.delete(np.arange(present.count), place)
            absent = present.subset(others)
            row = np.concatenate(
                [
                    b.x[:, place - s : place - s + 1]
                    for s, b in starts(present)
                    if s <= place < s + b.count
                ]
            )
            asked = data.draw(questions(plan, row[:, 0]))
            facts = data.draw(released(plan))
            for phase in {p.purpose: p for p in plan.phases}.values():
                seen = plan.scales(phase, facts)
                question = Question(np.zeros(1), seen) if phase.preparatory else asked
                assert plan.usable_theta(phase, question.theta)
                assert_moves_by_at_most_the_sensitivity(
                    phase,
                    sums(plan, phase, present, question),
                    sums(plan, phase, absent, question),
                )

    holds()


def starts(table: PreparedTable) -> Iterator[tuple[int, Any]]:
    """The blocks, each with the number of its first record."""
    first = 0
    for block in table.blocks():
        yield first, block
        first += block.count


@pytest.mark.slow
@pytest.mark.parametrize("path", [*PATHS, "streamed"])
@pytest.mark.parametrize("name", ["logistic", "weibull", "neural-logistic"])
def test_a_record_more_than_a_block_moves_a_sum_by_at_most_its_sensitivity(
    name: str, path: str, tmp_path: Path
) -> None:
    """The first record of 16,385 leaves, so that all others change block and place."""
    plan = plan_of(name, method_names(MODELS[name])[-1], "public-bounds")
    columns = invented_columns(plan.study, BLOCK_ROWS + 1, np.random.default_rng(0))
    phase = plan.phases[0]
    signs = np.where(np.arange(plan.farthest_theta.size) % 2, -1.0, 1.0)
    question = Question(signs * plan.farthest_theta)
    with on_path(path):
        present = prepared(plan, columns, path, tmp_path)
        absent = present.subset(np.arange(1, present.count))
        assert_moves_by_at_most_the_sensitivity(
            phase,
            sums(plan, phase, present, question),
            sums(plan, phase, absent, question),
        )


def said_of_records(model: cb.models.Model, theta: Any, rows: Rows) -> list[Any]:
    """Everything that is computed of each record before it is added to the others."""
    gradients, bounded = model.gradients(theta, rows), model.bounded_influence
    said = [rows.squared_norms, gradients.score, gradients.extra]
    said.append(model.fitted(theta, rows))
    if bounded is not None:
        with np.errstate(all="ignore"):
            own = bounded.at(theta, rows, InfluenceBound(1.5))
        said += [own.score, own.information, own.extra, own.cross, own.corner]
        for values, matrices in ((own.score, False), (own.information, True)):
            short = kernels.shorten(
                values, rows.squared_norms, 0.1, 1e100, matrices=matrices
            )
            said.append(short)
    return said


@pytest.mark.parametrize("path", ["compiled", "numpy"])
@pytest.mark.parametrize("name", MODELS)
def test_a_records_gradient_has_the_same_bits_wherever_it_stands(
    name: str, path: str, tmp_path: Path
) -> None:
    plan = plan_of(name, "averaged", "public-bounds")
    columns = invented_columns(plan.study, 1025, np.random.default_rng(1))
    rng = np.random.default_rng(2)
    theta = plan.farthest_theta * rng.uniform(-1.0, 1.0, plan.farthest_theta.size)
    with on_path(path):
        table = prepared(plan, columns, path, tmp_path)
        (whole,) = table.blocks()
        expected = said_of_records(plan.study.model, theta, whole)
        for first, last in ((1, 1025), (3, 1024), (511, 513), (1000, 1001)):
            (part,) = table.subset(np.arange(first, last)).blocks()
            found = said_of_records(plan.study.model, theta, part)
            for one, all_of_them in zip(found, expected, strict=True):
                if one is not None:
                    assert all_of_them is not None
                    assert np.array_equal(one, all_of_them[..., first:last], True)


def test_a_question_that_no_table_answers_is_refused_by_its_numbers_alone() -> None:
    plan = plan_of("logistic", "noise-aware", "private-moments")
    preparatory, phase = plan.phases[0], plan.phases[-1]
    size = plan.farthest_theta.size
    assert plan.usable_theta(phase, plan.farthest_theta)
    for theta in (
        np.nextafter(plan.farthest_theta, np.inf),
        np.full(size, np.nan),
        np.full(size, np.inf),
        np.zeros(size + 1),
        np.zeros(1),
    ):
        assert not plan.usable_theta(phase, theta)
    assert plan.usable_theta(preparatory, np.zeros(1))
    assert not plan.usable_theta(preparatory, np.ones(1))
    assert not plan.usable_theta(preparatory, np.zeros(size))


@pytest.mark.slow
@pytest.mark.parametrize("preparation", ["private-moments", "private-scales"])
def test_whatever_was_released_columns_are_scaled_within_public_limits(
    preparation: str,
) -> None:
    """So that a coalition of server and CSP gets no further than the server alone."""
    plan = plan_of("logistic", "averaged", preparation)

    @given(seed=st.integers(0, 2**32 - 1), data=st.data())
    def holds(seed: int, data: st.DataObject) -> None:
        rng = np.random.default_rng(seed)
        totals = [
            rng.integers(-phase.bound, phase.bound, phase.dimension, endpoint=True)
            * rng.choice([0, 1], phase.dimension)
            for phase in plan.preparatory
        ]
        for facts in (plan.facts(totals), data.draw(released(plan))):
            for phase in (*plan.preparatory, None):
                scales = plan.scales(phase, facts)
                if scales is None:
                    continue
                place, width = np.split(scales, 2)
                assert np.abs(place).max() <= 1.0
                assert width.min() >= (
                    0.01 if preparation == "private-moments" else 1e-4
                )
                assert width.max() <= 1.0

    holds()

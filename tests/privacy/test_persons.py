"""``privacy.unit``: all rows of a person at a site are one record."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_every_answer import (
    FEATURES,
    GAPS,
    MODELS,
    assert_moves_by_at_most_the_sensitivity,
    questions,
    released,
    sums,
    tables,
)

import cipherbayes as cb
from cipherbayes.data.persons import Persons
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.tables import open_table
from cipherbayes.errors import CipherbayesError, DataError
from cipherbayes.inference.influence import influence_sums
from cipherbayes.models.influence import InfluenceBound
from cipherbayes.models.packing import unpack
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.study_plan import StudyPlan, plan_releases
from cipherbayes.report.page import write_report
from cipherbayes.study.tables import open_site, preparation_of, split_site
from cipherbayes.validation.neighbours import invented_columns

KINDS = ("logistic", "linear", "poisson", "weibull", "piecewise")


def plan_of(name: str, **privacy: Any) -> StudyPlan:
    name, _, gaps = name.partition(", ")
    features = FEATURES
    if gaps:
        features = {k: {**f, **GAPS.get(k, {})} for k, f in FEATURES.items()}
    study = cb.Study(
        model=MODELS[name],
        features=features,
        privacy={"epsilon": 1.0, "records": 40_000, "unit": "patient", **privacy},
        sites={"a": {}, "b": {}, "c": {}},
    )
    return plan_releases(study)


def prepared(
    plan: StudyPlan, columns: dict[str, Any], kept: Any, path: Path | None
) -> PreparedTable:
    source: Any = pa.table(columns).take(pa.array(kept))
    if path is not None:
        path = path / f"{len(list(path.iterdir()))}.csv"
        pyarrow.csv.write_csv(source, path)
        source = path
    return PreparedTable(
        open_table(source, "table"),
        preparation_of(plan.study),
        plan.study.model,
        0 if path else 2 << 30,
        strict=False,
        person="patient",
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", ["held", "streamed"])
@pytest.mark.parametrize("name", [*KINDS, "logistic, gaps", "weibull, gaps"])
def test_neither_a_person_nor_a_row_moves_a_sum_by_more_than_its_sensitivity(
    name: str, path: str, tmp_path: Path
) -> None:
    plan = plan_of(name)
    file = tmp_path if path == "streamed" else None

    @given(data=st.data())
    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    def holds(data: st.DataObject) -> None:
        columns, place = data.draw(tables(plan))
        rows = len(next(iter(columns.values())))
        most = data.draw(st.sampled_from([1, 2, 3, rows]))
        who = np.random.default_rng(rows).integers(0, max(rows // most, 1), rows)
        columns = {**columns, "patient": [f"p{k}" for k in who]}
        present = prepared(plan, columns, np.arange(rows), file)
        assert present.records == np.unique(who).size
        row = next(iter(present.blocks())).x[:, 0]
        asked = data.draw(questions(plan, row))
        facts = data.draw(released(plan))
        for kept in (who != who[place], np.arange(rows) != place):
            if not kept.any():
                continue
            absent = prepared(plan, columns, np.flatnonzero(kept), file)
            for phase in {p.purpose: p for p in plan.phases}.values():
                seen = plan.scales(phase, facts)
                question = Question(np.zeros(1), seen) if phase.preparatory else asked
                assert_moves_by_at_most_the_sensitivity(
                    phase,
                    sums(plan, phase, present, question),
                    sums(plan, phase, absent, question),
                )

    holds()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("logistic", "linear", "poisson", "weibull"),
        *("logistic, gaps", "linear, gaps", "exponential, gaps"),
    ],
)
def test_neither_a_person_nor_a_row_moves_a_check_or_a_description_by_more(
    name: str,
) -> None:
    """And it moves one part only: a person's rows are all held out, or none."""
    plan = plan_of(name)
    sections = {"evaluation": {"holdout": 0.5}, "describe": {"by": ["site", "sex"]}}
    document = plan.study.model_dump(exclude_none=True) | sections
    plan = plan_releases(cb.Study(**document))
    rng = np.random.default_rng(5)
    for most in (1, 3, 15):
        columns: dict[str, Any] = dict(invented_columns(plan.study, 30, rng))
        who = rng.integers(0, 30 // most, 30)
        columns["patient"] = np.array([f"p{k}" for k in who])
        for kept in (who != who[0], np.arange(30) > 0):
            tables = [
                open_site(plan.study, "b", pa.table(columns).filter(pa.array(rows)))
                for rows in (np.ones(30, dtype=bool), kept)
            ]
            parts = [split_site(plan.study, "b", table) for table in tables]
            assert [sum(p.records for p in each) for each in parts] == [
                table.records for table in tables
            ]
            given = [Contributions.of_site(plan.study, "b", *each) for each in parts]
            moved = set()
            for phase in plan.closing:
                size = plan.question_size(phase)
                scales = None
                if plan.study.releases_scales:
                    totals = [
                        rng.integers(-p.bound, p.bound, p.dimension)
                        for p in plan.preparatory
                    ]
                    scales = plan.scales(phase, plan.facts(totals))
                asked = Question(rng.normal(size=size) * (size > 1), scales)
                sums_of = [phase.on_grid(each.total(phase, asked)) for each in given]
                assert_moves_by_at_most_the_sensitivity(phase, *sums_of)
                if phase.rows and np.any(sums_of[0] != sums_of[1]):
                    moved.add(phase.rows)
            same = parts[0][0].count == parts[1][0].count
            assert moved <= ({"held-out"} if same else set())


def test_without_shares_a_person_would_move_a_sum_by_more() -> None:
    """The defence taken out: forty rows that count once each are told apart."""
    plan, model = plan_of("logistic"), MODELS["logistic"]
    row = {"age": 60.0, "sex": "F", "creatinine": 1.0, "bmi": 25.0, "pulse": 1.0}
    columns: dict[str, Any] = {name: [value] * 40 for name, value in row.items()}
    columns |= {"y": [1.0] * 40, "patient": ["p"] * 40}
    phase = plan.phases[-1]
    question = Question(np.zeros(phase.sums.dimension))
    rows = open_table(pa.table(columns), "t")
    apart = PreparedTable(rows, preparation_of(plan.study), model)
    together = prepared(plan, columns, np.arange(40), None)
    nobody = 0 * sums(plan, phase, together, question)
    with pytest.raises(AssertionError):
        assert_moves_by_at_most_the_sensitivity(
            phase, sums(plan, phase, apart, question), nobody
        )
    assert_moves_by_at_most_the_sensitivity(
        phase, sums(plan, phase, together, question), nobody
    )


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_shares_of_a_person_never_add_up_to_more_than_one(sizes: list[int]) -> None:
    names = [f"p{k}" for k, size in enumerate(sizes) for _ in range(size)]
    table = open_table(pa.table({"who": names}), "t")
    persons = Persons(table, "who")
    (chunk,) = table.chunks({"who": "text"})
    shares = pd.Series(persons.shares(chunk)).groupby(names).sum()
    assert persons.count == len(sizes)
    assert (shares <= 1.0).all()
    assert (shares > 1.0 - 1e-4).all()


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["1", "01"], True),
        (["1", "2", "1.0"], True),
        (["10", "010.00"], True),
        (["1.5", "1.50"], True),
        (["90071992547409931", "090071992547409931"], True),
        (["-1", "-1.0"], True),
        (["-1", "-01"], True),
        (["1", "+1"], True),
        (["1000", "1e3"], True),
        (["0.5", ".5"], True),
        (["10000000000000000", "1e+16"], True),
        (["1", "\N{FULLWIDTH DIGIT ONE}"], True),
        (["-1", "\N{MINUS SIGN}1"], True),
        (["a 1", "a\N{NO-BREAK SPACE}1"], True),
        (["a1", "a\N{ZERO WIDTH SPACE}1"], True),
        (["a-1", "a\N{NON-BREAKING HYPHEN}1"], True),
        (["0", "0e5000"], True),
        (["0", "-0.0e99999"], True),
        (["1" + "0" * 1500, "1e1500"], True),
        (["1" * 1500, "1" * 1499 + "2"], False),
        (["1", "\N{NO-BREAK SPACE}1"], False),  # blanks around it
        (["a1", "A1", "inf", "1e999999", "1e999998"], False),
        (["1" * 40, "1" * 39 + "2"], False),
        (["1", " 1 ", "10", "100", "1"], False),
        (["0", "a01", "a1", "1.5", "1.05"], False),
        (["90071992547409931", "90071992547409932"], False),
    ],
)
def test_a_number_that_is_written_in_several_ways_names_nobody(
    tmp_path: Path, names: list[str], refused: bool
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("who\n" + "\n".join(names) + "\n")
    if refused:
        with pytest.raises(DataError, match="in several ways") as caught:
            Persons(open_table(path), "who")
        assert names[-1] not in str(caught.value).replace("1, 01 and 1.0", "")
    else:
        assert Persons(open_table(path), "who").count == len({n.strip() for n in names})


def test_equal_rows_of_a_person_say_as_much_as_one_of_them() -> None:
    """So the information released is no less than the variance of the score."""
    rng = np.random.default_rng(5)
    persons, rows = 4_000, 3
    x = np.repeat(rng.normal(size=persons), rows)
    y = np.repeat((rng.random(persons) < 1 / (1 + np.exp(-0.7 * x[::rows]))), rows)
    study = cb.Study(
        model={"kind": "logistic", "outcome": "y"},
        features={"x": {"low": -5, "high": 5}},
        privacy={"epsilon": 1, "unit": "who"},
    )
    table = pd.DataFrame(
        {"x": x, "y": y.astype(float), "who": np.repeat(np.arange(persons), rows)}
    )
    prepared = open_site(study, "a", table)
    theta, bound = np.array([0.0, 3.5]), InfluenceBound(1.1)
    found = influence_sums(study.model, theta, prepared, bound, with_information=True)
    assert found.information is not None
    one = open_site(study, "a", table.iloc[::rows])
    expected = influence_sums(study.model, theta, one, bound, with_information=True)
    assert expected.information is not None
    # As one row a person: neither three times the information nor a third.
    assert np.allclose(found.gradient, expected.gradient, atol=0.01)
    assert np.allclose(
        unpack(found.information), unpack(expected.information), rtol=1e-4
    )


def frame(rng: np.random.Generator, persons: int, rows: int) -> pd.DataFrame:
    who = np.repeat(np.arange(persons), rows)
    age = rng.uniform(20, 90, who.size)
    y = rng.random(who.size) < 1 / (1 + np.exp(-(age - 55) / 20))
    return pd.DataFrame({"age": age, "died": y.astype(int), "who": who})


def study_of(**privacy: Any) -> cb.Study:
    return cb.Study(
        model={"kind": "logistic", "outcome": "died"},
        features={"age": {"low": 18, "high": 100}},
        privacy={"epsilon": 3.0, "unit": "who", **privacy},
    )


@pytest.mark.slow
def test_a_study_of_persons_says_so_in_certificate_and_report(tmp_path: Path) -> None:
    table = frame(np.random.default_rng(3), 2_000, 2)
    result = cb.run(study_of(records=2_000), table, out=tmp_path / "out")
    assert result.record["privacy"]["unit"] == "person"
    assert "every person" in str(result.record["privacy"]["covers"])
    assert "number of persons" in str(result.record["privacy"]["covers"])
    page = write_report(tmp_path / "out").read_text()
    assert "one person (all rows with the same who at a site)" in page
    with pytest.raises(DataError, match="more persons than the study's 1000"):
        cb.run(study_of(records=1_000), table, out=tmp_path / "few")


def test_a_row_study_keeps_its_fingerprint_with_and_without_the_word() -> None:
    assert study_of(unit="row").fingerprint() == study_of(unit="row").fingerprint()
    plain = study_of().model_dump(exclude={"privacy": {"unit"}})
    assert cb.Study(**plain).fingerprint() == study_of(unit="row").fingerprint()
    assert study_of().fingerprint() != study_of(unit="row").fingerprint()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"privacy": {"epsilon": 1, "unit": "age"}}, "is a feature or an outcome"),
        ({"privacy": {"epsilon": 1, "unit": "died"}}, "is a feature or an outcome"),
        (
            {"inference": {"method": "psgld"}},
            "does not count the rows of a person together",
        ),
        (
            {"evaluation": {"holdout": 0.2, "holdout_is_public": True}},
            "scores rows one by one",
        ),
    ],
)
def test_what_cannot_count_persons_is_refused_in_words(
    change: dict[str, Any], words: str
) -> None:
    document = study_of().model_dump(exclude_none=True)
    with pytest.raises(CipherbayesError, match=words):
        cb.Study(**{**document, **change})


@pytest.mark.parametrize("gap", [None, "", " ", "NA"])
def test_a_row_of_nobody_is_refused_without_a_value(gap: str | None) -> None:
    table = frame(np.random.default_rng(0), 3, 2).astype({"who": object})
    table.loc[2, "who"] = gap
    with pytest.raises(DataError, match="'who' is missing in some rows"):
        open_site(study_of(), "a", table)
    with pytest.raises(DataError, match="no column 'who'"):
        open_site(study_of(), "a", table.drop(columns="who"))


LONG = 10**19
"""More digits than a float64 keeps."""


@pytest.mark.parametrize("source", ["decimal", "objects", "text", "numbers"])
def test_long_names_are_told_apart_or_refused(source: str, tmp_path: Path) -> None:
    """Persons that look alike would be one, and a row of theirs move a sum by more."""
    ids = [LONG + 1] * 2 + [LONG + 2]
    whole = {"age": [50.0, 60.0, 70.0], "died": [0, 1, 0]}
    if source == "decimal":
        path = tmp_path / "t.parquet"
        who = pa.array([Decimal(each) for each in ids], pa.decimal128(20, 0))
        pyarrow.parquet.write_table(pa.table({**whole, "who": who}), path)
        with pytest.raises(DataError, match="different ones may look alike"):
            open_site(study_of(), "a", path)
        return
    if source == "objects":
        table: Any = pd.DataFrame({**whole, "who": pd.Series(ids, dtype=object)})
    elif source == "text":
        table = pd.DataFrame({**whole, "who": [str(each) for each in ids]})
    else:
        table = pd.DataFrame({**whole, "who": [float(each) for each in ids]})
        with pytest.raises(DataError, match="different ones may look alike"):
            open_site(study_of(), "a", table)
        return
    assert open_site(study_of(), "a", table).records == 2

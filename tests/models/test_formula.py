"""What formulas say, and what is refused with which reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cipherbayes.errors import StudyError
from cipherbayes.models.formula import Factor, parse_formula
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of, slots_of

FEATURES: dict[str, Any] = {
    "age": {"low": 18, "high": 100},
    "sex": {"levels": ["F", "M"]},
    "grade": {"levels": ["I", "II", "III"]},
    "creatinine": {"low": 0.1, "high": 20},
}
EVERYTHING = "death ~ age + sex + grade + creatinine"


def study(formula: str, kind: str = "logistic", **sections: Any) -> Study:
    keys = {} if kind == "logistic" else {"horizon": 10.0}
    return Study(
        model={"kind": kind, "formula": formula, **keys},
        features=sections.pop("features", FEATURES),
        **sections,
    )


def test_a_formula_is_taken_apart() -> None:
    found = parse_formula(
        "falls ~ rcs(age, 4) + sex * C(grade, ref='II') + np.log(dose) "
        "+ bs(log(bmi), df=5) + offset(log(days)) - 1"
    )
    assert found.response == ("falls",)
    assert found.exposure == "days"
    assert not found.intercept
    assert found.columns == ("age", "sex", "grade", "dose", "bmi")
    factors = {factor.text: factor for term in found.terms for factor in term}
    assert factors["rcs(age, 4)"] == Factor("rcs(age, 4)", "age", curve="rcs", size=4)
    assert factors["C(grade, ref='II')"].reference == "II"
    assert factors["np.log(dose)"].transform == "log"
    assert factors["bs(log(bmi), df=5)"].transform == "log"
    products = [[f.column for f in term] for term in found.terms if len(term) > 1]
    assert products == [["sex", "grade"]]


def test_names_that_python_does_not_take_are_names_of_columns() -> None:
    found = parse_formula("`my death` ~ log(lambda) + rcs(`a.b`, 3) + `my col` + class")
    assert found.response == ("my death",)
    assert found.columns == ("lambda", "a.b", "my col", "class")
    texts = [factor.text for term in found.terms for factor in term]
    assert texts == ["log(lambda)", "rcs(`a.b`, 3)", "my col", "class"]


def test_a_formula_fills_in_the_outcome_of_any_model() -> None:
    assert study(EVERYTHING).model.outcome_columns() == {"y": "death"}
    timed = study("Surv(days, died) ~ age + sex + grade + creatinine", "weibull")
    assert timed.model.outcome_columns() == {"time": "days", "event": "died"}
    late = Study(
        model={
            "kind": "piecewise",
            "formula": "Surv(start, days, died) ~ age",
            "horizon": 10.0,
            "intervals": 3,
        },
        features={"age": FEATURES["age"]},
    )
    assert late.model.outcome_columns()["entry"] == "start"


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("death ~ scale(age)", "learns from the rows"),
        ("death ~ cr(age, df=3)", "learns from the rows"),
        ("death ~ hashed(sex)", "learns from the rows"),
        ("death ~ I(age ** 2)", "a power is poly(column, 2)"),
        ("death ~ I(age^2)", "a power is poly(column, 2)"),
        ("death ~ age^2", "a power is poly(column, 2)"),
        ("death ~ age + `body mass` ** 2", "a power is poly(column, 2)"),
        ("death ~ body mass", "stands in backticks"),
        ("death ~ factor(grade)", "write C(column)"),
        ("death ~ as.factor(grade)", "write C(column)"),
        ("death ~ age + strata(grade)", 'baseline = "stratified"'),
        ("death ~ age + (1|site)", "[hierarchy] table"),
        ("death ~ age + (1 + age || site)", "[hierarchy] table"),
        ("death ~ {age ** 2}", "not understood"),
        ("death ~ .", "name the features"),
        ("death ~ age +", "is not a formula"),
        ("age + sex", "needs one ~"),
        ("~ age", "needs one outcome"),
        ("death | sex ~ age", "needs one outcome"),
        ("death + died ~ age", "needs one outcome"),
        ("log(death) ~ age", "is no outcome"),
        ("Surv(days, died) ~ age", "has one outcome"),
        ("death ~ 1", "names no feature"),
        ("death ~ age:sex", "write age*sex"),
        ("death ~ age + sex + age:sex:grade", "needs"),
        ("death ~ age*sex*grade*creatinine", "at most 3 factors"),
        ("death ~ rcs(age, 2)", "whole number from 3 to 7"),
        ("death ~ rcs(age, [50, 40, 60])", "must rise"),
        ("death ~ rcs(age, [1, 2])", "3 to 10 knots"),
        ("death ~ rcs(age, knots=sex)", "numbers, texts or lists"),
        ("death ~ rcs(exp(age), 4)", "its log, log1p or sqrt"),
        ("death ~ poly(age, 2.5)", "whole number"),
        ("death ~ poly(age, 2, 3)", "write poly(column, degree)"),
        ("death ~ bs(age, df=4, knots=[30])", "give df, or knots"),
        ("death ~ log(age, 10)", "write log(column)"),
        ("death ~ C(grade, Treatment('II'))", "numbers, texts"),
        ("death ~ age + offset(log(days))", "offset(...) is for counts"),
        ("death ~ age + offset(2 * days)", "offset(log(column))"),
        ("death ~ __import__('os')", "not understood"),
        ("death ~ age" + " + age" * 500, "at most 2000 characters"),
        ("death ~ (age + sex)**99999999", "n from 1 to 3"),
        ("death ~ (age + sex)**sex", "n from 1 to 3"),
        ("death ~ " + "*".join(f"x{k}" for k in range(40)), "more than 20,000 terms"),
        (
            "death ~ (" + "+".join(f"x{k}" for k in range(30)) + ")**3",
            "more than 20,000 terms",
        ),
    ],
)
def test_what_is_no_formula_is_refused_with_the_reason(
    formula: str, words: str
) -> None:
    with pytest.raises(StudyError) as error:
        study(formula)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("negbin", 'are "negative-binomial"'),
        ("glm.nb", 'are "negative-binomial"'),
        ("polr", 'are "ordinal"'),
        ("coxph", 'is "piecewise"'),
    ],
)
def test_a_model_by_the_name_of_another_program_is_told_its_own(
    kind: str, words: str
) -> None:
    with pytest.raises(StudyError) as error:
        Study(model={"kind": kind}, features={"age": FEATURES["age"]})
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("death ~ age + sex + grade", "features.creatinine is not in the formula"),
        (EVERYTHING + " + bmi", "names 'bmi'"),
        (EVERYTHING + " + rcs(age, 3)", "say the same of age"),
        (EVERYTHING + " + C(grade, ref='II')", "say the same of grade"),
        ("death ~ age + sex + creatinine + C(grade, ref='IV')", "levels of grade are"),
        ("death ~ C(age) + sex + grade + creatinine", "age is a number"),
        ("death ~ age + log(sex) + grade + creatinine", "sex is a category"),
        ("death ~ rcs(age, [5, 50, 60]) + sex + grade + creatinine", "between low and"),
        ("death ~ bs(age, knots=[50, 50.000001]) + sex + grade + creatinine", "close"),
        ("death ~ log(age - 1) + sex + grade + creatinine", "name of a column"),
    ],
)
def test_a_formula_that_the_features_do_not_fit_is_refused(
    formula: str, words: str
) -> None:
    with pytest.raises(StudyError) as error:
        study(formula)
    assert words in str(error.value)


def test_a_formula_and_other_fields_may_not_contradict_each_other() -> None:
    keys = {"kind": "logistic", "formula": EVERYTHING}
    Study(model={**keys, "outcome": "death"}, features=FEATURES)
    with pytest.raises(StudyError, match="make them agree"):
        Study(model={**keys, "outcome": "died"}, features=FEATURES)
    with pytest.raises(StudyError, match="write - 1"):
        study(EVERYTHING, preparation={"intercept": 0.0})
    changed = FEATURES["creatinine"] | {"transform": "log"}
    with pytest.raises(StudyError, match="in the formula instead"):
        study(EVERYTHING, features={**FEATURES, "creatinine": changed})
    below = FEATURES["age"] | {"low": -1}
    with pytest.raises(StudyError, match=r"features\.age"):
        study(
            "death ~ log(age) + sex + grade + creatinine",
            features={**FEATURES, "age": below},
        )
    with pytest.raises(StudyError, match="needs a constant"):
        study(
            f"{EVERYTHING} - 1",
            preparation={"method": "private-scales"},
            privacy={"epsilon": 1.0},
        )
    with pytest.raises(StudyError, match="takes no formula"):
        Study(
            model={"kind": "gaussian", "variance": 1.0, "formula": "y ~ age"},
            features={"age": FEATURES["age"]},
        )
    with pytest.raises(StudyError, match="has a baseline"):
        Study(
            model={
                "kind": "piecewise",
                "formula": "Surv(t, e) ~ age - 1",
                "horizon": 1.0,
                "intervals": 2,
            },
            features={"age": FEATURES["age"]},
        )


def test_a_reference_record_is_one_that_the_features_allow() -> None:
    made = study(EVERYTHING, reference={"age": 65, "sex": "M"})
    assert Study.model_validate(made.document()).reference == {"age": 65, "sex": "M"}
    for reference, words in (
        ({"age": 17}, "between low and high"),
        ({"sex": "X"}, "F, M"),
        ({"age": "old"}, "not a number"),
        ({"bmi": 20}, "no feature"),
    ):
        with pytest.raises(StudyError, match=words):
            study(EVERYTHING, reference=reference)


def test_slopes_of_sites_are_those_of_all_columns_of_a_feature() -> None:
    made = study(
        "death ~ rcs(age, 4) * sex + grade + log(creatinine)",
        hierarchy={"slopes": ["age", "creatinine"]},
        sites={"a": {}, "b": {}},
    )
    slots = slots_of(made)
    assert slots is not None
    names = preparation_of(made).design.names
    assert [names[place] for place in slots.places] == [
        "intercept",
        "rcs(age, 4).1",
        "rcs(age, 4).2",
        "rcs(age, 4).3",
        "log(creatinine)",
    ]
    with pytest.raises(StudyError, match="needs a constant column"):
        study(
            f"{EVERYTHING} - 1",
            hierarchy={"intercept": True},
            sites={"a": {}, "b": {}},
        )


@given(st.text(alphabet="yab~+-*:/()[]|.,^`{}%=01 'rcsC\n\\", max_size=40))
@example("[)~")  # over which formulaic's parser trips
def test_any_text_is_a_formula_or_is_refused_in_one_way(text: str) -> None:
    try:
        found = parse_formula(text)
    except ValueError:
        return
    assert found.terms

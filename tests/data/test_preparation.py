"""Raw columns become the design matrix by public knowledge alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cipherbayes.data.preparation import Feature, Preparation
from cipherbayes.data.tables import open_table
from cipherbayes.errors import DataError
from cipherbayes.typing import Floats

AGE = Feature(low=20, high=100)
SEX = Feature(levels=["F", "M"])


def prepared(
    features: dict[str, Feature], columns: dict[str, Any], **options: Any
) -> tuple[Floats, Floats, tuple[str, ...]]:
    """Design matrix, squared norms and column names of a small table."""
    preparation = Preparation(features, **options)
    (chunk,) = open_table(pd.DataFrame(columns), "north").chunks(preparation.columns)
    x = np.full((preparation.design.width, chunk.num_rows), np.nan)
    preparation.fill(chunk, x, "north")
    return x, preparation.finish(x), preparation.design.names


def test_a_range_is_clipped_and_mapped_to_plus_minus_one() -> None:
    ages = [20.0, 60.0, 100.0, -1e300, 120.0, 80.0]
    x, norms, names = prepared({"age": AGE}, {"age": ages})
    assert names == ("age",)
    assert x.tolist() == [[-1.0, 0.0, 1.0, -1.0, 1.0, 0.5]]
    assert norms.tolist() == [1.0, 0.0, 1.0, 1.0, 1.0, 0.25]


def test_levels_become_indicators_with_the_first_as_reference() -> None:
    race = Feature(levels=["a", "b", "c"])
    x, norms, names = prepared({"race": race}, {"race": ["b", "a", "c", " c "]})
    assert names == ("race[b]", "race[c]")
    assert x.tolist() == [[1, 0, 0, 0], [0, 0, 1, 1]]
    assert norms.tolist() == [1, 0, 1, 1]


def test_the_intercept_comes_first_and_counts_in_the_norms() -> None:
    columns = {"age": [100.0], "sex": ["M"]}
    x, norms, names = prepared({"age": AGE, "sex": SEX}, columns, intercept=0.5)
    assert names == ("intercept", "age", "sex[M]")
    assert x[:, 0].tolist() == [0.5, 1.0, 1.0]
    assert norms.tolist() == [2.25]


def test_the_design_knows_the_way_back_to_the_users_units() -> None:
    lab = Feature(low=1.0, high=np.e**2, transform="log", missing=1.0, indicator=True)
    design = Preparation({"age": AGE, "lab": lab, "sex": SEX}, intercept=1.0).design
    assert design.names == ("intercept", "age", "lab", "lab[missing]", "sex[M]")
    np.testing.assert_allclose(design.centre, [0.0, 60.0, 1.0, 0.0, 0.0])
    np.testing.assert_allclose(design.half_width, [1.0, 40.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("transform", "function"),
    [("log", np.log), ("log1p", np.log1p), ("sqrt", np.sqrt)],
)
def test_a_transform_acts_on_the_clipped_value(transform: str, function: Any) -> None:
    feature = Feature(low=0.5, high=8.0, transform=transform)
    values = np.array([-3.0, 0.0, 0.5, 2.0, 8.0, 1e300])
    x, _, _ = prepared({"lab": feature}, {"lab": values})
    low, high = function(0.5), function(8.0)
    clipped = function(np.clip(values, 0.5, 8.0))
    expected = (clipped - (low + high) / 2) / ((high - low) / 2)
    np.testing.assert_allclose(x[0], expected, atol=1e-14)
    assert np.abs(x).max() <= 1.0


def test_a_missing_number_becomes_the_constant_and_is_indicated() -> None:
    feature = Feature(low=20, high=100, missing=80, indicator=True)
    x, norms, names = prepared({"age": feature}, {"age": [60.0, None, np.nan]})
    assert names == ("age", "age[missing]")
    assert x.tolist() == [[0.0, 0.5, 0.5], [0.0, 1.0, 1.0]]
    assert norms.tolist() == [0.0, 1.25, 1.25]


def test_a_missing_level_becomes_the_stated_one_and_is_indicated() -> None:
    feature = Feature(levels=["F", "M"], missing="M", indicator=True)
    values = ["F", None, "", "NA", "nan"]
    x, _, names = prepared({"sex": feature}, {"sex": values})
    assert names == ("sex[M]", "sex[missing]")
    assert x.tolist() == [[0, 1, 1, 1, 1], [0, 1, 1, 1, 1]]


def test_a_level_may_be_called_like_a_missing_value() -> None:
    x, _, names = prepared({"pain": Feature(levels=["None", "NA"])}, {"pain": ["NA"]})
    assert names == ("pain[NA]",)
    assert x.tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("levels", "values", "expected"),
    [
        ([0, 1], [0, 1], [0.0, 1.0]),
        ([0, 1], [0.0, 1.0], [0.0, 1.0]),
        ([0, 1], ["0", "1.0"], [0.0, 1.0]),
        (["0", "1"], [0, 1], [0.0, 1.0]),
        ([False, True], [False, True], [0.0, 1.0]),
        ([False, True], ["false", "TRUE"], [0.0, 1.0]),
        ([False, True], ["False", "True"], [0.0, 1.0]),
        ([-1, 1], [1, -1], [1.0, 0.0]),
    ],
)
def test_integer_and_logical_levels_match_however_they_are_stored(
    levels: list[Any], values: list[Any], expected: list[float]
) -> None:
    x, _, _ = prepared({"flag": Feature(levels=levels)}, {"flag": values})
    assert x.tolist() == [expected]


def test_integer_levels_match_in_a_column_with_a_gap() -> None:
    feature = Feature(levels=[1, 2], missing=1)
    x, _, _ = prepared({"stage": feature}, {"stage": [1.0, 2.0, np.nan]})
    assert x.tolist() == [[0.0, 1.0, 0.0]]


def test_rows_are_shortened_to_the_row_norm_without_the_intercept() -> None:
    columns = {"a": [100.0, 60.0, 80.0], "b": [100.0, 61.0, 60.0]}
    x, norms, _ = prepared({"a": AGE, "b": AGE}, columns, intercept=1.0, row_norm=0.5)
    assert x[0].tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_allclose(np.hypot(x[1], x[2]), [0.5, 0.025, 0.5])
    np.testing.assert_allclose(x[1:, 0], [0.125**0.5, 0.125**0.5])
    np.testing.assert_allclose(norms, (x**2).sum(axis=0), rtol=1e-15)


values = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1)


@given(values=values, low=st.floats(-1e9, 1e9), width=st.floats(1e-3, 1e9))
def test_prepared_values_never_leave_plus_minus_one(
    values: list[float], low: float, width: float
) -> None:
    feature = Feature(low=low, high=low + width)
    x, norms, _ = prepared({"v": feature}, {"v": values})
    assert (np.abs(x) <= 1.0).all()
    assert np.isfinite(norms).all()


@given(values=values, position=st.integers(0))
def test_a_record_is_prepared_alike_whatever_else_the_table_holds(
    values: list[float], position: int
) -> None:
    position %= len(values)
    features = {"v": Feature(low=-5, high=17)}
    together, _, _ = prepared(features, {"v": values}, row_norm=0.7)
    alone, _, _ = prepared(features, {"v": [values[position]]}, row_norm=0.7)
    assert together[0, position] == alone[0, 0]


SECRET = "8841"
BAD_VALUES: dict[str, tuple[Feature, list[Any], str]] = {
    "missing number": (AGE, [50.0, None], "column 'v' has missing values; state what"),
    "infinite": (AGE, [50.0, np.inf], "column 'v' has an infinite value"),
    "minus infinite": (
        Feature(low=20, high=100, missing=30),
        [None, -np.inf],
        "column 'v' has an infinite value",
    ),
    "infinite before a transform": (
        Feature(low=1, high=2, transform="log"),
        [np.inf],
        "column 'v' has an infinite value",
    ),
    "missing before a transform": (
        Feature(low=1, high=2, transform="sqrt"),
        [1.5, np.nan],
        "column 'v' has missing values",
    ),
    "unknown level": (
        SEX,
        ["F", SECRET],
        "column 'v' has a value that is none of its levels (F, M)",
    ),
    "unknown level beside a missing one": (
        Feature(levels=["F", "M"], missing="F"),
        [None, SECRET, "NA"],
        "none of its levels (F, M); add it to features.v.levels",
    ),
    "missing level": (SEX, ["F", None], "column 'v' has missing values"),
    "text for a number": (AGE, [SECRET, SECRET], "column 'v' holds text where"),
}


@pytest.mark.parametrize(
    ("feature", "raw", "line"), BAD_VALUES.values(), ids=BAD_VALUES
)
def test_an_impossible_value_is_refused_without_being_shown(
    feature: Feature, raw: list[Any], line: str
) -> None:
    with pytest.raises(DataError) as caught:
        prepared({"v": feature}, {"v": raw})
    assert str(caught.value).startswith("north: ")
    assert line in str(caught.value)
    assert SECRET not in str(caught.value)


BAD_FEATURES: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "needs either low and high, or levels"),
    "half a range": ({"low": 1}, "needs either low and high, or levels"),
    "empty range": ({"low": 2, "high": 2}, "low must be below high"),
    "reversed range": ({"low": 3, "high": 2}, "low must be below high"),
    "nan": ({"low": float("nan"), "high": 2}, "finite number"),
    "infinite range": ({"low": 0, "high": float("inf")}, "finite number"),
    "overflowing range": ({"low": -1.7e308, "high": 1.7e308}, "too far apart"),
    "vanishing range": ({"low": 0, "high": 5e-324}, "too close together"),
    "log of zero": ({"low": 0, "high": 2, "transform": "log"}, "needs low > 0"),
    "log1p of -1": ({"low": -1, "high": 2, "transform": "log1p"}, "needs low > -1"),
    "root": ({"low": -1, "high": 2, "transform": "sqrt"}, "needs low >= 0"),
    "unknown transform": ({"low": 1, "high": 2, "transform": "cube"}, "'log'"),
    "both": ({"low": 1, "high": 2, "levels": ["a", "b"]}, "takes no low, high"),
    "one level": ({"levels": ["a"]}, "at least two levels"),
    "equal levels": ({"levels": ["a", "b", "a"]}, "the same level twice"),
    "equal spellings": ({"levels": [1, "1"]}, "the same level twice"),
    "empty level": ({"levels": ["", "a"]}, "empty name"),
    "blank behind a level": ({"levels": ["no", "yes "]}, "a blank at an end"),
    "blank that is not seen": ({"levels": ["no", "\u2003yes"]}, "a blank at an end"),
    "control in a level": ({"levels": ["no", "y\u200bes"]}, "is not seen"),
    "missing outside": (
        {"low": 1, "high": 2, "missing": 3},
        "missing must lie between low and high",
    ),
    "missing text": ({"low": 1, "high": 2, "missing": "1"}, "must be a number"),
    "missing no level": (
        {"levels": ["a", "b"], "missing": "c"},
        "missing must be one of the levels",
    ),
    "indicator alone": ({"low": 1, "high": 2, "indicator": True}, "needs 'missing'"),
    "unknown key": ({"low": 1, "high": 2, "hihg": 3}, "not permitted"),
}


@pytest.mark.parametrize(("keys", "line"), BAD_FEATURES.values(), ids=BAD_FEATURES)
def test_an_impossible_feature_is_refused(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Feature(**keys)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    "features",
    [
        {"intercept": AGE},
        {"sex": SEX, "sex[M]": AGE},
        {
            "age[missing]": AGE,
            "age": Feature(low=20, high=100, missing=30, indicator=True),
        },
    ],
)
def test_two_columns_of_the_same_name_are_refused(features: dict[str, Feature]) -> None:
    with pytest.raises(ValueError, match="two columns of the design are called"):
        Preparation(features, intercept=1.0)


def test_features_survive_the_way_through_plain_values() -> None:
    for feature in (
        Feature(low=1, high=2, transform="log", missing=1.5, indicator=True),
        Feature(levels=["a", 1, True], missing=True),
    ):
        again = Feature.model_validate(feature.model_dump(mode="json"))
        assert again == feature
        assert [type(level) for level in again.levels or ()] == [
            type(level) for level in feature.levels or ()
        ]

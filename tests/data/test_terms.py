"""Formulas as columns: bounded, orthogonal, the curves that others draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import patsy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cipherbayes.data.curves import basis_of, spread_knots
from cipherbayes.data.features import Feature
from cipherbayes.data.preparation import Preparation
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.rescaled import orthogonal_bends, rescaled
from cipherbayes.data.tables import open_table
from cipherbayes.models.formula import Curve, parse_formula
from cipherbayes.typing import Floats

CURVES: list[tuple[Curve, int, tuple[float, ...]]] = [
    ("poly", 2, ()),
    ("poly", 5, ()),
    *(("rcs", 3, spread_knots("rcs", k, 3)) for k in (3, 4, 5, 6, 7)),
    ("rcs", 3, (-0.9, -0.85, -0.8)),
    ("bs", 3, spread_knots("bs", 8, 3)),
    ("bs", 1, (0.0, 0.5)),
    ("bs", 3, ()),
]
FEATURES = {
    "age": Feature(low=20, high=100),
    "sex": Feature(levels=("F", "M")),
    "grade": Feature(levels=("I", "II", "III")),
    "dose": Feature(low=0.5, high=50, missing=2.0, indicator=True),
}
FORMULA = "y ~ rcs(age, 4) * sex + C(grade, ref='II') * log(dose) + sex:log(dose)"


def columns_of(curve: tuple[Curve, int, tuple[float, ...]], t: Floats) -> Floats:
    basis = basis_of(*curve)
    out = np.empty((basis.width, t.size))
    basis.fill(t, out)
    return out


@pytest.mark.parametrize("curve", CURVES)
def test_columns_of_a_curve_are_orthogonal_bounded_and_start_with_the_line(
    curve: Any,
) -> None:
    t = np.linspace(-1.0, 1.0, 400_001)
    columns = columns_of(curve, t)
    assert np.array_equal(columns[0], t)
    assert np.allclose(np.abs(columns).max(axis=1), 1.0, atol=1e-4)
    assert np.abs(columns).max() <= 1.0
    with_constant = np.vstack([np.ones_like(t), columns])
    gram = with_constant @ with_constant.T / t.size
    sizes = np.sqrt(np.diag(gram))
    assert np.allclose(gram / np.outer(sizes, sizes), np.eye(len(gram)), atol=2e-4)


def test_a_restricted_spline_is_straight_beyond_its_outer_knots() -> None:
    knots = spread_knots("rcs", 5, 3)
    for low, high in ((-1.0, knots[0]), (knots[-1], 1.0)):
        columns = columns_of(("rcs", 3, knots), np.linspace(low, high, 11))
        assert np.abs(np.diff(columns, 2, axis=1)).max() < 1e-9


def spanned(ours: Floats, theirs: Floats) -> float:
    """Largest part of a column of theirs that ours cannot say."""
    with_constant = np.column_stack([np.ones(len(theirs)), ours.T])
    rest = theirs - with_constant @ np.linalg.lstsq(with_constant, theirs)[0]
    return float(np.abs(rest).max() / np.abs(theirs).max())


def test_curves_are_those_of_patsy() -> None:
    """B-splines and natural splines of the same knots span the same curves."""
    age = np.linspace(20.0, 100.0, 301)
    knots = [40.0, 55.0, 80.0]
    t, at = (age - 60.0) / 40.0, tuple((k - 60.0) / 40.0 for k in knots)
    b_spline = np.asarray(
        patsy.dmatrix("bs(x, knots=k, degree=3) - 1", {"x": age, "k": knots})
    )
    assert spanned(columns_of(("bs", 3, at), t), b_spline) < 1e-9
    # Harrell's restricted spline is the natural one with the outer knots as bounds.
    natural = np.asarray(
        patsy.dmatrix(
            "cr(x, knots=k, lower_bound=30, upper_bound=95) - 1", {"x": age, "k": knots}
        )
    )
    outer = (-0.75, *at, 0.875)
    assert spanned(columns_of(("rcs", 3, outer), t), natural) < 1e-9


def frame_of(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.uniform(10.0, 110.0, rows),
            "sex": rng.choice(["F", "M"], rows),
            "grade": rng.choice(["I", "II", "III"], rows),
            "dose": np.where(
                rng.random(rows) < 0.2, np.nan, rng.uniform(0.1, 60.0, rows)
            ),
        }
    )


def prepared(frame: pd.DataFrame, formula: str, **keys: Any) -> PreparedTable:
    preparation = Preparation(
        FEATURES, intercept=1.0, formula=parse_formula(formula), **keys
    )
    return PreparedTable.for_prediction(open_table(frame), preparation)


def matrix(table: PreparedTable) -> Floats:
    return np.concatenate([block.x for block in table.blocks()], axis=1)


def test_columns_of_a_formula_have_names_and_products_come_last() -> None:
    names = prepared(frame_of(3), FORMULA).design.names
    assert names == (
        "intercept",
        "rcs(age, 4).1", "rcs(age, 4).2", "rcs(age, 4).3",
        "sex[M]",
        "grade[I]", "grade[III]",
        "log(dose)", "dose[missing]",
        "rcs(age, 4).1:sex[M]", "rcs(age, 4).2:sex[M]", "rcs(age, 4).3:sex[M]",
        "grade[I]:log(dose)", "grade[III]:log(dose)",
        "sex[M]:log(dose)",
    )  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_the_users_coefficients_say_what_the_prepared_ones_do(
    seed: int, moved: bool
) -> None:
    """Products of moved columns, expanded by hand, give the same linear predictor."""
    rng = np.random.default_rng(seed)
    frame = frame_of(50, seed)
    public = prepared(frame, "y ~ rcs(age, 4) + grade * log(dose) * sex")
    width = public.design.moved
    moments = np.concatenate([rng.uniform(-1, 1, width), rng.uniform(0.01, 1, width)])
    table = rescaled(public, moments if moved else None)
    design, theta = table.design, rng.normal(size=table.design.width)
    user = design.to_user_scale(theta)
    raw = matrix(public) * public.design.half_width[:, None]
    raw += public.design.centre[:, None]
    raw[0] = 1.0
    start = design.width - len(design.products)
    for row, parents in enumerate(design.products, start=start):
        raw[row] = np.prod(raw[list(parents)], axis=0)
    assert np.allclose(user @ raw, theta @ matrix(table), rtol=1e-8, atol=1e-8)


def test_bends_are_orthogonal_again_where_the_data_are() -> None:
    """Values in a tenth of the public range: bends over the whole of it would be
    almost straight lines there."""
    rng = np.random.default_rng(5)
    frame = frame_of(4000).assign(age=rng.normal(40.0, 4.0, 4000))
    public = prepared(frame, "y ~ rcs(age, [34, 38, 42, 46]) * sex + grade + dose")
    raw = matrix(public)[public.design.moved_places]
    moved = rescaled(public, np.concatenate([raw.mean(axis=1), raw.std(axis=1)]))
    before, after = (np.corrcoef(matrix(t)[1:4]) for t in (public, moved))
    assert np.abs(before - np.eye(3)).max() > 0.8
    assert np.abs(after - np.eye(3)).max() < 0.35
    spread = matrix(moved)[1:4].std(axis=1)
    assert spread.min() > 0.3
    assert spread.max() < 1.5


@given(st.floats(-1.0, 1.0), st.floats(1e-4, 1.0), st.sampled_from(CURVES))
def test_bends_are_finite_whatever_was_released(
    mean: float, sd: float, curve: Any
) -> None:
    weights = orthogonal_bends(basis_of(*curve).on_grid(), mean, sd)
    assert np.isfinite(weights).all()
    assert np.abs(weights).max() < 1e5


def test_a_record_is_prepared_alike_whatever_else_the_table_holds() -> None:
    frame = frame_of(2000)
    whole = matrix(prepared(frame, FORMULA))
    alone = matrix(prepared(frame[777:778].reset_index(drop=True), FORMULA))
    assert np.array_equal(whole[:, 777], alone[:, 0])
    assert np.abs(whole).max() <= 1.0


def test_numbers_of_a_formula_are_the_columns_that_histograms_count() -> None:
    numbers = Preparation(
        FEATURES, intercept=1.0, formula=parse_formula(FORMULA)
    ).numbers(64)
    # Of a curve the line alone: the bends follow from its moments.
    assert numbers.columns == 6
    assert numbers.places == (0, 4)
    assert np.isnan(numbers.stand_ins[0])
    middle, half = (np.log(50) + np.log(0.5)) / 2, (np.log(50) - np.log(0.5)) / 2
    assert numbers.stand_ins[1] == pytest.approx((np.log(2.0) - middle) / half)


def test_without_a_constant_a_category_has_every_level_and_numbers_keep_zero() -> None:
    features = {name: FEATURES[name] for name in ("age", "sex")}
    table = PreparedTable.for_prediction(
        open_table(pd.DataFrame({"age": [50.0, 90.0], "sex": ["F", "M"]})),
        Preparation(features, formula=parse_formula("y ~ sex * age - 1")),
    )
    assert table.design.names == ("sex[F]", "sex[M]", "age", "sex[M]:age")
    assert matrix(table).T.tolist() == [[1, 0, 0.5, 0], [0, 1, 0.9, 0.9]]
    with pytest.raises(ValueError, match="a curve needs a constant"):
        Preparation(
            {"age": FEATURES["age"]}, formula=parse_formula("y ~ rcs(age, 4) - 1")
        )


def test_rows_are_shortened_with_their_products() -> None:
    table = prepared(frame_of(200), FORMULA, row_norm=0.7)
    assert (np.linalg.norm(matrix(table)[1:], axis=0) <= 0.7 + 1e-12).all()

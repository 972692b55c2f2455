"""Missing values drawn several times over, record by record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cipherbayes as cb
from cipherbayes.data.features import hides_something
from cipherbayes.data.imputing import DRAWS, Expansion, Imputing, _shares
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.tables import open_table
from cipherbayes.errors import DataError, StudyError
from cipherbayes.models import Rows
from cipherbayes.study.tables import imputing_of, open_site, preparation_of
from cipherbayes.typing import Floats


def study_of(**changed: dict[str, Any]) -> cb.Study:
    features: dict[str, dict[str, Any]] = {
        "age": {"low": 20, "high": 100},
        "bmi": {"low": 5, "high": 55, "missing": {"mean": 27, "sd": 5}},
        "smoker": {
            "levels": ["no", "yes"],
            "missing": {"shares": {"no": 0.75, "yes": 0.25}},
        },
    }
    for name, known in changed.items():
        features[name] = {**features[name], **known}
    return cb.Study(model=cb.models.Logistic(outcome="y"), features=features)


def frame_of(rows: int, gaps: float, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, rows)
    bmi = 27 + 0.3 * (age - 60) + 4 * rng.standard_normal(rows)
    smoker = np.where(rng.random(rows) < 0.2 + 0.005 * (age - 20), "yes", "no")
    chance = 1 / (1 + np.exp(1 - (bmi - 27) / 5))
    frame = pd.DataFrame(
        {
            "age": age,
            "bmi": bmi,
            "smoker": smoker.astype(object),
            "y": (rng.random(rows) < chance).astype(float),
        }
    )
    frame.loc[rng.random(rows) < gaps, "bmi"] = np.nan
    frame.loc[rng.random(rows) < gaps, "smoker"] = None
    return frame


def table_of(study: cb.Study, frame: pd.DataFrame) -> tuple[PreparedTable, Imputing]:
    imputing = imputing_of(study)
    assert imputing is not None
    return open_site(study, "a", frame), imputing


def learnt(table: PreparedTable, imputing: Imputing, noise: float = 0.0) -> Floats:
    models = imputing.models
    sums = sum(models.sums(block, block) for block in table.blocks())
    return models.learn(np.asarray(sums), noise)


def drawn(study: cb.Study, frame: pd.DataFrame, scales: Floats | None = None) -> Rows:
    table, imputing = table_of(study, frame)
    _, rows = imputing.expanded(next(iter(table.blocks())), scales)
    assert rows is not None
    return rows


def test_what_is_known_in_public_is_what_is_drawn() -> None:
    frame = frame_of(400, 0.0).assign(bmi=np.nan, smoker=None)
    rows = drawn(study_of(), frame)
    assert rows.count == 400 * DRAWS
    _, _, bmi, smoker = rows.x
    assert np.mean(30 + 25 * bmi) == pytest.approx(27.0, abs=0.05)
    assert np.std(25 * bmi) == pytest.approx(5.0, abs=0.1)
    assert np.mean(smoker) == pytest.approx(0.25, abs=0.01)


def test_a_complete_record_stays_one_row() -> None:
    table, imputing = table_of(study_of(), frame_of(300, 0.3))
    block = next(iter(table.blocks()))
    complete, rows = imputing.expanded(block, None)
    gaps = (block.outcome["absent bmi"] + block.outcome["absent smoker"]) > 0.0
    assert rows is not None
    assert np.array_equal(complete.x, block.x[:, ~gaps])
    assert rows.count == DRAWS * gaps.sum()
    # What a record has, all of its rows have.
    assert np.array_equal(rows.x[1], np.repeat(block.x[1, gaps], DRAWS))


@pytest.mark.parametrize("missing", [{"mean": 27, "sd": 5}, "impute"])
def test_a_records_draws_are_the_same_whatever_else_the_table_holds(
    missing: Any,
) -> None:
    study = study_of(bmi={"missing": missing})
    frame = frame_of(120, 0.4)
    table, imputing = table_of(study, frame)
    scales = learnt(table, imputing) if imputing.models.length else None
    whole = drawn(study, frame, scales)
    some = frame.iloc[37:]
    part = drawn(study, some, scales)
    again = whole.x[:, whole.count - part.count :]
    assert np.array_equal(again.view(np.int64), part.x.view(np.int64))


def test_a_model_of_a_column_is_the_regression_on_the_complete_ones() -> None:
    study = study_of(bmi={"missing": "impute"})
    frame = frame_of(20_000, 0.3)
    table, imputing = table_of(study, frame)
    model = imputing.models.read(learnt(table, imputing))["bmi"]
    # In prepared units: bmi over 25, age over 40.
    assert model.coefficients[0, 1] == pytest.approx(0.3 * 40 / 25, abs=0.02)
    assert model.sd == pytest.approx(4 / 25, abs=0.005)
    assert model.gaps == pytest.approx(0.3, abs=0.02)
    spread = 4 / 25 / np.sqrt(14_000 * np.var((frame["age"] - 60) / 40))
    assert model.errors[0, 1] == pytest.approx(spread, rel=0.15)


def test_gaps_that_depend_on_the_outcome_do_not_bend_the_model() -> None:
    """Among records that have a value it would be another regression."""
    study = study_of(bmi={"missing": "impute"})
    frame = frame_of(40_000, 0.0)
    rng = np.random.default_rng(5)
    gone = rng.random(len(frame)) < np.where(frame["y"] == 1, 0.7, 0.05)
    frame.loc[gone, "bmi"] = np.nan
    table, imputing = table_of(study, frame)
    model = imputing.models.read(learnt(table, imputing))["bmi"]
    at_sixty = model.coefficients[0, 0]
    assert 30 + 25 * at_sixty == pytest.approx(27.0, abs=0.15)
    there = frame.dropna(subset=["bmi"])
    naive = np.polyfit(there["age"] - 60, there["bmi"], 1)[1]
    assert naive < 26.5


def test_whatever_was_released_models_and_draws_keep_public_limits() -> None:
    study = study_of(bmi={"missing": "impute"}, smoker={"missing": "impute"})
    table, imputing = table_of(study, frame_of(50, 0.5))
    models = imputing.models
    rng = np.random.default_rng(1)
    for size in (0.0, 1.0, 1e6, 1e300):
        sums = size * rng.standard_normal(models.dimension)
        vector = models.learn(sums, 3.0)
        assert np.isfinite(vector).all()
        assert np.abs(vector).max() <= 10.0
        for block in table.blocks():
            _, rows = imputing.expanded(block, vector)
            assert rows is not None
            assert np.abs(rows.x).max() <= 1.0


def test_intervals_count_how_far_a_model_may_be_off() -> None:
    """A share f of the records has b times the model's error in its predictor."""
    study = study_of(bmi={"missing": "impute"})
    table, imputing = table_of(study, frame_of(500, 0.4))
    scales = learnt(table, imputing)
    model = imputing.models.read(scales)["bmi"]
    theta = np.tile([0.3, 0.5, 4.0, 0.2], (1, 50_000, 1))
    found = imputing.with_model_errors(theta, scales, (0,), seed=1)
    assert np.array_equal(found[..., 2:], theta[..., 2:])
    assert found.mean(axis=(0, 1)) == pytest.approx(theta[0, 0], abs=0.005)
    wanted = model.gaps * 4.0 * model.errors[0]
    assert found[0].std(axis=0)[:2] == pytest.approx(wanted, rel=0.03)


def test_draws_are_made_once_for_tables_in_memory() -> None:
    table, imputing = table_of(study_of(), frame_of(50, 0.5))
    expansion = Expansion(imputing, [table], None)
    (block,) = table.blocks()
    assert expansion(block) is expansion(block)


@pytest.mark.parametrize(
    ("feature", "known", "message"),
    [
        ("bmi", {"missing": {"mean": 27}}, "mean and sd, both"),
        ("bmi", {"missing": {"mean": 2, "sd": 5}}, "outside of low and high"),
        ("bmi", {"missing": {"mean": 27, "sd": 30}}, "more than half of the range"),
        ("bmi", {"missing": {"shares": {"a": 1.0}}}, "mean and sd, both"),
        ("bmi", {"missing": "impute", "indicator": True}, "group of their own"),
        ("smoker", {"missing": {"shares": {"no": 1.0}}}, "name every level"),
        ("smoker", {"missing": {"shares": {"no": 1, "yes": 1}}}, "add up to 1"),
        ("smoker", {"missing": {"mean": 0, "sd": 1}}, "shares of its levels"),
    ],
)
def test_what_is_no_distribution_is_refused(
    feature: str, known: dict[str, Any], message: str
) -> None:
    with pytest.raises(StudyError, match=message):
        study_of(**{feature: known})


@pytest.mark.parametrize(
    "section",
    [
        {"preparation": {"row_norm": 1.0}},
        {"privacy": {"epsilon": 1.0}, "inference": {"method": "averaged"}},
    ],
)
def test_where_gaps_could_not_be_counted_they_are_not_drawn(
    section: dict[str, Any],
) -> None:
    with pytest.raises(StudyError, match="missing values are not drawn with"):
        cb.Study(
            model=cb.models.Logistic(outcome="y"),
            features=study_of().features,
            **section,
        )


def test_a_rows_draws_do_not_depend_on_how_many_rows_its_person_has() -> None:
    """Else one row less of a person would change what its other rows add."""
    study = cb.Study(
        model=cb.models.Logistic(outcome="y"),
        features=study_of().features,
        privacy={"epsilon": 1.0, "unit": "patient"},
    )
    frame = frame_of(40, 0.5).assign(patient=[f"p{k // 4}" for k in range(40)])
    first = frame.iloc[::4]
    rows = [drawn(study, each) for each in (frame, first)]
    assert rows[0].shares is not None
    assert rows[1].shares is not None
    assert not set(rows[0].shares) & set(rows[1].shares)
    lacking = frame[["bmi", "smoker"]].isna().any(axis=1).to_numpy()
    kept = np.repeat((np.arange(40) % 4 == 0)[lacking], DRAWS)
    assert np.array_equal(rows[0].x[:, kept], rows[1].x)


def test_who_needs_every_value_of_a_row_refuses_gaps() -> None:
    preparation = preparation_of(study_of())
    whole = open_table(frame_of(30, 0.0), "new patients")
    assert PreparedTable.for_prediction(whole, preparation).count == 30
    table = open_table(frame_of(30, 0.5), "new patients")
    with pytest.raises(DataError, match="column 'bmi' has missing values"):
        PreparedTable.for_prediction(table, preparation)


def test_a_records_shares_of_many_levels_are_the_same_alone_and_among_others() -> None:
    drawn = np.random.default_rng(2).random((200, 11, 2)) / 11.0
    for others in drawn:
        alone, among = _shares(others[:, :1])[:, 0], _shares(others)[:, 0]
        assert np.array_equal(alone, among)
    # What numpy's own sum would have made of it.
    assert any(o[:, :1].sum(axis=0)[0] != o.sum(axis=0)[0] for o in drawn)


@given(name=st.text(min_size=1, max_size=4), order=st.booleans())
def test_a_level_that_is_drawn_is_never_refused(name: str, order: bool) -> None:
    """Else whether a record has a gap would decide whether its site answers."""
    levels = [name, "other"][:: 1 if order else -1]
    try:
        study = cb.Study(
            model=cb.models.Logistic(outcome="y"),
            features={
                "age": {"low": 20, "high": 100},
                "group": {
                    "levels": levels,
                    "missing": {"shares": {name: 0.5, "other": 0.5}},
                },
            },
        )
    except StudyError:
        return  # a name that is written in no cell
    frame = pd.DataFrame({"age": [50.0], "group": ["other"], "y": [1.0]})
    gap = frame.assign(group=None)
    table, imputing = table_of(study, pd.concat([frame, gap]))
    for block in table.blocks():
        complete, drawn = imputing.expanded(block, None)
        assert complete.x.shape[1] == 1
        assert drawn is not None
        assert sorted(set(drawn.x[-1])) == [0.0, 1.0]


def test_no_cell_is_trimmed_to_a_level_of_another_name() -> None:
    """What is taken off at a cell's ends no level may have there."""
    blanks = [chr(code) for code in range(1, 0x3100) if chr(code).isspace()]
    for text in [
        *(f"{blank}a" for blank in blanks),
        *(f"a{blank}" for blank in blanks),
    ]:
        assert hides_something(text)
    assert not hides_something("stage II b")
    trimmed = pc.utf8_trim_whitespace(pa.array([chr(c) for c in range(1, 0x3100)]))
    assert all(
        hides_something(chr(n)) for n, t in enumerate(trimmed.to_pylist(), 1) if not t
    )

"""The table of the records' characteristics against the records themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cipherbayes as cb
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.rounds import Closing
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.results.counted_column import (
    CountedNumber,
    Rounding,
    outward,
    together,
)
from cipherbayes.results.describing import _shares, describe_rows, sd_bounds
from cipherbayes.results.record import DescribeRow
from cipherbayes.study.tables import open_site
from cipherbayes.typing import Floats

NOISE = 2.0
ROWS = 3000


def described_each(
    columns: Sequence[Floats],
    feature: dict[str, Any],
    moments: Floats | None = None,
) -> list[dict[str, DescribeRow]]:
    """Statistics of columns, of which counts are released with little noise."""
    names = [f"v{number}" for number in range(len(columns))]
    study = cb.Study(
        study={"protocol": "pooled"},
        model=cb.models.Logistic(outcome="y"),
        features=dict.fromkeys(names, feature),
        preparation={"method": "public-bounds"},
        privacy={"epsilon": 10.0, "records": ROWS},
        inference={"method": "averaged"},
        describe={},
        sites={"a": {}},
    )
    plan = plan_releases(study)
    (phase,) = plan.closing
    assert phase.characteristics is not None
    values = [pa.array(column, from_pandas=True) for column in columns]
    table = pa.table([*values, np.zeros(ROWS)], [*names, "y"])
    question = Question(np.zeros(1), moments)
    total = Contributions(study.model, open_site(study, "a", table), site="a").total(
        phase, question
    )
    noised = total + np.random.default_rng(0).normal(0.0, NOISE, total.size)
    released = Closing(noised, NOISE)
    rows = describe_rows(plan.study, phase.characteristics, released, moments, 0.05)
    return [
        {row["statistic"]: row for row in rows if row["column"] == name}
        for name in names
    ]


def described(
    values: Floats, feature: dict[str, Any], moments: Floats | None = None
) -> dict[str, DescribeRow]:
    """Statistics of one column."""
    (found,) = described_each([values], feature, moments)
    return found


def rounded_values() -> Floats:
    rng = np.random.default_rng(1)
    return rng.lognormal(0.0, 0.2, ROWS).round(1)


def test_a_value_that_equals_a_stand_in_is_not_called_missing() -> None:
    values = rounded_values()
    assert np.mean(values == 1.0) > 0.15
    found = described(values, {"low": 0.4, "high": 3.0, "missing": 1.0})
    assert "missing share" not in found
    mean = found["mean"]
    assert mean["lower"] - 0.05 < values.mean() < mean["upper"] + 0.05


@pytest.mark.parametrize("gaps", [0, 600])
def test_an_indicator_tells_missing_values_from_their_stand_in(gaps: int) -> None:
    values = rounded_values()
    values[:gaps] = np.nan
    feature = {"low": 0.4, "high": 3.0, "missing": 1.0, "indicator": True}
    found = described(values, feature)
    assert found["missing share"]["mean"] == pytest.approx(gaps / ROWS, abs=0.005)


@pytest.mark.slow
def test_empty_ranges_take_nothing_from_the_share_of_missing_values() -> None:
    """Nearly all ranges of a skewed column have no records."""
    values = np.random.default_rng(5).lognormal(0.0, 0.5, ROWS)
    values[:400] = np.nan
    feature = {"low": 0.0, "high": 60.0, "missing": 1.0, "indicator": True}
    rows = [each["missing share"] for each in described_each(30 * [values], feature)]
    truth = 400 / ROWS
    errors = np.array([row["mean"] - truth for row in rows])
    assert abs(errors.mean()) < 3.0 * NOISE / ROWS / np.sqrt(30)
    assert np.mean([row["lower"] <= truth <= row["upper"] for row in rows]) >= 0.75


@pytest.mark.slow
def test_a_median_beside_a_gap_is_within_its_interval() -> None:
    """Nothing lies between 1.2 and 1.5; noise leaves open on which side it is."""
    columns = []
    for below in (1499, 1500, 1501) * 4:
        rng = np.random.default_rng(2)
        lumps = rng.uniform(0.9, 1.2, below), rng.uniform(1.5, 1.9, ROWS - below)
        columns.append(np.concatenate(lumps))
    held = 0
    for rows, found in zip(
        columns, described_each(columns, {"low": 0.0, "high": 3.2}), strict=True
    ):
        median = found["median"]
        held += median["lower"] <= float(np.median(rows)) <= median["upper"]
    assert held >= 10


def at_the_ends(rng: np.random.Generator) -> Floats:
    """All values of a range at its upper end, or nearly."""
    ranges = np.linspace(0.0, 3.2, 17)[1:]
    return rng.choice(ranges[3:12], ROWS) - 1e-6


def far_out(rng: np.random.Generator) -> Floats:
    """Some far beyond what released scales span."""
    return np.append(rng.normal(0.4, 0.08, ROWS - 100), rng.uniform(2.9, 3.2, 100))


SCALES = np.array([-0.75, 0.05])
"""A released mean of 0.4 and a standard deviation of 0.08, as they are prepared."""


@pytest.mark.parametrize(
    ("values", "moments"),
    [(at_the_ends, None), (far_out, SCALES), (far_out, None)],
)
def test_intervals_count_that_a_place_within_a_range_is_not_known(
    values: Any, moments: Floats | None
) -> None:
    rows = values(np.random.default_rng(2))
    found = described(rows, {"low": 0.0, "high": 3.2}, moments)
    truth = {
        "mean": rows.mean(),
        "sd": rows.std(),
        "q1": np.quantile(rows, 0.25),
        "median": np.median(rows),
        "q3": np.quantile(rows, 0.75),
    }
    for name, value in truth.items():
        assert found[name]["lower"] <= value <= found[name]["upper"], name
        assert found[name]["lower"] <= found[name]["mean"] <= found[name]["upper"]


def test_a_value_that_most_records_have_is_held_wherever_it_is_in_its_range() -> None:
    """The range from 1.6 to 1.78, between edges made of released scales."""
    rng = np.random.default_rng(5)
    smooth = np.clip(rng.normal(1.6, 0.48, ROWS), 0.0, 3.2)
    alike = rng.random(ROWS) < 0.8
    columns = [
        np.where(alike, 1.6 + 0.18 * place, smooth) for place in (0.02, 0.5, 0.98)
    ]
    moments = np.repeat([0.0, 0.3], len(columns))
    each = described_each(columns, {"low": 0.0, "high": 3.2}, moments)
    for rows, found in zip(columns, each, strict=True):
        median = found["median"]
        assert median["lower"] <= float(np.median(rows)) <= median["upper"]
        assert median["upper"] - median["lower"] <= 0.181
        assert found["mean"]["lower"] <= rows.mean() <= found["mean"]["upper"]


@pytest.mark.parametrize("steep", [-1.5, 0.0, 0.4, 3.0])
@pytest.mark.parametrize("reach", [0.3, 1.0, 5.0])
def test_an_outer_range_goes_on_as_the_inner_one_does(
    steep: float, reach: float
) -> None:
    """Against sums of an exponential density over fine steps."""
    x = np.linspace(0.0, 1.0, 200_001)
    inner = np.exp(-steep * (x - 1.0)).mean()
    density = np.exp(-steep * reach * x)
    outer = reach * density.mean()
    found = outward(np.array([outer]), np.array([inner]), reach)
    assert found[0] == pytest.approx((x * density).sum() / density.sum(), abs=2e-3)


def test_an_interval_is_no_wider_than_ranges_and_noise_make_it() -> None:
    """Means and deviations have sums of their own, quartiles have ranges of 0.2."""
    rows = np.random.default_rng(3).normal(1.65, 0.5, ROWS)
    found = described(rows, {"low": 0.0, "high": 3.2})
    width = {name: found[name]["upper"] - found[name]["lower"] for name in found}
    noise = 2.0 * 1.645 * 1.6 * NOISE / 0.75 / ROWS
    assert 0.5 * noise < width["mean"] <= 1.1 * noise
    assert width["sd"] <= 4.0 * noise
    assert width["median"] <= 0.25


def test_values_that_are_all_alike_may_have_no_spread() -> None:
    """And others must have some."""
    moments = np.tile([[0.4], [0.02]], 2).ravel()
    alike, nearly = np.full(ROWS, 2.24), np.full(ROWS, 2.24)
    nearly[:30] = 2.5
    feature = {"low": 0.0, "high": 3.2}
    for scales in (None, moments):
        first, second = described_each([alike, nearly], feature, scales)
        assert first["sd"]["lower"] == 0.0
        assert 0.0 < second["sd"]["lower"] < nearly.std() < second["sd"]["upper"]


def test_a_log_scale_has_no_sums_and_its_mean_is_told_by_ranges() -> None:
    rows = np.random.default_rng(3).lognormal(0.5, 0.3, ROWS)
    found = described(rows, {"low": 0.2, "high": 8.0, "transform": "log"})
    assert found["mean"]["lower"] < rows.mean() < found["mean"]["upper"]
    assert found["sd"]["lower"] < rows.std() < found["sd"]["upper"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_bounds_of_a_standard_deviation_hold_and_are_reached(seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = np.sort(rng.uniform(-1.0, 1.0, 6))
    shares = rng.dirichlet(np.ones(5), 1)
    least, most = sd_bounds(shares, edges[:-1], edges[1:])
    found = []
    for _ in range(4000):
        # Places at the ends are those of the largest, any other may be the least.
        place = rng.choice([0.0, 1.0, rng.random()], (2, 5))
        values = edges[:-1] + place * np.diff(edges)
        share = 0.5 * np.concatenate([shares[0], shares[0]])
        mean = share @ values.ravel()
        found.append(np.sqrt(share @ (values.ravel() - mean) ** 2))
    assert least[0] <= min(found) <= least[0] + 0.1
    assert most[0] - 0.1 <= max(found) <= most[0]


def test_two_groupings_say_the_same_of_all_records() -> None:
    rng = np.random.default_rng(7)
    study = cb.Study(
        study={"protocol": "pooled"},
        model=cb.models.Logistic(outcome="y"),
        features={"sex": {"levels": ["F", "M"]}, "age": {"low": 0, "high": 1}},
        preparation={"method": "public-bounds"},
        privacy={"epsilon": 10.0, "records": 6000},
        inference={"method": "averaged"},
        describe={"by": ["site", "sex"]},
        sites={"a": {}, "b": {}, "c": {}},
    )
    plan = plan_releases(study)
    (phase,) = plan.closing
    table = phase.characteristics
    assert table is not None
    total = np.zeros(phase.dimension)
    for site in ("a", "b", "c"):
        columns = {
            "sex": rng.choice(["F", "M"], 2000, p=[0.45, 0.55]),
            "age": rng.random(2000),
            "y": (rng.random(2000) < 0.15).astype(float),
        }
        rows = open_site(study, site, pa.table(columns))
        total += Contributions(study.model, rows, site=site).total(
            phase, Question(np.zeros(1))
        )
    released = Closing(total + rng.normal(0.0, 40.0, total.size), 40.0)
    found = {
        (row["column"], row["statistic"], row["group"]): row["mean"]
        for row in describe_rows(plan.study, table, released, None, 0.05)
    }
    for level in "FM":
        count = found["sex", f"count: {level}", "all"]
        assert found["", "rows", f"sex: {level}"] == pytest.approx(count, rel=1e-9)
    for by, groups in (("sex", "FM"), ("site", "abc")):
        for level in "01":
            every = found["y", f"count: {level}", "all"]
            parts = [found["y", f"count: {level}", f"{by}: {each}"] for each in groups]
            assert sum(parts) == pytest.approx(every, rel=1e-6)


def test_a_table_by_site_adds_up() -> None:
    """Levels to the records of their group, groups to all records, means to the mean
    of all; and what a level has at sites is not what noise makes of it."""
    rng = np.random.default_rng(9)
    sites = {"a": 900, "b": 400, "c": 300, "d": 200, "e": 200}
    study = cb.Study(
        study={"protocol": "pooled"},
        model=cb.models.Logistic(outcome="y"),
        features={
            "arm": {"levels": ["x", "y", "rare"]},
            "age": {"low": 0, "high": 100},
            "bmi": {"low": 10, "high": 60, "missing": 25, "indicator": True},
        },
        preparation={"method": "public-bounds"},
        privacy={"epsilon": 10.0},
        inference={"method": "averaged"},
        describe={"by": ["site"]},
        sites={site: {} for site in sites},
    )
    plan = plan_releases(study)
    phase = plan.closing[-1]
    table = phase.characteristics
    assert table is not None
    total = np.zeros(phase.dimension)
    for site, size in sites.items():
        columns = {
            "arm": rng.choice(["x", "y", "rare"], size, p=[0.5, 0.49, 0.01]),
            "age": rng.normal(60.0, 10.0, size).clip(0.0, 100.0),
            "bmi": np.where(rng.random(size) < 0.02, np.nan, rng.normal(27, 4, size)),
            "y": (rng.random(size) < 0.15).astype(float),
        }
        arrays = {
            name: pa.array(each, from_pandas=True) for name, each in columns.items()
        }
        rows = open_site(study, site, pa.table(arrays))
        total += Contributions(study.model, rows, site=site).total(
            phase, Question(np.zeros(1))
        )
    released = Closing(total + rng.normal(0.0, 15.0, total.size), 15.0)
    found = {
        (row["column"], row["statistic"], row["group"]): row
        for row in describe_rows(plan.study, table, released, None, 0.05)
    }
    groups = ["all", *(f"site: {site}" for site in sites)]
    mean = {key: row["mean"] for key, row in found.items()}
    assert min(row["lower"] for row in found.values()) >= 0.0
    for key in [key for key in mean if key[2] == "all" and "count" in key[1]]:
        assert sum(mean[*key[:2], each] for each in groups[1:]) == pytest.approx(
            mean[key], rel=1e-9
        )
    for group in groups:
        records = mean["", "rows", group]
        for column, levels in (("arm", ["x", "y", "rare"]), ("y", "01")):
            parts = [mean[column, f"count: {level}", group] for level in levels]
            assert sum(parts) == pytest.approx(records, rel=1e-9)
            shares = [mean[column, f"share: {level}", group] for level in levels]
            assert sum(shares) == pytest.approx(1.0, rel=1e-9)
        for column in ("age", "bmi"):
            quartiles = [mean[column, each, group] for each in ("q1", "median", "q3")]
            assert quartiles == sorted(quartiles)
            away = abs(mean[column, "mean", group] - quartiles[1])
            assert away <= mean[column, "sd", group]
    # Ten such records at the sites but the first; noise by itself would tell 48.
    assert sum(mean["arm", "count: rare", each] for each in groups[2:]) < 30.0


def test_a_level_that_nobody_has_may_be_zero_and_its_group_is_not_described() -> None:
    study = cb.Study(
        study={"protocol": "pooled"},
        model=cb.models.Logistic(outcome="y"),
        features={"arm": {"levels": ["no", "yes"]}, "age": {"low": 0, "high": 1}},
        preparation={"method": "public-bounds"},
        privacy={"epsilon": 10.0, "records": 4000},
        inference={"method": "averaged"},
        describe={"by": ["arm"]},
        sites={"a": {}},
    )
    plan = plan_releases(study)
    (phase,) = plan.closing
    table = phase.characteristics
    assert table is not None
    rng = np.random.default_rng(8)
    columns = {
        "arm": np.full(4000, "no"),
        "age": rng.random(4000),
        "y": (rng.random(4000) < 0.3).astype(float),
    }
    rows = open_site(study, "a", pa.table(columns))
    total = Contributions(study.model, rows, site="a").total(
        phase, Question(np.zeros(1))
    )
    found = describe_rows(plan.study, table, Closing(total, 20.0), None, 0.05)
    counts = [
        row
        for row in found
        if (row["column"], row["statistic"], row["group"])
        in {("arm", "count: yes", "all"), ("", "rows", "arm: yes")}
    ]
    assert len(counts) == 2
    assert {row["lower"] for row in counts} == {0.0}
    described = {row["group"] for row in found if row["column"]}
    assert described == {"all", "arm: no"}


def test_a_column_is_not_counted_by_its_own_levels() -> None:
    study = cb.Study(
        study={"protocol": "pooled"},
        model=cb.models.Logistic(outcome="y"),
        features={"sex": {"levels": ["F", "M"]}, "age": {"low": 0, "high": 1}},
        preparation={"method": "public-bounds"},
        privacy={"epsilon": 10.0, "records": 3200},
        inference={"method": "averaged"},
        describe={"by": ["sex"]},
        sites={"a": {}},
    )
    plan = plan_releases(study)
    (phase,) = plan.closing
    assert phase.characteristics is not None
    released = Closing(np.full(phase.dimension, 100.0), NOISE)
    rows = describe_rows(plan.study, phase.characteristics, released, None, 0.05)
    by_sex = {row["column"] for row in rows if row["group"].startswith("sex: ")}
    assert by_sex == {"", "age", "y"}
    assert "sex" in {row["column"] for row in rows if row["group"] == "all"}


def test_groups_whose_moments_noise_made_impossible_do_not_widen_all_records() -> None:
    """A mean square below the square of the mean is made possible where it is told, and
    not before groups are added up."""
    smooth, ends = np.ones(3, dtype=bool), np.linspace(-1.0, 1.0, 5)
    shares = np.full((3, 4), 0.25)
    number = CountedNumber.drawn(
        shares, ends, (0, 4), smooth, Rounding.drawn(smooth, 4)
    )
    first, second = (
        replace(number, moments=np.tile(moments, (3, 1)))
        for moments in ([0.4, 0.0], [-0.4, 0.16])
    )
    assert np.allclose(first.possible_moments()[1], 0.16)
    mean, square = together([first, second], np.ones((2, 3))).possible_moments()
    assert np.allclose(mean, 0.0)
    assert np.allclose(square, 0.08)


def test_shares_add_up_to_one_where_noise_may_leave_a_group_empty() -> None:
    """Draws without any record say nothing of shares."""
    counts = np.array([[3.0, 1.0], [0.0, 0.0], [2.0, 2.0]])
    shares = [_shares(each, counts.sum(axis=1)) for each in counts.T]
    assert sum(each.mean() for each in shares) == pytest.approx(1.0)
    assert shares[0] == pytest.approx([0.75, 0.5])
    assert not _shares(np.zeros(3), np.zeros(3)).any()

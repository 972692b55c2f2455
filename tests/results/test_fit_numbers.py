"""What a fit misses is said in words, and nothing is said where noise explains it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cipherbayes as cb
from cipherbayes.protocols.rounds import Closing
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.results.fit_numbers import fit_record
from cipherbayes.results.fit_sentences import few_events, misfit_flags
from cipherbayes.results.record import FitTest, MeanRow, PrivateMetrics
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats

NOISE = 5.0
PLACES = {"age": slice(0, 5), "sex": slice(5, 7), "site": slice(7, 10)}


def said(
    changes: dict[str, Any],
    late: dict[str, Any] | None = None,
    variance: float | tuple[float, float] = 100.0,
    sex: str = "sex",
    scores: PrivateMetrics | None = None,
    **sections: Any,
) -> tuple[list[FitTest], list[str]]:
    """The tests and flags of residuals that are zero but where something changes."""
    model: Any = cb.models.Logistic(outcome="death")
    if late is not None:
        model = cb.models.Weibull(time="days", event="died", horizon=100.0)
    study = cb.Study(
        study={"protocol": "pooled"},
        model=model,
        features={"age": {"low": 18, "high": 100}, sex: {"levels": ["F", "M"]}},
        privacy={"epsilon": 3.0, "records": 6000},
        evaluation={"holdout": 0.2},
        sites={"east": {}, "north": {}, "south": {}},
        **sections,
    )
    cells = plan_releases(study).closing[-1].cells
    assert cells is not None
    kinds = cells.check.kinds
    residuals, variances = (
        np.zeros((kinds, cells.cells)),
        np.broadcast_to(np.reshape(variance, (-1, 1)), (kinds, cells.cells)),
    )
    for kind, each in enumerate((changes, late)[:kinds]):
        for place, values in (each or {}).items():
            residuals[kind, PLACES[place]] = values
    total = np.concatenate([residuals.ravel(), variances.ravel()])
    design = preparation_of(study).design
    size = len(study.model.parameters(design))
    draws: Floats = 0.01 * np.random.default_rng(0).standard_normal((400, size))
    moments = np.concatenate([np.zeros(2), np.full(2, 0.3)])
    released = Closing(total, NOISE)
    found = fit_record(cells, released, draws, design, moments, study, scores)
    return found, [flag["message"] for flag in misfit_flags(found, design)]


def test_sites_that_differ_all_the_time_are_not_said_to_change() -> None:
    """Nine of ten events are early: so are the residuals of a site that has more."""
    level = np.array([0.8, -0.4, -0.4])
    halves = (900.0, 100.0)
    found, flags = said(
        {"site": halves[0] * level}, {"site": halves[1] * level}, variance=halves
    )
    assert [(row["by"], row["what"]) for row in found if row["misfit"]] == [
        ("site", "even")
    ]
    assert "sites differ" in " ".join(flags)
    # And where they do change, the late half tells it.
    found, _ = said(
        {"site": halves[0] * level}, {"site": -halves[1] * level}, variance=halves
    )
    changing = next(r for r in found if (r["by"], r["what"]) == ("site", "over time"))
    assert changing["misfit"]


def test_residuals_within_noise_say_nothing() -> None:
    found, flags = said({"age": [3.0, -4.0, 2.0, 5.0, -3.0], "site": [4.0, -4.0, 0.0]})
    assert flags == []
    assert [row["by"] for row in found] == ["all", "age", "sex", "site"]
    assert not any(row["misfit"] for row in found)
    assert "as much as predicted" in found[0]["text"]
    assert "nothing missed" in found[1]["text"]


@pytest.mark.slow
def test_a_small_p_that_is_lost_among_all_tests_is_shown_and_not_denied() -> None:
    sizes = np.arange(5.0, 60.0)
    rows = [said({"site": [0.0, size, -size]})[0][-1] for size in sizes.tolist()]
    between = [row for row in rows if row["p"] < 0.05 and not row["misfit"]]
    assert between
    assert all(
        row["text"]
        == f"sites: p = {row['p']:.2g}, not significant after correction for all tests"
        for row in between
    )


def test_a_range_that_is_off_is_named_with_its_column() -> None:
    _, flags = said({"age": [0.0, 0.0, 0.0, 0.0, -80.0]})
    assert "for age above" in flags[0]
    assert "there is less than predicted" in flags[0]


@pytest.mark.parametrize(("sign", "word"), [(1.0, "more"), (-1.0, "less")])
def test_a_curved_effect_is_named_with_its_ends(sign: float, word: str) -> None:
    _, flags = said({"age": sign * np.array([50.0, -20.0, -60.0, -20.0, 50.0])})
    assert len(flags) == 1
    assert flags[0].startswith("misfit: 'age'")
    assert f"both ends have {word} than predicted: a curved effect" in flags[0]


def test_a_site_that_is_off_is_named() -> None:
    _, flags = said({"site": [0.0, 80.0, -80.0]})
    assert len(flags) == 1
    assert "sites differ" in flags[0]
    assert "north" in flags[0] or "south" in flags[0]


def test_hazards_that_are_not_proportional_are_named() -> None:
    early = np.array([-40.0, -20.0, 0.0, 20.0, 40.0])
    found, flags = said({"age": early}, {"age": -early})
    assert len(flags) == 1
    assert "'age'" in flags[0]
    assert "hazards are not proportional" in flags[0]
    assert {row["what"] for row in found} == {"even", "over time"}


@pytest.mark.parametrize("name", ["all", "site", "risk"])
def test_a_feature_may_have_any_name(name: str) -> None:
    found, flags = said({"sex": [80.0, -80.0]}, sex=name)
    assert [(row["by"], row["kind"]) for row in found if row["misfit"]] == [
        (name, "feature")
    ]
    assert flags[0].startswith(f"misfit: '{name}': the model misses something")


def about(mean: float, reach: float) -> MeanRow:
    return {"mean": mean, "lower": mean - reach, "upper": mean + reach}


@pytest.mark.parametrize(("change", "word"), [(-1.0, "less"), (1.0, "more")])
def test_risks_that_tell_less_late_than_early_are_named(
    change: float, word: str
) -> None:
    """Residuals show which effect it may be, too faintly to be found by themselves."""
    slope = 0.35 * np.array([-40.0, -20.0, 0.0, 20.0, 40.0])
    scores: PrivateMetrics = {"risk_over_time": {**about(change, 0.3), "p": 1e-6}}
    found, flags = said({"age": slope}, {"age": -slope}, scores=scores)
    assert [row["by"] for row in found if row["misfit"]] == ["risk"]
    assert f"it tells {word} late than early" in flags[0]
    assert "most likely that of 'age'" in flags[0]
    assert "hazards are not proportional" in flags[0]
    bent = np.array([50.0, -20.0, -60.0, -20.0, 50.0])
    _, flags = said({"age": bent + slope}, {"age": bent - slope}, scores=scores)
    (curved,) = (flag for flag in flags if "a curved effect" in flag)
    assert "its effect changes over time" in curved
    assert "rcs" not in curved
    calm: PrivateMetrics = {"risk_over_time": {**about(0.1, 0.3), "p": 0.6}}
    assert said({}, {}, scores=calm)[1] == []


def test_the_level_of_all_rows_is_also_told_by_the_scores() -> None:
    """Residuals of counts are held at a bound: half of what is lacking may be lost."""
    scores: PrivateMetrics = {
        "mean_observed": about(1.4, 0.1),
        "predicted_over_observed": about(0.79, 0.07),
    }
    found, flags = said({}, scores=scores)
    assert [row["kind"] for row in found if row["misfit"]] == ["all rows"]
    assert "there is more than predicted: the fit is off as a whole" in flags[0]
    (group,) = found[0]["groups"]
    assert group["mean"] == pytest.approx(-np.log(0.79), abs=0.01)
    scores["predicted_over_observed"] = about(1.02, 0.07)
    assert said({}, scores=scores)[1] == []


def test_scores_of_few_events_are_flagged() -> None:
    (flag,) = few_events({"events": about(12, 9)})
    assert flag["code"] == "few-events"
    assert "about 12 events (3 to 21)" in flag["message"]
    assert few_events({"events": about(60, 9)}) == few_events({}) == []
    # Cells without events have some by the posterior, which the counts deny.
    assert few_events({"events": about(26, 9)}, counted=3.0, noise=12.0)
    assert few_events({"events": about(26, 9)}, counted=40.0, noise=12.0) == []


@pytest.mark.parametrize(("sign", "word"), [(1.0, "more"), (-1.0, "less")])
def test_a_fit_that_is_off_as_a_whole_is_named(sign: float, word: str) -> None:
    """Every feature's groups and the sites have all rows: a quarter of V is missing."""
    everywhere = dict.fromkeys(PLACES, sign * 25.0)
    found, flags = said(everywhere)
    assert [row["by"] for row in found if row["misfit"]] == ["all"]
    assert f"there is {word} than predicted: the fit is off as a whole" in flags[0]
    (group,) = found[0]["groups"]
    assert group["mean"] == pytest.approx(sign * 0.25)


def test_a_baseline_that_is_off_is_named_and_effects_are_not() -> None:
    early = dict.fromkeys(PLACES, 40.0)
    late = dict.fromkeys(PLACES, -40.0)
    found, flags = said(early, late)
    missed = [(row["by"], row["what"]) for row in found if row["misfit"]]
    assert missed == [("all", "over time")]
    assert "more than predicted early, compared with late: the baseline" in flags[0]
    assert "weibull" in flags[0]


def test_a_slope_in_one_half_alone_is_a_change_unless_the_fit_is_unsure_of_it() -> None:
    """Hardly anybody is left in the second half."""
    early = {"age": [-60.0, -30.0, 0.0, 30.0, 60.0]}
    halves = (200.0, 10.0)
    found, _ = said(early, {}, variance=halves)
    assert ("age", "over time") in {(r["by"], r["what"]) for r in found if r["misfit"]}
    # Sites are not in the model, and may have been off all the time.
    found, _ = said({"site": [0.0, 80.0, -80.0]}, {}, variance=halves)
    missed = {(r["by"], r["what"]) for r in found if r["misfit"]}
    assert missed == {("site", "even")}


@pytest.mark.parametrize(
    ("changes", "late", "words"),
    [
        ({"age": [50.0, -20.0, -60.0, -20.0, 50.0]}, None, "a curved effect"),
        ({"site": [0.0, 80.0, -80.0]}, None, "sites differ by more"),
        (
            {"age": [-60.0, -30.0, 0.0, 30.0, 60.0]},
            {"age": [60.0, 30.0, 0.0, -30.0, -60.0]},
            "hazards are not proportional",
        ),
    ],
)
def test_a_misfit_is_named_where_noise_hides_how_many_records_a_group_has(
    changes: dict[str, Any], late: dict[str, Any] | None, words: str
) -> None:
    found, flags = said(changes, late, variance=6.0)
    assert any(words in flag for flag in flags)
    missed = [row for row in found if row["misfit"]]
    # No group is left out: by chance of the noise, others would be told than those.
    for group in (g for row in missed for g in row["groups"]):
        low, high = group["lower"], group["upper"]
        assert low is not None
        assert high is not None
        assert high - low > 2.0


def test_a_curve_in_the_formula_is_what_its_uncertainty_is_about() -> None:
    """A study with curves has more columns than features."""
    study = cb.Study(
        study={"protocol": "pooled"},
        model={"kind": "logistic", "formula": "death ~ rcs(age, 4) + sex"},
        features={"age": {"low": 18, "high": 100}, "sex": {"levels": ["F", "M"]}},
        privacy={"epsilon": 3.0, "records": 6000},
        evaluation={"holdout": 0.2},
        sites={"east": {}, "north": {}},
    )
    cells = plan_releases(study).closing[-1].cells
    assert cells is not None
    design = preparation_of(study).design
    total = np.concatenate([np.zeros(cells.cells), np.full(cells.cells, 100.0)])
    draws = np.random.default_rng(0).standard_normal((400, design.width))
    found = fit_record(
        cells, Closing(total, NOISE), draws, design, np.repeat([0.0, 0.3], 2), study
    )
    ends = [(g["lower"], g["upper"]) for g in found[0]["groups"]]
    widths = [high - low for low, high in ends if low is not None and high is not None]
    assert len(widths) == len(ends)
    # Draws this wide know nothing of a curve.
    assert min(widths) > 1.0


@pytest.mark.parametrize("interval", [0.9, 0.95])
def test_groups_of_numbers_are_in_the_unit_of_the_outcome(interval: float) -> None:
    """A fifth of the rows stays two days longer than predicted."""
    days, rows, sd = 40.0, 400.0, 4.0
    study = cb.Study(
        study={"protocol": "pooled"},
        model=cb.models.Linear(outcome="stay", low=0.0, high=days, variance=sd**2),
        features={"age": {"low": 18, "high": 100}},
        privacy={"epsilon": 3.0, "records": 10_000},
        inference={"interval": interval},
        evaluation={"holdout": 0.2},
        sites={"north": {}},
    )
    cells = plan_releases(study).closing[-1].cells
    assert cells is not None
    residuals = np.zeros(cells.cells)
    residuals[4] = rows * 2.0 / (3.0 * sd)
    residuals[5] = residuals[4]  # the site has them too
    variances = np.append(np.full(5, rows / 9.0), 5.0 * rows / 9.0)
    design = preparation_of(study).design
    draws: Floats = 1e-4 * np.random.default_rng(0).standard_normal((400, design.width))
    found = fit_record(
        cells,
        Closing(np.append(residuals, variances), 1.0),
        draws,
        design,
        np.array([0.0, 0.3]),
        study,
    )
    (age,) = (row for row in found if row["by"] == "age")
    oldest = age["groups"][-1]
    # Of the five groups' mean, which is off by 0.4 days.
    assert oldest["mean"] == pytest.approx(1.6, abs=0.05)
    assert oldest["lower"] is not None
    # Between patients by sd, of which some is the other groups' and some noise.
    reach = {0.9: 1.645, 0.95: 1.96}[interval] * sd / np.sqrt(rows)
    assert 1.6 - oldest["lower"] == pytest.approx(reach, rel=0.3)

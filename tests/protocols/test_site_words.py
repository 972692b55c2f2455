"""What a plan says that a site gives away is what anybody finds out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import cipherbayes as cb
from cipherbayes.privacy.noise import InsecureRepeatableNoise
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.forecast import advice, forecast_of
from cipherbayes.protocols.plan_description import describe
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.site_words import (
    given_away,
    outcomes_needed,
    share_in_words,
    sites_in_words,
)
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.study.tables import open_site

SITES = tuple(f"s{k:02d}" for k in range(40))
EFFECT, LEVEL, SPREAD = 0.4, -1.5, 0.6
SCALES = np.array([0.0, SPREAD])
MODELS: dict[str, Any] = {
    "logistic": cb.models.Logistic(outcome="dead"),
    "exponential": cb.models.Exponential(time="time", event="dead", horizon=2.0),
    "piecewise": cb.models.Piecewise(
        time="time", event="dead", horizon=2.0, cuts=(0.5, 1.0)
    ),
}


def hospital(rng: np.random.Generator, kind: str) -> tuple[pd.DataFrame, float]:
    """A table, and by how many its outcomes differ from what ages predict."""
    count = int(rng.integers(20, 60))
    x = rng.uniform(-1.0, 1.0, count)
    eta, own = LEVEL + EFFECT * x, rng.normal(0.0, 0.5)
    if kind == "logistic":
        dead = (rng.random(count) < 1.0 / (1.0 + np.exp(-eta - own))).astype(int)
        expected = 1.0 / (1.0 + np.exp(-eta))
        return pd.DataFrame({"x": x, "dead": dead}), float((dead - expected).sum())
    time = rng.exponential(np.exp(-eta - own))
    dead, time = (time < 2.0).astype(int), np.minimum(time, 2.0) + 1e-9
    table = pd.DataFrame({"x": x, "time": time, "dead": dead})
    return table, float((dead - np.exp(eta) * time).sum())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logistic", "piecewise"])
def test_what_a_plan_says_of_a_site_is_what_anybody_finds_out(kind: str) -> None:
    """All rounds' releases of its own numbers, averaged, lie about as far off."""
    study = cb.Study(
        study={"protocol": "pooled"},
        model=MODELS[kind],
        features={"x": {"low": -1, "high": 1}},
        hierarchy={},
        privacy={"epsilon": 3.0, "records": 3_000},
        sites={site: {} for site in SITES},
    )
    plan, rng = plan_releases(study), np.random.default_rng(7)
    noise, known = InsecureRepeatableNoise("1"), given_away(plan)
    assert known.outcomes is not None
    tables, excess = zip(*(hospital(rng, kind) for _ in SITES), strict=True)
    sums = [
        Contributions.of_site(study, site, open_site(study, site, table))
        for site, table in zip(SITES, tables, strict=True)
    ]
    own = plan.last_phase.sums.dimension - 1
    # A prepared hazard is one per horizon, a prepared effect one per released sd.
    level = LEVEL + (np.log(2.0) if kind == "piecewise" else 0.0)
    asked = Question(np.append(np.full(own, level), SPREAD * EFFECT), SCALES)
    found, weight = np.zeros(own), 0.0
    counted = [phase for phase in plan.preparatory if phase.purpose == "records"]
    for number, phase in enumerate([*counted, *plan.sampling]):
        total = np.sum([each.total(phase, asked) for each in sums], axis=0)
        for turn in range(phase.rounds):
            seen = phase.split(phase.noised(total, noise, f"{number}, {turn}"))[0]
            released = phase.sums.from_grid(seen)
            if phase.purpose == "records":
                counts = released
                continue
            precision = phase.sums.noise_sd(1) ** -2.0
            found, weight = found + precision * released[:own], weight + precision
    outcomes = (found / weight).reshape(-1, len(SITES)).sum(axis=0)
    for estimate, truth, said in (
        (outcomes, np.array(excess), known.outcomes),
        (counts, np.array([len(table) for table in tables]), known.records),
    ):
        # Twice the standard deviation is told; of 40 squares the mean is 1 ± 0.22.
        assert 0.4 < np.mean((2.0 * (estimate - truth) / said) ** 2) < 1.8
    words = "; ".join(sites_in_words(plan))
    assert f"number of records to about ± {known.records:.0f}" in words
    assert f"features predict to ± {known.outcomes:.0f} at best" in words


def words_of(model: str, sites: int, hierarchy: dict[str, Any]) -> list[str]:
    """What a plan says of sites that differ in this way."""
    study = cb.Study(
        model=MODELS[model],
        features={"x": {"low": -1, "high": 1}},
        hierarchy=hierarchy,
        privacy={"epsilon": 3.0, "records": 3_000},
        sites={site: {} for site in SITES[:sites]},
    )
    return sites_in_words(plan_releases(study))


def test_of_sites_that_differ_in_a_slope_alone_no_number_of_outcomes_is_told() -> None:
    differ, *lines = words_of("logistic", 5, {"intercept": False, "slopes": ["x"]})
    assert "may differ in the effect of x (random effects)" in differ
    words = "; ".join(lines)
    assert "its number of records" in words
    assert "how many its outcomes" not in words
    assert "how its outcomes go with x" in words


def test_of_a_baseline_each_interval_is_told_and_whether_its_shape_differs() -> None:
    shape = " and their baseline's shape"
    for hierarchy, said in (
        ({"baseline": "common"}, "level (random"),
        ({"baseline": "stratified"}, f"level{shape} (random"),
        ({"effects": "fixed"}, f"level{shape} (fixed"),
    ):
        differ, *lines = words_of("piecewise", 5, hierarchy)
        assert f"may differ in their {said} effects)" in differ
        assert "in each of the 3 intervals to ± " in "; ".join(lines)
    assert "intervals" not in "; ".join(words_of("logistic", 5, {}))


def test_few_sites_are_told_that_their_spread_is_mostly_its_prior() -> None:
    said = "4 sites hardly tell how much sites differ"
    assert said in "; ".join(words_of("logistic", 4, {}))
    assert "hardly" not in "; ".join(words_of("logistic", 5, {}))
    assert "hardly" not in "; ".join(words_of("logistic", 4, {"effects": "fixed"}))


def test_a_plan_warns_where_noise_hides_what_sites_have_of_their_own() -> None:
    def warned(sites: int) -> bool:
        study = cb.Study(
            model=MODELS["logistic"],
            features={"x": {"low": -1, "high": 1}},
            hierarchy={},
            privacy={"epsilon": 1.0, "records": 1_800},
            sites={site: {} for site in SITES[:sites]},
        )
        plan = plan_releases(study)
        said = [
            line for line in advice(plan, forecast_of(plan)) if "noise will" in line
        ]
        return any("hierarchy.groups" in line for line in said)

    assert warned(30)
    assert not warned(4)


def test_the_more_sites_the_wider_a_plan_expects_intervals() -> None:
    """With as many records in all; a baseline has a level in each interval."""

    def width(model: str, sites: int, hierarchy: dict[str, Any] | None) -> float:
        study = cb.Study(
            study={"protocol": "pooled"},
            model=MODELS[model],
            features={"x": {"low": -1, "high": 1}},
            hierarchy=hierarchy,
            privacy={"epsilon": 1.0, "records": 1_500},
            sites={site: {} for site in SITES[:sites]},
        )
        return forecast_of(plan_releases(study)).width_ratio

    for model in MODELS:
        assert width(model, 30, {}) > 1.03 * width(model, 3, {})
        assert width(model, 30, None) == pytest.approx(width(model, 3, None), rel=0.01)


def test_with_held_out_rows_the_count_is_of_training_records() -> None:
    fields = {
        "model": MODELS["logistic"],
        "features": {"x": {"low": -1, "high": 1}},
        "hierarchy": {},
        "privacy": {"epsilon": 3.0, "records": 3_000},
        "evaluation": {"holdout": 0.2},
        "sites": {site: {} for site in SITES[:3]},
    }
    _, *lines = sites_in_words(plan_releases(cb.Study(**fields)))
    words = "; ".join(lines)
    assert max(map(len, lines)) < 160  # each for itself, where a plan is read
    assert "its number of training records to about" in words
    assert "with 800 training records, an equal share" in words
    assert "[describe]" not in words
    _, *lines = sites_in_words(
        plan_releases(cb.Study(**fields, describe={"by": ["site"]}))
    )
    words = "; ".join(lines)
    assert "[describe] by site releases, of each site's records, their full" in words
    assert "held-out ones included, how many have the outcome" in words


@pytest.mark.parametrize(
    ("kind", "sites", "records", "epsilon", "outcomes", "usable"),
    [
        ("logistic", 30, 1_800, 1.0, 360, False),
        ("exponential", 6, 3_920, 1.0, 435, False),
        ("exponential", 8, 12_920, 2.0, 383, False),
        ("logistic", 8, 12_920, 2.0, 664, True),
        ("logistic", 6, 3_920, 1.0, 893, True),
        ("logistic", 12, 11_280, 1.0, 1_871, True),
        ("exponential", 12, 11_280, 1.0, 1_897, True),
        ("exponential", 8, 12_920, 3.0, 1_910, True),
        ("piecewise", 5, 9_350, 1.5, 1_080, True),
    ],
)
def test_a_plan_says_how_many_outcomes_a_fit_needs(
    kind: str, sites: int, records: int, epsilon: float, outcomes: int, usable: bool
) -> None:
    """Studies that were run: those with fewer ended with a flag that says unusable."""
    study = cb.Study(
        study={"protocol": "pooled"},
        model=MODELS[kind],
        features={name: {"low": -1, "high": 1} for name in "vwxy"},
        hierarchy={},
        privacy={"epsilon": epsilon, "delta": 1e-6, "records": records},
        sites={site: {} for site in SITES[:sites]},
    )
    plan = plan_releases(study)
    needed = outcomes_needed(plan)
    assert needed is not None
    assert (outcomes > needed) == usable
    lines = [line for line in describe(plan).lines if line.startswith("outcomes ")]
    assert len(lines) == (1 if needed < records else 0)
    assert all(f"{float(f'{needed:.2g}'):,.0f}, " in line for line in lines)


def test_a_plan_warns_where_the_study_says_that_outcomes_are_few() -> None:
    study = cb.Study(
        model=MODELS["logistic"],
        features={"x": {"low": -1, "high": 1}},
        hierarchy={},
        privacy={"epsilon": 1.0, "records": 4_200, "events": 0.02},
        sites={site: {} for site in SITES[:5]},
    )
    told = describe(plan_releases(study))
    warned = [each for each in told.warnings if "privacy.events" in each]
    assert len(warned) == 1
    assert "about 84 outcomes are to be expected" in warned[0]
    lines = "\n".join(told.lines)
    assert "one record in five" not in lines
    assert "records have 0.02 outcomes each" in lines


def test_two_sites_are_not_told_to_be_put_together() -> None:
    words = "; ".join(words_of("logistic", 2, {}))
    assert "hierarchy.groups" not in words
    assert "hierarchy.groups" in "; ".join(words_of("logistic", 3, {}))


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.996, "nothing"), (0.994, "± 99 %"), (0.25, "± 25 %"), (0.0312, "± 3.1 %")],
)
def test_a_share_is_told_as_people_write_it(share: float, said: str) -> None:
    assert share_in_words(share) == said

"""How wide a plan expects intervals to be, with what is public about events."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cipherbayes.errors import StudyError
from cipherbayes.inference.method import WidthSetting
from cipherbayes.inference.noise_aware.width import expected_width_ratio
from cipherbayes.protocols.forecast import forecast_of
from cipherbayes.protocols.plan_description import describe
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.study.schema import Study

SURVIVAL = {"time": "days", "event": "died", "horizon": 40.0}
MODELS: dict[str, dict[str, Any]] = {
    "logistic": {"outcome": "died"},
    "exponential": SURVIVAL,
    "piecewise": {**SURVIVAL, "intervals": 3},
    "poisson": {"outcome": "falls"},
    "linear": {"outcome": "mmHg", "low": 60.0, "high": 200.0},
}


def study_of(kind: str, **privacy: Any) -> Study:
    return Study(
        study={"protocol": "pooled"},
        model={"kind": kind, **MODELS[kind]},
        features={name: {"low": 0, "high": 1} for name in "abcd"},
        privacy={"epsilon": 1.0, "records": 4_000, **privacy},
        sites={"here": {}},
    )


@pytest.mark.parametrize("kind", ["logistic", "exponential", "piecewise", "poisson"])
def test_a_stated_share_of_events_is_what_the_forecast_is_for(kind: str) -> None:
    guessed, stated = (
        plan_releases(study_of(kind, **e)) for e in ({}, {"events": 0.1})
    )
    assert forecast_of(stated) == forecast_of(guessed, 0.1)
    assert forecast_of(stated).width_ratio > 1.05 * forecast_of(guessed).width_ratio
    # Nothing that is released depends on it.
    assert stated.phases == guessed.phases
    said = "\n".join(describe(stated).lines)
    few = "mean count of 0.1" if kind == "poisson" else "events in 0.1 of the records"
    assert few in said
    assert "0.05" not in said
    assert "0.05" in "\n".join(describe(guessed).lines)


@pytest.mark.parametrize("kind", MODELS)
def test_a_plan_tells_a_range_around_what_it_expects(kind: str) -> None:
    described = describe(plan_releases(study_of(kind)))
    told = described.record()
    for rare in ("", "_rare"):
        low, high = told[f"width_likely{rare}"]
        assert 1.0 <= low < told[f"width_ratio{rare}"] < high
    assert any(line.endswith("× in most studies)") for line in described.lines)


def test_intervals_of_a_baseline_cost_width() -> None:
    """A column's means in every one of them are hidden by noise."""
    one, three = (
        forecast_of(plan_releases(study_of(kind)), 0.05).width_ratio
        for kind in ("exponential", "piecewise")
    )
    assert three > 1.1 * one


@pytest.mark.parametrize(
    ("kind", "events", "said"),
    [
        ("linear", 0.1, "has no events"),
        ("logistic", 1.0, "between 0 and 1"),
        ("exponential", 0.0, "greater than 0"),
    ],
)
def test_a_share_of_events_that_cannot_be_is_refused(
    kind: str, events: float, said: str
) -> None:
    with pytest.raises(StudyError, match=said):
        study_of(kind, events=events)


@pytest.mark.parametrize("scale", [0.1, 0.5, 2.0])
def test_no_interval_is_expected_to_be_wider_than_the_prior(scale: float) -> None:
    """With hardly any budget the rows say nothing, and the prior is what is left."""
    records, information = 4_000, 0.25
    setting = WidthSetting(
        records=records,
        dimension=8,
        mu=1e-6,
        sensitivities=(2.0, 2.0),
        information=information,
        first_information=information,
        prior_sd=scale,
    )
    found = expected_width_ratio(setting)
    alone = math.sqrt(1.0 + records * information * scale**2)
    assert 1.0 < found.least < found.expected < found.most
    assert found.most == pytest.approx(alone)
    assert found.expected > 0.5 * alone

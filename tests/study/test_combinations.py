"""Features of a study together: what works, and what is refused in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import cipherbayes as cb
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.study.tables import preparation_of, slots_of


def study(formula: str | None = None, **sections: Any) -> cb.Study:
    model = {"outcome": "died"} if formula is None else {"formula": formula}
    return cb.Study(
        model={"kind": "logistic", **model},
        features={"age": {"low": 18, "high": 100}, "sex": {"levels": ["F", "M"]}},
        privacy={"epsilon": 3.0, "records": 4000, **sections.pop("privacy", {})},
        sites={"a": {}, "b": {}, "c": {}},
        **sections,
    )


def test_a_slope_is_the_feature_itself_not_its_products() -> None:
    found = study("died ~ sex * age", hierarchy={"slopes": ["sex", "age"]})
    slots = slots_of(found)
    assert slots is not None
    names = preparation_of(found).design.names
    assert [names[j] for j in slots.places] == ["intercept", "sex[M]", "age"]


def test_persons_formulas_and_sites_that_differ_go_together() -> None:
    plan = plan_releases(
        study(
            "died ~ rcs(age, 4) * sex",
            privacy={"unit": "patient"},
            hierarchy={"intercept": True},
        )
    )
    assert plan.study.privacy.person == "patient"
    # As sensitive as one row: neither products nor slots move a norm.
    alone = plan_releases(study("died ~ rcs(age, 4) * sex"))
    assert plan.last_phase.sums.clip == alone.last_phase.sums.clip


def hospital(seed: int, level: float) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, sex = rng.uniform(20, 90, 1500), rng.choice(["F", "M"], 1500)
    odds = level + (age - 55) / 20 + 0.5 * (sex == "M")
    died = rng.random(1500) < 1 / (1 + np.exp(-odds))
    return pd.DataFrame({"age": age, "sex": sex, "died": died.astype(int)})


@pytest.mark.slow
def test_held_out_rows_are_checked_with_their_own_sites_parameters() -> None:
    """Sites that differ are a misfit only where they are taken to be alike."""
    tables = {name: hospital(k, 1.2 * (k - 1)) for k, name in enumerate("abc")}
    checked = study(
        privacy={"records": 4500, "randomness": "insecure-repeatable"},
        evaluation={"holdout": 0.3},
        hierarchy={},
    )
    result = cb.run(checked, tables)
    flags = [f for f in result.record["flags"] if f["name"] == "misfit"]
    assert not any("sites differ" in flag["text"] for flag in flags)
    # The truth's own predictions have 0.81; without sites' levels it is 0.72.
    assert result.metrics["auc"]["mean"] > 0.77

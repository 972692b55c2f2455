"""What plans say where sites may differ, and what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest
from hospital_studies import SITES, study_of

import cipherbayes as cb
from cipherbayes.errors import StudyError
from cipherbayes.models.registry import registered
from cipherbayes.protocols.plan import plan_study
from cipherbayes.protocols.study_plan import plan_releases

PIECEWISE = cb.models.Piecewise(time="t", event="e", horizon=2.0, cuts=(1.0,))
FIXED = {"effects": "fixed"}


def test_a_record_counts_no_more_where_sites_may_differ() -> None:
    """The same sensitivities; only the number of numbers grows, as an arrow does."""
    differ = plan_releases(study_of()).last_phase
    alike = plan_releases(study_of(hierarchy=None)).last_phase
    assert differ.sums.clip == alike.sums.clip
    assert differ.information is not None
    assert alike.information is not None
    assert differ.information.clip == alike.information.clip
    assert differ.sums.dimension == 3 + 1
    assert differ.information.dimension == 3 * 1 + 3 * 1 + 1


def test_the_plan_says_what_a_site_gives_away_or_that_sites_are_alike() -> None:
    plan = plan_study(study_of())
    said = "\n".join(plan.protocol.describe(plan).lines)
    assert "anyone learns of each site its number of records" in said
    assert "a hospital as a whole is not" in said
    assert "for a site with 300 records, an equal share, ±" in said
    plan = plan_study(study_of(hierarchy=None))
    assert "taken to be alike" in "\n".join(plan.protocol.describe(plan).lines)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"study": {"protocol": "encrypted-update"}}, "mixes all sites"),
        ({"inference": {"method": "psgld"}}, "no posterior of what differs"),
        ({"inference": {"method": "averaged"}}, "no posterior of what differs"),
        (
            {"inference": {"method": "multilevel"}},
            "reads the rows, and a private study releases",
        ),
        ({"sites": {"one": {}}}, "2 to 64 sites"),
        ({"sites": {f"s{k}": {} for k in range(65)}}, "2 to 64 sites"),
        (
            {"privacy": {"epsilon": 1.0, "dropouts": 2, "colluders": 0}},
            "dropouts to 1 at most",
        ),
        (
            {
                "privacy": {"epsilon": 1.0, "dropouts": 1},
                "hierarchy": {"groups": {"both": ["east", "north"]}},
            },
            "another group",
        ),
        ({"hierarchy": {"groups": {"all": SITES}}}, "there are 1"),
        ({"hierarchy": {"groups": {"one": ["east"]}}}, "two sites or more"),
        ({"hierarchy": {"groups": {"both": ["east", "west"]}}}, "'west', which is no"),
        ({"hierarchy": {"groups": {"south": ["east", "north"]}}}, "another name"),
        (
            {
                "hierarchy": {
                    "groups": {"a": ["east", "north"], "b": ["north", "south"]}
                }
            },
            "name each once",
        ),
        ({"prior": {"kind": "laplace"}}, "normal"),
        ({"hierarchy": {"slopes": ["weight"]}}, "'weight', which is no feature"),
        ({"hierarchy": {"slopes": ["age", "age"]}}, "twice"),
        ({"hierarchy": {"intercept": False}}, "lets nothing differ"),
        (
            {"hierarchy": {"context": True, "effects": "fixed"}},
            "there are none here",
        ),
        ({"hierarchy": {"baseline": "common"}}, "piecewise"),
        (
            {
                "model": PIECEWISE,
                "hierarchy": {"baseline": "stratified"},
                "evaluation": {"holdout": 0.2},
            },
            "scores rest on one baseline",
        ),
        (
            {"model": PIECEWISE, "hierarchy": {"baseline": "common", **FIXED}},
            "share nothing of their baselines",
        ),
        (
            {
                "model": PIECEWISE,
                "hierarchy": {
                    "intercept": False,
                    "slopes": ["age"],
                    "baseline": "stratified",
                },
            },
            "all sites have one baseline",
        ),
        ({"hierarchy": {"scale": 2.0, **FIXED}}, "fixed sites do not have"),
        ({"hierarchy": {"scale": 0.0}}, "scale"),
        ({"hierarchy": {"tau": 1.0}}, "tau"),
        ({"preparation": {"intercept": 0.0}}, "constant column"),
        ({"prior": {"kind": "student-t"}}, "normal"),
    ],
)
def test_what_is_not_supported_is_refused_in_words(
    sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(StudyError, match=words):
        study_of(**sections)


@pytest.mark.parametrize(
    "kind",
    sorted(set(registered) - {"logistic", "poisson", "exponential", "piecewise"}),
)
@pytest.mark.parametrize("private", [True, False])
def test_models_that_know_no_sites_are_refused_by_their_kind(
    kind: str, private: bool
) -> None:
    needed = {"outcome": "death", "time": "t", "event": "e", "horizon": 1.0}
    needed |= {"value": "age", "variance": 1.0, "classes": 3}
    needed |= {"low": 0.0, "high": 1.0}
    fields = registered[kind].model_fields
    model = {"kind": kind} | {k: v for k, v in needed.items() if k in fields}
    privacy = {"epsilon": 1.0, "records": 900} if private else None
    with pytest.raises(StudyError, match=f"not offered .*'{kind}': use exponential"):
        study_of(model=model, privacy=privacy)


def test_a_plan_without_sites_is_refused_in_words() -> None:
    with pytest.raises(StudyError, match="names none"):
        plan_study(study_of(sites={}))

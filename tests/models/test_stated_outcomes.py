"""What a model states of its outcome columns: by it audits make up rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from model_scenarios import MODELS

import cipherbayes as cb
from cipherbayes.errors import StudyError
from cipherbayes.models import Exponential, Logistic, Model, Poisson, registry
from cipherbayes.models.outcomes import OutcomeRange
from cipherbayes.validation.neighbours import CANARIES, neighbours


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "registered", dict(registry.registered))


class Renamed(Logistic):
    """A logistic regression that calls its outcome something else."""

    roles: ClassVar[Mapping[str, str]] = {"death": "outcome"}
    kind: Literal["renamed"] = "renamed"  # type: ignore[assignment]

    def prepare_outcome(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().prepare_outcome({"y": raw["death"]})


class Weighted(Renamed):
    """The same with a second outcome column, of which it says nothing."""

    roles: ClassVar[Mapping[str, str]] = {"death": "outcome", "weight": "weight"}
    kind: Literal["weighted"] = "weighted"  # type: ignore[assignment]
    weight: str


def study(model: Model) -> cb.Study:
    privacy = {"epsilon": 1.0, "delta": 1e-5, "records": 1000}
    features: dict[str, Any] = {"age": {"low": 18, "high": 100}}
    return cb.Study(model=model, features=features, privacy=privacy)


def test_a_model_may_call_its_one_outcome_anything() -> None:
    registry.register(Renamed)
    found = study(Renamed(outcome="death"))
    for canary in range(CANARIES):
        near = neighbours(found, 8, canary)
        present = next(iter(near.present.blocks())).outcome["y"]
        assert set(present) <= {0.0, 1.0}


def test_outcomes_of_which_a_model_says_nothing_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="what its outcome 'death' may hold"):
        registry.register(Weighted)


def test_one_that_it_leaves_out_is_named_by_the_audit() -> None:
    class Forgetful(Weighted):
        kind: Literal["forgetful"] = "forgetful"  # type: ignore[assignment]

        @property
        def outcome_ranges(self) -> Mapping[str, OutcomeRange]:
            return {"death": OutcomeRange((0, 1), (0, 1), whole=True)}

    registry.register(Forgetful)
    found = study(Forgetful(outcome="death", weight="times_seen"))
    with pytest.raises(StudyError, match="what its outcome 'weight' may hold"):
        neighbours(found, 8, 0)


def test_a_model_over_time_needs_a_time_and_an_event() -> None:
    class Odd(Exponential):
        roles: ClassVar[Mapping[str, str]] = {"until": "time", "event": "event"}
        kind: Literal["odd"] = "odd"  # type: ignore[assignment]

    with pytest.raises(ValueError, match="the roles 'time' and 'event'"):
        registry.register(Odd)


@pytest.mark.parametrize("name", MODELS)
def test_what_a_model_states_of_its_outcomes_it_accepts(name: str) -> None:
    model: Model = MODELS[name][0]
    ranges, rng = model.outcome_ranges, np.random.default_rng(1)
    assert set(ranges) == set(model.roles)
    if not ranges:
        return
    made_up = {role: each.made_up(50, rng) for role, each in ranges.items()}
    assert set(model.prepare_outcome(made_up)) == set(model.roles)
    for k in (0, 1):
        extreme = {role: np.array([each.extremes[k]]) for role, each in ranges.items()}
        prepared = model.prepare_outcome(extreme)
        assert all(np.isfinite(column).all() for column in prepared.values())


def test_counts_made_up_are_whole_and_start_at_zero() -> None:
    counts = Poisson(outcome="visits").outcome_ranges["y"]
    made_up = counts.made_up(500, np.random.default_rng(2))
    assert set(made_up) == {0.0, 1.0, 2.0, 3.0, 4.0}
    assert counts.extremes == (0.0, 1e6)

"""Events say what was released, and only that."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy.events import (
    Composed,
    Event,
    GaussianSum,
    PoissonSampled,
    Relation,
    Repeated,
    from_json,
    tally,
    to_json,
)

SIGMAS = st.floats(1e-6, 1e9)
SINGLE = st.builds(GaussianSum, SIGMAS) | st.builds(
    PoissonSampled, st.floats(1e-6, 1.0), st.builds(GaussianSum, SIGMAS)
)
EVENTS = st.recursive(
    SINGLE,
    lambda inner: (
        st.builds(Repeated, inner, st.integers(1, 10**6))
        | st.builds(Composed, st.lists(inner, min_size=1, max_size=4).map(tuple))
    ),
    max_leaves=8,
)


@given(EVENTS)
def test_an_event_survives_json(event: Event) -> None:
    assert from_json(to_json(event)) == event


@given(EVENTS)
def test_json_is_canonical(event: Event) -> None:
    text = to_json(event)
    assert to_json(from_json(text)) == text
    assert "\n" not in text


@given(EVENTS, EVENTS)
def test_the_tally_of_a_composition_is_the_sum_of_tallies(a: Event, b: Event) -> None:
    assert tally(Composed((a, b))) == tally(a) + tally(b)


def test_repetition_multiplies_through_nesting() -> None:
    inner = Composed((GaussianSum(2.0), PoissonSampled(0.1, GaussianSum(3.0))))
    event = Repeated(Composed((Repeated(inner, 5), GaussianSum(2.0))), 7)
    assert tally(event) == {(2.0, 1.0): 42, (3.0, 0.1): 35}


def test_sampling_everything_is_a_full_batch() -> None:
    assert tally(PoissonSampled(1.0, GaussianSum(2.0))) == tally(GaussianSum(2.0))


def test_the_relation_is_written_down() -> None:
    document = json.loads(to_json(GaussianSum(1.0)))
    assert document["relation"] == Relation.ADD_OR_REMOVE_ONE_RECORD.value


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianSum(-1.0),
        lambda: GaussianSum(math.nan),
        lambda: GaussianSum("1"),  # type: ignore[arg-type]
        lambda: GaussianSum(True),
        lambda: PoissonSampled(0.0, GaussianSum(1.0)),
        lambda: PoissonSampled(1.1, GaussianSum(1.0)),
        lambda: PoissonSampled(math.nan, GaussianSum(1.0)),
        lambda: PoissonSampled(0.1, Repeated(GaussianSum(1.0), 2)),  # type: ignore[arg-type]
        lambda: Repeated(GaussianSum(1.0), 0),
        lambda: Repeated(GaussianSum(1.0), -3),
        lambda: Repeated(GaussianSum(1.0), True),
        lambda: Repeated(GaussianSum(1.0), 2.0),  # type: ignore[arg-type]
        lambda: Repeated("laplace", 2),  # type: ignore[arg-type]
        lambda: Composed(()),
        lambda: Composed([GaussianSum(1.0)]),  # type: ignore[arg-type]
        lambda: Composed((GaussianSum(1.0), None)),  # type: ignore[arg-type]
        lambda: tally("laplace"),  # type: ignore[arg-type]
        lambda: to_json("laplace"),  # type: ignore[arg-type]
        lambda: to_json(GaussianSum(0.0)),
        lambda: to_json(GaussianSum(math.inf)),
    ],
)
def test_what_is_not_understood_is_refused(make: object) -> None:
    with pytest.raises(PrivacyError):
        make()  # type: ignore[operator]


GOOD = to_json(Repeated(PoissonSampled(0.5, GaussianSum(1.5)), 3))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "not json",
        GOOD[:-1],
        GOOD + " {}",
        GOOD.replace("add-or-remove", "replace"),
        GOOD.replace('"count":3', '"count":0'),
        GOOD.replace('"count":3', '"count":3.0'),
        GOOD.replace('"count":3', '"count":true'),
        GOOD.replace('"count":3', '"count":3,"count":4'),
        GOOD.replace('"count":3', '"count":3,"more":1'),
        GOOD.replace("0.5", "0"),
        GOOD.replace("0.5", "1.5"),
        GOOD.replace("0.5", '"0.5"'),
        GOOD.replace("1.5", "NaN"),
        GOOD.replace("1.5", "Infinity"),
        GOOD.replace("1.5", "1e999"),
        GOOD.replace("1.5", "-1.5"),
        GOOD.replace("1.5", "0.0"),
        GOOD.replace("1.5", "null"),
        GOOD.replace("gaussian-sum", "laplace"),
        GOOD.replace('"kind":"repeated"', '"kind":["repeated"]'),
        '{"event":' * 5000 + "1" + "}" * 5000,
    ],
)
def test_text_that_this_package_did_not_write_is_refused(text: str) -> None:
    assert from_json(GOOD)
    assert text != GOOD
    with pytest.raises(PrivacyError):
        from_json(text)


@given(st.text())
def test_no_text_raises_anything_but_a_refusal(text: str) -> None:
    with pytest.raises(PrivacyError) as refusal:
        from_json(text)
    assert "\n" not in str(refusal.value)

"""Which records are held out: each by its own bits, equal ones by counting them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cipherbayes as cb
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.record_places import places_of
from cipherbayes.models.design import Design
from cipherbayes.study.tables import open_site, split_site
from cipherbayes.typing import Floats

DESIGN = Design(("a", "b"), np.zeros(2), np.ones(2), None)


def prepared(records: list[tuple[int, int, int]]) -> PreparedTable:
    columns = np.array(records, dtype=np.float64).reshape(-1, 3).T
    return PreparedTable.from_arrays(DESIGN, columns[:2], {"y": columns[2]})


def held(records: list[tuple[int, int, int]], places: Floats) -> list[tuple[int, ...]]:
    return sorted(r for r, place in zip(records, places, strict=True) if place < 0.5)


KIND = st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 1))


@given(st.lists(KIND, max_size=40), KIND, st.integers(0, 40), st.integers(0, 2**32))
@settings(deadline=None)
def test_another_record_moves_no_other_one_between_the_parts(
    records: list[tuple[int, int, int]], new: tuple[int, int, int], at: int, seed: int
) -> None:
    """Also one that is equal to others, wherever it stands among them."""
    more = [*records[:at], new, *records[at:]]
    before = held(records, places_of(prepared(records), seed))
    after = held(more, places_of(prepared(more), seed))
    assert after in (before, sorted([*before, new]))


def test_equal_records_are_held_out_one_by_one() -> None:
    """As many blocks as it takes: a kind is counted through all of them."""
    rng = np.random.default_rng(0)
    records = [tuple(map(int, row)) for row in rng.integers(0, 2, (70_000, 3))]
    places = places_of(prepared(records), 1)  # type: ignore[arg-type]
    assert np.unique(places).size == places.size
    kinds = np.array(records) @ [4, 2, 1]
    for kind in range(8):
        share = np.mean(places[kinds == kind] < 0.2)
        assert share == pytest.approx(0.2, abs=0.02)


def test_equal_records_of_several_sites_are_held_out_one_by_one() -> None:
    """Else what is held out of all sites together is as uncertain as of one."""
    rng = np.random.default_rng(0)
    records = [tuple(map(int, row)) for row in rng.integers(0, 2, (1_500, 3))]
    table = prepared(records)  # type: ignore[arg-type]
    events = np.array(records)[:, 2]
    totals = []
    for seed in range(60):
        parts = [places_of(table, seed, site) < 0.2 for site in "abc"]
        totals.append(sum(int(events[part].sum()) for part in parts))
    binomial = np.sqrt(0.2 * 0.8 * 3 * events.sum())
    # Of 60 draws a standard deviation is known to 9 %; alike at all sites it is 1.7.
    assert 0.7 < np.std(totals) / binomial < 1.3


def test_records_of_one_word_that_differ_are_counted_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if somebody had found records that the hash does not tell apart."""
    records = [(0, 0, 0), (1, 0, 0), (0, 0, 0), (1, 1, 1), (1, 0, 0)]
    monkeypatch.setattr(
        "cipherbayes.data.record_places._words",
        lambda rows, seed, site: np.full(rows.count, 7, dtype=np.uint64),
    )
    places = places_of(prepared(records), 1)
    assert places[0] == places[1] == places[3]
    assert places[2] == places[4] != places[0]


def test_a_study_of_few_kinds_of_records_holds_out_its_share_of_each() -> None:
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({name: rng.integers(0, 2, 4000) for name in ("old", "death")})
    study = cb.Study(
        study={"protocol": "pooled"},
        model=cb.models.Logistic(outcome="death"),
        features={"old": {"low": 0, "high": 1}},
        privacy={"epsilon": 1.0, "records": 4000},
        evaluation={"holdout": 0.2},
        sites={"a": {}},
    )
    train, kept = split_site(study, "a", open_site(study, "a", frame))
    assert kept.count == pytest.approx(800, abs=120)
    for part in (train, kept):
        assert part.outcome()["y"].mean() == pytest.approx(0.5, abs=0.06)

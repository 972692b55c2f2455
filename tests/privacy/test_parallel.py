"""Releases on parts of a table that have no record in common cost the dearest part."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cipherbayes.errors import BudgetError, PrivacyError
from cipherbayes.privacy.accountant import epsilon, total_mu
from cipherbayes.privacy.events import (
    Composed,
    Event,
    GaussianSum,
    OfRows,
    Parallel,
    PoissonSampled,
    Repeated,
    from_json,
    of_one_run,
    tally,
    to_json,
)
from cipherbayes.privacy.ledger import Ledger

DELTA = 1e-5
TRAINING = OfRows("training", GaussianSum(5.0))
HELD_OUT = OfRows("held-out", GaussianSum(4.0))
WHOLE = GaussianSum(20.0)


def test_a_run_costs_what_is_about_all_rows_and_its_dearest_part() -> None:
    event = of_one_run([Repeated(TRAINING, 3), HELD_OUT, WHOLE])
    assert total_mu(event) == pytest.approx(math.sqrt(3 / 25 + 1 / 400))
    # Four releases on held-out rows cost more than three on the others.
    dearer = of_one_run([Repeated(TRAINING, 3), Repeated(HELD_OUT, 4), WHOLE])
    assert total_mu(dearer) == pytest.approx(math.sqrt(4 / 16 + 1 / 400))


def test_a_part_by_itself_costs_what_is_released() -> None:
    assert tally(HELD_OUT) == tally(GaussianSum(4.0))
    assert of_one_run([HELD_OUT]) == Parallel((Composed((GaussianSum(4.0),)),))
    assert epsilon(of_one_run([HELD_OUT]), DELTA) == epsilon(GaussianSum(4.0), DELTA)


def test_without_parts_nothing_changes() -> None:
    events: list[Event] = [Repeated(GaussianSum(3.0), 4), GaussianSum(9.0)]
    assert of_one_run(events) == Composed(tuple(events))
    assert of_one_run(events[:1]) == events[0]


def test_sampled_parts_are_added_up_since_none_is_known_to_be_dearer() -> None:
    sampled = PoissonSampled(0.1, GaussianSum(1.0))
    both = Parallel((sampled, GaussianSum(4.0)))
    assert tally(both) == tally(Composed((sampled, GaussianSum(4.0))))


@pytest.mark.parametrize(
    "event", [TRAINING, Parallel((GaussianSum(2.0), Repeated(GaussianSum(3.0), 2)))]
)
def test_an_event_reads_back_as_itself(event: OfRows | Parallel) -> None:
    assert from_json(to_json(event)) == event


def test_a_part_without_a_name_is_refused() -> None:
    with pytest.raises(PrivacyError):
        OfRows("", GaussianSum(1.0))
    text = to_json(HELD_OUT).replace('"held-out"', "3")
    with pytest.raises(PrivacyError):
        from_json(text)


def charge(ledger: Ledger, run: int, number: int, event: OfRows | GaussianSum) -> None:
    ledger.release(
        run=bytes([run]) * 16,
        site="a",
        round=number,
        purpose="gradient",
        study=bytes(32),
        question=bytes(32),
        event=event,
        compute=lambda: b"answer",
    )


def test_a_ledger_sets_the_parts_of_a_run_beside_each_other(tmp_path: Path) -> None:
    most = epsilon(GaussianSum(4.0), DELTA)
    path = tmp_path / "ledger"
    ledger = Ledger.open(path, dataset="t", epsilon=most, delta=DELTA)
    charge(ledger, 1, 0, TRAINING)
    charge(ledger, 1, 1, HELD_OUT)
    assert ledger.spent() == pytest.approx(most)
    with pytest.raises(BudgetError):
        charge(ledger, 1, 2, HELD_OUT)


def test_a_ledger_adds_up_runs_whose_parts_may_overlap(tmp_path: Path) -> None:
    """Another study parts a table by another key: a record may be dear in both."""
    path = tmp_path / "ledger"
    ledger = Ledger.open(path, dataset="t", epsilon=10.0, delta=DELTA)
    charge(ledger, 1, 0, TRAINING)
    charge(ledger, 2, 0, HELD_OUT)
    both = Composed((GaussianSum(5.0), GaussianSum(4.0)))
    assert ledger.spent() == pytest.approx(epsilon(both, DELTA))

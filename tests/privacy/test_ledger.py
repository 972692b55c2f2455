"""The ledger answers once, charges every release, and keeps to the budget."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ledgers import DELTA, ROUNDS, SIGMA, ask, ledger, never, opened, path

from cipherbayes.errors import BudgetError, PrivacyError
from cipherbayes.privacy import accountant, ledger_records
from cipherbayes.privacy.accountant import calibrate_noise
from cipherbayes.privacy.events import (
    Composed,
    Event,
    GaussianSum,
    PoissonSampled,
    Repeated,
)
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.ledger_records import LedgerRecords
from cipherbayes.storage.custody import Custody, Head
from cipherbayes.storage.private_files import sync_file

__all__ = ["ledger", "path"]


# -- one answer --------------------------------------------------------------


def test_the_same_round_gets_the_same_answer_and_is_charged_once(
    ledger: Ledger, path: Path
) -> None:
    answer = ask(ledger)
    spent = ledger.spent()
    assert ask(ledger, compute=never) == answer
    again = Ledger.read(path)
    assert ask(again, compute=never) == answer
    assert again.spent() == ledger.spent() == spent
    again.close()


def test_other_rounds_purposes_and_runs_get_answers_of_their_own(
    ledger: Ledger,
) -> None:
    answers = {
        ask(ledger, 0),
        ask(ledger, 1),
        ask(ledger, 0, purpose="moments"),
        ask(ledger, 0, run=b"another run"),
        ask(ledger, 0, site="another site"),
    }
    assert len(answers) == 5
    assert ledger.rounds(b"run", "north") == 2
    assert ledger.rounds(b"another run", "north") == 1
    assert ledger.rounds(b"no run", "north") == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"study": b"changed"},
        {"question": b"changed"},
        {"event": GaussianSum(2.0 * SIGMA)},
        {"event": PoissonSampled(0.5, GaussianSum(SIGMA))},
    ],
)
def test_an_answered_round_cannot_be_asked_differently(
    ledger: Ledger, changes: dict[str, object]
) -> None:
    ask(ledger)
    spent = ledger.spent()
    with pytest.raises(PrivacyError, match="answered for another question"):
        ask(ledger, compute=never, **changes)  # type: ignore[arg-type]
    assert ledger.spent() == spent


def test_a_run_cannot_change_its_study(ledger: Ledger) -> None:
    ask(ledger, 0)
    with pytest.raises(PrivacyError, match="begun with another study"):
        ask(ledger, 1, study=b"changed", compute=never)
    assert ledger.rounds(b"run", "north") == 1


@pytest.mark.parametrize("error", [RuntimeError, PrivacyError, KeyboardInterrupt])
def test_a_failed_computation_is_charged_and_the_same_question_may_be_tried_again(
    ledger: Ledger, path: Path, error: type[BaseException]
) -> None:
    def fail() -> bytes:
        raise error("the table cannot be read")

    with pytest.raises(error):
        ask(ledger, compute=fail)
    spent = ledger.spent()
    assert spent > 0.0
    assert [entry.kept for entry in ledger.entries()] == [False]
    assert ledger.rounds(b"run", "north") == 0
    again = Ledger.read(path)
    with pytest.raises(PrivacyError, match="another question"):
        ask(again, question=b"changed", compute=never)
    assert len(ask(again)) == 16
    assert again.spent() == ledger.spent() == spent
    assert ledger.rounds(b"run", "north") == 1
    again.close()


def test_an_error_is_no_free_oracle(ledger: Ledger) -> None:
    """Each question that fails at some tables and not at others costs its ε."""

    def fail() -> bytes:
        raise ArithmeticError

    refused = 0
    for number in range(3 * ROUNDS):
        try:
            ask(ledger, number, compute=fail)
        except ArithmeticError:
            continue
        except BudgetError:
            refused += 1
    assert refused == 2 * ROUNDS


def test_the_charge_is_in_the_file_before_the_answer_is_computed(
    ledger: Ledger, path: Path
) -> None:
    def look() -> bytes:
        other = Ledger.read(path)
        assert [entry.kept for entry in other.entries()] == [False]
        assert other.spent() > 0.0
        other.close()
        return b"answer"

    assert ask(ledger, compute=look) == b"answer"
    assert [entry.kept for entry in ledger.entries()] == [True]


class Witness:
    """A connection that writes down its commits, which wait for no disk."""

    def __init__(self, database: sqlite3.Connection, seen: list[str]) -> None:
        self._database = database
        self._seen = seen

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        result = self._database.execute(statement, *values)
        if statement == "COMMIT":
            self._seen.append("in the file")
        return result


@pytest.mark.parametrize("way", ["answers", "fails", "repeats"])
def test_whatever_leaves_the_charge_is_on_disk_before_and_the_mark_after_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    seen: list[str] = []

    def mark(self: Custody, ledger: bytes, head: Head, check: Any) -> Head:
        seen.append("mark")
        return real_mark(self, ledger, head, check)

    def sync(file: Path) -> None:
        assert file.name.endswith("-wal")
        seen.append("on disk")
        real_sync(file)

    def compute() -> bytes:
        seen.append("compute")
        if way == "fails":
            raise ArithmeticError
        return b"answer"

    real_mark, real_sync = Custody.raise_mark, sync_file
    if way == "repeats":
        # As after a kill between the answer's commit and the mark.
        with monkeypatch.context() as patch:
            patch.setattr(LedgerRecords, "settle", lambda self: None)
            ask(ledger)
    monkeypatch.setattr(Custody, "raise_mark", mark)
    monkeypatch.setattr(ledger_records, "sync_file", sync)
    records = ledger._records
    records.database = Witness(records.database, seen)  # type: ignore[assignment]
    with suppress(ArithmeticError):
        ask(ledger, compute=compute)
    written = {
        "answers": ["in the file", "compute", "in the file"],
        "fails": ["in the file", "compute"],
        "repeats": [],
    }
    assert seen == [*written[way], "on disk", "mark"]


@pytest.mark.parametrize("way", ["failed", "opened twice"])
def test_another_process_that_closes_the_ledger_takes_no_record_away(
    ledger: Ledger, path: Path, way: str
) -> None:
    """Where a process closes a file its locks on it are gone, SQLite's too."""

    def fail() -> bytes:
        raise ArithmeticError

    if way == "failed":
        with suppress(ArithmeticError):
            ask(ledger, 0, compute=fail)
    else:
        Ledger.read(path).close()
        ask(ledger, 0)
    assert _entries_elsewhere(path) == 1
    ask(ledger, 1)
    assert _entries_elsewhere(path) == 2


def _entries_elsewhere(path: Path) -> int:
    """Entries that another process finds, which opens the ledger and closes it."""
    program = (
        "import sqlite3, sys; ledger = sqlite3.connect(sys.argv[1]); "
        "print(*ledger.execute('SELECT COUNT(*) FROM entries').fetchone()); "
        "ledger.close()"
    )
    command = [sys.executable, "-I", "-c", program, str(path)]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


def test_of_two_that_compute_one_answer_both_return_the_first(
    ledger: Ledger, path: Path
) -> None:
    def slow() -> bytes:
        other = Ledger.read(path)
        assert ask(other, compute=lambda: b"the first") == b"the first"
        other.close()
        return b"the second"

    assert ask(ledger, compute=slow) == b"the first"
    assert ask(ledger, compute=never) == b"the first"
    assert len(list(ledger.entries())) == 1


def test_two_sites_of_a_run_are_charged_and_answered_apart(ledger: Ledger) -> None:
    """The same table at two sites is in the total twice, and costs twice."""
    answers = {ask(ledger, site=name) for name in ("north", "south")}
    assert len(answers) == 2
    assert len(list(ledger.entries())) == 2
    assert ledger.rounds(b"run", "south") == 1
    assert ledger.rounds(b"run", "east") == 0


# -- the budget --------------------------------------------------------------


def test_a_calibrated_study_fits_to_the_last_round_and_no_further(
    path: Path,
) -> None:
    sigma = calibrate_noise(1.0, DELTA, 400)
    ledger = opened(path)
    for number in range(400):
        ask(ledger, number, event=GaussianSum(sigma), compute=lambda: b"answer")
    assert ledger.spent() == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(BudgetError, match="round 400 would exceed"):
        ask(ledger, 400, event=GaussianSum(sigma), compute=never)
    assert ledger.rounds(b"run", "north") == 400
    ledger.close()


def test_the_budget_belongs_to_the_table_across_runs_and_studies(
    ledger: Ledger, path: Path
) -> None:
    for number in range(ROUNDS - 1):
        study = b"study %d" % (number % 3)
        ask(ledger, number, run=b"run of " + study, study=study)
    another = Ledger.read(path)
    ask(another, 0, run=b"one more", study=b"another study")
    with pytest.raises(BudgetError) as refusal:
        ask(ledger, 0, run=b"too many", study=b"yet another", compute=never)
    message = str(refusal.value)
    assert "budget of ε = 1 " in message
    assert "is left" in message
    assert str(path) in message
    assert "\n" not in message
    another.close()


def test_a_refusal_says_how_much_is_left(ledger: Ledger) -> None:
    ask(ledger, 0)
    left = 1.0 - ledger.spent()
    with pytest.raises(BudgetError, match=f"ε = {left:.3g} is left"):
        ask(ledger, 1, event=GaussianSum(0.5), compute=never)
    # A cheaper question still fits.
    assert len(ask(ledger, 1)) == 16


def test_the_owner_may_raise_the_budget_and_what_is_spent_stays_spent(
    ledger: Ledger, path: Path
) -> None:
    for number in range(ROUNDS):
        ask(ledger, number)
    with pytest.raises(BudgetError):
        ask(ledger, ROUNDS, compute=never)
    ledger.set_budget(2.0)
    ask(ledger, ROUNDS)
    assert 1.0 < ledger.spent() < 2.0
    reopened = opened(path, epsilon=50.0)
    assert reopened.epsilon == 2.0
    reopened.set_budget(0.5)
    with pytest.raises(BudgetError, match="ε = 0 is left"):
        ask(ledger, ROUNDS + 1, compute=never)
    reopened.close()


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_budget_is_refused(ledger: Ledger, epsilon: float) -> None:
    with pytest.raises(PrivacyError, match="epsilon > 0"):
        ledger.set_budget(epsilon)
    assert ledger.epsilon == 1.0


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (1.0, 0.0), (1.0, 1.0)]
)
def test_a_ledger_cannot_begin_with_an_impossible_budget(
    path: Path, epsilon: float, delta: float
) -> None:
    with pytest.raises(PrivacyError, match="a budget needs"):
        Ledger.open(path, dataset="north.csv", epsilon=epsilon, delta=delta)
    assert not path.exists()


@pytest.mark.parametrize("event", [GaussianSum(0.0), GaussianSum(float("inf"))])
def test_an_event_that_cannot_be_recorded_is_refused(
    ledger: Ledger, event: GaussianSum
) -> None:
    with pytest.raises(PrivacyError, match="cannot be recorded"):
        ask(ledger, event=event, compute=never)


def test_what_is_expected_is_not_spent(ledger: Ledger, path: Path) -> None:
    for _ in range(3):
        ledger.expect(b"run", GaussianSum(10.0))
    assert ledger.spent() == 0.0
    assert list(Ledger.read(path).entries()) == []


def test_every_entry_shows_the_running_epsilon(ledger: Ledger) -> None:
    for number in range(5):
        ask(ledger, number)
    entries = list(ledger.entries())
    for index, entry in enumerate(entries, start=1):
        composed = Repeated(GaussianSum(SIGMA), index)
        assert entry.number == index
        assert entry.event == GaussianSum(SIGMA)
        assert entry.epsilon == pytest.approx(accountant.epsilon(composed, DELTA))
        assert (entry.run, entry.study) == (b"run".hex(), b"study".hex())
    assert ledger.spent() == entries[-1].epsilon


def test_different_events_are_composed_together(ledger: Ledger) -> None:
    events = [GaussianSum(40.0), GaussianSum(15.0), GaussianSum(15.0)]
    for number, event in enumerate(events):
        ask(ledger, number, event=event)
    together = accountant.epsilon(Composed(tuple(events)), DELTA)
    assert ledger.spent() == pytest.approx(together)
    sampled = PoissonSampled(0.1, GaussianSum(4.0))
    ask(ledger, 3, event=sampled)
    more = accountant.epsilon(Composed((*events, sampled)), DELTA)
    assert ledger.spent() == pytest.approx(more)
    assert more > together


@pytest.mark.slow
def test_hundreds_of_sampled_rounds_are_never_under_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    exact = accountant.epsilon

    def counted(event: Event, delta: float) -> float:
        nonlocal calls
        calls += 1
        return exact(event, delta)

    monkeypatch.setattr(accountant, "epsilon", counted)
    event = PoissonSampled(0.05, GaussianSum(calibrate_noise(1.0, DELTA, 200, 0.05)))
    ledger = opened(path)
    for number in range(200):
        ask(ledger, number, event=event, compute=lambda: b"answer")
    # Far fewer compositions than rounds: each is a convolution.
    assert calls < 120
    with pytest.raises(BudgetError):
        ask(ledger, 200, event=event, compute=never)
    for entry in list(ledger.entries())[::40]:
        assert entry.epsilon >= exact(Repeated(event, entry.number), DELTA)
    assert ledger.spent() <= 1.0
    ledger.close()


# -- the end of a run ---------------------------------------------------------


def test_a_run_that_is_over_keeps_its_charges_and_no_answer(path: Path) -> None:
    ledger = opened(path)
    answers = [ask(ledger, n, compute=lambda: os.urandom(64)) for n in range(3)]
    other = ask(ledger, 0, run=b"another", compute=lambda: os.urandom(64))
    spent = ledger.spent()
    assert any(answers[0] in file.read_bytes() for file in path.parent.iterdir())
    ledger.end(b"run", "north")
    for file in path.parent.iterdir():
        content = file.read_bytes()
        assert not any(answer in content for answer in answers), file
    assert [entry.kept for entry in ledger.entries()] == [False] * 3 + [True]
    for book in (ledger, Ledger.read(path)):
        for number in (0, 2, 3):
            with pytest.raises(PrivacyError, match="the run is over"):
                ask(book, number, compute=never)
        assert ask(book, 0, run=b"another", compute=never) == other
        assert book.spent() == spent
        book.end(b"run", "north")  # twice is once
        book.end(b"no run", "north")
    assert Ledger.read(path).head == ledger.head
    ledger.close()


@pytest.mark.parametrize("answered", [False, True])
def test_a_run_that_ends_while_an_answer_is_computed_gives_none(
    path: Path, answered: bool
) -> None:
    ledger, other = opened(path), opened(path)
    secret = os.urandom(64)

    def compute() -> bytes:
        if answered:  # by another process meanwhile
            ask(other, compute=lambda: secret)
        other.end(b"run", "north")
        return secret

    with pytest.raises(PrivacyError, match="the run is over"):
        ask(ledger, compute=compute)
    assert [entry.kept for entry in other.entries()] == [False]
    for file in path.parent.iterdir():
        assert secret not in file.read_bytes()
    ledger.close()
    other.close()

"""A table's budget holds over all studies, one after the other or at once."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crashing import CONTEXT, forked
from parties import small_study, trajectory, write_tables

from cipherbayes.engine.local_settings import LocalSettings, open_ledger
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.engine.table_identity import ledger_beside
from cipherbayes.errors import BudgetError, PrivacyError
from cipherbayes.privacy.accountant import epsilon
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.ledger_backup import copy_ledger, restore_ledger
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.site import SummingSite
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.results.run import run
from cipherbayes.study.schema import Study

PROTOCOLS = ["secure-sum", "pooled"]


def with_budget(study: Study, budget: float) -> Study:
    sites = {
        name: site.model_copy(update={"budget": budget})
        for name, site in study.sites.items()
    }
    return study.model_copy(update={"sites": sites})


def entries(folder: Path, name: str = "a") -> list[Any]:
    return list(Ledger.read(folder / f"{name}.csv.ledger").entries())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_second_study_over_a_spent_table_is_refused_and_spends_nothing(
    tmp_path: Path, protocol: str
) -> None:
    study = write_tables(
        tmp_path, small_study(("a", "b"), header={"protocol": protocol})
    )
    run(study, out=tmp_path / "first")
    spent = Ledger.read(tmp_path / "a.csv.ledger").spent()
    assert 2.99 < spent <= 3.0
    with pytest.raises(BudgetError, match="budget") as refused:
        run(study, out=tmp_path / "second")
    assert "ledger" in str(refused.value)
    assert not (tmp_path / "second" / "result.json").exists()
    for name in ("a", "b"):
        assert Ledger.read(tmp_path / f"{name}.csv.ledger").spent() == spent
        assert len(entries(tmp_path, name)) == 4


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_larger_budget_allows_the_second_study(tmp_path: Path, protocol: str) -> None:
    study = write_tables(
        tmp_path, small_study(("a", "b"), header={"protocol": protocol})
    )
    run(study, out=tmp_path / "first")
    run(with_budget(study, 5.0), out=tmp_path / "second")
    assert len(entries(tmp_path)) == 8
    # Two Gaussian studies cost less than the sum of their epsilons.
    assert 3.0 < Ledger.read(tmp_path / "a.csv.ledger").spent() < 5.0


def test_a_study_with_a_larger_delta_than_the_ledgers_is_refused_at_the_start(
    tmp_path: Path,
) -> None:
    study = write_tables(tmp_path, small_study(("a", "b")))
    run(study, out=tmp_path / "first")
    assert study.privacy is not None
    privacy = study.privacy.model_copy(update={"delta": 10 * study.privacy.delta})
    looser = with_budget(study, 9.0).model_copy(update={"privacy": privacy})
    with pytest.raises(PrivacyError, match="counts at δ"):
        run(looser, out=tmp_path / "second")
    assert len(entries(tmp_path)) == 4


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_budget_that_does_not_pay_for_the_whole_study_is_refused_with_the_figures(
    tmp_path: Path, protocol: str
) -> None:
    study = write_tables(
        tmp_path, small_study(("a", "b"), header={"protocol": protocol})
    )
    with pytest.raises(BudgetError, match="nothing was spent") as refused:
        run(with_budget(study, 2.0), out=tmp_path / "run")
    for word in ("site 'a'", "of 2,", "would be 3", "sites.a.budget = 3", "ledger"):
        assert word in str(refused.value)
    assert not (tmp_path / "a.csv.ledger").exists()
    # The corrected study runs in the same folder.
    run(with_budget(study, 3.0), out=tmp_path / "run")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_second_study_says_what_budget_pays_for_both(
    tmp_path: Path, protocol: str
) -> None:
    study = write_tables(
        tmp_path, small_study(("a", "b"), header={"protocol": protocol})
    )
    run(study, out=tmp_path / "first")
    with pytest.raises(BudgetError, match=r"budget = (\d\.\d+)") as refused:
        run(study, out=tmp_path / "second")
    found = re.search(r"budget = (\d\.\d+)", str(refused.value))
    assert found is not None
    run(with_budget(study, float(found[1])), out=tmp_path / "second")
    less = with_budget(study, float(found[1]) + 0.02)
    with pytest.raises(BudgetError):
        run(less, out=tmp_path / "third")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_budget_that_is_lowered_meanwhile_gives_a_result_with_a_warning(
    tmp_path: Path, protocol: str
) -> None:
    study = write_tables(
        tmp_path, small_study(("a", "b"), header={"protocol": protocol})
    )

    def lower(done: int, total: int) -> None:
        for name in ("a", "b"):
            Ledger.read(tmp_path / f"{name}.csv.ledger").set_budget(2.0)

    result = run(study, out=tmp_path / "run", progress=lower)
    rounds = result.record["rounds"]
    assert 1 <= rounds < 4
    # The parties may have seen answers of the round that was not finished.
    assert result.certificate["epsilon"] == 3.0
    assert result.certificate["spent"] <= 2.0
    assert any(f"stopped after {rounds} rounds" in w for w in result.record["warnings"])
    assert Ledger.read(tmp_path / "a.csv.ledger").spent() <= 2.0


def test_an_average_that_stopped_before_it_began_is_where_theta_was(
    tmp_path: Path,
) -> None:
    study = small_study(("a", "b"), inference={"method": "averaged", "rounds": 40})
    study = write_tables(tmp_path, study)

    def lower(done: int, total: int) -> None:
        if done == 3:
            Ledger.read(tmp_path / "a.csv.ledger").set_budget(1.0)

    result = run(study, out=tmp_path / "run", progress=lower)
    assert 3 <= result.record["rounds"] <= 20
    np.testing.assert_array_equal(
        result.draws()[0], np.frombuffer(trajectory(tmp_path / "run")[-1])
    )


def test_one_spent_table_stops_all(tmp_path: Path) -> None:
    study = write_tables(tmp_path, small_study(("a", "b")))
    tight = study.sites["b"].model_copy(update={"budget": 0.1})
    study = study.model_copy(update={"sites": {**study.sites, "b": tight}})
    with pytest.raises(BudgetError, match="site 'b'"):
        run(study, out=tmp_path / "run")
    assert not (tmp_path / "a.csv.ledger").exists()


def test_the_certificate_is_what_the_ledgers_composed(tmp_path: Path) -> None:
    study = write_tables(tmp_path, small_study(("a", "b")))
    result = run(study, out=tmp_path / "run")
    spent = Ledger.read(tmp_path / "a.csv.ledger").spent()
    assert result.certificate["spent"] == pytest.approx(spent, rel=1e-12)
    assert spent <= 3.0 == result.certificate["epsilon"]


def test_everything_a_study_releases_is_charged(tmp_path: Path) -> None:
    """N and the moments too; all of it together within the study's budget."""
    study = write_tables(
        tmp_path,
        small_study(
            ("a", "b"),
            privacy={"records": None},
            preparation={"method": "private-moments"},
        ),
    )
    run(study, out=tmp_path / "run")
    for name in ("a", "b"):
        purposes = [entry.purpose for entry in entries(tmp_path, name)]
        assert purposes == ["records", "moments", *["gradient"] * 4]
        ledger = Ledger.read(tmp_path / f"{name}.csv.ledger")
        assert 2.9 < ledger.spent() <= 3.0
        events = [entry.event for entry in ledger.entries()]
        assert len(set(map(repr, events))) == 3
        assert all(0.0 < epsilon(event, 1e-5) < 3.0 for event in events)


def _attempt(text: str, out: Path, gate: Any) -> None:
    gate.wait(60)
    # Any other error ends the process with another exit code.
    with contextlib.suppress(BudgetError):
        run(Study.model_validate_json(text), out=out)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_runs_at_the_same_time_cannot_overspend(tmp_path: Path, protocol: str) -> None:
    study = write_tables(
        tmp_path,
        small_study(
            ("a", "b"), header={"protocol": protocol}, inference={"rounds": 12}
        ),
    )
    gate = CONTEXT.Barrier(3)
    runs = [
        forked(_attempt, study.model_dump_json(), tmp_path / f"run-{number}", gate)
        for number in range(3)
    ]
    for process in runs:
        process.start()
    for process in runs:
        process.join(120)
    assert [process.exitcode for process in runs] == [0, 0, 0]
    for name in ("a", "b"):
        ledger = Ledger.read(tmp_path / f"{name}.csv.ledger")
        # Twelve releases are what the budget buys, whoever asked for them.
        assert len(list(ledger.entries())) == 12
        assert ledger.spent() <= 3.0


class NoMemory:
    insecure = True

    def share(self, dimension: int, scale: float, label: str = "") -> Any:
        raise MemoryError


@pytest.mark.parametrize("answered", [True, False])
def test_a_run_that_goes_on_does_not_bring_an_old_budget_back(
    tmp_path: Path, answered: bool
) -> None:
    """The owner may have lowered it in between, for another study."""
    study = with_budget(write_tables(tmp_path, small_study(("a", "b"))), 9.0)
    files = {name: ledger_beside(site.data) for name, site in study.sites.items()}  # type: ignore[arg-type]
    folder = RunFolder.create(tmp_path / "run", study, files)
    site = folder.site("a")
    assert Ledger.read(files["a"]).epsilon == 9.0
    phase = plan_releases(study).phases[0]
    assert isinstance(site, SummingSite)
    if not answered:
        site._noise = NoMemory()
    with contextlib.suppress(MemoryError):
        site._noised(phase, 0, Question(np.zeros(phase.sums.dimension)))
    assert len(entries(tmp_path)) == 1
    Ledger.read(files["a"]).set_budget(4.0)
    folder.site("a")
    assert Ledger.read(files["a"]).epsilon == 4.0


@pytest.mark.parametrize("own", [None, 0.9])
def test_a_standing_budget_does_not_open_a_ledger_that_was_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: float | None
) -> None:
    study = with_budget(write_tables(tmp_path, small_study(("a", "b"))), 50.0)
    run(study)
    ledger = tmp_path / "a.csv.ledger"
    copy_ledger(ledger, tmp_path / "copy")
    monkeypatch.setenv("CIPHERBAYES_STATE", str(tmp_path / "new-machine"))
    for file in tmp_path.glob("*.ledger*"):
        file.unlink()
    assert not restore_ledger(tmp_path / "copy", ledger)
    if own is not None:  # the owner's own word, which is not enough
        Ledger.read(ledger).set_budget(own)
    with pytest.raises(BudgetError, match="cannot pay") as refused:
        run(study)
    assert f"cipherbayes ledger {ledger} --budget" in refused.value.remedy
    assert "sites.a.budget" not in refused.value.remedy
    before = len(entries(tmp_path))
    # Nor does it where nobody looked before the run.
    local: LocalSettings = {
        "data": str(tmp_path / "a.csv"),
        "ledger": str(ledger),
        "budget": 50.0,
    }
    assert open_ledger(study, "a", local).epsilon <= 3.0
    Ledger.read(ledger).set_budget(50.0)
    run(study)
    assert len(entries(tmp_path)) > before

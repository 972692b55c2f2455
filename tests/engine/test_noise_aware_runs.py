"""The noise-aware method through parties, ledgers, engines and results."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parties import FEATURES, small_study, trajectory, write_tables
from test_same_integers import decrypted_totals, plaintext_run

from cipherbayes.engine.local import run_parties
from cipherbayes.errors import BudgetError, StudyError
from cipherbayes.inference.noise_aware import Effort, released, sample_posterior
from cipherbayes.models.packing import packed_length
from cipherbayes.privacy.accountant import epsilon
from cipherbayes.privacy.events import tally
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.rounds import PhasedRounds
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.results.run import resume, run
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import open_site
from cipherbayes.typing import Integers
from conftest import logistic_frame

NOISE_AWARE = {"method": "noise-aware", "rounds": None}
D = 3


def study_of(sites: tuple[str, ...], **changes: Any) -> Study:
    changes.setdefault("privacy", {"epsilon": 2.0, "records": 1200, "clip": None})
    return small_study(sites, inference=NOISE_AWARE, **changes)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly any draws of the posterior, where it is not looked at."""
    effort = Effort(chains=2, warm_up=2, kept=4, doublings=0)
    hastily = partial(sample_posterior, effort=effort)
    monkeypatch.setattr(released, "sample_posterior", hastily)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_an_encrypted_noise_aware_run_has_the_integers_of_a_plaintext_run(
    tmp_path: Path,
) -> None:
    study = write_tables(tmp_path, study_of(("a", "b", "c")))
    run(study, out=tmp_path / "run")
    totals, thetas = plaintext_run(study)
    encrypted = decrypted_totals(tmp_path / "run")
    both = D + packed_length(D)
    early = [both, D, D, D]
    assert [total.size for total in encrypted] == 5 * early + 4 * [both]
    assert all(map(np.array_equal, encrypted, totals))
    assert trajectory(tmp_path / "run") == thetas


@pytest.mark.parametrize("records", [1200, None])
def test_the_releases_of_a_study_compose_to_its_epsilon(records: int | None) -> None:
    privacy = {"epsilon": 0.7, "records": records, "clip": None}
    study = study_of(("a", "b"), privacy=privacy)
    plan = plan_releases(study)
    assert epsilon(plan.event, 1e-5) == pytest.approx(0.7, rel=1e-4)
    assert epsilon(plan.event, 1e-5) <= 0.7
    # The one multiplier that a plan reports stands for the same composition.
    mu = np.sqrt(sum(n / s**2 for (s, _), n in tally(plan.event).items()))
    sampling = np.sqrt(24) / plan.noise_multiplier
    left = 1.0 if records else np.sqrt(0.99)  # N is released with a hundredth
    assert sampling == pytest.approx(mu * left, rel=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_every_round_is_one_entry_of_each_ledger_with_both_its_sums(
    tmp_path: Path,
) -> None:
    study = write_tables(tmp_path, study_of(("a", "b")))
    run(study, out=tmp_path / "run")
    for name in study.sites:
        ledger = Ledger.read(tmp_path / f"{name}.csv.ledger")
        entries = list(ledger.entries())
        assert [entry.purpose for entry in entries] == ["influence"] * 24
        sums = [sum(tally(entry.event).values()) for entry in entries]
        assert sums == 5 * [2, 1, 1, 1] + 4 * [2]
        assert ledger.spent() == pytest.approx(2.0, rel=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_a_run_interrupted_between_rounds_goes_on_to_the_same_posterior(
    tmp_path: Path,
) -> None:
    whole = write_tables(tmp_path / "whole", study_of(("a", "b")))
    expected = run(whole, out=tmp_path / "whole" / "run").summary()
    broken = write_tables(tmp_path / "broken", study_of(("a", "b")))

    def stop_at_seven(done: int, total: int) -> None:
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(broken, out=tmp_path / "broken" / "run", progress=stop_at_seven)
    assert resume(tmp_path / "broken" / "run").summary() == expected


@pytest.mark.slow
def test_a_result_carries_the_flags_in_words_and_for_programs(tmp_path: Path) -> None:
    privacy = {"epsilon": 0.02, "records": 120, "clip": None}
    study = write_tables(tmp_path, study_of(("a", "b"), privacy=privacy))
    run(study, out=tmp_path / "run")
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    codes = {flag["code"] for flag in record["flags"]}
    assert "mostly-prior" in codes
    said = [*record["flags"], *record["cautions"]]
    assert {flag["message"] for flag in said} <= set(record["warnings"])
    assert codes.isdisjoint(each["code"] for each in record["cautions"])
    assert record["method"] == "noise-aware"
    assert all(row["rhat"] is not None for row in record["posterior"])


@pytest.mark.slow
def test_an_exhausted_budget_ends_in_words_where_no_posterior_is_possible(
    tmp_path: Path,
) -> None:
    """The owner lowers a budget meanwhile; raised again, the run goes on."""
    study = write_tables(tmp_path, study_of(("a", "b")))

    def set_budget(epsilon: float) -> None:
        ledger = Ledger.read(tmp_path / "a.csv.ledger")
        ledger.set_budget(epsilon)
        ledger.close()

    def lower(done: int, total: int) -> None:
        set_budget(0.5)

    with pytest.raises(BudgetError, match="before there was a posterior") as refused:
        run(study, out=tmp_path / "run", progress=lower)
    for word in ("--budget", "site.toml", "resume"):
        assert word in str(refused.value)
    set_budget(2.0)
    result = resume(tmp_path / "run")
    assert result.record["rounds"] == plan_releases(study).rounds


def test_it_is_what_a_private_study_gets_that_names_no_method() -> None:
    study = study_of(("a", "b")).model_dump(exclude_none=True)
    study["inference"] = {}
    assert Study.model_validate(study).method == "noise-aware"
    study["inference"] = {"rounds": 10}
    with pytest.raises(ValueError, match=r'belongs to a chain.*method = "psgld"'):
        Study.model_validate(study)
    study["inference"] = {"rounds": 10, "method": "psgld"}
    assert Study.model_validate(study).method == "psgld"
    del study["privacy"]
    study["study"] = {"protocol": "pooled"}
    study["inference"] = {}
    assert Study.model_validate(study).method == "psgld"


@pytest.mark.parametrize("named", [{}, {"method": "noise-aware"}])
@pytest.mark.parametrize(
    "model",
    [
        {"kind": "gaussian", "variance": 1.0},
        {"kind": "neural-logistic", "outcome": "death", "hidden": [3]},
    ],
)
def test_a_model_without_calibrated_intervals_runs_by_name_only(
    model: dict[str, Any], named: dict[str, str]
) -> None:
    document = study_of(("a", "b")).model_dump(exclude_none=True)
    document |= {"model": model, "inference": named}
    if model["kind"] == "gaussian":
        document["preparation"] = {"intercept": 0.0}
    with pytest.raises(ValueError, match="has no calibrated intervals: set inference"):
        Study.model_validate(document)
    document["inference"] = {"method": "averaged"}
    assert Study.model_validate(document).method == "averaged"
    document["inference"] = {"method": "psgld"}
    study = Study.model_validate(document)
    (caution,) = study.inference_method.cautions(study.model)
    assert "no noise-aware posterior" in caution


def test_a_resolved_study_means_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    study = study_of(("a", "b"))
    path = tmp_path / "again.toml"
    path.write_text(study.to_toml())
    again = Study.load(path)
    assert again.fingerprint() == study.fingerprint()
    assert again.method == "noise-aware"


def test_settings_of_a_chain_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    text = study_of(("a", "b")).to_toml()
    path.write_text(text.replace("[inference]", "[inference]\nrounds = 10"))
    with pytest.raises(StudyError, match="belongs to a chain"):
        Study.load(path)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_encrypted_and_pooled_private_runs_have_the_same_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the totals differ from the exact sums by is σΔ wide, and around zero."""
    runs, more = 2, [f"x{j}" for j in range(6)]
    parameters = D + len(more)  # many numbers a round, so that few runs are enough
    seen: list[tuple[Phase, Question, Integers]] = []
    honest = PhasedRounds.take

    def take(
        self: PhasedRounds[Any],
        values: Integers,
        sites: int,
        lost: tuple[str, ...] = (),
    ) -> None:
        seen.append((self.phase, self.asked(), values))
        honest(self, values, sites, lost)

    monkeypatch.setattr(PhasedRounds, "take", take)
    frames = {
        name: logistic_frame(400, seed=ord(name)).assign(
            **dict(zip(more, np.random.default_rng(k).random((6, 400)), strict=True))
        )
        for k, name in enumerate(("a", "b", "c"))
    }
    features = {**FEATURES, **{name: {"low": 0.0, "high": 1.0} for name in more}}
    for protocol in ("secure-sum", "pooled"):
        study = study_of(
            ("a", "b", "c"),
            header={"protocol": protocol},
            features=features,
            privacy={
                "epsilon": 2.0,
                "records": 1200,
                "clip": None,
                "colluders": 0,  # K shares are then the noise of one curator
                "randomness": "secure",
            },
        )
        seen.clear()
        for _ in range(runs):
            run(study, frames)
        tables = [
            Contributions(study.model, open_site(study, name, frame))
            for name, frame in frames.items()
        ]
        found = []
        for phase, question, values in seen:
            exact = sum(phase.on_grid(table.total(phase, question)) for table in tables)
            widths = [
                np.full(part.dimension, part.noise_multiplier * part.sensitivity)
                for part in phase.parts
            ]
            found.append((values - exact) / np.concatenate(widths))
        noise = np.concatenate(found)
        each = 24 * parameters + 9 * packed_length(parameters)
        assert noise.size == runs * each == 1_242
        # So many draws: a variance of 1.5, shares by K - 1, passes with chance 1e-5.
        assert abs(noise.mean()) < 4.5 / np.sqrt(noise.size)
        assert abs(noise.var() - 1.0) < 4.5 * np.sqrt(2.0 / noise.size)


@pytest.mark.usefixtures("hasty")
def test_the_engine_runs_it_from_the_folder_alone(tmp_path: Path) -> None:
    from cipherbayes.engine.run_folder import RunFolder

    study = write_tables(tmp_path, study_of(("a", "b")))
    ledgers = {name: tmp_path / f"{name}.ledger" for name in study.sites}
    RunFolder.create(tmp_path / "run", study, ledgers)
    finished = run_parties(RunFolder.open(tmp_path / "run"), None, lambda *_: None)
    assert finished.draws.theta.shape[-1] == D
    assert not finished.draws.is_point

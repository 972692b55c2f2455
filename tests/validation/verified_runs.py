"""A finished run to verify, and copies of it to tamper with."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import pytest
from parties import small_study, write_tables

from cipherbayes.inference.noise_aware import Effort, released, sample_posterior
from cipherbayes.protocols.plan import Plan, plan_study
from cipherbayes.results.result import Result
from cipherbayes.results.run import run
from cipherbayes.storage.posterior_file import write_posterior
from cipherbayes.validation.verify import Findings, result_checks
from cipherbayes.validation.verify.evidence import RunEvidence
from cipherbayes.validation.verify.fields import FIELDS
from cipherbayes.validation.verify.replaying import Replayed, replay
from finished_runs import FEW, FinishedRuns

ROUNDS = 6


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An honest run of three sites, with a sampler that makes intervals."""
    home = tmp_path_factory.mktemp("verify")
    study = small_study(
        privacy={"randomness": "secure"},
        inference={"method": "psgld", "rounds": ROUNDS},
        evaluation={"holdout": 0.2, "holdout_is_public": True},
    )
    run(write_tables(home, study), out=home / "out")
    return home / "out"


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy that a malicious server may change."""
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path / "out"


def states(findings: Findings, check: str) -> set[str]:
    return {finding.state for finding in findings if finding.check == check}


@dataclass(frozen=True)
class Recomputed:
    """A run with all that a result can hold, and what its totals imply.

    Computed once: tests change the result, never the totals.
    """

    evidence: RunEvidence
    plan: Plan
    replayed: Replayed
    implied: Result

    def check(self, folder: Path, *, exact: bool = False) -> Findings:
        """The checks of a changed result, as `verify` makes them."""
        findings = Findings()
        evidence = replace(self.evidence, result=folder)
        result_checks.check_result(
            findings, evidence, self.plan, self.replayed, exact=exact
        )
        return findings


@pytest.fixture(scope="session")
def recomputed(runs: FinishedRuns) -> Recomputed:
    """Sites that differ, a formula, protected scores and Table 1."""
    evidence = RunEvidence.gather(
        runs["hospitals"], study=None, roster=None, result=None
    )
    plan = plan_study(evidence.study)
    sizes = [len(roster) for roster in evidence.transcript.rosters(plan)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Effort, "for_dimension", lambda _: FEW)
        replayed = replay(plan, evidence.transcript, sizes)
    assert replayed.draws is not None
    implied = result_checks._assembled(plan, replayed, replayed.draws)
    return Recomputed(evidence, plan, replayed, implied)


@dataclass(frozen=True)
class Elsewhere:
    """What two kinds of machine make of the same totals.

    ``folder`` is an honest result of the other one, whose chains went other ways.
    """

    here: Recomputed
    folder: Path


@pytest.fixture(scope="session")
def elsewhere(
    recomputed: Recomputed, tmp_path_factory: pytest.TempPathFactory
) -> Elsewhere:
    """The same run, with samplers that take as long as they should."""
    plan, transcript = recomputed.plan, recomputed.evidence.transcript
    sizes = [len(roster) for roster in transcript.rosters(plan)]
    replayed = replay(plan, transcript, sizes)
    sampled = sample_posterior

    def otherwise(*given: Any, seed: int) -> Any:
        return sampled(*given, seed=seed + 1)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(released, "sample_posterior", otherwise)
        theirs = replay(plan, transcript, sizes).draws
    assert replayed.draws is not None
    assert theirs is not None
    made = result_checks._assembled(plan, replayed, theirs)
    folder = tmp_path_factory.mktemp("elsewhere")
    assert recomputed.evidence.result is not None
    shutil.copy(recomputed.evidence.result / "result.json", folder / "result.json")
    of_draws = (*FIELDS["numbers"], *FIELDS["flags"], "metrics", "warnings")
    implied = json.loads(json.dumps(made.record))

    def change(record: dict[str, Any]) -> None:
        record.update({name: implied[name] for name in of_draws if name in implied})

    write_posterior(folder / "posterior.nc", made.posterior)
    change_record(folder, change)
    change_draws(folder, lambda _: None)
    return Elsewhere(replace(recomputed, replayed=replayed, implied=made), folder)


@pytest.fixture
def other_machine(elsewhere: Elsewhere, tmp_path: Path) -> Path:
    """A copy of the other machine's result that a malicious server may change."""
    shutil.copytree(elsewhere.folder, tmp_path / "other")
    return tmp_path / "other"


@pytest.fixture
def shared(recomputed: Recomputed, tmp_path: Path) -> Path:
    """A copy of the result that a malicious server may change."""
    assert recomputed.evidence.result is not None
    for name in ("result.json", "posterior.nc"):
        shutil.copy(recomputed.evidence.result / name, tmp_path / name)
    return tmp_path


def change_record(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "result.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def change_draws(folder: Path, change: Callable[[h5py.File], None]) -> None:
    """Change posterior.nc, and the hash of it in result.json."""
    path = folder / "posterior.nc"
    with h5py.File(path, "r+") as file:
        change(file)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    change_record(folder, lambda record: record.update(posterior_sha256=digest))

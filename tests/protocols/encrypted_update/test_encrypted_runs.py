"""Whole encrypted updates: engines, resuming, and the paper's own mode."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encrypted_parties import encrypted_study
from parties import write_tables

from cipherbayes.crypto.ckks.key_generation import generate_ckks_keys
from cipherbayes.errors import StudyError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.as_printed.certificate import BANNER, is_printed
from cipherbayes.protocols.as_printed.csp import PrintedCsp
from cipherbayes.protocols.as_printed.site import adjusted
from cipherbayes.protocols.encrypted_update.certificate import is_of_an_update
from cipherbayes.protocols.encrypted_update.messages import OutputRequest
from cipherbayes.protocols.messages import Reason, Refusal, decode, encode
from cipherbayes.protocols.plan import plan_study
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.results import run as running
from cipherbayes.results.result import Result
from cipherbayes.study.schema import Study

made_once = lru_cache(generate_ckks_keys)


@pytest.fixture(autouse=True)
def _one_trio(monkeypatch: pytest.MonkeyPatch) -> None:
    """These runs do not care which keys they have, and making them takes seconds."""
    made_by = "cipherbayes.crypto.ckks.circuit.generate_ckks_keys"
    monkeypatch.setattr(made_by, made_once)


def theta(folder: Path) -> np.ndarray:
    checkpoint = Checkpoint(folder / "server" / "checkpoint.sqlite")
    try:
        return np.array(checkpoint.trajectory())
    finally:
        checkpoint.close()


class InterruptedHereError(Exception):
    """A run that dies between two rounds."""


def interrupted(study: Study, out: Path, after: int) -> None:
    def progress(done: int, total: int) -> None:
        if done == after:
            raise InterruptedHereError

    with pytest.raises(InterruptedHereError):
        running.run(study, out=out, progress=progress)


@pytest.mark.slow
def test_a_resumed_run_equals_an_undisturbed_one(tmp_path: Path) -> None:
    """Up to CKKS errors, which are drawn afresh in every encryption."""
    calm = write_tables(tmp_path / "calm", encrypted_study())
    running.run(calm, out=tmp_path / "calm" / "run")
    study = write_tables(tmp_path, encrypted_study())
    interrupted(study, tmp_path / "run", 2)
    result = running.resume(tmp_path / "run")
    assert result.record["rounds"] == 4
    expected = theta(tmp_path / "calm" / "run")
    np.testing.assert_allclose(theta(tmp_path / "run"), expected, atol=2e-2)
    for name in study.sites:
        entries = list(Ledger.read(tmp_path / f"{name}.csv.ledger").entries())
        assert [entry.round for entry in entries] == [0, 1, 2, 3]


@pytest.mark.slow
def test_parties_in_processes_of_their_own_run_and_predict(tmp_path: Path) -> None:
    header = {"engine": "local-processes"}
    study = encrypted_study(("a", "b"), header=header, inference={"rounds": 2})
    study = write_tables(tmp_path, study)
    result = running.run(study, out=tmp_path / "run")
    assert result.record["protocol"] == "encrypted-update"
    assert any("point estimate" in w for w in result.record["warnings"])
    predicted = Result.load(tmp_path / "run").predict(str(tmp_path / "a.csv"))
    assert ((predicted["mean"] > 0) & (predicted["mean"] < 1)).all()


@pytest.mark.slow
def test_the_papers_circuit_runs_with_the_noise_in_the_gradient(tmp_path: Path) -> None:
    """The same function as the other circuits', also after a crash."""
    settings: dict[str, Any] = {"inference": {"rounds": 2}}
    fast = write_tables(tmp_path / "fast", encrypted_study(("a", "b"), **settings))
    running.run(fast, out=tmp_path / "fast" / "run")
    study = encrypted_study(("a", "b"), circuit="literal", **settings)
    study = write_tables(tmp_path, study)
    interrupted(study, tmp_path / "run", 1)
    record = running.resume(tmp_path / "run").record
    assert is_of_an_update(record["privacy"])
    assert (record["rounds"], record["privacy"]["circuit"]) == (2, "literal")
    expected = theta(tmp_path / "fast" / "run")
    np.testing.assert_allclose(theta(tmp_path / "run"), expected, atol=2e-2)


@pytest.mark.slow
def test_a_used_up_budget_stops_the_run(tmp_path: Path) -> None:
    study = write_tables(tmp_path, encrypted_study(("a", "b")))

    def lower(done: int, total: int) -> None:
        """The owner lowers the budget meanwhile."""
        Ledger.read(tmp_path / "a.csv.ledger").set_budget(2.0)

    result = running.run(study, out=tmp_path / "run", progress=lower)
    assert 0 < result.record["rounds"] < 4
    assert result.certificate["spent"] <= 2.0
    assert any("site a: the budget" in w for w in result.record["warnings"])


# -- as printed ---------------------------------------------------------------

PAPER = {"batch": 40, "epochs": 1, "scale": 2.0, "accept_two_sites": True}


def printed_study(**changes: Any) -> Study:
    document = encrypted_study(("a", "b"), circuit="literal").model_dump(
        mode="json", exclude_none=True
    )
    document["study"]["noise"] = "as-printed"
    document["privacy"] |= {"records": 120, "epsilon": 1.0}
    document["preparation"] = {"method": "as-printed"}
    del document["inference"]
    document["paper"] = PAPER
    return Study.model_validate({**document, **changes})


def test_exact_moments_of_two_sites_must_be_accepted() -> None:
    with pytest.raises(ValueError, match="accept_two_sites"):
        printed_study(paper={**PAPER, "accept_two_sites": False})


def test_a_gradient_bound_beyond_the_polynomials_interval_is_refused() -> None:
    study = printed_study(paper={**PAPER, "lipschitz": 2.0})
    with pytest.raises(StudyError, match="interval"):
        plan_study(study)


def test_a_scaled_gradient_keeps_its_sign_and_the_bound_that_the_proof_assumes() -> (
    None
):
    found = adjusted(np.array([-2.0, -1e-9, 3e-4, 0.5]), 1000.0, 1.0)
    np.testing.assert_array_equal(found, [-1.0, -1e-3, 0.3, 1.0])


@pytest.mark.slow
def test_the_papers_own_method_runs_and_says_that_it_is_not_certified(
    tmp_path: Path,
) -> None:
    study = write_tables(tmp_path, printed_study())
    interrupted(study, tmp_path / "run", 4)
    result = running.resume(tmp_path / "run")
    record = result.record
    assert record["rounds"] == 3
    assert not record["privacy"]["certified"]
    assert record["privacy"]["holds_against"] == []
    assert is_printed(record["privacy"])
    assert record["privacy"]["claimed_epsilon"] == 1.0
    assert BANNER in record["warnings"]
    honest = record["privacy"]["epsilon"]
    ledger = Ledger.read(tmp_path / "a.csv.ledger")
    assert ledger.spent() == pytest.approx(honest, rel=1e-6)
    assert len(list(ledger.entries())) == 1
    frames = [np.loadtxt(tmp_path / f"{n}.csv", delimiter=",", skiprows=1, usecols=0)
              for n in "ab"]  # fmt: skip
    age = (np.clip(np.concatenate(frames), 18, 100) - 59) / 41
    assert record["moments"] is not None
    assert record["moments"][0] == pytest.approx(age.mean(), abs=1e-6)


@pytest.mark.slow
def test_a_malformed_request_is_refused_and_ends_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as printed: what the CSP refuses before it decrypts may be asked anew."""
    honest, reasons = PrintedCsp.handle, []

    def after_bad_ones(csp: PrintedCsp, data: bytes) -> bytes:
        asked = decode(data, OutputRequest)
        first, *others = asked.outputs
        for outputs in ((first[:-1], *others), (*asked.outputs, first)):
            bad = encode(replace(asked, outputs=outputs))
            reasons.append(decode(honest(csp, bad), Refusal).reason)
        return honest(csp, data)

    monkeypatch.setattr(PrintedCsp, "handle", after_bad_ones)
    interrupted(write_tables(tmp_path, printed_study()), tmp_path / "run", 4)
    assert reasons == [Reason.WRONG_KEY, Reason.MALFORMED] * 5

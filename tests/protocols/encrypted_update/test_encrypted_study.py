"""What a study of an encrypted update may say, and what its plan promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encrypted_parties import encrypted_study
from typer.testing import CliRunner

from cipherbayes.cli.main import app
from cipherbayes.errors import StudyError
from cipherbayes.privacy.accountant import epsilon
from cipherbayes.protocols.encrypted_update.plan import EncryptedPlan
from cipherbayes.protocols.study_plan import plan_releases


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": {"dropouts": 1, "colluders": 0}}, "every site in every round"),
        ({"preparation": {"method": "private-moments"}}, "not for an encrypted update"),
        ({"preparation": {"method": "as-printed"}}, "exact moments"),
        ({"inference": {"method": "noise-aware"}}, "only a point"),
        ({"inference": {"method": "multilevel"}}, "only a point"),
        ({"inference": {"preconditioner": "none"}}, "rmsprop"),
        ({"header": {"protocol": "secure-sum"}}, "study.circuit belongs to"),
    ],
)
def test_what_an_encrypted_update_cannot_do_is_refused(
    changes: Any, words: Any
) -> None:
    with pytest.raises(StudyError, match=words):
        encrypted_study(**changes)


def test_the_circuit_is_hardened_where_nothing_is_said() -> None:
    study = encrypted_study(header={"circuit": None})
    assert study.document()["study"]["circuit"] == "hardened"


@pytest.mark.parametrize(("budget", "rounds"), [(0.5, 10), (1.0, 10), (3.0, 40)])
def test_rounds_follow_the_budget(budget: float, rounds: int) -> None:
    study = encrypted_study(privacy={"epsilon": budget}, inference={})
    plan = plan_releases(study)
    assert plan.rounds == rounds
    assert epsilon(plan.event, 1e-5) <= budget * (1 + 1e-9)


def test_the_number_of_records_is_not_released() -> None:
    plan = plan_releases(encrypted_study(privacy={"records": None}))
    assert [phase.purpose for phase in plan.phases] == ["gradient"]


def certificate(plan: Any) -> dict[str, Any]:
    return dict(plan.protocol.certificate(plan, 4))


def secure(**changes: Any) -> Any:
    plan = plan_releases(encrypted_study(privacy={"randomness": "secure"}, **changes))
    assert isinstance(plan, EncryptedPlan)
    return plan


def test_the_certificate_states_circuit_and_flooding_bits() -> None:
    promise = certificate(secure(circuit="hardened"))
    assert promise["certified"]
    assert promise["circuit"] == "hardened"
    assert promise["flooding_bits"] >= 20
    assert "the server" in promise["holds_against"]


@pytest.mark.parametrize("circuit", ["fast", "literal"])
def test_without_flooding_nothing_is_certified_and_every_output_says_why(
    tmp_path: Path, circuit: str
) -> None:
    plan = secure(circuit=circuit)
    promise = certificate(plan)
    assert promise["flooding_bits"] == 0
    assert promise["certified"] is False
    assert promise["holds_against"] == []
    (why,) = plan.protocol.cautions(plan)
    assert promise["not_certified_because"] == why
    assert f'circuit = "{circuit}"' in why
    assert "may find the secret key" in why
    path = tmp_path / "study.toml"
    path.write_text(plan.study.to_toml(), encoding="utf-8")
    document = json.loads(CliRunner().invoke(app, ["plan", str(path), "--json"]).stdout)
    assert document["certified"] is False
    assert why in document["warnings"]
    said = CliRunner().invoke(app, ["plan", str(path)]).stdout
    assert "not certified" in said


def test_a_run_of_a_release_without_masks_says_what_that_costs() -> None:
    plan = secure(circuit="hardened")
    promise = certificate(plan)
    assert plan.protocol.limits(promise) == []
    old = {"epsilon": 7.25, "delta": 1e-5, "against": "the CSP"}
    (limit,) = plan.protocol.limits({**promise, "single_messages": old})
    assert limit.text == "(ε, δ) = (7.25, 1e-05) against the CSP"
    _, facts = plan.protocol.security({**promise, "single_messages": old})
    assert facts[-1].text == "none: against the CSP ε is 7.25"


def test_with_flooding_plan_and_certificate_agree_that_it_is_certified(
    tmp_path: Path,
) -> None:
    plan = secure(circuit="hardened")
    path = tmp_path / "study.toml"
    path.write_text(plan.study.to_toml(), encoding="utf-8")
    result = CliRunner().invoke(app, ["plan", str(path), "--json"])
    assert json.loads(result.stdout)["certified"] is True
    assert "not_certified_because" not in certificate(plan)
    assert plan.protocol.cautions(plan) == []


def test_more_parameters_leave_fewer_bits_and_the_certificate_states_them() -> None:
    """√d of the flooding belongs to the number of values that are released."""
    features = {f"x{i}": {"low": 0, "high": 1} for i in range(600)}
    few, many = (
        secure(circuit="hardened"),
        secure(circuit="hardened", features=features),
    )
    assert few.flooding_bits == 40
    assert 30 <= many.flooding_bits < 40
    assert certificate(many)["flooding_bits"] == many.flooding_bits


def test_flooding_widens_the_noise_by_one_per_cent_at_most() -> None:
    from cipherbayes.protocols.encrypted_update.flooding import Flooding

    plan = secure(circuit="hardened")
    flooding = Flooding(bits=plan.flooding_bits, releases=plan.rounds)
    polynomial = plan.circuit.update.polynomial
    smallest = 0.1 * np.abs(polynomial(np.linspace(0.01, 1.0, 99))).min()
    for t in range(1, plan.rounds + 1):
        assert np.hypot(smallest, flooding.sd(plan.circuit, t)) < 1.0101 * smallest


def test_the_promise_holds_against_coalitions_with_the_csp() -> None:
    """Single messages are masked: there is no second, weaker figure."""
    promise = certificate(secure(circuit="hardened"))
    assert promise["holds_against"] == [
        "the public",
        "the server",
        "the CSP",
        "any one site",
        "coalitions of these",
    ]
    assert "single_messages" not in promise


def test_plan_describes_the_encryption(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(encrypted_study(circuit="hardened").to_toml(), encoding="utf-8")
    result = CliRunner().invoke(app, ["plan", str(path), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["parameters"]["scheme"] == "CKKS"
    assert document["parameters"]["ring"] == 16384
    assert document["parameters"]["security_bits"] == 128
    assert document["parameters"]["flooding_bits"] >= 20
    assert document["rounds"] == 4
    assert document["bytes_per_round_site"] > 10**6

"""What a study of an encrypted update may say, and what its plan promises."""

from __future__ import annotations

import json

import numpy as np
import pytest
from encrypted_parties import encrypted_study
from pydantic import ValidationError
from typer.testing import CliRunner

from cipherbayes.cli.main import app
from cipherbayes.planning import plan_study
from cipherbayes.privacy.accountant import epsilon
from cipherbayes.privacy.gaussian import epsilon_of
from cipherbayes.protocol.encrypted.certificate import cautions
from cipherbayes.protocol.encrypted.plan import EncryptedPlan
from cipherbayes.running import certificate


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": {"dropouts": 1, "colluders": 0}}, "every site in every round"),
        ({"preparation": {"method": "private-moments"}}, "belongs to secure-sum"),
        ({"preparation": {"method": "as-printed"}}, "exact moments"),
        ({"inference": {"method": "noise-aware"}}, "only a point"),
        ({"inference": {"preconditioner": "none"}}, "rmsprop"),
        ({"header": {"protocol": "secure-sum"}}, "study.circuit belongs to"),
    ],
)
def test_what_an_encrypted_update_cannot_do_is_refused(changes, words):
    with pytest.raises(ValidationError, match=words):
        encrypted_study(**changes)


def test_the_circuit_is_hardened_where_nothing_is_said():
    study = encrypted_study(header={"circuit": None})
    assert study.circuit == "hardened"
    assert study.document()["study"]["circuit"] == "hardened"


@pytest.mark.parametrize(("budget", "rounds"), [(0.5, 10), (1.0, 10), (3.0, 40)])
def test_rounds_follow_the_budget(budget, rounds):
    study = encrypted_study(privacy={"epsilon": budget}, inference={})
    plan = plan_study(study)
    assert plan.rounds == rounds
    assert epsilon(plan.event, 1e-5) <= budget * (1 + 1e-9)


def test_the_number_of_records_is_not_released():
    plan = plan_study(encrypted_study(privacy={"records": None}))
    assert [phase.purpose for phase in plan.phases] == ["gradient"]


def secure(**changes):
    plan = plan_study(encrypted_study(privacy={"randomness": "secure"}, **changes))
    assert isinstance(plan, EncryptedPlan)
    return plan


def test_the_certificate_states_circuit_and_flooding_bits():
    promise = certificate(secure(circuit="hardened"), 4)
    assert promise["certified"]
    assert promise["circuit"] == "hardened"
    assert promise["flooding_bits"] >= 20
    assert "the server" in promise["holds_against"]


@pytest.mark.parametrize("circuit", ["fast"])
def test_without_flooding_the_promise_needs_a_server_that_does_not_attack(circuit):
    plan = secure(circuit=circuit)
    promise = certificate(plan, 4)
    assert promise["flooding_bits"] == 0
    assert "the server" not in promise["holds_against"]
    assert "a server that does not attack the secret key" in promise["holds_against"]
    assert any("may find it" in warning for warning in cautions(plan))


def test_flooding_widens_the_noise_by_one_per_cent_at_most():
    from cipherbayes.crypto.ckks.flooding import Flooding

    plan = secure(circuit="hardened")
    flooding = Flooding(bits=plan.flooding_bits, releases=plan.rounds)
    polynomial = plan.circuit.update.polynomial
    smallest = 0.1 * np.abs(polynomial(np.linspace(0.01, 1.0, 99))).min()
    for t in range(1, plan.rounds + 1):
        assert np.hypot(smallest, flooding.sd(plan.circuit, t)) < 1.0101 * smallest


def test_single_messages_are_certified_with_their_own_share_alone():
    """Three sites, one colluder: σ/√2, so μ grows by √2."""
    plan = secure()
    release = plan.gradient.privacy
    single = certificate(plan, 4)["single_messages"]["epsilon"]
    mu = np.sqrt(4) / release.noise_multiplier * np.sqrt(2)
    assert single == pytest.approx(epsilon_of(mu, 1e-5), rel=1e-6)
    assert single > 3.0


def test_with_all_but_one_site_colluding_single_messages_cost_no_more():
    study = encrypted_study(privacy={"randomness": "secure", "colluders": 2})
    plan = plan_study(study)
    promise = certificate(plan, 4)
    assert promise["single_messages"]["epsilon"] == pytest.approx(promise["spent"])
    assert "coalitions of all of these with the CSP" in promise["holds_against"]


def test_plan_describes_the_encryption(tmp_path):
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

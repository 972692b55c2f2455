"""What a round of an encrypted update computes, and what it refuses to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encrypted_parties import EncryptedConsortium, encrypted_study

from cipherbayes.crypto.ckks.arithmetic import SealArithmetic
from cipherbayes.errors import RunError
from cipherbayes.privacy.noise import InsecureRepeatableNoise, PreparedNoise
from cipherbayes.protocols.encrypted_update.messages import (
    Attestation,
    OutputRequest,
    ReplayRequest,
)
from cipherbayes.protocols.messages import (
    DecryptReply,
    Reason,
    Refusal,
    RoundRequest,
    SiteReply,
    decode,
    encode,
)
from cipherbayes.protocols.questions import Question
from cipherbayes.typing import Integers
from cipherbayes_research.benchmarks.reference_update import ReferenceUpdate


@pytest.fixture
def consortium(tmp_path: Path) -> EncryptedConsortium:
    return EncryptedConsortium(tmp_path, encrypted_study())


def refusal(data: bytes) -> Refusal:
    return decode(data, Refusal)


# -- what is computed ---------------------------------------------------------


def test_a_site_prepares_one_encryption_while_it_waits_and_uses_it_once(
    consortium: EncryptedConsortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = consortium.sites["a"]
    for _ in range(2):
        site.prepare()
        assert site._encryptor.prepared == 1  # type: ignore[union-attr]
    consortium.play(1)
    assert site._encryptor.prepared == 0  # type: ignore[union-attr]
    site.prepare()
    # A forked process must not use what its parent may use as well.
    monkeypatch.setattr("cipherbayes.crypto.prepared_zeros.this_process", lambda: -1)
    assert site._encryptor.prepared == 0  # type: ignore[union-attr]


class _Counting(InsecureRepeatableNoise):
    """A source that remembers under which labels it drew."""

    def __init__(self) -> None:
        super().__init__("csp")
        self.labels: list[str] = []

    def share(self, dimension: int, scale: float, label: str = "") -> Integers:
        self.labels.append(label)
        return super().share(dimension, scale, label)


def test_the_csp_draws_each_rounds_flooding_once_while_it_waits(tmp_path: Path) -> None:
    consortium = EncryptedConsortium(tmp_path, encrypted_study(circuit="hardened"))
    source, csp = _Counting(), consortium.csp
    csp._noise = PreparedNoise(source)
    for number in (1, 2):
        csp.prepare()
        csp.prepare()
        drawn = [f"flooding/{round}" for round in range(1, number + 1)]
        assert source.labels == drawn
        consortium.play(1)
        assert source.labels == drawn
    csp.end()
    csp.prepare()
    assert source.labels == drawn


def test_the_server_encodes_the_drift_while_sites_compute(
    consortium: EncryptedConsortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    consortium.play(1)
    server = consortium.server
    encoded: list[object] = []
    real = SealArithmetic.encoded

    def counted(self: SealArithmetic, *given: Any) -> Any:
        encoded.append(given)
        return real(self, *given)

    monkeypatch.setattr(SealArithmetic, "encoded", counted)
    server.request()
    server.prepare()
    server.prepare()
    assert len(encoded) == 1
    server.collect(consortium.exchange())
    assert len(encoded) == 1
    server.prepare()  # while sites replay there is nothing to do
    assert len(encoded) == 1


@pytest.mark.slow
@pytest.mark.parametrize("circuit", ["fast", "hardened"])
def test_theta_follows_the_recursion_in_plain_numbers(
    tmp_path: Path, circuit: str
) -> None:
    study = encrypted_study(circuit=circuit, inference={"rounds": 3})
    consortium = EncryptedConsortium(tmp_path, study)
    consortium.play(3)
    plan = consortium.plan
    reference = ReferenceUpdate(plan.circuit.update)
    theta = np.array(plan.prior.mean)
    allowed = plan.grid / 2
    for number, released in enumerate(consortium.checkpoint.trajectory()):
        vectors = [consortium.vector(n, number, theta) for n in consortium.names]
        direction = reference.step(np.sum(vectors, axis=0), plan.drift(theta))
        flooding = 0.14 * 0.1 * 8.0 if plan.flooding_bits else 0.0
        error = allowed + plan.circuit.noise_bound(number + 1) + flooding
        moved = theta + plan.step_size * direction
        np.testing.assert_allclose(released, moved, atol=plan.step_size.max() * error)
        theta = released


def test_the_box_comes_before_the_noise(consortium: EncryptedConsortium) -> None:
    """A site's noise is whole even where its sum is at the edge of the box."""
    plan, release = consortium.plan, consortium.plan.last_phase.sums
    theta = np.array([-30.0, 0.0, 0.0])
    asked = decode(consortium.server.request()[1], RoundRequest)
    number = asked.round_id.round
    vector = consortium.sites["a"]._noised(plan.last_phase, number, Question(theta))
    total = consortium.contributions("a").total(plan.last_phase, Question(theta))
    assert np.abs(total).max() > 2 * plan.box
    edge = release.to_grid(np.clip(total, -plan.box, plan.box))
    share = InsecureRepeatableNoise("a").share(3, release.share_scale, "round 0")
    np.testing.assert_array_equal(vector, edge + share)


def test_the_box_moves_with_no_table(consortium: EncryptedConsortium) -> None:
    """B/K: the same whatever a site's number of rows."""
    plan = consortium.plan
    assert plan.box == pytest.approx(0.79 / plan.unit / 3)
    assert plan.unit * plan.noise_sd == pytest.approx(0.1)


def test_shares_leave_the_whole_noise_without_the_colluders(
    consortium: EncryptedConsortium,
) -> None:
    release = consortium.plan.last_phase.sums
    honest = release.sites - release.colluders
    left = release.share_scale * np.sqrt(honest)
    assert left >= release.noise_multiplier * release.sensitivity


@pytest.mark.slow
def test_the_result_is_a_point_that_says_so(consortium: EncryptedConsortium) -> None:
    consortium.play(4)
    draws = consortium.server._rounds.draws()
    assert draws is not None
    assert draws.is_point
    half = consortium.checkpoint.trajectory()[2:]
    np.testing.assert_allclose(draws.theta[0, 0], np.mean(half, axis=0))


# -- the sites' replay --------------------------------------------------------


def test_a_repeated_request_gets_the_same_ciphertext_after_a_restart(
    consortium: EncryptedConsortium,
) -> None:
    _, request = consortium.server.request()
    before = consortium.sites["a"].handle(request)
    consortium.restart("a")
    assert consortium.sites["a"].handle(request) == before


@pytest.mark.slow
def test_a_site_attests_again_after_a_restart(consortium: EncryptedConsortium) -> None:
    consortium.play(2)
    request = encode(consortium.replay_request())
    before = decode(consortium.sites["a"].handle(request), Attestation)
    consortium.restart("a")
    after = decode(consortium.sites["a"].handle(request), Attestation)
    assert after.output == before.output


def test_a_site_refuses_a_round_without_one_of_the_sites(
    consortium: EncryptedConsortium,
) -> None:
    request = consortium.replay_request()
    cut = ReplayRequest(request.round_id, request.theta, request.replies[:-1])
    answer = refusal(consortium.sites["a"].handle(encode(cut)))
    assert answer.reason is Reason.WRONG_ROSTER


def test_a_site_refuses_a_ciphertext_under_another_sites_name(
    consortium: EncryptedConsortium,
) -> None:
    """A doubled site: its ciphertext again, under a name that did not sign it."""
    request = consortium.replay_request()
    first, second, third = request.replies
    doubled = replace(second, ciphertext=first.ciphertext)
    changed = ReplayRequest(request.round_id, request.theta, (first, doubled, third))
    answer = refusal(consortium.sites["a"].handle(encode(changed)))
    assert answer.reason is Reason.BAD_SIGNATURE


def test_a_site_refuses_replies_of_an_old_round(
    consortium: EncryptedConsortium,
) -> None:
    old = consortium.replay_request()
    asked = consortium.server.collect(consortium.exchange())
    consortium.server.accept(consortium.csp.handle(asked))  # type: ignore[arg-type]
    new = consortium.replay_request()
    replayed = tuple(replace(r, round_id=new.round_id) for r in old.replies)
    mixed = ReplayRequest(new.round_id, new.theta, replayed)
    answer = refusal(consortium.sites["a"].handle(encode(mixed)))
    assert answer.reason is Reason.BAD_SIGNATURE


@pytest.mark.slow
def test_a_site_computes_no_round_twice_but_the_last(
    consortium: EncryptedConsortium,
) -> None:
    old = consortium.replay_request()
    asked = consortium.server.collect(consortium.exchange())
    consortium.server.accept(consortium.csp.handle(asked))  # type: ignore[arg-type]
    consortium.play()
    answer = refusal(consortium.sites["a"].handle(encode(old)))
    assert answer.reason in (Reason.REPLAY, Reason.WRONG_ROUND)


def test_a_site_refuses_another_reply_under_its_own_name(
    consortium: EncryptedConsortium,
) -> None:
    """Even one that it signed itself must be the one it remembers."""
    request = consortium.replay_request()
    own = request.replies[0]
    plan = consortium.plan
    other = plan.circuit.encryptor(consortium.trio.public).encrypt(
        np.zeros(3, dtype=np.int64), 1
    )
    forged = SiteReply.signed(
        consortium.keys["a"],
        round_id=own.round_id,
        site="a",
        ciphertext=other.to_bytes(),
    )
    changed = ReplayRequest(
        request.round_id, request.theta, (forged, *request.replies[1:])
    )
    answer = refusal(consortium.sites["a"].handle(encode(changed)))
    assert answer.reason is Reason.REPLAY


# -- the server ---------------------------------------------------------------


def test_another_output_of_a_site_stops_the_round_with_a_reason(
    consortium: EncryptedConsortium,
) -> None:
    consortium.replay_request()
    answers = consortium.exchange()
    honest = decode(answers["b"], Attestation)
    answers["b"] = encode(
        Attestation.signed(
            consortium.keys["b"],
            round_id=honest.round_id,
            site="b",
            output=bytes(32),
        )
    )
    with pytest.raises(RunError, match="computed another output") as caught:
        consortium.server.collect(answers)
    assert caught.value.where == "site b"


@pytest.mark.parametrize("missing", [None, b"nothing"])
def test_a_missing_attestation_stops_the_round_with_a_reason(
    consortium: EncryptedConsortium, missing: Any
) -> None:
    consortium.replay_request()
    answers = {**consortium.exchange(), "c": missing}
    with pytest.raises(RunError, match="round 0 stops"):
        consortium.server.collect(answers)


def test_a_lost_site_stops_the_round(consortium: EncryptedConsortium) -> None:
    answers = {**consortium.exchange(), "a": None}
    with pytest.raises(RunError, match="needs 3 sites"):
        consortium.server.collect(answers)


# -- the CSP ------------------------------------------------------------------


def test_the_csp_decrypts_what_all_sites_attested_to(
    consortium: EncryptedConsortium,
) -> None:
    reply = decode(consortium.csp.handle(encode(consortium.question())), DecryptReply)
    reply.verify(consortium.pinned["csp"])
    assert reply.values.shape == (3,)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_the_csp_refuses_an_output_that_not_all_sites_attested_to(
    consortium: EncryptedConsortium, kept: Any
) -> None:
    asked = consortium.question()
    partial = replace(asked, attestations=asked.attestations[:kept])
    answer = refusal(consortium.csp.handle(encode(partial)))
    assert answer.reason is Reason.WRONG_ROSTER
    assert consortium.answers.rounds() == 0


def test_the_csp_refuses_an_altered_output(consortium: EncryptedConsortium) -> None:
    asked = consortium.question()
    circuit = consortium.plan.circuit
    output = circuit.read_output(asked.outputs[0], consortium.trio.public.key_id)
    words = np.array(output.polynomials)
    words[0, 0, 0, 0] ^= np.uint64(1)
    altered = replace(output, polynomials=words)
    changed = replace(asked, outputs=(altered.to_bytes(),))
    answer = refusal(consortium.csp.handle(encode(changed)))
    assert answer.reason is Reason.BAD_SIGNATURE
    assert consortium.answers.rounds() == 0


def test_the_csp_refuses_an_attestation_that_the_site_did_not_sign(
    consortium: EncryptedConsortium,
) -> None:
    asked = consortium.question()
    first, *rest = asked.attestations
    forged = Attestation.signed(
        consortium.keys["b"],
        round_id=first.round_id,
        site="a",
        output=first.output,
    )
    changed = replace(asked, attestations=(forged, *rest))
    answer = refusal(consortium.csp.handle(encode(changed)))
    assert answer.reason is Reason.BAD_SIGNATURE


def test_the_csp_answers_a_round_once(consortium: EncryptedConsortium) -> None:
    asked = encode(consortium.question())
    first = consortium.csp.handle(asked)
    assert consortium.csp.handle(asked) == first
    again = decode(asked, OutputRequest)
    assert consortium.csp.handle(encode(replace(again, attestations=()))) == first


@pytest.mark.slow
def test_the_csp_refuses_an_old_rounds_output_in_a_new_round(
    consortium: EncryptedConsortium,
) -> None:
    old = consortium.question()
    consortium.server.accept(consortium.csp.handle(encode(old)))
    new = consortium.question()
    mixed = replace(old, round_id=new.round_id)
    answer = refusal(consortium.csp.handle(encode(mixed)))
    assert answer.reason is Reason.WRONG_ROUND


def test_the_csp_never_receives_a_sites_ciphertext(
    consortium: EncryptedConsortium,
) -> None:
    asked = consortium.question()
    computed = consortium.server._computed
    assert computed is not None
    sent = {reply.ciphertext for reply in computed.replies}
    assert not sent & set(asked.outputs)
    assert len(asked.outputs) == 1

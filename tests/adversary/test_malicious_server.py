"""A server that wants more than the totals: gradients, single messages, the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exposed import centred, exact, without
from parties import RUN, Consortium, changed, small_study, three

import cipherbayes as cb
from cipherbayes.crypto.bfv.ciphertext import Ciphertext
from cipherbayes.crypto.bfv.keys import KeyPair, generate_keys
from cipherbayes.crypto.bfv.limbs import join_limbs
from cipherbayes.errors import CipherbayesError
from cipherbayes.inference.gradient import gradient_sum
from cipherbayes.inference.released import Recursion, Release, ServerState
from cipherbayes.privacy.noise import InsecureRepeatableNoise, SecureNoise
from cipherbayes.protocols import contributions
from cipherbayes.protocols.messages import (
    DecryptReply,
    DecryptRequest,
    KeyOffer,
    Refusal,
    RunManifest,
    SiteReply,
    decode,
    encode,
)
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.site import Site
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.study.tables import open_site
from conftest import survival_frame

__all__ = ["three"]

FOUR = ("a", "b", "c", "d")


def answered(consortium: Consortium, question: bytes) -> Any:
    """The total the CSP tells, or None."""
    reply = decode(consortium.csp.handle(question), DecryptReply, Refusal)
    return None if isinstance(reply, Refusal) else reply.values


# -- the gradient from θ_t and θ_{t+1} ---------------------------------------


def released_from(recursion: Recursion, state: ServerState, after: Any) -> Any:
    """The gradient sum that moved θ_t to θ_{t+1}: the move is affine in it."""
    size = state.theta.size

    def moved(total: Any) -> Any:
        return recursion.advance(state, Release(total, 0.0)).theta

    start = moved(np.zeros(size))
    columns = [moved(row) - start for row in np.eye(size)]
    return np.linalg.solve(np.array(columns).T, after - start)


def share_recovered(tmp_path: Path, noise: dict[str, Any]) -> float:
    """Part of the coordinates of Σ gradients that the server gets right.

    It undoes the update, then subtracts every noise value it can compute: the seeds
    of repeatable noise are in the study, which everybody has.
    """
    study = small_study(inference={"method": "averaged", "rounds": 60})
    consortium = Consortium(tmp_path, study)
    for name in consortium.names:
        consortium.sites[name] = consortium.site(name, noise=noise[name])
        consortium.sites[name].join(consortium.manifest, consortium.offer)
    consortium.play(60)
    release = consortium.plan.last_phase.sums
    recursion = consortium.plan.recursion(1000.0)
    state = recursion.start()
    hits = []
    for number, after in enumerate(consortium.checkpoint.trajectory()):
        estimate = released_from(recursion, state, after) / release.step
        for name in consortium.names:
            guess = InsecureRepeatableNoise(name)
            estimate -= guess.share(3, release.share_scale, f"round {number}")
        truth = sum(exact(consortium, name, state.theta) for name in consortium.names)
        hits += list(np.abs(estimate - truth) < 0.02 * release.share_scale)
        state = ServerState(after, state.memory, number + 1)
    return float(np.mean(hits))


@pytest.mark.slow
def test_the_server_undoes_the_update_and_finds_noise_not_a_gradient(
    tmp_path: Path,
) -> None:
    """The paper's server draws the noise; here it would have to guess it."""
    known = {name: InsecureRepeatableNoise(name) for name in "abc"}
    assert share_recovered(tmp_path / "known", known) == 1.0
    secret = {name: SecureNoise() for name in "abc"}
    # 2 · 0.02 · φ(0) ≈ 0.01 by luck, less still with five shares to guess.
    assert share_recovered(tmp_path / "secret", secret) < 0.06


# -- the CSP as an oracle ------------------------------------------------------


def key_query(consortium: Consortium, first: int) -> bytes:
    """(first, A) with A near q/t, which decrypts to the secret key itself."""
    parameters = consortium.pair.public.parameters
    question = consortium.question()
    step = round(parameters.modulus / parameters.plain_modulus)
    replies = []
    for reply in question.replies:
        polynomials = np.zeros((1, 2, parameters.ring), dtype=np.uint64)
        if reply.site == "a":
            polynomials[0, :, 0] = first, step
        elif first:
            polynomials[0, :, 0] = first
        forged = object.__new__(Ciphertext)
        for name, value in (
            ("parameters", parameters),
            ("key_id", consortium.pair.public.key_id),
            ("dimension", 3),
            ("summands", 1),
            ("polynomials", polynomials),
        ):
            object.__setattr__(forged, name, value)
        replies.append(changed(reply, ciphertext=forged.to_bytes()))
    return encode(DecryptRequest(question.round_id, tuple(replies)))


def secret_from(consortium: Consortium, answer: Any) -> Any:
    """The ternary key in a key query's answer; None if it is not."""
    parameters = consortium.pair.public.parameters
    if answer is None or len(answer) < parameters.ring:
        return None
    key = np.where(answer == parameters.plain_modulus - 1, -1, answer)
    return key if np.abs(key).max() <= 1 else None


def opened_with(key: Any, reply: SiteReply, consortium: Consortium) -> Any:
    """One site's vector, decrypted by nothing but the stolen key."""
    public = consortium.pair.public
    parameters = public.parameters
    q, t = parameters.modulus, parameters.plain_modulus
    ciphertext = Ciphertext.from_bytes(
        reply.ciphertext, parameters=parameters, key_id=public.key_id, dimension=3
    )
    first, second = ciphertext.polynomials[0].astype(np.int64)
    phase = first.copy()
    for power in np.flatnonzero(key):
        turned = np.roll(second, power)
        turned[:power] *= -1  # x^n = -1
        phase = (phase + key[power] * turned) % q
    message = [(int(c) * t + q // 2) // q % t for c in phase]
    limbs = np.array(message[: 3 * parameters.limbs], dtype=np.uint64)
    return join_limbs(limbs, parameters)


EVERYTHING = ("signatures", "well-formed ciphertexts", "coefficients", "range")


@pytest.mark.parametrize("first", [0, 1], ids=["(0, A)", "(1, A)"])
def test_a_question_about_the_key_itself_is_not_answered(
    three: Consortium, first: Any
) -> None:
    query = key_query(three, first)
    with without(*EVERYTHING, "one answer"):
        key = secret_from(three, answered(three, query))
    assert key is not None
    # One answer, and every message of the run is open.
    for reply in three.question().replies:
        assert np.array_equal(opened_with(key, reply, three), three.opened(reply))
    assert secret_from(three, answered(three, query)) is None
    assert three.answers.rounds() == 0


@pytest.mark.parametrize("first", [0, 1], ids=["(0, A)", "(1, A)"])
@pytest.mark.parametrize("kept", ["signatures", "coefficients"])
def test_either_of_two_defences_alone_keeps_the_key(
    three: Consortium, first: Any, kept: Any
) -> None:
    """Also (1, A), which the check for empty polynomials lets pass."""
    query = key_query(three, first)
    with without(*(each for each in EVERYTHING if each != kept), "one answer"):
        assert secret_from(three, answered(three, query)) is None


def test_a_single_message_is_not_decrypted_and_is_masked_if_it_were(
    three: Consortium,
) -> Any:
    """Two defences: the CSP wants the whole roster, and the site masks."""

    def attack() -> Any:
        try:
            request = three.request(("a",))
            reply = decode(three.sites["a"].handle(request), SiteReply)
        except CipherbayesError:
            return None
        question = DecryptRequest(reply.round_id, (reply,))
        return answered(three, encode(question))

    def succeeds(seen: Any) -> bool:
        bits = three.pair.public.parameters.word_bits
        truth = exact(three, "a", np.zeros(3))
        noise = three.plan.last_phase.sums.share_scale
        return seen is not None and bool(
            (np.abs(centred(seen - truth, bits)) < 6 * noise).all()
        )

    with without("minimum", "masks", "range", "one answer"):
        assert succeeds(attack())
    # A roster of one has no masks to hide behind, so the minimum is what counts.
    assert attack() is None


def difference_of_rosters(four: Consortium) -> Any:
    """Site d's noised vector: the sum with it minus the sum without it."""
    whole = answered(four, encode(four.question()))
    rest = four.question(four.request(("a", "b", "c"), attempt=1))
    part = answered(four, encode(rest))
    return None if whole is None or part is None else whole - part


def test_two_rosters_of_one_round_cannot_be_subtracted(tmp_path: Path) -> None:
    study = small_study(FOUR, privacy={"dropouts": 1})
    four = Consortium(tmp_path, study)
    noise = four.plan.last_phase.sums.share_scale
    truth = exact(four, "d", np.zeros(3))
    with without("one answer"):
        seen = difference_of_rosters(four)
        assert (np.abs(seen - truth) < 6 * noise).all()
        assert np.abs(seen).max() > 0
    # The CSP answers a round once: the difference of an answer with itself.
    assert not difference_of_rosters(four).any()


def test_a_site_cannot_be_counted_twice(three: Consortium) -> Any:
    """Twice a + b + c, minus the honest total, would be a's vector."""
    honest = three.question()
    a, b, c = honest.replies

    def attack() -> Any:
        doubled = object.__new__(DecryptRequest)
        object.__setattr__(doubled, "round_id", honest.round_id)
        object.__setattr__(doubled, "replies", (a, a, b, c))
        return answered(three, encode(doubled))

    with without("masks"):
        three.sites = {name: three.restart(name) for name in three.names}
        honest = three.question()
        a, b, c = honest.replies
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "cipherbayes.crypto.identity.roster.Roster.restrict", _with_repeats
            )
            with without("distinct sites", "range", "one answer"):
                total = answered(three, encode(honest))
                assert np.array_equal(attack() - total, three.opened(a))
        assert attack() is None
    assert three.answers.rounds() == 0


def _with_repeats(self: Any, sites: Any) -> Any:
    """A roster that does not mind a repeated site."""
    from cipherbayes.crypto.identity.roster import Roster

    return Roster.of([self[site] for site in set(sites)])


def test_an_old_rounds_messages_do_not_answer_a_new_round(three: Consortium) -> None:
    old = three.question()
    three.play(1)
    present = three.round_id()
    replayed = encode(
        DecryptRequest(
            present, tuple(changed(reply, round_id=present) for reply in old.replies)
        )
    )
    with without("signatures"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(three.answers, "keep", lambda number, reply: reply)
        assert answered(three, replayed) is not None
    assert answered(three, replayed) is None


def test_a_message_cannot_be_shifted_by_a_known_amount(three: Consortium) -> None:
    """BFV is malleable: adding a ciphertext adds its plaintext. Signatures are not."""
    question = three.question()
    a, b, c = question.replies
    public = three.pair.public
    kind: dict[str, Any] = {
        "parameters": public.parameters,
        "key_id": public.key_id,
        "dimension": 3,
    }
    honest = Ciphertext.from_bytes(a.ciphertext, **kind)
    extra = public.encrypt(np.array([1000, 0, -7]))
    q = np.uint64(public.parameters.modulus)
    shifted = Ciphertext(
        *(public.parameters, public.key_id, 3, 1),
        (honest.polynomials + extra.polynomials) % q,
    ).to_bytes()
    forged = encode(
        DecryptRequest(question.round_id, (changed(a, ciphertext=shifted), b, c))
    )
    with without("signatures", "one answer", "coefficients", "range"):
        # One by one: the limbs of a moved by exactly what was added.
        before, after = answered(three, encode(question)), answered(three, forged)
        t = public.parameters.plain_modulus
        moved = centred_modulo(after - before, t)[:3]
        low = 2**public.parameters.limb_bits
        assert [int(each) for each in moved] == [1000 % low, 0, -7 % low]
    assert answered(three, forged) is None


def centred_modulo(values: Any, modulus: int) -> Any:
    return (values + modulus // 2) % modulus - modulus // 2


def test_the_server_cannot_make_sites_encrypt_to_its_own_key(three: Consortium) -> None:
    own = generate_keys(three.pair.public.parameters)
    honest = decode(three.manifest, RunManifest)
    fields = {name: getattr(honest, name) for name in honest.__dataclass_fields__}
    manifest = encode(RunManifest(**{**fields, "key_id": own.public.key_id}))
    offer = encode(
        KeyOffer(RUN, three.plan.study_hash, own.public.to_bytes(), bytes(64))
    )
    noise = three.plan.last_phase.sums.share_scale
    truth = exact(three, "a", np.zeros(3))
    bits = own.public.parameters.word_bits
    request = three.request()
    with without("offer"):
        seen = through_own_key(three.site("a"), own, manifest, offer, request)
        # The masks still stand: what the server opens is uniform modulo 2^b.
        assert (np.abs(centred(seen - truth, bits)) > 6 * noise).any()
        with without("masks"):
            seen = through_own_key(three.site("a"), own, manifest, offer, request)
        assert (np.abs(centred(seen - truth, bits)) < 6 * noise).all()
    with pytest.raises(CipherbayesError, match="signature"):
        three.site("a").join(manifest, offer)


def through_own_key(
    site: Site[Any], own: KeyPair, manifest: bytes, offer: bytes, request: bytes
) -> Any:
    """A site's vector, decrypted by whoever chose the key."""
    site.join(manifest, offer)
    reply = decode(site.handle(request), SiteReply)
    ciphertext = Ciphertext.from_bytes(
        reply.ciphertext,
        parameters=own.public.parameters,
        key_id=own.public.key_id,
        dimension=3,
    )
    return own.secret.decrypt(ciphertext)


# -- rosters and θ -------------------------------------------------------------


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0)])
def test_replies_in_another_order_are_refused_and_would_change_nothing(
    three: Consortium, order: Any
) -> None:
    question = three.question()
    shuffled = object.__new__(DecryptRequest)
    object.__setattr__(shuffled, "round_id", question.round_id)
    replies = tuple(question.replies[i] for i in order)
    object.__setattr__(shuffled, "replies", replies)
    with without("distinct sites", "one answer"):
        total = answered(three, encode(shuffled))
        assert np.array_equal(total, answered(three, encode(question)))
    assert answered(three, encode(shuffled)) is None


def test_a_poisoned_theta_gives_no_record_more_weight(tmp_path: Path) -> Any:
    """At θ far out one record's survival gradient is huge: clipping is what holds."""
    study = cb.Study(
        study={"protocol": "secure-sum"},
        model=cb.models.Exponential(time="time", event="event", horizon=1500.0),
        features={"age": {"low": 18, "high": 100}},
        privacy={"epsilon": 1.0, "records": 1000},
        inference={"rounds": 1, "method": "averaged"},
        sites={"a": {}, "b": {}},
    )
    phase = plan_releases(study).last_phase
    frame = survival_frame(50)
    frame.loc[0] = [99.0, 1500.0, 1]
    poisoned = np.array([6.0, 6.0])

    def shift() -> float:
        """How far the canary moves what site a releases, in noise's sds."""
        sums = [
            contributions.Contributions(study.model, open_site(study, "a", rows)).total(
                phase, Question(poisoned)
            )
            for rows in (frame, frame.iloc[1:])
        ]
        moved = np.linalg.norm(sums[0] - sums[1])
        return float(moved / phase.sums.noise_sd(2))

    honest = gradient_sum
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            contributions,
            "gradient_sum",
            lambda *args, **given: honest(*args, **{**given, "clip": None}),
        )
        # Fifty sds: the server is certain that the record is there.
        assert shift() > 50.0
    assert shift() <= 1.0 / phase.sums.noise_multiplier

"""A site answers what the study asks, once, and refuses everything else."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parties import RUN, Consortium, refusal, small_study, three
from scipy import stats

from cipherbayes.crypto.bfv.keys import PublicKey
from cipherbayes.crypto.identity.roster import Member, Roster
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.crypto.masks import ExchangeKey
from cipherbayes.crypto.wire.framing import Kind, decode_frame, encode_frame
from cipherbayes.errors import CryptoError, DataError, ProtocolError
from cipherbayes.protocols.messages import (
    KeyOffer,
    Reason,
    RoundRequest,
    RunManifest,
    SiteReply,
    decode,
    encode,
)
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.refusals import NO_BUDGET

__all__ = ["three"]


def rounds_charged(consortium: Consortium, name: str = "a") -> int:
    return len(list(consortium.ledger(name).entries()))


# -- what is refused --------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": bytes(16)}, Reason.WRONG_RUN),
        ({"study": bytes(32)}, Reason.WRONG_STUDY),
        ({"round": 1}, Reason.WRONG_ROUND),
        ({"round": 4}, Reason.WRONG_ROUND),
        ({"round": 2**32 - 1}, Reason.WRONG_ROUND),
        ({"purpose": "moments"}, Reason.WRONG_ROUND),
        ({"purpose": "records"}, Reason.WRONG_ROUND),
        ({"roster": bytes(32)}, Reason.WRONG_ROSTER),
        ({"sites": ("a", "b")}, Reason.WRONG_ROSTER),
        ({"sites": ("a",)}, Reason.WRONG_ROSTER),
        ({"sites": ("b", "c")}, Reason.WRONG_ROSTER),
        ({"theta": (0.0, 0.0)}, Reason.MALFORMED),
        ({"theta": (0.0,) * 4}, Reason.MALFORMED),
        # Farther out than any prior: terms that cancel would leave rounding errors.
        ({"theta": (1e10, -1e10, 0.0)}, Reason.MALFORMED),
        # As long as a question with released moments, which this study has not.
        ({"theta": (0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0)}, Reason.MALFORMED),
    ],
    ids=str,
)
def test_a_request_that_is_not_the_studys_is_refused_and_charged_nothing(
    three: Consortium, changes: Any, reason: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site = three.sites["a"]
    with caplog.at_level(logging.WARNING, logger="cipherbayes.site"):
        answer = refusal(site.handle(three.request(**changes)))
    assert (answer.party, answer.reason) == ("a", reason)
    assert reason.value in caplog.text
    assert rounds_charged(three) == 0
    # It was no accident that costs the round: the right question is answered.
    decode(site.handle(three.request()), SiteReply)
    assert rounds_charged(three) == 1


def test_a_roster_without_the_asked_site_is_refused_and_charged_nothing(
    tmp_path: Path,
) -> None:
    """Large enough and signed by nobody yet: it is simply not this site's."""
    four = Consortium(
        tmp_path, small_study(("a", "b", "c", "d"), privacy={"dropouts": 1})
    )
    request = four.request(("b", "c", "d"), attempt=1)
    assert refusal(four.sites["a"].handle(request)).reason is Reason.WRONG_ROSTER
    assert rounds_charged(four) == 0


def test_a_roster_with_a_stranger_is_refused(three: Consortium) -> None:
    request = decode(three.request(), RoundRequest)
    foreign = encode(RoundRequest(request.round_id, ("a", "b", "z"), request.theta))
    assert refusal(three.sites["a"].handle(foreign)).reason is Reason.MALFORMED
    assert rounds_charged(three) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_theta_that_is_not_finite_is_refused_when_it_is_read(
    three: Consortium, value: Any
) -> None:
    honest = three.request(theta=(0.0, 1234.5, 0.0))
    word = np.array([1234.5]).tobytes()
    assert honest.count(word) == 1
    # The frame's checksum is over its content, so a forger makes it anew.
    body = bytes(decode_frame(honest, Kind.ROUND_REQUEST, limit=2**20))
    body = body.replace(word, np.array([value]).tobytes())
    forged = encode_frame(Kind.ROUND_REQUEST, body)
    answer = refusal(three.sites["a"].handle(forged))
    assert answer.reason is Reason.MALFORMED
    assert "finite" in answer.text
    assert rounds_charged(three) == 0


@pytest.mark.parametrize("size", [1e-300, 1.0, 1e3])
def test_every_theta_within_the_public_bound_is_answered(
    three: Consortium, size: Any
) -> None:
    reply = three.replies(three.request(theta=(size, -size, size)))["a"]
    plan = three.plan.last_phase.sums
    assert np.abs(three.unmasked(reply)).max() <= plan.bound


@pytest.mark.parametrize("data", [b"", b"\x00" * 40, b"CBAY" + bytes(100)])
def test_bytes_that_are_no_request_are_refused(three: Consortium, data: Any) -> None:
    assert refusal(three.sites["a"].handle(data)).reason is Reason.MALFORMED


def test_another_message_is_no_request(three: Consortium) -> None:
    for message in (three.manifest, three.offer, three.sites["b"].enrol()):
        assert refusal(three.sites["a"].handle(message)).reason is Reason.MALFORMED


def test_a_site_that_has_not_joined_refuses(three: Consortium) -> None:
    site = three.site("a")
    assert refusal(site.handle(three.request())).reason is Reason.WRONG_RUN
    assert rounds_charged(three) == 0


def test_an_answered_round_has_no_second_question(
    three: Consortium, caplog: pytest.LogCaptureFixture
) -> None:
    site = three.sites["a"]
    decode(site.handle(three.request()), SiteReply)
    other = three.request(theta=(0.0, 0.0, 1e-9))
    for asked in (site, three.restart("a")):
        caplog.clear()
        assert refusal(asked.handle(other)).reason is Reason.UNAVAILABLE
        assert "another question" in caplog.text
    assert rounds_charged(three) == 1


def test_a_round_beyond_the_budget_is_refused_as_such(tmp_path: Path) -> None:
    # A budget of 1.5 pays for one of four rounds that cost 3 together.
    few = Consortium(tmp_path, small_study(), budgets={"a": 1.5})
    few.play(1)
    spent = few.ledger("a").spent()
    answer = refusal(few.sites["a"].handle(few.server.request()[1]))
    assert answer.reason is Reason.BUDGET
    assert rounds_charged(few) == 1
    assert few.ledger("a").spent() == spent <= 1.5
    # The round it answered before stays answered.
    decode(few.restart("a").handle(few.request(round=0)), SiteReply)


def test_what_a_table_has_spent_before_is_not_told(tmp_path: Path) -> None:
    answers = set()
    for budget in (0.01, 0.5, 1.0):
        few = Consortium(tmp_path / str(budget), small_study(), budgets={"a": budget})
        answers.add(few.sites["a"].handle(few.request()))
    assert len(answers) == 1
    assert refusal(answers.pop()).text == NO_BUDGET


def test_a_table_larger_than_the_study_says_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="more rows"):
        Consortium(tmp_path, small_study(privacy={"records": 50}))


def test_where_a_file_lies_is_not_told_to_the_server(tmp_path: Path) -> None:
    few = Consortium(tmp_path, small_study(), budgets={"a": 0.01})
    answer = few.sites["a"].handle(few.request())
    assert refusal(answer).reason is Reason.BUDGET
    assert str(tmp_path).encode() not in answer


# -- joining ----------------------------------------------------------------


def test_a_manifest_with_an_exchange_key_nobody_signed_is_refused(
    three: Consortium,
) -> None:
    honest = decode(three.manifest, RunManifest)
    stranger = ExchangeKey.generate()
    members = [
        Member(m.site, m.identity, stranger.public, m.signature) if m.site == "b" else m
        for m in honest.roster
    ]
    fields = {name: getattr(honest, name) for name in honest.__dataclass_fields__}
    forged = RunManifest(**{**fields, "roster": Roster.of(members)})
    with pytest.raises(ProtocolError, match="signature"):
        three.site("a").join(encode(forged), three.offer)


def test_a_manifest_with_a_stranger_in_a_sites_place_is_refused(
    three: Consortium,
) -> None:
    honest = decode(three.manifest, RunManifest)
    impostor = Member.enrol(
        SigningKey.generate(),
        run=RUN,
        study=three.plan.study_hash,
        site="b",
        exchange=ExchangeKey.generate().public,
    )
    members = [impostor if m.site == "b" else m for m in honest.roster]
    fields = {name: getattr(honest, name) for name in honest.__dataclass_fields__}
    forged = RunManifest(**{**fields, "roster": Roster.of(members)})
    with pytest.raises(ProtocolError, match="pins"):
        three.site("a").join(encode(forged), three.offer)


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 5},
        {"run": bytes(16)},
        {"study": bytes(32)},
        {"csp": bytes(32)},
        {"key_id": bytes(32)},
        {"parameters": "bfv-8192"},
    ],
    ids=str,
)
def test_a_manifest_that_is_not_the_studys_is_refused(
    three: Consortium, changes: Any
) -> None:
    honest = decode(three.manifest, RunManifest)
    fields = {name: getattr(honest, name) for name in honest.__dataclass_fields__}
    with pytest.raises(ProtocolError):
        three.site("a").join(encode(RunManifest(**{**fields, **changes})), three.offer)


def test_a_manifest_without_a_site_is_refused(three: Consortium) -> None:
    honest = decode(three.manifest, RunManifest)
    fields = {name: getattr(honest, name) for name in honest.__dataclass_fields__}
    smaller = RunManifest(**{**fields, "roster": honest.roster.restrict(["a", "b"])})
    with pytest.raises(ProtocolError, match="not the study's"):
        three.site("a").join(encode(smaller), three.offer)


def test_a_public_key_that_the_csp_did_not_sign_is_refused(three: Consortium) -> None:
    offer = KeyOffer.signed(
        SigningKey.generate(),
        run=RUN,
        study=three.plan.study_hash,
        public_key=three.pair.public.to_bytes(),
    )
    with pytest.raises(ProtocolError, match="signature"):
        three.site("a").join(three.manifest, encode(offer))


# -- the same answer --------------------------------------------------------


def test_the_same_request_gets_the_same_bytes(three: Consortium) -> None:
    request = three.request()
    assert three.sites["a"].handle(request) == three.sites["a"].handle(request)
    assert rounds_charged(three) == 1


def test_after_a_restart_the_vector_is_the_same_and_the_ciphertext_is_fresh(
    three: Consortium,
) -> None:
    request = three.request()
    before = three.replies(request)["a"]
    three.restart("a")
    after = three.replies(request)["a"]
    assert before.ciphertext != after.ciphertext
    assert np.array_equal(three.opened(before), three.opened(after))
    assert rounds_charged(three) == 1


def test_a_restarted_site_does_not_draw_fresh_noise(three: Consortium) -> None:
    """The stored vector answers, even where noise and table would now differ."""
    request = three.request()
    before = three.unmasked(three.replies(request)["a"])

    class Loud:
        insecure = True

        def share(self, *_: Any) -> None:
            raise AssertionError("noise was drawn a second time")

    three.sites["a"] = three.site("a", noise=Loud())
    three.sites["a"].join(three.manifest, three.offer)
    after = three.unmasked(three.replies(request)["a"])
    assert np.array_equal(before, after)


def test_the_entry_is_in_the_ledger_before_anything_leaves(
    three: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = three.request()

    def broken(self: Any, values: Any) -> None:
        assert rounds_charged(three) == 1
        raise CryptoError("no more randomness")

    with monkeypatch.context() as patch:
        patch.setattr(PublicKey, "encrypt", broken)
        assert refusal(three.sites["a"].handle(request)).reason is Reason.UNAVAILABLE
    assert rounds_charged(three) == 1
    noised = np.frombuffer(stored_answer(three, "a"), dtype="<i8")
    for site in (three.sites["a"], three.restart("a")):
        reply = decode(site.handle(request), SiteReply)
        assert np.array_equal(three.unmasked(reply), noised)
    assert rounds_charged(three) == 1


def stored_answer(consortium: Consortium, name: str) -> bytes:
    path = consortium.folder / f"{name}.ledger"
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT answer FROM vectors").fetchall()
    database.close()
    return rows[-1][0]  # type: ignore[no-any-return]


def test_an_answer_that_cannot_be_made_is_charged_all_the_same(
    three: Consortium,
) -> None:
    class Empty:
        insecure = True

        def share(self, *_: Any) -> None:
            raise CryptoError("no randomness")

    site = three.site("a", noise=Empty())
    site.join(three.manifest, three.offer)
    refusal(site.handle(three.request()))
    assert rounds_charged(three) == 1
    # The same question may be asked again, once it can be answered.
    decode(three.restart("a").handle(three.request()), SiteReply)
    assert rounds_charged(three) == 1


def test_another_attempt_gets_the_same_vector_under_another_mask(
    tmp_path: Path,
) -> None:
    study = small_study(("a", "b", "c", "d"), privacy={"dropouts": 1})
    four = Consortium(tmp_path, study)
    first = four.replies(four.request())["a"]
    rest = ("a", "b", "c")
    again = four.replies(four.request(rest, attempt=1))["a"]
    assert not np.array_equal(four.opened(first), four.opened(again))
    assert np.array_equal(four.unmasked(first), four.unmasked(again, rest))
    assert rounds_charged(four) == 1


# -- what one message tells --------------------------------------------------


def chi_square(words: np.ndarray, bits: int) -> tuple[float, int]:
    """χ² of all nibbles of the words against uniform ones, and its degrees."""
    statistic, degrees = 0.0, 0
    for shift in range(0, bits - 3, 4):
        nibbles = (words >> shift) & 15
        counts = np.bincount(nibbles, minlength=16)
        statistic += float(((counts - len(words) / 16) ** 2).sum() * 16 / len(words))
        degrees += 15
    return statistic, degrees


@pytest.mark.slow
def test_server_and_csp_together_learn_nothing_from_one_message(tmp_path: Path) -> None:
    """Decrypted alone a message is uniform; the masks are what makes it so."""
    study = small_study(inference={"rounds": 300})
    three = Consortium(tmp_path, study)
    bits = three.pair.public.parameters.word_bits
    masked, noised = [], []
    for number in range(300):
        request = three.request(round=number)
        reply = decode(three.sites["a"].handle(request), SiteReply)
        masked.append(three.opened(reply))
        noised.append(three.unmasked(reply))
    statistic, degrees = chi_square(np.concatenate(masked), bits)
    assert statistic < stats.chi2.isf(1e-9, degrees)
    # Control: without masks the same test sees the message at once.
    statistic, degrees = chi_square(np.concatenate(noised), bits)
    assert statistic > 100 * degrees


def test_masks_cancel_over_the_roster(three: Consortium) -> None:
    replies = three.replies(three.request())
    bits = three.pair.public.parameters.word_bits
    total = sum(three.opened(reply) for reply in replies.values())
    total = (total + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
    noised = sum(three.unmasked(reply) for reply in replies.values())
    assert np.array_equal(total, noised)


def test_all_other_sites_with_server_and_csp_see_the_noised_vector_only(
    three: Consortium,
) -> None:
    """Two of three collude: what is left is one share of noise, never the sum."""
    reply = three.replies(three.request())["a"]
    phase = three.plan.last_phase
    exact = phase.sums.to_grid(
        three.contributions("a").total(phase, Question(np.zeros(phase.dimension)))
    )
    left = three.unmasked(reply) - exact
    assert (left != 0).any()
    assert np.abs(left).max() < 7 * phase.sums.share_scale


def test_a_single_site_is_protected_by_its_whole_noise(tmp_path: Path) -> None:
    one = Consortium(tmp_path, small_study(("a",)))
    reply = one.replies(one.request())["a"]
    assert np.array_equal(one.opened(reply), one.unmasked(reply))
    phase = one.plan.last_phase
    release = phase.sums
    assert release.share_scale >= release.noise_multiplier * release.sensitivity
    exact = release.to_grid(
        one.contributions("a").total(phase, Question(np.zeros(phase.dimension)))
    )
    assert not np.array_equal(one.opened(reply), exact)

"""The CSP decrypts one signed sum a round and is no oracle for anything else."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parties import RUN, Consortium, changed, refusal, small_study

from cipherbayes.crypto.bfv.ciphertext import Ciphertext
from cipherbayes.crypto.bfv.keys import SecretKey, generate_keys
from cipherbayes.crypto.wire.framing import Kind, decode_frame, encode_frame
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.errors import CryptoError, ProtocolError
from cipherbayes.protocols.messages import (
    DecryptReply,
    DecryptRequest,
    Reason,
    RunManifest,
    SiteReply,
    decode,
    encode,
)


@pytest.fixture
def three(tmp_path: Path) -> Consortium:
    return Consortium(tmp_path, small_study())


@pytest.fixture
def decrypted(monkeypatch: pytest.MonkeyPatch) -> list[Ciphertext]:
    """What the secret key was used on."""
    seen: list[Ciphertext] = []
    honest = SecretKey.decrypt

    def spy(self: Any, ciphertext: Any) -> Any:
        seen.append(ciphertext)
        return honest(self, ciphertext)

    monkeypatch.setattr(SecretKey, "decrypt", spy)
    return seen


def signed(
    consortium: Consortium, site: str, exchange: RoundId, ciphertext: bytes
) -> Any:
    """What a dishonest site could sign."""
    return SiteReply.signed(
        consortium.keys[site], round_id=exchange, site=site, ciphertext=ciphertext
    )


def total_of(consortium: Consortium, question: DecryptRequest) -> np.ndarray:
    return sum(consortium.unmasked(reply) for reply in question.replies)  # type: ignore[no-any-return]


# -- what is answered -------------------------------------------------------


def test_the_whole_rosters_sum_is_decrypted_and_nothing_else(
    three: Consortium, decrypted: list[Ciphertext]
) -> None:
    question = three.question()
    answer = decode(three.csp.handle(encode(question)), DecryptReply)
    answer.verify(three.pinned["csp"])
    assert answer.round_id == question.round_id
    assert [each.summands for each in decrypted] == [3]
    assert np.array_equal(answer.values, total_of(three, question))


def test_each_round_is_decrypted_once_and_repeated_from_memory(
    three: Consortium, decrypted: list[Ciphertext]
) -> None:
    question = encode(three.question())
    first = three.csp.handle(question)
    assert three.csp.handle(question) == first
    three.csp = three.make_csp()  # restarted, without a manifest yet
    assert three.csp.handle(question) == first
    assert len(decrypted) == 1


def test_fresh_ciphertexts_of_an_answered_round_are_not_decrypted(
    three: Consortium, decrypted: list[Ciphertext]
) -> None:
    """A retry after a restart, or a server that wants a second answer."""
    first = three.csp.handle(encode(three.question()))
    request = three.server.request()[1]
    for name in three.names:
        three.restart(name)
    again = three.question(request)
    assert three.csp.handle(encode(again)) == first
    assert len(decrypted) == 1


def test_a_smaller_roster_of_an_answered_round_gets_the_first_answer(
    tmp_path: Path, decrypted: list[Ciphertext]
) -> None:
    """Otherwise the difference of two sums would be one site's message."""
    study = small_study(("a", "b", "c", "d"), privacy={"dropouts": 1})
    four = Consortium(tmp_path, study)
    first = four.csp.handle(encode(four.question()))
    smaller = four.question(four.request(("a", "b", "c"), attempt=1))
    assert four.csp.handle(encode(smaller)) == first
    assert len(decrypted) == 1


def test_a_roster_of_the_agreed_minimum_is_decrypted(
    tmp_path: Path, decrypted: list[Ciphertext]
) -> None:
    study = small_study(("a", "b", "c", "d"), privacy={"dropouts": 1})
    four = Consortium(tmp_path, study)
    question = four.question(four.request(("a", "b", "d"), attempt=1))
    decode(four.csp.handle(encode(question)), DecryptReply)
    assert [each.summands for each in decrypted] == [3]


def test_the_answer_is_durable_before_it_is_given(
    three: Consortium, monkeypatch: pytest.MonkeyPatch, decrypted: list[Ciphertext]
) -> None:
    """A CSP whose memory fails says nothing at all."""

    def full(number: int, reply: Any) -> None:
        raise OSError("disk full")

    question = encode(three.question())
    with monkeypatch.context() as patch:
        patch.setattr(three.answers, "keep", full)
        with pytest.raises(OSError, match="disk full"):
            three.csp.handle(question)
    assert three.answers.rounds() == 0
    decode(three.csp.handle(question), DecryptReply)


# -- what is refused --------------------------------------------------------


def refused(
    three: Consortium,
    question: Any,
    reason: Any,
    decrypted: list[Ciphertext],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Refused with a logged reason, nothing decrypted, the round still open."""
    data = question if isinstance(question, bytes) else encode(question)
    with caplog.at_level(logging.WARNING, logger="cipherbayes.csp"):
        answer = refusal(three.csp.handle(data))
    assert (answer.party, answer.reason) == ("csp", reason)
    assert reason.value in caplog.text
    assert answer.text in caplog.text
    assert decrypted == []
    decode(three.csp.handle(encode(three.question())), DecryptReply)


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("b", "c")])
def test_a_part_of_the_roster_is_refused(
    three: Consortium,
    names: Any,
    decrypted: list[Ciphertext],
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = three.question()
    part = tuple(reply for reply in whole.replies if reply.site in names)
    question = DecryptRequest(whole.round_id, part)
    refused(three, question, Reason.WRONG_ROSTER, decrypted, caplog)


def test_a_part_of_the_signed_roster_is_refused_though_so_few_would_do(
    tmp_path: Path, decrypted: list[Ciphertext], caplog: pytest.LogCaptureFixture
) -> None:
    """Three of four may be summed, but only if they signed for a roster of three."""
    study = small_study(("a", "b", "c", "d"), privacy={"dropouts": 1})
    four = Consortium(tmp_path, study)
    whole = four.question()
    question = DecryptRequest(whole.round_id, whole.replies[:3])
    refused(four, question, Reason.WRONG_ROSTER, decrypted, caplog)


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_a_roster_below_the_minimum_is_refused_even_if_all_of_it_signed(
    three: Consortium,
    names: Any,
    decrypted: list[Ciphertext],
    caplog: pytest.LogCaptureFixture,
) -> None:
    exchange = three.round_id(names)
    replies = tuple(
        signed(three, reply.site, exchange, reply.ciphertext)
        for reply in three.question().replies
        if reply.site in names
    )
    question = DecryptRequest(exchange, replies)
    refused(three, question, Reason.WRONG_ROSTER, decrypted, caplog)


def repacked(question: DecryptRequest, replies: list[SiteReply]) -> bytes:
    """A request that the constructor would not make."""
    forged = object.__new__(DecryptRequest)
    object.__setattr__(forged, "round_id", question.round_id)
    object.__setattr__(forged, "replies", tuple(replies))
    return encode(forged)


def test_a_repeated_site_is_refused(
    three: Consortium, decrypted: list[Ciphertext], caplog: pytest.LogCaptureFixture
) -> None:
    question = three.question()
    a, b, _ = question.replies
    refused(three, repacked(question, [a, a, b]), Reason.MALFORMED, decrypted, caplog)


def test_a_repeated_site_under_another_name_is_refused(
    three: Consortium, decrypted: list[Ciphertext], caplog: pytest.LogCaptureFixture
) -> None:
    question = three.question()
    a, b, _ = question.replies
    posing = changed(a, site="c")
    refused(
        three,
        DecryptRequest(question.round_id, (a, b, posing)),
        Reason.BAD_SIGNATURE,
        decrypted,
        caplog,
    )


def test_no_replies_are_refused(
    three: Consortium, decrypted: list[Ciphertext], caplog: pytest.LogCaptureFixture
) -> None:
    question = three.question()
    refused(three, repacked(question, []), Reason.MALFORMED, decrypted, caplog)


def test_a_site_outside_the_study_is_refused(
    three: Consortium, decrypted: list[Ciphertext], caplog: pytest.LogCaptureFixture
) -> None:
    question = three.question()
    a, b, c = question.replies
    stranger = changed(c, site="z")
    refused(
        three,
        DecryptRequest(question.round_id, (a, b, stranger)),
        Reason.MALFORMED,
        decrypted,
        caplog,
    )


def test_a_ciphertext_altered_after_signing_is_refused(
    three: Consortium, decrypted: list[Ciphertext], caplog: pytest.LogCaptureFixture
) -> None:
    question = three.question()
    a, *rest = question.replies
    body = bytearray(decode_frame(a.ciphertext, Kind.CIPHERTEXT, limit=2**20))
    body[-5] ^= 1
    altered = changed(a, ciphertext=encode_frame(Kind.CIPHERTEXT, bytes(body)))
    refused(
        three,
        DecryptRequest(question.round_id, (altered, *rest)),
        Reason.BAD_SIGNATURE,
        decrypted,
        caplog,
    )


def test_swapped_signatures_are_refused(
    three: Consortium, decrypted: list[Ciphertext], caplog: pytest.LogCaptureFixture
) -> None:
    question = three.question()
    a, b, c = question.replies
    swapped = (
        changed(a, signature=b.signature),
        changed(b, signature=a.signature),
        c,
    )
    refused(
        three,
        DecryptRequest(question.round_id, swapped),
        Reason.BAD_SIGNATURE,
        decrypted,
        caplog,
    )


def test_swapped_ciphertexts_are_refused(
    three: Consortium, decrypted: list[Ciphertext], caplog: pytest.LogCaptureFixture
) -> None:
    question = three.question()
    a, b, c = question.replies
    swapped = (
        changed(a, ciphertext=b.ciphertext),
        changed(b, ciphertext=a.ciphertext),
        c,
    )
    refused(
        three,
        DecryptRequest(question.round_id, swapped),
        Reason.BAD_SIGNATURE,
        decrypted,
        caplog,
    )


def test_one_bit_of_a_message_changed_in_transit_is_refused(
    three: Consortium, decrypted: list[Ciphertext], caplog: pytest.LogCaptureFixture
) -> None:
    data = bytearray(encode(three.question()))
    data[len(data) // 2] ^= 4
    refused(three, bytes(data), Reason.MALFORMED, decrypted, caplog)


def test_replies_of_an_old_round_are_refused_in_a_new_one(three: Consortium) -> None:
    old = three.question()
    three.play(1)
    present = three.round_id()
    replayed = DecryptRequest(
        present, tuple(changed(reply, round_id=present) for reply in old.replies)
    )
    assert refusal(three.csp.handle(encode(replayed))).reason is Reason.BAD_SIGNATURE
    mixed = repacked(
        DecryptRequest(present, three.question().replies),
        [old.replies[0], *three.question().replies[1:]],
    )
    assert refusal(three.csp.handle(mixed)).reason is Reason.MALFORMED
    assert three.answers.rounds() == 1


def test_replies_of_another_attempt_are_refused(
    three: Consortium, decrypted: list[Ciphertext], caplog: pytest.LogCaptureFixture
) -> None:
    question = three.question()
    other = three.round_id(attempt=1)
    retold = DecryptRequest(
        other, tuple(changed(reply, round_id=other) for reply in question.replies)
    )
    refused(three, retold, Reason.BAD_SIGNATURE, decrypted, caplog)


def test_a_ciphertext_of_another_key_is_refused(
    three: Consortium, decrypted: list[Ciphertext], caplog: pytest.LogCaptureFixture
) -> None:
    exchange = three.question().round_id
    other = generate_keys(three.pair.public.parameters).public
    foreign = other.encrypt(np.zeros(3, dtype=np.int64)).to_bytes()
    _, b, c = three.question().replies
    question = DecryptRequest(exchange, (signed(three, "a", exchange, foreign), b, c))
    refused(three, question, Reason.WRONG_KEY, decrypted, caplog)


@pytest.mark.parametrize("empty", [0, 1])
def test_an_empty_polynomial_is_refused_whoever_signed_it(
    three: Consortium,
    empty: Any,
    decrypted: list[Ciphertext],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """(0, A) asks for a linear function of the key; (A, 0) is not encrypted."""
    _, b, c = three.question().replies
    exchange = b.round_id
    honest = three.pair.public.encrypt(np.zeros(3, dtype=np.int64))
    polynomials = honest.polynomials.copy()
    polynomials[:, empty] = 0
    forged = object.__new__(Ciphertext)
    for name in ("parameters", "key_id", "dimension", "summands"):
        object.__setattr__(forged, name, getattr(honest, name))
    object.__setattr__(forged, "polynomials", polynomials)
    reply = signed(three, "a", exchange, forged.to_bytes())
    question = DecryptRequest(exchange, (reply, b, c))
    refused(three, question, Reason.WRONG_KEY, decrypted, caplog)


def test_a_ciphertext_of_another_length_is_refused(
    three: Consortium, decrypted: list[Ciphertext], caplog: pytest.LogCaptureFixture
) -> None:
    _, b, c = three.question().replies
    longer = three.pair.public.encrypt(np.zeros(4, dtype=np.int64)).to_bytes()
    reply = signed(three, "a", b.round_id, longer)
    question = DecryptRequest(b.round_id, (reply, b, c))
    refused(three, question, Reason.WRONG_KEY, decrypted, caplog)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": bytes(16)}, Reason.WRONG_RUN),
        ({"study": bytes(32)}, Reason.WRONG_STUDY),
        ({"round": 1}, Reason.WRONG_ROUND),
        ({"round": 3}, Reason.WRONG_ROUND),
        ({"round": 4}, Reason.WRONG_ROUND),
        ({"purpose": "moments"}, Reason.WRONG_ROUND),
    ],
    ids=str,
)
def test_an_exchange_that_is_not_the_next_is_refused_whoever_signed_it(
    three: Consortium,
    changes: Any,
    reason: Any,
    decrypted: list[Ciphertext],
    caplog: pytest.LogCaptureFixture,
) -> None:
    exchange = three.round_id(**changes)
    replies = tuple(
        signed(three, reply.site, exchange, reply.ciphertext)
        for reply in three.question().replies
    )
    refused(three, DecryptRequest(exchange, replies), reason, decrypted, caplog)


def test_a_round_after_the_last_is_refused(three: Consortium) -> None:
    three.play(4)
    exchange = three.round_id(round=4)
    old = three.question(three.request(round=3, theta=theta_of(three, 3)))
    replies = tuple(
        signed(three, reply.site, exchange, reply.ciphertext) for reply in old.replies
    )
    answer = refusal(three.csp.handle(encode(DecryptRequest(exchange, replies))))
    assert answer.reason is Reason.WRONG_ROUND


def theta_of(consortium: Consortium, number: int) -> np.ndarray:
    """θ that a round asked at."""
    return consortium.checkpoint.trajectory()[number - 1]


def test_a_csp_that_knows_no_roster_refuses(
    three: Consortium, decrypted: list[Ciphertext], caplog: pytest.LogCaptureFixture
) -> None:
    question = encode(three.question())
    alone = three.make_csp()
    assert refusal(alone.handle(question)).reason is Reason.WRONG_RUN
    assert decrypted == []


@pytest.mark.parametrize("data", [b"", b"junk", bytes(2000)])
def test_bytes_that_are_no_request_are_refused(
    three: Consortium,
    data: Any,
    decrypted: list[Ciphertext],
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused(three, data, Reason.MALFORMED, decrypted, caplog)


# -- a round that failed is over --------------------------------------------


def outside_the_range(three: Consortium) -> DecryptRequest:
    """Site a, dishonest, adds more than any records could."""
    question = three.question()
    a, b, c = question.replies
    bound = three.plan.last_phase.sums.bound
    vector = three.opened(a) + 3 * bound
    ciphertext = three.pair.public.encrypt(vector).to_bytes()
    return DecryptRequest(
        question.round_id, (signed(three, "a", a.round_id, ciphertext), b, c)
    )


def test_a_total_outside_the_range_is_not_told_and_ends_the_round(
    three: Consortium, decrypted: list[Ciphertext]
) -> None:
    honest = encode(three.question())
    answer = three.csp.handle(encode(outside_the_range(three)))
    assert refusal(answer).reason is Reason.RANGE
    assert len(decrypted) == 2  # once by this test, once by the CSP
    for csp in (three.csp, three.make_csp()):
        assert csp.handle(honest) == answer
    assert len(decrypted) == 2


def test_a_ciphertext_that_does_not_decrypt_ends_the_round(
    three: Consortium, decrypted: list[Ciphertext]
) -> None:
    """Whether it decrypts says something about the key: one answer, no second try."""
    question = three.question()
    honest, (_, b, c) = encode(question), question.replies
    rng = np.random.default_rng(1)
    model = three.pair.public.encrypt(np.zeros(3, dtype=np.int64))
    noise = rng.integers(1, model.parameters.modulus, model.polynomials.shape)
    random = Ciphertext(
        model.parameters, model.key_id, 3, 1, noise.astype(np.uint64)
    ).to_bytes()
    reply = signed(three, "a", b.round_id, random)
    answer = three.csp.handle(encode(DecryptRequest(b.round_id, (reply, b, c))))
    assert refusal(answer).reason is Reason.WRONG_KEY
    assert three.csp.handle(honest) == answer
    assert len(decrypted) == 1


# -- joining ----------------------------------------------------------------


def test_a_manifest_of_another_key_is_refused(three: Consortium) -> None:
    honest = decode(three.manifest, RunManifest)
    fields = {name: getattr(honest, name) for name in honest.__dataclass_fields__}
    other = encode(RunManifest(**{**fields, "key_id": bytes(32)}))
    with pytest.raises(ProtocolError, match="another key"):
        three.make_csp().join(other)


def test_a_manifest_of_another_run_or_a_smaller_roster_is_refused(
    three: Consortium,
) -> None:
    honest = decode(three.manifest, RunManifest)
    fields = {name: getattr(honest, name) for name in honest.__dataclass_fields__}
    for change in ({"run": bytes(16)}, {"roster": honest.roster.restrict(["a"])}):
        with pytest.raises(ProtocolError):
            three.make_csp().join(encode(RunManifest(**{**fields, **change})))


def test_neither_log_nor_refusal_shows_a_value(
    three: Consortium, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = refusal(three.csp.handle(encode(outside_the_range(three))))
    for text in (answer.text, caplog.text):
        assert not any(len(word) > 6 and word.isdigit() for word in text.split())
        assert RUN.hex() not in text


def test_the_secret_key_is_neither_shown_nor_copied(three: Consortium) -> None:
    assert "coefficient" not in repr(three.pair)
    with pytest.raises(CryptoError):
        pickle.dumps(three.pair.secret)

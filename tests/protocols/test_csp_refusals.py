"""The CSP is no oracle: what it refuses to decrypt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csp_questions import decrypted, refused, signed, theta_of
from parties import Consortium, changed, refusal, small_study, three

from cipherbayes.crypto.bfv.ciphertext import Ciphertext
from cipherbayes.crypto.bfv.keys import generate_keys
from cipherbayes.crypto.wire.framing import Kind, decode_frame, encode_frame
from cipherbayes.protocols.messages import DecryptRequest, Reason, SiteReply, encode

__all__ = ["decrypted", "three"]


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


@pytest.mark.parametrize("part", ["signature", "ciphertext"])
def test_swapped_parts_of_replies_are_refused(
    three: Consortium,
    decrypted: list[Ciphertext],
    caplog: pytest.LogCaptureFixture,
    part: str,
) -> None:
    question = three.question()
    a, b, c = question.replies
    swapped = (
        changed(a, **{part: getattr(b, part)}),
        changed(b, **{part: getattr(a, part)}),
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

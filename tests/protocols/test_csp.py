"""The CSP decrypts one signed sum a round, and what failed is over."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csp_questions import decrypted, signed, total_of
from parties import RUN, Consortium, refusal, small_study, three

from cipherbayes.crypto.bfv.ciphertext import Ciphertext
from cipherbayes.errors import CryptoError, ProtocolError
from cipherbayes.protocols.messages import (
    DecryptReply,
    DecryptRequest,
    Reason,
    RunManifest,
    decode,
    encode,
)

__all__ = ["decrypted", "three"]


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

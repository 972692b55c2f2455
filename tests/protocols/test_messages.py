from __future__ import annotations

import random
import tracemalloc
from dataclasses import fields, replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cipherbayes.crypto.bfv.keys import generate_keys
from cipherbayes.crypto.bfv.parameters import PARAMETER_SETS
from cipherbayes.crypto.identity.roster import Member, Roster
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.crypto.masks import ExchangeKey
from cipherbayes.crypto.wire.framing import HEADER_BYTES, Kind, encode_frame, frame_kind
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.errors import ProtocolError
from cipherbayes.protocols.messages import (
    DecryptReply,
    DecryptRequest,
    Enrolment,
    KeyOffer,
    Message,
    Reason,
    Refusal,
    RoundRequest,
    RunManifest,
    SiteReply,
    decode,
    encode,
)

RUN, STUDY = b"r" * 16, b"s" * 32
SITE, CSP = SigningKey.generate(), SigningKey.generate()
PAIR = generate_keys(PARAMETER_SETS["bfv-2048-22x3"])
VALUES = np.arange(-92, 92, dtype=np.int64)
CIPHERTEXT = PAIR.public.encrypt(VALUES).to_bytes()


def member(site: str, key: SigningKey) -> Member:
    exchange = ExchangeKey.generate().public
    return Member.enrol(key, run=RUN, study=STUDY, site=site, exchange=exchange)


NORTH = member("north", SITE)
ROSTER = Roster.of([NORTH, member("south", SigningKey.generate())])
ROUND = RoundId(RUN, STUDY, 3, 1, "gradient", ROSTER.digest)


def reply(site: str = "north", ciphertext: bytes = b"not really") -> SiteReply:
    return SiteReply.signed(SITE, round_id=ROUND, site=site, ciphertext=ciphertext)


MESSAGES: dict[str, Message] = {
    "enrolment": Enrolment(RUN, STUDY, NORTH),
    "key-offer": KeyOffer.signed(CSP, run=RUN, study=STUDY, public_key=b"a key"),
    "manifest": RunManifest(
        RUN, STUDY, "bfv-2048-22x3", bytes(32), 20, CSP.identity.raw, ROSTER
    ),
    "request": RoundRequest(ROUND, ROSTER.sites, np.array([0.5, -1e300, 5e-324])),
    "reply": reply(),
    "decrypt-request": DecryptRequest(ROUND, (reply(), reply("south"))),
    "decrypt-reply": DecryptReply.signed(CSP, round_id=ROUND, values=VALUES),
    "refusal": Refusal("csp", Reason.WRONG_ROUND, "rounds are answered in order"),
}
every_message = pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)


def reframed(kind: Kind, body: bytes) -> bytes:
    """What an adversary sends who can compute a checksum."""
    return encode_frame(kind, body)


@every_message
def test_a_message_survives_its_bytes(message: Message) -> None:
    data = encode(message)
    again = decode(data, type(message))
    assert type(again) is type(message)
    assert encode(again) == data
    for field in fields(message):
        left, right = getattr(again, field.name), getattr(message, field.name)
        assert (
            np.array_equal(left, right)
            if field.name in ("theta", "values")
            else (left == right)
        )


@every_message
def test_messages_and_their_vectors_cannot_be_changed(message: Message) -> None:
    for field in fields(message):
        with pytest.raises(AttributeError):
            setattr(message, field.name, None)
    for name in ("theta", "values"):
        if hasattr(message, name):
            with pytest.raises(ValueError, match="read-only"):
                getattr(message, name)[0] = 1


def test_a_receiver_gets_only_what_it_expects() -> None:
    data = encode(MESSAGES["refusal"])
    assert decode(data, SiteReply, Refusal) == MESSAGES["refusal"]
    with pytest.raises(ProtocolError, match="not expected"):
        decode(data, SiteReply)
    with pytest.raises(ProtocolError, match="not expected"):
        decode(CIPHERTEXT)


@every_message
def test_every_truncated_or_extended_message_is_refused(message: Message) -> None:
    data = encode(message)
    body = data[HEADER_BYTES:]
    kind = frame_kind(data)
    for cut in {1, 2, 8, len(body) // 2, len(body)}:
        for bad in (
            data[:-cut],
            data + bytes(cut),
            reframed(kind, body[:-cut]),
            reframed(kind, body + bytes(cut)),
        ):
            with pytest.raises(ProtocolError):
                decode(bad)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One or several of the things that can happen to bytes on their way."""
    body = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not body:
            break
        at = rng.randrange(len(body))
        action = rng.randrange(8)
        if action == 0:
            body[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            body[at] = rng.randrange(256)
        elif action == 2:
            del body[at : at + rng.choice((1, 2, 8, 64))]
        elif action == 3:
            body[at:at] = rng.randbytes(rng.choice((1, 2, 8, 64)))
        elif action == 4:
            other = rng.randrange(len(body))
            body[at : at + 8] = body[other : other + 8]
        elif action == 5:
            # Length lies: the largest headers of every msgpack type.
            lie = rng.choice((0xC6, 0xC9, 0xDB, 0xDD, 0xDF, 0xCF, 0xCB))
            body[at : at + 5] = bytes((lie, 0xFF, 0xFF, 0xFF, 0xFF))
        elif action == 6:
            body[at:at] = bytes((rng.choice((0x91, 0x81, 0x92)),)) * 2000
        else:
            body[0:4] = rng.randrange(2**32).to_bytes(4, "little")
    return bytes(body)


@pytest.mark.slow
@every_message
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_no_mutation_of_a_message_raises_anything_but_a_protocol_error(
    message: Message, seed: int
) -> None:
    """40 examples of 100 mutations for each of eight messages: 32,000 cases."""
    rng = random.Random(seed)
    data = encode(message)
    kind, body = frame_kind(data), data[HEADER_BYTES:]
    for _ in range(100):
        if rng.random() < 0.2:
            bad = mutated(data, rng)
        else:
            bad = reframed(kind, mutated(body, rng))
        try:
            accepted = decode(bad)
        except ProtocolError:
            continue
        # Whatever is accepted is the one encoding of a valid message.
        assert encode(accepted) == bad


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(Kind))
def test_random_bytes_are_refused(data: bytes, kind: Kind) -> None:
    for bad in (data, reframed(kind, data)):
        with pytest.raises(ProtocolError):
            decode(bad)


def test_mutations_do_not_make_the_decoder_allocate() -> None:
    rng = random.Random(7)
    data = encode(MESSAGES["manifest"])
    kind, body = frame_kind(data), data[HEADER_BYTES:]
    tracemalloc.start()
    for _ in range(500):
        try:
            decode(reframed(kind, mutated(body, rng)))
        except ProtocolError:
            continue
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


def plain_of(message: Message) -> tuple[list[Any], bytes]:
    body = encode(message)[HEADER_BYTES:]
    end = 4 + int.from_bytes(body[:4], "little")
    return msgpack.unpackb(body[4:end]), body[end:]


def resent(message: Message, plain: list[Any], blobs: bytes) -> bytes:
    record = msgpack.packb(plain)
    kind = frame_kind(encode(message))
    return reframed(kind, len(record).to_bytes(4, "little") + record + blobs)


@every_message
def test_unknown_fields_and_wrong_types_are_refused(message: Message) -> None:
    plain, blobs = plain_of(message)
    assert encode(decode(resent(message, plain, blobs))) == encode(message)
    with pytest.raises(ProtocolError, match="fields"):
        decode(resent(message, [*plain, 0], blobs))
    with pytest.raises(ProtocolError, match="fields"):
        decode(resent(message, plain[:-1], blobs))
    for index in range(len(plain)):
        for wrong in (None, True, 1.0, {}, [[]], {"a": 1}):  # type: ignore[var-annotated]
            changed = [*plain[:index], wrong, *plain[index + 1 :]]
            with pytest.raises(ProtocolError):
                decode(resent(message, changed, blobs))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_theta_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ProtocolError, match="not finite"):
        RoundRequest(ROUND, ROSTER.sites, np.array([0.0, bad]))
    request = MESSAGES["request"]
    plain, _ = plain_of(request)
    with pytest.raises(ProtocolError, match="not finite"):
        decode(resent(request, plain, np.array([0.0, bad, 0.0]).tobytes()))


def test_a_site_reply_of_the_design_dimension_stays_below_70_kb() -> None:
    for parameters in PARAMETER_SETS.values():
        ciphertext = generate_keys(parameters).public.encrypt(VALUES).to_bytes()
        message = SiteReply.signed(
            SITE, round_id=ROUND, site="n" * 64, ciphertext=ciphertext
        )
        assert len(encode(message)) < 70_000


def test_the_site_signs_everything_that_identifies_its_answer() -> None:
    good = reply(ciphertext=CIPHERTEXT)
    good.verify(SITE.identity)
    flipped = CIPHERTEXT[:-1] + bytes([CIPHERTEXT[-1] ^ 1])
    for changed in (
        replace(good, ciphertext=flipped),
        replace(good, site="south"),
        replace(good, signature=bytes(64)),
        replace(good, round_id=replace(ROUND, run=b"x" * 16)),
        replace(good, round_id=replace(ROUND, study=b"x" * 32)),
        replace(good, round_id=replace(ROUND, round=4)),
        replace(good, round_id=replace(ROUND, attempt=2)),
        replace(good, round_id=replace(ROUND, purpose="moments")),
        replace(good, round_id=replace(ROUND, roster=bytes(32))),
    ):
        with pytest.raises(ProtocolError, match="signature"):
            changed.verify(SITE.identity)
    with pytest.raises(ProtocolError, match="signature"):
        good.verify(CSP.identity)


def test_the_csp_signs_its_key_and_its_answers() -> None:
    offer = KeyOffer.signed(CSP, run=RUN, study=STUDY, public_key=b"a key")
    offer.verify(CSP.identity)
    answer = DecryptReply.signed(CSP, round_id=ROUND, values=VALUES)
    answer.verify(CSP.identity)
    forged = VALUES.copy()
    forged[0] += 1
    for changed in (
        replace(offer, public_key=b"my key"),
        replace(offer, run=b"x" * 16),
        replace(offer, study=b"x" * 32),
        replace(answer, values=forged),
        replace(answer, round_id=replace(ROUND, round=4)),
        replace(answer, signature=offer.signature),
    ):
        with pytest.raises(ProtocolError, match="signature"):
            changed.verify(CSP.identity)
    with pytest.raises(ProtocolError, match="signature"):
        offer.verify(SITE.identity)


def test_a_decrypt_request_holds_each_site_of_one_exchange_once() -> None:
    other = replace(reply("south"), round_id=replace(ROUND, attempt=2))
    for replies in (
        (),
        (reply(), reply()),
        (reply("south"), reply("north")),
        (reply(), other),
    ):
        with pytest.raises(ProtocolError):
            DecryptRequest(ROUND, replies)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("enrolment", {"run": b""}),
        ("key-offer", {"public_key": b""}),
        ("key-offer", {"public_key": bytes(2**20 + 1)}),
        ("key-offer", {"signature": bytes(63)}),
        ("manifest", {"parameters": "bfv-1024-1x1"}),
        ("manifest", {"key_id": bytes(31)}),
        ("manifest", {"rounds": -1}),
        ("manifest", {"csp": b"csp"}),
        ("request", {"sites": ()}),
        ("request", {"sites": ("b", "a")}),
        ("request", {"sites": ("a", "a")}),
        ("request", {"sites": ("a b",)}),
        ("request", {"theta": np.ones((2, 2))}),
        ("request", {"theta": np.ones(0)}),
        ("reply", {"site": "../north"}),
        ("reply", {"ciphertext": b""}),
        ("reply", {"signature": b""}),
        ("decrypt-reply", {"values": np.ones(3)}),
        ("decrypt-reply", {"values": np.ones(0, dtype=np.int64)}),
        ("decrypt-reply", {"signature": b""}),
        ("refusal", {"party": ""}),
        ("refusal", {"reason": "because"}),
        ("refusal", {"text": "two\nlines"}),
        ("refusal", {"text": "x" * 301}),
    ],
)
def test_an_impossible_message_cannot_be_made(
    message: str, change: dict[str, Any]
) -> None:
    with pytest.raises(ProtocolError):
        replace(MESSAGES[message], **change)


def test_a_request_of_many_sites_and_a_long_vector_survives() -> None:
    ciphertext = bytes(range(256)) * 1200
    names = [f"site-{k:02d}" for k in range(64)]
    replies = tuple(reply(name, ciphertext) for name in names)
    again = decode(encode(DecryptRequest(ROUND, replies)), DecryptRequest)
    assert again.replies == replies
    theta = np.random.default_rng(0).normal(size=10_000)
    request = RoundRequest(ROUND, tuple(names), theta)
    assert (decode(encode(request), RoundRequest).theta == theta).all()

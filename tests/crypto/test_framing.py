from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cipherbayes.crypto.wire.framing import (
    HEADER_BYTES,
    Kind,
    decode_frame,
    encode_frame,
    frame_kind,
    split_frames,
)
from cipherbayes.errors import CryptoError

BODY = b"seventeen bytes!!"
FRAME = encode_frame(Kind.CIPHERTEXT, BODY)


@given(st.sampled_from(Kind), st.lists(st.binary(max_size=100), max_size=4))
def test_a_frame_gives_its_body_back(kind: Kind, parts: list[bytes]) -> None:
    frame = encode_frame(kind, *parts)
    assert frame_kind(frame) is kind
    assert bytes(decode_frame(frame, kind, limit=400)) == b"".join(parts)


def test_the_layout_on_the_wire_is_the_documented_one() -> None:
    prefix = b"cbay\x01\x03\x00\x00" + len(BODY).to_bytes(8, "little")
    assert prefix + hashlib.sha256(prefix + BODY).digest() + BODY == FRAME


def test_every_single_flipped_bit_is_refused() -> None:
    for position in range(8 * len(FRAME)):
        damaged = bytearray(FRAME)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(CryptoError):
            decode_frame(bytes(damaged), Kind.CIPHERTEXT, limit=1000)


@pytest.mark.parametrize("length", range(len(FRAME)))
def test_every_truncated_frame_is_refused(length: int) -> None:
    with pytest.raises(CryptoError):
        decode_frame(FRAME[:length], Kind.CIPHERTEXT, limit=1000)


@given(st.binary(min_size=1, max_size=20))
def test_trailing_bytes_are_refused(tail: bytes) -> None:
    with pytest.raises(CryptoError, match="bytes"):
        decode_frame(FRAME + tail, Kind.CIPHERTEXT, limit=1000)


def test_a_frame_of_another_kind_is_refused() -> None:
    with pytest.raises(CryptoError, match="expected a PUBLIC_KEY"):
        decode_frame(FRAME, Kind.PUBLIC_KEY, limit=1000)


def test_a_body_above_the_limit_is_refused_whatever_it_holds() -> None:
    with pytest.raises(CryptoError, match="at most 16"):
        decode_frame(FRAME, Kind.CIPHERTEXT, limit=16)
    lie = bytearray(FRAME)
    lie[8:16] = b"\xff" * 8
    with pytest.raises(CryptoError, match="at most 1000"):
        decode_frame(bytes(lie), Kind.CIPHERTEXT, limit=1000)


def test_another_version_is_refused_with_advice() -> None:
    other = bytearray(FRAME)
    other[4] = 2
    with pytest.raises(CryptoError, match="same release"):
        frame_kind(bytes(other))


@given(st.binary(max_size=2 * HEADER_BYTES))
def test_random_bytes_raise_nothing_but_crypto_errors(data: bytes) -> None:
    with pytest.raises(CryptoError):
        decode_frame(data, Kind.SITE_REPLY, limit=1000)


def test_frames_that_follow_each_other_are_told_apart() -> None:
    other = encode_frame(Kind.SITE_REPLY, b"")
    assert [bytes(f) for f in split_frames(FRAME + other)] == [FRAME, other]
    assert list(split_frames(b"")) == []
    for bad in (FRAME + other[:-1], FRAME + b"x", FRAME[:-1]):
        with pytest.raises(CryptoError):
            list(split_frames(bad))

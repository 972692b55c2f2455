from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cipherbayes.crypto.wire.transcript import RoundId, transcript
from cipherbayes.errors import ProtocolError

FIELDS = st.lists(st.one_of(st.binary(max_size=9), st.text(max_size=9), st.integers()))
ROUND = RoundId(bytes(16), bytes(32), 3, 1, "gradient", b"r" * 32)


@pytest.mark.slow
@given(FIELDS, FIELDS)
def test_two_lists_of_fields_never_give_the_same_bytes(
    one: list[bytes | str | int], other: list[bytes | str | int]
) -> None:
    same = [(type(a), a) for a in one] == [(type(b), b) for b in other]
    assert (transcript("d", *one) == transcript("d", *other)) == same


def test_moving_a_byte_between_fields_changes_the_transcript() -> None:
    assert transcript("d", b"ab", b"c") != transcript("d", b"a", b"bc")
    assert transcript("da", b"b") != transcript("d", b"ab")


def test_the_round_digest_depends_on_every_field() -> None:
    digests = {
        ROUND.digest,
        replace(ROUND, run=b"x" * 16).digest,
        replace(ROUND, study=b"x" * 32).digest,
        replace(ROUND, round=4).digest,
        replace(ROUND, attempt=2).digest,
        replace(ROUND, purpose="moments").digest,
        replace(ROUND, roster=b"x" * 32).digest,
    }
    assert len(digests) == 7


def test_the_round_digest_is_the_one_earlier_releases_signed() -> None:
    assert ROUND.digest.hex() == (
        "b071d9d5937ea46cccc28720b6f0ffb6edfb963d11f6b6e98b1f05d71265a43c"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"run": bytes(15)},
        {"run": "0" * 16},
        {"study": bytes(33)},
        {"round": -1},
        {"round": 2**32},
        {"round": True},
        {"round": 1.0},
        {"attempt": 2**32},
        {"purpose": ""},
        {"purpose": "a/b"},
        {"purpose": "gradient\n"},
        {"purpose": "x" * 65},
        {"roster": b""},
    ],
)
def test_an_impossible_round_cannot_be_written_down(change: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        replace(ROUND, **change)  # type: ignore[arg-type]

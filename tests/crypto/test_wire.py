from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from typing import Annotated

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cipherbayes.crypto.wire.fields import (
    MAX_RECORD_BYTES,
    Blob,
    Record,
    Vector,
    pack_body,
    unpack_body,
)
from cipherbayes.errors import ProtocolError
from cipherbayes.typing import Floats


@dataclass(frozen=True)
class Inner:
    name: str
    content: Annotated[bytes, Blob(100)]


@dataclass(frozen=True, eq=False)
class Outer:
    number: int
    raw: bytes
    inner: tuple[Inner, ...]
    vector: Annotated[Floats, Vector("<f8")]


FORM = Record.of(Outer)
GOOD = Outer(7, b"raw", (Inner("a", b"long"), Inner("b", b"")), np.array([1.5, -2.0]))
BODY = b"".join(pack_body(FORM, GOOD))


def body(plain: object, blobs: bytes = b"") -> memoryview:
    record = msgpack.packb(plain, use_bin_type=True)
    return memoryview(len(record).to_bytes(4, "little") + record + blobs)


def test_a_record_survives_its_bytes() -> None:
    again = unpack_body(FORM, memoryview(BODY))
    assert (again.number, again.raw, again.inner) == (7, b"raw", GOOD.inner)
    assert again.vector.tolist() == [1.5, -2.0]
    assert b"".join(pack_body(FORM, again)) == BODY


VECTOR = np.array([1.0]).tobytes()


@pytest.mark.parametrize(
    "plain",
    [
        None,
        7,
        [],
        {},
        [7, b"raw", [], 1, 1],
        [7, b"raw", []],
        ["7", b"raw", [], 1],
        [True, b"raw", [], 1],
        [7.0, b"raw", [], 1],
        [None, b"raw", [], 1],
        [7, "raw", [], 1],
        [7, b"raw", {}, 1],
        [7, b"raw", b"", 1],
        [7, b"raw", [["a"]], 1],
        [7, b"raw", [["a", -1]], 1],
        [7, b"raw", [["a", 101]], 1],
        [7, b"raw", [["a", 9]], 1],
        [7, b"raw", [], 0],
        [7, b"raw", [], 2],
        [7, b"raw", [], 2**40],
        [7, b"raw", [], -1],
        [7, b"raw", [], "1"],
        [7, b"raw", [[]] * 1025, 1],
        [msgpack.ExtType(3, b"x"), b"raw", [], 1],
        [msgpack.Timestamp(1), b"raw", [], 1],
    ],
)
def test_records_of_another_shape_are_refused(plain: object) -> None:
    with pytest.raises(ProtocolError):
        unpack_body(FORM, body(plain, VECTOR))
    assert unpack_body(FORM, body([7, b"raw", [], 1], VECTOR)).number == 7


@pytest.mark.parametrize(
    "seven", [b"\xcc\x07", b"\xcd\x00\x07", b"\xd3" + bytes(7) + b"\x07"]
)
def test_a_record_in_another_encoding_is_refused(seven: bytes) -> None:
    record = b"\x94" + seven + b"\xc4\x03raw\x90\x01"
    data = len(record).to_bytes(4, "little") + record + VECTOR
    with pytest.raises(ProtocolError, match="canonical"):
        unpack_body(FORM, memoryview(data))


def test_trailing_and_missing_bytes_are_refused() -> None:
    for data in (BODY + b"\0", BODY[:-1], BODY[:3], b"", b"\xff" * 4 + BODY[4:]):
        with pytest.raises(ProtocolError):
            unpack_body(FORM, memoryview(data))


BOMBS = [
    b"\xdd\xff\xff\xff\xff" * 1000,  # arrays that say they have 2^32 items
    b"\xdd\x00\x01\x00\x00" * 500,  # arrays of 65,536 arrays, without end
    b"\xdc\x04\x00" * 5000,
    b"\x91" * 200_000,  # nesting
    b"\x81" * 200_000,
    b"\xdf\xff\xff\xff\xff" * 1000,
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\xdc\x04\x00" + b"\x90" * 1024 + b"\x90" * 900_000,
]


@pytest.mark.parametrize("record", BOMBS, ids=range(len(BOMBS)))
def test_a_record_that_announces_more_than_it_holds_allocates_little(
    record: bytes,
) -> None:
    data = memoryview(len(record).to_bytes(4, "little") + record)
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        unpack_body(FORM, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


def test_a_record_above_the_limit_is_not_looked_at() -> None:
    record = msgpack.packb([0] * MAX_RECORD_BYTES)
    with pytest.raises(ProtocolError, match="impossible length"):
        unpack_body(FORM, memoryview(len(record).to_bytes(4, "little") + record))
    with pytest.raises(ProtocolError, match="exceeds"):
        pack_body(FORM, Outer(1, bytes(MAX_RECORD_BYTES), (), np.ones(1)))


PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(max_size=5),
        st.binary(max_size=5),
    ),
    lambda each: st.one_of(
        st.lists(each, max_size=5),
        st.dictionaries(st.text(max_size=3), each, max_size=3),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(PLAIN, st.binary(max_size=40))
def test_any_msgpack_value_is_accepted_or_refused_cleanly(
    plain: object, blobs: bytes
) -> None:
    data = body(plain, blobs)
    try:
        message = unpack_body(FORM, data)
    except ProtocolError:
        return
    assert b"".join(pack_body(FORM, message)) == bytes(data)

"""Fields of messages as bytes: strict, canonical, bounded.

A message's body is::

    length of the record u32 | record | blobs

The record is a msgpack array of the fields in their order: integers, text, short
bytes and arrays of these, no maps, floats, nil, extension types. Long contents
(ciphertexts, vectors) are blobs behind it, and the record has their lengths. So
what is allocated is bounded, for blobs by the bytes at hand, and one message has one
encoding: a record that would be packed in another way is refused.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import (
    Annotated,
    Any,
    Protocol,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgpack
import numpy as np

from cipherbayes.crypto.bfv.parameters import MAX_DIMENSION
from cipherbayes.crypto.identity.roster import MAX_SITES
from cipherbayes.errors import ProtocolError

MAX_RECORD_BYTES = 2**20

_LENGTH = struct.Struct("<I")
_REMEDY = "install the same release at every party"


class Field(Protocol):
    """Turns one field of a message into a plain value and back."""

    def pack(self, value: Any, blobs: list[bytes]) -> object:
        """A plain value; long contents are appended to ``blobs``."""

    def unpack(self, plain: object, blobs: Blobs) -> Any:
        """The field, or ProtocolError where the plain value is none."""


class Blobs:
    """The part of a body behind the record, taken piece by piece."""

    def __init__(self, rest: memoryview) -> None:
        self._rest = rest

    def take(self, length: object, most: int) -> memoryview:
        if type(length) is not int or not 0 <= length <= min(most, len(self._rest)):
            raise ProtocolError("a message's parts have impossible lengths")
        piece, self._rest = self._rest[:length], self._rest[length:]
        return piece

    def finish(self) -> None:
        if self._rest:
            raise ProtocolError("a message has bytes behind its end")


@dataclass(frozen=True)
class Plain:
    """An integer, a text or short bytes; the message's own checks do the rest."""

    kind: type[int] | type[str] | type[bytes]

    def pack(self, value: Any, blobs: list[bytes]) -> object:
        return value

    def unpack(self, plain: object, blobs: Blobs) -> Any:
        if type(plain) is not self.kind:
            raise ProtocolError(f"a message's field is not {self.kind.__name__}")
        return plain


@dataclass(frozen=True)
class Blob:
    """Long bytes, at most ``most``."""

    most: int

    def pack(self, value: Any, blobs: list[bytes]) -> object:
        blobs.append(value)
        return len(value)

    def unpack(self, plain: object, blobs: Blobs) -> Any:
        return bytes(blobs.take(plain, self.most))


@dataclass(frozen=True)
class Vector:
    """A non-empty vector of 64-bit numbers, little endian."""

    dtype: str

    def pack(self, value: Any, blobs: list[bytes]) -> object:
        blobs.append(np.ascontiguousarray(value, dtype=self.dtype).tobytes())
        return len(value)

    def unpack(self, plain: object, blobs: Blobs) -> Any:
        if type(plain) is not int or not 1 <= plain <= MAX_DIMENSION:
            raise ProtocolError(f"a vector does not have 1 to {MAX_DIMENSION} values")
        data = blobs.take(8 * plain, 8 * MAX_DIMENSION)
        # A copy in the machine's own byte order that keeps no message alive.
        stored = np.frombuffer(data, dtype=self.dtype)
        return stored.astype(stored.dtype.newbyteorder("="))


@dataclass(frozen=True)
class Items:
    """Up to ``most`` items of one kind, as a tuple."""

    item: Field
    most: int = MAX_SITES

    def pack(self, value: Any, blobs: list[bytes]) -> object:
        return [self.item.pack(each, blobs) for each in value]

    def unpack(self, plain: object, blobs: Blobs) -> Any:
        if type(plain) is not list or len(plain) > self.most:
            raise ProtocolError(f"a message's list is not one of up to {self.most}")
        if isinstance(self.item, Plain) and {type(p) for p in plain} == {
            self.item.kind
        }:
            return tuple(plain)  # as below, for the names of a thousand sites
        return tuple(self.item.unpack(each, blobs) for each in plain)


@dataclass(frozen=True)
class Record:
    """A frozen dataclass, its attributes in order.

    Parameters
    ----------
    make
        The class; its constructor checks what types alone do not say.
    fields
        Attribute names and how each is packed, in the constructor's order.
    """

    make: Callable[..., Any]
    fields: tuple[tuple[str, Field], ...]

    @classmethod
    def of(cls, make: type) -> Record:
        """The record of a dataclass whose annotations say all.

        ``int``, ``str``, ``bytes`` and string enums are plain, ``tuple[X, ...]`` is
        a list, a dataclass a record within the record, and anything longer is
        ``Annotated`` with its :class:`Field`.
        """
        hints = get_type_hints(make, include_extras=True)
        names = [field.name for field in dataclasses.fields(make)]
        return cls(make, tuple((name, _field_of(hints[name])) for name in names))

    @cached_property
    def _steps(self) -> list[tuple[str, Any, Field]]:
        """Of each field its name, its type if it is plain, and how it is packed."""
        return [
            (name, field.kind if isinstance(field, Plain) else None, field)
            for name, field in self.fields
        ]

    @cached_property
    def _is_plain(self) -> bool:
        return all(kind is not None for _, kind, _ in self._steps)

    def pack(self, value: Any, blobs: list[bytes]) -> object:
        return [
            field.pack(getattr(value, name), blobs)
            if kind is None
            else getattr(value, name)
            for name, kind, field in self._steps
        ]

    def unpack(self, plain: object, blobs: Blobs) -> Any:
        steps = self._steps
        if type(plain) is not list or len(plain) != len(steps):
            raise ProtocolError(
                f"a message's record does not have {len(steps)} fields",
                remedy=_REMEDY,
            )
        values = [
            each if type(each) is kind else field.unpack(each, blobs)
            for each, (_, kind, field) in zip(plain, steps, strict=True)
        ]
        if self._is_plain:
            return _made(self.make, *values)
        return self.make(*values)


@lru_cache(maxsize=64)
def _made(make: Callable[..., Any], *values: int | str | bytes) -> Any:
    """A record of plain fields, which is a value: the same again is not checked again.

    All messages of a round repeat the same exchange. Every field has exactly its type,
    so that equal values are the same value.
    """
    return make(*values)


def _field_of(hint: Any) -> Field:
    if get_origin(hint) is Annotated:
        return cast(Field, get_args(hint)[1])
    if get_origin(hint) is tuple:
        return Items(_field_of(get_args(hint)[0]))
    if dataclasses.is_dataclass(hint):
        return Record.of(cast(type, hint))
    if hint is int or hint is bytes:
        return Plain(hint)
    if issubclass(hint, str):
        return Plain(str)
    raise TypeError(f"{hint} has no encoding")


def _refuse_extension(code: int, data: bytes) -> object:
    raise ProtocolError("a message has an extension type", remedy=_REMEDY)


def pack_body(field: Field, value: object) -> list[bytes]:
    """The parts of the body of a message."""
    blobs: list[bytes] = []
    record = msgpack.packb(field.pack(value, blobs), use_bin_type=True)
    if len(record) > MAX_RECORD_BYTES:
        raise ProtocolError(f"a message's record exceeds {MAX_RECORD_BYTES} bytes")
    return [_LENGTH.pack(len(record)), record, *blobs]


def unpack_body(field: Field, body: memoryview) -> Any:
    """The message in a body.

    Raises
    ------
    ProtocolError
        If the body is anything but the one encoding of a valid message.
    """
    if len(body) < _LENGTH.size:
        raise ProtocolError("a message is shorter than its first field")
    (length,) = _LENGTH.unpack_from(body)
    record = body[_LENGTH.size : _LENGTH.size + length]
    if length > MAX_RECORD_BYTES or len(record) != length:
        raise ProtocolError("a message's record has an impossible length")
    try:
        plain = msgpack.unpackb(
            record,
            raw=False,
            ext_hook=_refuse_extension,
            max_str_len=MAX_RECORD_BYTES,
            max_bin_len=MAX_RECORD_BYTES,
            # msgpack allocates arrays by what their header says.
            max_array_len=MAX_SITES,
            max_map_len=0,
            max_ext_len=0,
        )
        canonical = msgpack.packb(plain, use_bin_type=True) == record
    except (
        ValueError,
        TypeError,
        OverflowError,
        RecursionError,
        msgpack.UnpackException,
    ):
        # From None: msgpack's own texts may quote the bytes.
        raise ProtocolError("a message's record is not msgpack") from None
    if not canonical:
        raise ProtocolError("a message's record is not in its canonical encoding")
    blobs = Blobs(body[_LENGTH.size + length :])
    message = field.unpack(plain, blobs)
    blobs.finish()
    return message

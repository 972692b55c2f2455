"""Questions and answers over a pair of pipes: a verb, a length, bytes."""

from __future__ import annotations

import struct
from typing import BinaryIO

_HEADER = struct.Struct("<cI")
MAX_MESSAGE = 2**30


def write(stream: BinaryIO, verb: bytes, *parts: bytes) -> None:
    """Send one message; several parts are preceded by the first one's length."""
    if len(parts) == 2:
        parts = (struct.pack("<I", len(parts[0])), *parts)
    stream.write(_HEADER.pack(verb, sum(map(len, parts))))
    for part in parts:
        stream.write(part)
    stream.flush()


def read(stream: BinaryIO) -> tuple[bytes, bytes] | None:
    """Receive one message, or None at the end of the stream."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    verb, length = _HEADER.unpack(header)
    if length > MAX_MESSAGE:
        return None
    body = stream.read(length)
    return None if len(body) < length else (verb, body)


def two(body: bytes) -> tuple[bytes, bytes]:
    """The two parts of a body."""
    (length,) = struct.unpack_from("<I", body)
    return body[4 : 4 + length], body[4 + length :]

"""Questions and answers over a pair of pipes: a verb, a length, bytes."""

from __future__ import annotations

import os
import select
import struct
import time
from typing import BinaryIO

_HEADER = struct.Struct("<cI")
_PIECE = 2**20
MAX_MESSAGE = 2**30


def pieces(*parts: bytes) -> tuple[bytes, ...]:
    """What a body consists of: two parts are preceded by the first one's length."""
    return (struct.pack("<I", len(parts[0])), *parts) if len(parts) == 2 else parts


def write(stream: BinaryIO, verb: bytes, *parts: bytes) -> None:
    """Send one message."""
    parts = pieces(*parts)
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


def read_within(stream: BinaryIO, seconds: float) -> tuple[bytes, bytes] | None:
    """Receive one message, or None if it is not whole in time.

    The clock runs for the whole message: a byte now and then does not stop it.
    Past the buffer of ``stream``, which must be read in this way only.
    """
    deadline = time.monotonic() + seconds
    header = _exactly(stream.fileno(), _HEADER.size, deadline)
    if header is None:
        return None
    verb, length = _HEADER.unpack(header)
    if length > MAX_MESSAGE:
        return None
    body = _exactly(stream.fileno(), length, deadline)
    return None if body is None else (verb, body)


def _exactly(descriptor: int, size: int, deadline: float) -> bytes | None:
    """So many bytes, or None if the stream or the time ends before."""
    data = bytearray()
    while len(data) < size:
        left = max(deadline - time.monotonic(), 0.0)
        if not select.select([descriptor], [], [], left)[0]:
            return None
        piece = os.read(descriptor, min(size - len(data), _PIECE))
        if not piece:
            return None
        data += piece
    return bytes(data)


def two_parts(body: bytes) -> tuple[bytes, bytes]:
    """The two parts of a body."""
    (length,) = struct.unpack_from("<I", body)
    return body[4 : 4 + length], body[4 + length :]

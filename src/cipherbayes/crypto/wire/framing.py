"""The one binary frame around everything that is stored or sent.

A frame is a header of 48 bytes and a body::

    magic "cbay" | version u8 | kind u8 | zero u16 | length u64 | sha256 | body

(little endian). The hash is taken over the 16 bytes before it and the body, so
it pins the kind and the length as well. It finds accidents; against a person
who can recompute it there are signatures.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator
from enum import IntEnum

from cipherbayes.errors import CryptoError

VERSION = 1
MAGIC = b"cbay"

_PREFIX = struct.Struct("<4sBBHQ")
_DIGEST_BYTES = 32
HEADER_BYTES = _PREFIX.size + _DIGEST_BYTES


class Kind(IntEnum):
    """What a frame holds."""

    PUBLIC_KEY = 1
    SECRET_KEY = 2
    CIPHERTEXT = 3
    SIGNING_KEY = 4
    EXCHANGE_KEY = 5
    EVALUATION_KEYS = 6
    CIRCUIT_STATE = 7
    ENROLMENT = 16
    KEY_OFFER = 17
    RUN_MANIFEST = 18
    ROUND_REQUEST = 19
    SITE_REPLY = 20
    DECRYPT_REQUEST = 21
    DECRYPT_REPLY = 22
    REFUSAL = 23
    TRIO_OFFER = 24
    REPLAY_REQUEST = 25
    ATTESTATION = 26
    OUTPUT_REQUEST = 27
    CIPHERTEXT_REPLY = 28
    TRANSCRIPT = 40
    CURATOR_TOTAL = 41


def _checksum(prefix: bytes | memoryview, *parts: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(prefix)
    for part in parts:
        digest.update(part)
    return digest.digest()


def encode_frame(kind: Kind, *parts: bytes) -> bytes:
    """One frame whose body is the parts, one after the other."""
    length = sum(len(part) for part in parts)
    prefix = _PREFIX.pack(MAGIC, VERSION, kind, 0, length)
    return b"".join((prefix, _checksum(prefix, *parts), *parts))


def frame_kind(data: bytes | memoryview) -> Kind:
    """The kind a frame says it is; nothing else about it has been checked."""
    if len(data) < HEADER_BYTES:
        raise CryptoError("the frame is shorter than its header", remedy=_RESEND)
    magic, version, kind, zero, _ = _PREFIX.unpack_from(data)
    if magic != MAGIC or zero != 0:
        raise CryptoError("this is not a cipherbayes frame", remedy=_RESEND)
    if version != VERSION:
        raise CryptoError(
            f"the frame has version {version}, this program reads {VERSION}",
            remedy="install the same release at every party",
        )
    try:
        return Kind(kind)
    except ValueError:
        raise CryptoError(
            f"the frame has the unknown kind {kind}",
            remedy="install the same release at every party",
        ) from None


def decode_frame(data: bytes | memoryview, kind: Kind, *, limit: int) -> memoryview:
    """The body of one frame, without copying it.

    Parameters
    ----------
    data
        Exactly one frame: a byte more or less is refused.
    kind
        The kind that is expected here.
    limit
        Largest body that is accepted; checked before the body is looked at.

    Raises
    ------
    CryptoError
        If anything about the frame is not as it must be.
    """
    found = frame_kind(data)
    if found is not kind:
        raise CryptoError(
            f"expected a {kind.name} frame, found {found.name}", remedy=_RESEND
        )
    return frame_body(data, kind, limit=limit)


def frame_body(data: bytes | memoryview, kind: Kind, *, limit: int) -> memoryview:
    """:func:`decode_frame` of a frame that :func:`frame_kind` says is of this kind."""
    view = memoryview(data).toreadonly().cast("B")
    length = _PREFIX.unpack_from(view)[4]
    if length > limit:
        raise CryptoError(
            f"the {kind.name} frame says {length} bytes, at most {limit} are accepted",
            remedy="check the dimension and the number of sites of the study",
        )
    if length != len(view) - HEADER_BYTES:
        raise CryptoError(
            f"the {kind.name} frame says {length} bytes and holds "
            f"{len(view) - HEADER_BYTES}",
            remedy=_RESEND,
        )
    body = view[HEADER_BYTES:]
    stored = view[_PREFIX.size : HEADER_BYTES]
    if not hmac.compare_digest(stored, _checksum(view[: _PREFIX.size], body)):
        raise CryptoError(
            f"the {kind.name} frame does not match its checksum", remedy=_RESEND
        )
    return body


def split_frames(data: bytes) -> Iterator[memoryview]:
    """The frames that stand one after the other in ``data``; none is looked into.

    Raises
    ------
    CryptoError
        If anything but whole frames is there.
    """
    rest = memoryview(data).toreadonly().cast("B")
    while rest:
        frame_kind(rest)
        length = HEADER_BYTES + _PREFIX.unpack_from(rest)[4]
        if length > len(rest):
            raise CryptoError("the last frame is cut short", remedy=_RESEND)
        yield rest[:length]
        rest = rest[length:]


_RESEND = "it was damaged or is no message of this program; send it again"

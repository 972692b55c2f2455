"""What is signed and what keys are derived from: unambiguous, domain-separated bytes.

Two different lists of fields never give the same bytes: every field carries its
type and its length, and every use has a domain of its own.
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass
from functools import lru_cache

from cipherbayes.errors import ProtocolError

RUN_BYTES = 16
HASH_BYTES = 32
MAX_COUNTER = 2**32 - 1

_LENGTH = struct.Struct("<cQ")
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def transcript(domain: str, *fields: bytes | str | int) -> bytes:
    """``domain`` and ``fields`` as bytes that can be read in one way only.

    Each is written as type (``b``, ``s`` or ``i``), length (u64) and content; an
    integer is its decimal digits.
    """
    parts: list[bytes] = [_text(domain)]
    for field in fields:
        if type(field) is bytes:
            parts += (_LENGTH.pack(b"b", len(field)), field)
        elif isinstance(field, str):
            parts.append(_text(field))
        elif isinstance(field, int):
            content = b"%d" % field
            parts += (_LENGTH.pack(b"i", len(content)), content)
        else:
            content = bytes(field)
            parts += (_LENGTH.pack(b"b", len(content)), content)
    return b"".join(parts)


@lru_cache(maxsize=256)
def _text(text: str) -> bytes:
    """A text with its type and length: the same domains and names in every round."""
    content = text.encode()
    return _LENGTH.pack(b"s", len(content)) + content


def check_token(text: object, what: str) -> str:
    """A name that is safe in a file name, a log line and a transcript."""
    if type(text) is not str or _TOKEN.fullmatch(text) is None:
        raise ProtocolError(
            f"{what} is not a plain name",
            remedy="use up to 64 letters, digits, dots, dashes and underscores",
        )
    return text


def check_bytes(data: object, size: int, what: str) -> bytes:
    """Exactly ``size`` bytes."""
    if type(data) is not bytes or len(data) != size:
        raise ProtocolError(f"{what} is not {size} bytes")
    return data


def check_counter(value: object, what: str, most: int = MAX_COUNTER) -> int:
    """An integer from 0 to ``most``."""
    if type(value) is not int or not 0 <= value <= most:
        raise ProtocolError(f"{what} is not a whole number from 0 to {most}")
    return value


@dataclass(frozen=True)
class RoundId:
    """The one exchange that a message, a signature or a mask belongs to.

    Attributes
    ----------
    run
        16 random bytes that name the run.
    study
        SHA-256 of the study file.
    round, attempt
        Counted from 0; a lost site means a new attempt of the same round.
    purpose
        What is summed, e.g. ``"gradient"``.
    roster
        Digest of the sites that take part and of their keys
        (:attr:`cipherbayes.crypto.identity.roster.Roster.digest`).
    """

    run: bytes
    study: bytes
    round: int
    attempt: int
    purpose: str
    roster: bytes

    def __post_init__(self) -> None:
        check_bytes(self.run, RUN_BYTES, "the run id")
        check_bytes(self.study, HASH_BYTES, "the study hash")
        check_counter(self.round, "the round")
        check_counter(self.attempt, "the attempt")
        check_token(self.purpose, "the purpose")
        check_bytes(self.roster, HASH_BYTES, "the roster digest")

    @property
    def digest(self) -> bytes:
        """SHA-256 over all six fields."""
        return _digest(self)


@lru_cache(maxsize=64)
def _digest(exchange: RoundId) -> bytes:
    """The digest of an exchange, which every message of a round repeats."""
    fields = (exchange.run, exchange.study, exchange.round, exchange.attempt)
    return hashlib.sha256(
        transcript("cipherbayes/round/1", *fields, exchange.purpose, exchange.roster)
    ).digest()

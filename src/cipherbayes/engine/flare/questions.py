"""Questions and answers as FLARE carries them: a verb and bytes, under a MAC.

    tag = HMAC-SHA256(key, purpose | nonce | verb | body)

The nonce is the question's; an answer's tag covers it, so that no answer fits another
question.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable

ALIVE = b"?"
BUSY, IDLE = b"busy", b"idle"
"""Answers to it: whether the party works on a question."""
KEY_BYTES = 32
MOST_WHOLE = 2**20
"""Longest question or answer, in bytes, that travels in one piece."""
_NONCE_BYTES = 16
_VERB, _BODY, _NONCE, _TAG = "verb", "body", "nonce", "tag"
_GOOD, _BAD, _LONG = b"=", b"!", b"+"
MAX_ERROR = 300


class PartyFailedError(Exception):
    """The far party answered with an error, in its own words."""


class LongAnswerError(Exception):
    """The answer is there and too long for the way the question came."""


@dataclass(frozen=True)
class PartyQuestion:
    """What is asked."""

    nonce: bytes
    verb: bytes
    body: bytes

    @classmethod
    def of(cls, verb: bytes, body: bytes) -> PartyQuestion:
        """A question that was never asked before."""
        return cls(secrets.token_bytes(_NONCE_BYTES), verb, body)


class Sealed:
    """Both ends of a line: messages under one key.

    Formal guarantees
    -----------------
    What :meth:`question_in` and :meth:`answer_in` return was made by a holder of the
    key, for this direction and, of an answer, for this question.
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def question(self, question: PartyQuestion) -> Shareable:
        """A question to a party."""
        return self._seal(b"Q", question.nonce, question.verb, question.body)

    def question_in(self, message: Shareable) -> PartyQuestion | None:
        """The question in a message; None if its MAC was not made with this key."""
        opened = self._open(b"Q", message)
        return None if opened is None else PartyQuestion(*opened)

    def answer(self, question: PartyQuestion, answer: bytes) -> Shareable:
        """A party's answer."""
        return self._seal(b"A", question.nonce, _GOOD, answer)

    def failure(self, question: PartyQuestion, text: str) -> Shareable:
        """A party's failure, without a path or a data value."""
        return self._seal(b"A", question.nonce, _BAD, text[:MAX_ERROR].encode())

    def long_answer(self, question: PartyQuestion) -> Shareable:
        """That a party's answer is to be fetched in another way."""
        return self._seal(b"A", question.nonce, _LONG, b"")

    def answer_in(
        self, question: PartyQuestion, message: Shareable | None
    ) -> bytes | None:
        """The bytes of an answer; None if none came.

        Raises
        ------
        PartyFailedError
            If the party answered with an error.
        LongAnswerError
            If the answer is to be fetched in another way.
        """
        if message is None or message.get_return_code() != ReturnCode.OK:
            return None
        opened = self._open(b"A", message)
        if opened is None or opened[0] != question.nonce:
            return None
        if opened[1] == _BAD:
            raise PartyFailedError(opened[2].decode("utf-8", "replace"))
        if opened[1] == _LONG:
            raise LongAnswerError
        return opened[2]

    def _seal(
        self, purpose: bytes, nonce: bytes, verb: bytes, body: bytes
    ) -> Shareable:
        message = Shareable()
        message[_NONCE], message[_VERB], message[_BODY] = nonce, verb, body
        message[_TAG] = self._tag(purpose, nonce, verb, body)
        return message

    def _open(
        self, purpose: bytes, message: Shareable
    ) -> tuple[bytes, bytes, bytes] | None:
        nonce, verb, body, tag = map(message.get, (_NONCE, _VERB, _BODY, _TAG))
        if not all(type(part) is bytes for part in (nonce, verb, body, tag)):
            return None
        if len(nonce) != _NONCE_BYTES or len(verb) != 1:
            return None
        if not hmac.compare_digest(tag, self._tag(purpose, nonce, verb, body)):
            return None
        return nonce, verb, body

    def _tag(self, purpose: bytes, nonce: bytes, verb: bytes, body: bytes) -> bytes:
        # Every part but the last has a fixed length: no two messages read alike.
        mac = hmac.new(self._key, purpose + nonce + verb, hashlib.sha256)
        mac.update(body)
        return mac.digest()

"""Ed25519 identities: who said what, in which exchange.

A party's identity is its Ed25519 public key, pinned in the study's roster. What
is signed is always a :func:`~cipherbayes.crypto.wire.transcript.transcript` with a
domain, so a signature made for one purpose is worth nothing for another
(RFC 8032).
"""

from __future__ import annotations

import hashlib
from typing import NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from cipherbayes.crypto.wire.framing import Kind, decode_frame, encode_frame
from cipherbayes.crypto.wire.transcript import transcript
from cipherbayes.errors import CryptoError, ProtocolError

IDENTITY_BYTES = 32
SIGNATURE_BYTES = 64
FINGERPRINT_DIGITS = 32
"""Hexadecimal digits that people compare: 128 bits."""


class Identity:
    """A party's public key; two are equal if their 32 bytes are."""

    __slots__ = ("_key", "raw")

    def __init__(self, raw: bytes) -> None:
        if type(raw) is not bytes or len(raw) != IDENTITY_BYTES:
            raise CryptoError(f"an identity is {IDENTITY_BYTES} bytes")
        self.raw = raw
        self._key = Ed25519PublicKey.from_public_bytes(raw)

    @classmethod
    def from_hex(cls, text: str) -> Identity:
        """From the 64 hexadecimal digits a study's roster holds."""
        try:
            return cls(bytes.fromhex(text))
        except ValueError:
            raise CryptoError(
                "an identity is not hexadecimal",
                remedy="copy the 64 digits that `cipherbayes keys` prints",
            ) from None

    @property
    def id(self) -> str:
        """The whole public key in hexadecimal: what a study's roster pins."""
        return self.raw.hex()

    @property
    def fingerprint(self) -> str:
        """128 bits of its hash in eight groups, to compare over the telephone.

        Formal guarantees
        -----------------
        Another key with this fingerprint takes about 2¹²⁸ attempts. One person
        can make two keys that share a fingerprint in about 2⁶⁴ attempts, and gains
        nothing by it: both keys are theirs.
        """
        digits = hashlib.sha256(self.raw).hexdigest()[:FINGERPRINT_DIGITS]
        return " ".join(digits[i : i + 4] for i in range(0, len(digits), 4))

    def verify(self, signature: bytes, domain: str, *fields: bytes | str | int) -> None:
        """Raise ProtocolError unless this identity signed exactly these fields."""
        try:
            self._key.verify(signature, transcript(domain, *fields))
        except InvalidSignature:
            raise ProtocolError(
                "the signature does not verify",
                where=f"identity {self.fingerprint}",
                remedy="the message was altered, or the study pins another key",
            ) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"Identity({self.fingerprint})"


class SigningKey:
    """The private half of an identity. Never printed, pickled or compared."""

    __slots__ = ("_key", "identity")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.identity = Identity(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> SigningKey:
        """A fresh key from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    def sign(self, domain: str, *fields: bytes | str | int) -> bytes:
        """64 bytes that only this key can make for these fields."""
        return self._key.sign(transcript(domain, *fields))

    def to_secret_bytes(self) -> bytes:
        """The private key, framed: for :class:`~.key_folder.KeyFolder`."""
        return encode_frame(Kind.SIGNING_KEY, self._key.private_bytes_raw())

    @classmethod
    def from_secret_bytes(cls, data: bytes) -> SigningKey:
        body = decode_frame(data, Kind.SIGNING_KEY, limit=32)
        if len(body) != 32:
            raise CryptoError("a signing key is 32 bytes", remedy="restore the file")
        return cls(Ed25519PrivateKey.from_private_bytes(bytes(body)))

    def __repr__(self) -> str:
        return f"SigningKey(of {self.identity.fingerprint})"

    def __reduce__(self) -> NoReturn:
        raise CryptoError("a signing key cannot be pickled")

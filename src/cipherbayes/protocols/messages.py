"""What the parties say to each other: frozen types with one binary encoding each.

A message is a frame (:mod:`cipherbayes.crypto.wire.framing`) whose kind says which type
it is and whose body is its fields (:mod:`cipherbayes.crypto.wire.fields`). Constructors
check what a message must satisfy by itself, so a message that exists is well
formed, whether it was made here or decoded. Whether it is *right* (round, roster,
signature, range) is for the party that receives it.

========================  ==================  =====================================
message                   from, to            says
========================  ==================  =====================================
:class:`Enrolment`        site, server        I take part, with this key
:class:`KeyOffer`         CSP, all            the run's public key
:class:`RunManifest`      server, all         the run: roster, parameters, rounds
:class:`RoundRequest`     server, sites       your sum at this theta, please
:class:`SiteReply`        site, server        masked, noised, encrypted, signed
:class:`DecryptRequest`   server, CSP         all replies of a round
:class:`DecryptReply`     CSP, server         the total
:class:`Refusal`          anyone              I refuse, for this reason
========================  ==================  =====================================
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar, overload

import numpy as np

from cipherbayes.crypto.bfv.ciphertext import public_key_id
from cipherbayes.crypto.bfv.parameters import MAX_DIMENSION, parameter_set
from cipherbayes.crypto.ckks.parameters import CKKS_SETS
from cipherbayes.crypto.identity.roster import MAX_SITES, Member, Roster
from cipherbayes.crypto.identity.signatures import (
    IDENTITY_BYTES,
    SIGNATURE_BYTES,
    Identity,
    SigningKey,
)
from cipherbayes.crypto.rlwe import KEY_ID_BYTES
from cipherbayes.crypto.wire.fields import Blob, Record, Vector, pack_body, unpack_body
from cipherbayes.crypto.wire.framing import Kind, encode_frame, frame_body, frame_kind
from cipherbayes.crypto.wire.transcript import (
    RoundId,
    check_bytes,
    check_counter,
    check_token,
)
from cipherbayes.errors import CryptoError, ProtocolError
from cipherbayes.protocols.message_checks import (
    check_blob,
    check_run,
    checked_theta,
    checked_total,
)
from cipherbayes.typing import Floats, Integers

MAX_CIPHERTEXT_BYTES = 2**26
MAX_PUBLIC_KEY_BYTES = 2**20
MAX_REQUEST_BYTES = 2**29
MAX_TEXT = 300
MAX_RELEASES = 16
"""Preparatory rounds of a study, at most."""

_KEY_OFFER = "cipherbayes/key-offer/1"
_SITE_REPLY = "cipherbayes/site-reply/1"
_DECRYPT_REPLY = "cipherbayes/decrypt-reply/1"


@dataclass(frozen=True)
class Enrolment:
    """A site joins a run with the exchange key it made for it."""

    run: bytes
    study: bytes
    member: Member

    def __post_init__(self) -> None:
        check_run(self.run, self.study)


@dataclass(frozen=True)
class KeyOffer:
    """The CSP's public key for a run, signed: nobody else may choose it.

    The signature covers (run, study hash, sha256 of the key's frame).
    """

    run: bytes
    study: bytes
    public_key: Annotated[bytes, Blob(MAX_PUBLIC_KEY_BYTES)]
    signature: bytes

    def __post_init__(self) -> None:
        check_run(self.run, self.study)
        check_blob(self.public_key, MAX_PUBLIC_KEY_BYTES, "the public key")
        check_bytes(self.signature, SIGNATURE_BYTES, "the CSP's signature")

    @classmethod
    def signed(
        cls, key: SigningKey, *, run: bytes, study: bytes, public_key: bytes
    ) -> KeyOffer:
        """The offer of the CSP that holds ``key``."""
        digest = hashlib.sha256(public_key).digest()
        return cls(run, study, public_key, key.sign(_KEY_OFFER, run, study, digest))

    @property
    def key_id(self) -> bytes:
        """Which key is offered."""
        return public_key_id(self.public_key)

    def verify(self, csp: Identity) -> None:
        """Raise ProtocolError unless the CSP offered this key for this run."""
        digest = hashlib.sha256(self.public_key).digest()
        csp.verify(self.signature, _KEY_OFFER, self.run, self.study, digest)


@dataclass(frozen=True)
class RunManifest:
    """What all parties of a run agree on before its first round.

    Attributes
    ----------
    run, study
        The run's id and the hash of its study.
    parameters
        Id of the parameter set.
    key_id
        Which public key.
    rounds
        How many rounds there will be at most.
    csp
        The CSP's identity.
    roster
        All sites of the run.
    """

    run: bytes
    study: bytes
    parameters: str
    key_id: bytes
    rounds: int
    csp: bytes
    roster: Roster

    def __post_init__(self) -> None:
        check_run(self.run, self.study)
        try:
            if self.parameters not in CKKS_SETS:
                parameter_set(self.parameters)
        except CryptoError as unknown:
            raise ProtocolError(unknown.what, remedy=unknown.remedy) from None
        check_bytes(self.key_id, KEY_ID_BYTES, "the key id")
        check_counter(self.rounds, "the number of rounds")
        check_bytes(self.csp, IDENTITY_BYTES, "the CSP's identity")


@dataclass(frozen=True)
class SiteReply:
    """A site's masked, noised, encrypted sum.

    The signature covers the exchange (run, study hash, round, attempt, purpose,
    roster), the site and the sha256 of the ciphertext's frame, which holds the
    parameter id and the key id.
    """

    round_id: RoundId
    site: str
    ciphertext: Annotated[bytes, Blob(MAX_CIPHERTEXT_BYTES)]
    signature: bytes

    def __post_init__(self) -> None:
        check_token(self.site, "the site's name")
        check_blob(self.ciphertext, MAX_CIPHERTEXT_BYTES, "the ciphertext")
        check_bytes(self.signature, SIGNATURE_BYTES, "the site's signature")

    @classmethod
    def signed(
        cls, key: SigningKey, *, round_id: RoundId, site: str, ciphertext: bytes
    ) -> SiteReply:
        """The reply of the site that holds ``key``."""
        digest = hashlib.sha256(ciphertext).digest()
        signature = key.sign(_SITE_REPLY, round_id.digest, site, digest)
        return cls(round_id, site, ciphertext, signature)

    def verify(self, identity: Identity) -> None:
        """Raise ProtocolError unless this identity signed exactly this reply."""
        digest = hashlib.sha256(self.ciphertext).digest()
        identity.verify(
            self.signature, _SITE_REPLY, self.round_id.digest, self.site, digest
        )


@dataclass(frozen=True)
class DecryptRequest:
    """All replies of one exchange, in the order of the sites' names."""

    round_id: RoundId
    replies: tuple[SiteReply, ...]

    def __post_init__(self) -> None:
        sites = [reply.site for reply in self.replies]
        if not 1 <= len(sites) <= MAX_SITES or sites != sorted(set(sites)):
            raise ProtocolError("the replies must be of distinct sites and in order")
        if any(reply.round_id != self.round_id for reply in self.replies):
            raise ProtocolError(
                "a reply belongs to another exchange",
                where=f"round {self.round_id.round}",
            )


@dataclass(frozen=True, eq=False)
class DecryptReply:
    """The total of one exchange, signed by the CSP over (exchange, values)."""

    round_id: RoundId
    values: Annotated[Integers, Vector("<i8")]
    signature: bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", checked_total(self.values))
        check_bytes(self.signature, SIGNATURE_BYTES, "the CSP's signature")

    @classmethod
    def signed(
        cls, key: SigningKey, *, round_id: RoundId, values: Integers
    ) -> DecryptReply:
        """The answer of the CSP that holds ``key``."""
        return cls(
            round_id, values, key.sign(_DECRYPT_REPLY, round_id.digest, _digest(values))
        )

    def verify(self, csp: Identity) -> None:
        """Raise ProtocolError unless the CSP gave exactly this answer."""
        digest = _digest(self.values)
        csp.verify(self.signature, _DECRYPT_REPLY, self.round_id.digest, digest)


@dataclass(frozen=True, eq=False)
class RoundRequest:
    """The server asks the sites of a roster for their sums at ``theta``.

    ``releases`` are the CSP's signed totals of the preparatory rounds, in order: a
    site works out the scales of the columns from them and takes nobody's word.
    """

    round_id: RoundId
    sites: tuple[str, ...]
    theta: Annotated[Floats, Vector("<f8")]
    releases: tuple[DecryptReply, ...] = ()

    def __post_init__(self) -> None:
        _check_sites(self.sites)
        theta = checked_theta(self.theta, f"round {self.round_id.round}")
        if len(self.releases) > MAX_RELEASES:
            raise ProtocolError("a request has more releases than any study makes")
        object.__setattr__(self, "theta", theta)


@lru_cache(maxsize=8)
def _check_sites(sites: tuple[str, ...]) -> None:
    """Raise ProtocolError unless these can be a round's sites.

    Every round of a run names the same ones: they are looked at once.
    """
    for site in sites:
        check_token(site, "a site's name")
    if not 1 <= len(sites) <= MAX_SITES or list(sites) != sorted(set(sites)):
        raise ProtocolError("a round's sites must be distinct and in order")


def _digest(values: Integers) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<i8").tobytes()).digest()


class Reason(StrEnum):
    """Why a party refuses."""

    MALFORMED = "malformed"
    WRONG_RUN = "wrong-run"
    WRONG_STUDY = "wrong-study"
    WRONG_ROUND = "wrong-round"
    WRONG_ROSTER = "wrong-roster"
    WRONG_KEY = "wrong-key"
    BAD_SIGNATURE = "bad-signature"
    REPLAY = "replay"
    RANGE = "range"
    BUDGET = "budget"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True)
class Refusal:
    """A party says no: a code for programs, a line for people, no data.

    Attributes
    ----------
    party
        Who refuses: a site's name, ``server`` or ``csp``.
    reason
        The code.
    text
        One printable line of at most 300 characters; the ``what`` of an error,
        which never holds a data value, a key or a noise value.
    """

    party: str
    reason: Reason
    text: str

    def __post_init__(self) -> None:
        check_token(self.party, "the party's name")
        try:
            object.__setattr__(self, "reason", Reason(self.reason))
        except ValueError:
            raise ProtocolError("a refusal has an unknown reason") from None
        if (
            type(self.text) is not str
            or len(self.text) > MAX_TEXT
            or not self.text.isprintable()
        ):
            raise ProtocolError(f"a refusal's text is not a line of {MAX_TEXT}")


Message = (
    Enrolment
    | KeyOffer
    | RunManifest
    | RoundRequest
    | SiteReply
    | DecryptRequest
    | DecryptReply
    | Refusal
)

_A = TypeVar("_A")
_B = TypeVar("_B")


class _Format(NamedTuple):
    kind: Kind
    record: Record
    limit: int


_SMALL = 2**16
_LARGE = 2**20
_FORMATS: dict[type, _Format] = {
    cls: _Format(kind, Record.of(cls), limit)
    for cls, kind, limit in (
        (Enrolment, Kind.ENROLMENT, _SMALL),
        (KeyOffer, Kind.KEY_OFFER, MAX_PUBLIC_KEY_BYTES + _SMALL),
        (RunManifest, Kind.RUN_MANIFEST, _LARGE),
        (RoundRequest, Kind.ROUND_REQUEST, 32 * MAX_DIMENSION + _LARGE),
        (SiteReply, Kind.SITE_REPLY, MAX_CIPHERTEXT_BYTES + _SMALL),
        (DecryptRequest, Kind.DECRYPT_REQUEST, MAX_REQUEST_BYTES),
        (DecryptReply, Kind.DECRYPT_REPLY, 8 * MAX_DIMENSION + _SMALL),
        (Refusal, Kind.REFUSAL, _SMALL),
    )
}
_TYPES = {form.kind: cls for cls, form in _FORMATS.items()}


def register(cls: type, kind: Kind, limit: int) -> None:
    """Add a message of another module; ``limit`` bounds its body in bytes."""
    if kind in _TYPES:
        raise ValueError(f"messages of kind {kind.name} are there already")
    _FORMATS[cls] = _Format(kind, Record.of(cls), limit)
    _TYPES[kind] = cls


def encode(message: object) -> bytes:
    """The one encoding of a message."""
    form = _FORMATS[type(message)]
    return encode_frame(form.kind, *pack_body(form.record, message))


@overload
def decode(data: bytes | memoryview) -> object: ...


@overload
def decode(data: bytes | memoryview, expected: type[_A], /) -> _A: ...


@overload
def decode(data: bytes | memoryview, one: type[_A], other: type[_B], /) -> _A | _B: ...


def decode(data: bytes | memoryview, *expected: Any) -> Any:
    """The message in ``data``; ``encode(decode(data)) == data``.

    Parameters
    ----------
    data
        Exactly one message.
    expected
        The types that are acceptable here (all, if none is named): a receiver
        never parses what it would refuse anyway.

    Raises
    ------
    ProtocolError
        If it is anything but the one encoding of a valid message of those types.
    """
    try:
        kind = frame_kind(data)
        cls = _TYPES.get(kind)
        if cls is None or (expected and cls not in expected):
            raise ProtocolError(f"a {kind.name} frame is not expected here")
        form = _FORMATS[cls]
        body = frame_body(data, kind, limit=form.limit)
    except CryptoError as refused:
        raise ProtocolError(refused.what, remedy=refused.remedy) from None
    return unpack_body(form.record, body)

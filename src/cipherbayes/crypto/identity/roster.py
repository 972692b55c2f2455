"""Who takes part: names, pinned identities, and the keys they agreed to use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from cipherbayes.crypto.identity.signatures import (
    IDENTITY_BYTES,
    SIGNATURE_BYTES,
    Identity,
    SigningKey,
)
from cipherbayes.crypto.wire.transcript import (
    check_bytes,
    check_counter,
    check_token,
    transcript,
)
from cipherbayes.errors import ProtocolError

EXCHANGE_BYTES = 32
MAX_SITES = 1024

LEDGER_BYTES = 16
LINK_BYTES = 32

_DOMAIN = "cipherbayes/enrolment/2"


@dataclass(frozen=True)
class Member:
    """A site in one run: its identity and the X25519 key it made for the run.

    Attributes
    ----------
    site
        The site's name in the study.
    identity
        Its Ed25519 public key, 32 bytes.
    exchange
        Its X25519 public key for this run, 32 bytes.
    signature
        The identity's signature over (run, study hash, site, exchange) and the three
        that follow.
    ledger, records, link
        How far the site's ledger has come: its id, the number of its records and the
        link of the last. They say nothing of its rows; others remember them, and
        notice a ledger that went back.
    """

    site: str
    identity: bytes
    exchange: bytes
    signature: bytes
    ledger: bytes = bytes(LEDGER_BYTES)
    records: int = 0
    link: bytes = bytes(LINK_BYTES)

    def __post_init__(self) -> None:
        check_token(self.site, "the site's name")
        check_bytes(self.identity, IDENTITY_BYTES, "a site's identity")
        check_bytes(self.exchange, EXCHANGE_BYTES, "a site's exchange key")
        check_bytes(self.signature, SIGNATURE_BYTES, "a site's signature")
        check_bytes(self.ledger, LEDGER_BYTES, "the id of a site's ledger")
        check_counter(self.records, "the number of a ledger's records")
        check_bytes(self.link, LINK_BYTES, "the last link of a site's ledger")

    @classmethod
    def enrol(
        cls,
        key: SigningKey,
        *,
        run: bytes,
        study: bytes,
        site: str,
        exchange: bytes,
        ledger: bytes = bytes(LEDGER_BYTES),
        records: int = 0,
        link: bytes = bytes(LINK_BYTES),
    ) -> Member:
        """The entry by which ``site`` joins a run."""
        head = (ledger, records, link)
        signature = key.sign(_DOMAIN, run, study, site, exchange, *head)
        return cls(site, key.identity.raw, exchange, signature, *head)

    def verify(self, *, run: bytes, study: bytes, pinned: Identity) -> None:
        """Raise ProtocolError unless the pinned identity made this entry for the run.

        Edge cases
        ----------
        An entry signed for another run or another study does not verify.
        """
        if self.identity != pinned.raw:
            raise ProtocolError(
                "the identity is not the one the study pins",
                where=f"site {self.site}",
                remedy="compare the fingerprints that `cipherbayes keys` prints",
            )
        pinned.verify(
            self.signature,
            _DOMAIN,
            run,
            study,
            self.site,
            self.exchange,
            self.ledger,
            self.records,
            self.link,
        )


@dataclass(frozen=True)
class Roster:
    """The members of an exchange, in the order of their names.

    The order of the names is also the order that fixes the signs of the masks.
    """

    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.members) <= MAX_SITES:
            raise ProtocolError(f"a roster has 1 to {MAX_SITES} sites")
        names = self.sites
        if list(names) != sorted(set(names)):
            raise ProtocolError("a roster's sites must be distinct and in order")
        for what in ("identity", "exchange"):
            if len({getattr(member, what) for member in self.members}) != len(names):
                raise ProtocolError(f"two sites of a roster have the same {what} key")

    @classmethod
    def of(cls, members: Iterable[Member]) -> Roster:
        """A roster of these members, put in order."""
        return cls(tuple(sorted(members, key=lambda member: member.site)))

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(member.site for member in self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)

    def __getitem__(self, site: str) -> Member:
        try:
            return self._by_site[site]
        except KeyError:
            # The name may be anything a message said: it is not repeated.
            raise ProtocolError("the site is not in the roster") from None

    @cached_property
    def _by_site(self) -> dict[str, Member]:
        return {member.site: member for member in self.members}

    def restrict(self, sites: Iterable[str]) -> Roster:
        """The part of the roster that takes part in an attempt."""
        names = tuple(sites)
        if names == self.sites:
            return self
        return Roster.of([self[site] for site in names])

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over names and keys: one key exchanged, another digest."""
        fields: list[bytes | str] = []
        for member in self.members:
            fields += (member.site, member.identity, member.exchange)
        return hashlib.sha256(transcript("cipherbayes/roster/1", *fields)).digest()

    def verify(
        self, *, run: bytes, study: bytes, pinned: Mapping[str, Identity]
    ) -> None:
        """Raise ProtocolError unless every member is pinned and joined this run."""
        for member in self.members:
            if member.site not in pinned:
                raise ProtocolError(
                    "the study has no such site", where=f"site {member.site}"
                )
        identities = tuple(pinned[member.site] for member in self.members)
        _verify_all(self.members, run, study, identities)


@lru_cache(maxsize=4)
def _verify_all(
    members: tuple[Member, ...],
    run: bytes,
    study: bytes,
    identities: tuple[Identity, ...],
) -> None:
    """Verify each member's entry.

    A thousand sites in one process would verify a thousand entries each: what was
    found right here is not computed again. What is wrong raises and is not remembered.
    """
    for member, identity in zip(members, identities, strict=True):
        member.verify(run=run, study=study, pinned=identity)

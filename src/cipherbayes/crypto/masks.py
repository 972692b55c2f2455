"""Pairwise masks: one site's vector alone is noise, the sum over the roster is not.

Sites i < j (by name) of a roster share a stream m_ij of 64-bit words that nobody
else knows. Site i sends

    y_i = x_i + sum_{j > i} m_ij - sum_{j < i} m_ji    (mod 2^64),

and sum_i y_i = sum_i x_i because every stream enters once with each sign (Bonawitz
et al. 2017, without its secret sharing: a lost site means a new attempt). In a large
roster the j are not all other sites but some (:func:`peers_of`; Bell et al. 2020), so
that a site's work does not grow with the roster.

m_ij is ChaCha20 under a key of its own for every exchange **and question**:
HKDF-SHA256 of X25519(i, j) bound to (run, study, purpose, roster), expanded for (round,
attempt, sha256 of the question). Two different questions never meet the same mask, even
at a site whose ledger forgot that it had answered one of them.

:mod:`cipherbayes.crypto.ckks.masking` makes masks of ring elements from the same
streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from cipherbayes.crypto.bfv.parameters import MAX_DIMENSION
from cipherbayes.crypto.identity.roster import Roster
from cipherbayes.crypto.wire.framing import Kind, decode_frame, encode_frame
from cipherbayes.crypto.wire.transcript import (
    HASH_BYTES,
    RoundId,
    check_bytes,
    transcript,
)
from cipherbayes.errors import CryptoError, ProtocolError
from cipherbayes.typing import Integers

# A site sees one or two rosters and purposes at a time; keys are cheap to remake.
_MAX_PAIRS = 8

LEAST_PEERS = 20
"""Peers that a site shares masks with in a roster that has as many."""

_CIRCLE = "cipherbayes/mask-circle/1"
_PAIR = "cipherbayes/mask/2"
_STREAM = "cipherbayes/mask-stream/2"


class ExchangeKey:
    """A site's X25519 key for one run. Never printed, pickled or compared."""

    __slots__ = ("_key", "public")

    def __init__(self, key: X25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> ExchangeKey:
        """A fresh key from the operating system's randomness."""
        return cls(X25519PrivateKey.generate())

    def shared_with(self, public: bytes) -> bytes:
        """The Diffie-Hellman secret with another site; refuses degenerate keys."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise CryptoError(
                "an exchange key is degenerate",
                remedy="the site that sent it must make a new one",
            ) from None

    def to_secret_bytes(self) -> bytes:
        """The private key, framed: for :class:`~.key_folder.KeyFolder`."""
        return encode_frame(Kind.EXCHANGE_KEY, self._key.private_bytes_raw())

    @classmethod
    def from_secret_bytes(cls, data: bytes) -> ExchangeKey:
        body = decode_frame(data, Kind.EXCHANGE_KEY, limit=32)
        if len(body) != 32:
            raise CryptoError("an exchange key is 32 bytes", remedy="restore the file")
        return cls(X25519PrivateKey.from_private_bytes(bytes(body)))

    def __repr__(self) -> str:
        return f"ExchangeKey(public {self.public.hex()[:16]})"

    def __reduce__(self) -> NoReturn:
        raise CryptoError("an exchange key cannot be pickled")


def peers_of(site: str, roster: Roster, colluders: int) -> tuple[str, ...]:
    """The sites of a roster that ``site`` shares masks with.

    The roster stands in a circle, in the order of a hash of its names and keys, and
    every site shares masks with the h nearest on either side, 2h the first even number
    that is at least ``LEAST_PEERS`` and exceeds ``colluders``; with everybody where
    there are no more than that.

    Formal guarantees
    -----------------
    A site is its peers' peer. Without any 2h - 1 of the sites, whichever they are, the
    others are still connected by masks: to part a circle in two, h neighbours have to
    go in two places (Harary 1962). So however up to 2h - 1 sites, and so up to
    ``colluders``, come to pool what they know, the honest ones hide behind each other
    as if all of them shared masks.
    """
    half = (max(LEAST_PEERS, colluders + 1) + 1) // 2
    if len(roster) - 1 <= 2 * half:
        return tuple(name for name in roster.sites if name != site)
    circle = _circle(roster.digest, roster.sites)
    place = circle.index(site)
    steps = (*range(-half, 0), *range(1, half + 1))
    return tuple(circle[(place + step) % len(circle)] for step in steps)


@lru_cache(maxsize=_MAX_PAIRS)
def _circle(digest: bytes, sites: tuple[str, ...]) -> tuple[str, ...]:
    """The sites of a roster in the order of a hash."""

    def place(site: str) -> bytes:
        return hashlib.sha256(transcript(_CIRCLE, digest, site)).digest()

    return tuple(sorted(sites, key=place))


class PairwiseMasks:
    """The masks of one site in one run.

    Parameters
    ----------
    site
        This site's name.
    key
        Its exchange key for the run.
    roster
        All sites of the run, their entries already verified
        (:meth:`~cipherbayes.crypto.identity.roster.Roster.verify`): an exchange key
        that no identity signed could be the server's.
    run, study
        What every stream is bound to.
    colluders
        Sites that may pool what they know.

    Formal guarantees
    -----------------
    Let H be the honest sites of a roster, at least two, and at most ``colluders``
    others (or as many as :func:`peers_of` says). To anyone without their exchange
    keys, the server and the CSP with all messages decrypted and all other sites
    included, the vectors y_i (i in H) are computationally indistinguishable from
    uniform vectors modulo 2^64 with the same sum. So are all functions of them, such
    as the sums of limbs that decryption passes through. The words of a stream are
    uniform modulo 2^b for every b <= 64 without any bias beyond the stream cipher's
    own. (Gap Diffie-Hellman on X25519, HKDF as a random oracle,
    ChaCha20 as a pseudorandom function.)

    Edge cases
    ----------
    With one honest site there is nothing to hide behind: its vector is the total
    minus the others'. With a roster of one the mask is zero. The same question in the
    same round, attempt, purpose and roster gives the same mask again: a site must then
    send the same vector again, never another one. Sites that were asked different
    questions in one exchange have masks that do not cancel: their total is noise.
    """

    def __init__(
        self,
        site: str,
        key: ExchangeKey,
        roster: Roster,
        *,
        run: bytes,
        study: bytes,
        colluders: int,
    ) -> None:
        if roster[site].exchange != key.public:
            raise ProtocolError(
                "the roster has another exchange key for this site",
                where=f"site {site}",
                remedy="enrol again: the key of this run was lost or replaced",
            )
        self._site = site
        self._run = run
        self._study = study
        self._roster = roster
        self._key = key
        self._colluders = colluders
        self._shared: dict[str, bytes] = {}
        for name in peers_of(site, roster, colluders):
            self._shared_with(name)
        self._pairs: dict[tuple[bytes, str], list[tuple[bool, bytes]]] = {}

    def __repr__(self) -> str:
        return f"PairwiseMasks(site {self._site}, {len(self._shared)} peers)"

    def __reduce__(self) -> NoReturn:
        raise CryptoError("masks cannot be pickled")

    def total(
        self, exchange: RoundId, roster: Roster, question: bytes, dimension: int
    ) -> Integers:
        """The sum of this site's signed masks, as 64-bit integers that wrap around.

        Parameters
        ----------
        exchange
            The round; its run, study and roster must be the ones at hand.
        roster
            The sites that take part in this attempt: a part of the run's roster.
        question
            SHA-256 of what the site was asked.
        dimension
            Length of the vector.
        """
        if not 1 <= dimension <= MAX_DIMENSION:
            raise CryptoError(f"a mask has 1 to {MAX_DIMENSION} words")
        zeros = bytes(8 * dimension)
        total = np.zeros(dimension, dtype=np.uint64)
        for added, stream in self.streams(exchange, roster, question, "words"):
            mask = np.frombuffer(stream.update(zeros), dtype="<u8")
            if added:
                total += mask
            else:
                total -= mask
        return total.view(np.int64)

    def streams(
        self, exchange: RoundId, roster: Roster, question: bytes, kind: str
    ) -> Iterator[tuple[bool, CipherContext]]:
        """For each peer whether its mask is added, and the stream it is made of.

        Parameters
        ----------
        exchange, roster, question
            As for :meth:`total`.
        kind
            What the stream becomes: masks of different kinds share no word.
        """
        if exchange.run != self._run or exchange.study != self._study:
            raise ProtocolError(
                "the round belongs to another run", where=f"site {self._site}"
            )
        if exchange.roster != roster.digest:
            raise ProtocolError(
                "the round names another roster", where=f"site {self._site}"
            )
        check_bytes(question, HASH_BYTES, "the question's hash")
        info = transcript(_STREAM, kind, exchange.round, exchange.attempt, question)
        for added, pair in self._pairs_of(exchange, roster):
            key = HKDFExpand(hashes.SHA256(), 32, info).derive(pair)
            cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
            yield added, cipher.encryptor()

    def _pairs_of(self, exchange: RoundId, roster: Roster) -> list[tuple[bool, bytes]]:
        """For each peer whether its mask is added, and the key shared with it."""
        known = self._pairs.get((exchange.roster, exchange.purpose))
        if known is not None:
            return known
        mine = roster[self._site]
        if any(member != self._roster[member.site] for member in roster):
            raise ProtocolError(
                "the roster is not a part of the run's", where=f"site {self._site}"
            )
        info = transcript(_PAIR, self._run, exchange.purpose, exchange.roster)
        pairs = []
        for name in peers_of(mine.site, roster, self._colluders):
            low, high = sorted((mine.site, name))
            pair = transcript("pair", info, low, high)
            derived = HKDF(hashes.SHA256(), 32, self._study, pair)
            pairs.append((mine.site == low, derived.derive(self._shared_with(name))))
        if len(self._pairs) >= _MAX_PAIRS:
            self._pairs.clear()
        self._pairs[exchange.roster, exchange.purpose] = pairs
        return pairs

    def _shared_with(self, name: str) -> bytes:
        """The secret shared with a peer; a smaller roster has other peers."""
        if name not in self._shared:
            self._shared[name] = self._key.shared_with(self._roster[name].exchange)
        return self._shared[name]

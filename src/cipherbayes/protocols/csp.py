"""The crypto service provider of every protocol: holds the secret key.

What is common: it joins only the study's own run, answers rounds in order and each of
them once, remembers its answers, and erases its keys at the end. What it opens, and
what it checks before, is each protocol's own.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic

from cipherbayes.crypto.identity.signatures import Identity, SigningKey
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.errors import CipherbayesError, ProtocolError
from cipherbayes.protocols.ledger_heads import check_ledger_heads
from cipherbayes.protocols.messages import (
    DecryptReply,
    Reason,
    Refusal,
    RunManifest,
    decode,
    encode,
)
from cipherbayes.protocols.plan import AnyPlan
from cipherbayes.protocols.refusals import RefusalError, refuse
from cipherbayes.protocols.stores import AnswerStore, Heads
from cipherbayes.typing import Integers

log = logging.getLogger("cipherbayes.csp")


class Csp(ABC, Generic[AnyPlan]):
    """The party with the secret key.

    Parameters
    ----------
    run
        Id of the run.
    plan
        What the study implies for every party.
    key
        Identity that signs what the CSP says.
    store
        Durable memory of the answers given.
    pinned
        Identity of each site, as the study's roster pins it.

    Formal guarantees
    -----------------
    For each round at most one vector leaves this object. A repeated question gets the
    stored answer again, whatever it asks.
    """

    heads: Heads | None = None
    """What is remembered of the sites' ledgers; None where all are on one machine."""
    forget_keys: Callable[[], object] | None = None
    """Erases the keys of the run, where they are kept."""
    _over = False

    def __init__(
        self,
        *,
        run: bytes,
        plan: AnyPlan,
        key: SigningKey,
        store: AnswerStore,
        pinned: dict[str, Identity],
    ) -> None:
        self._run = run
        self._plan = plan
        self._key = key
        self._store = store
        self._pinned = pinned
        self._manifest: RunManifest | None = None

    @property
    @abstractmethod
    def key_id(self) -> bytes:
        """Id of the run's public key."""

    @abstractmethod
    def offer(self) -> bytes:
        """The run's public keys, signed."""

    @abstractmethod
    def erase_secret(self) -> None:
        """Drop the run's secret key from memory."""

    @abstractmethod
    def respond(self, data: bytes) -> object:
        """The message that answers a question, or its bytes; refuses by raising."""

    def prepare(self) -> None:
        """Do now what the next round needs and its question does not change."""

    def join(self, data: bytes) -> None:
        """Take the run's manifest, if it is the study's."""
        manifest = decode(data, RunManifest)
        self._plan.check_manifest(manifest, self._run, self._pinned)
        check_ledger_heads(self.heads, self._plan, manifest, self._store.rounds())
        if manifest.key_id != self.key_id:
            raise ProtocolError("the manifest names another key", where="csp")
        self._manifest = manifest

    def end(self) -> None:
        """The run is over: erase its keys, and answer nothing more."""
        if not self._over:
            self._over = True
            self.erase_secret()
        if self.forget_keys is not None:
            self.forget_keys()

    def handle(self, data: bytes) -> bytes:
        """Answer the server's question, or refuse."""
        try:
            if self._over:
                raise RefusalError(Reason.WRONG_RUN, "the run is over")
            message = self.respond(data)
            return message if isinstance(message, bytes) else encode(message)
        except CipherbayesError as error:
            refusal = refuse("csp", error)
            log.warning("refused (%s): %s", refusal.reason.value, refusal.text)
            return encode(refusal)

    def known_answer(self, exchange: RoundId) -> bytes | None:
        """The answer that a round has already; None where it is the next one's turn.

        Raises RefusalError where the exchange is not this run's, or not its turn.
        """
        if exchange.run != self._run:
            raise RefusalError(Reason.WRONG_RUN, "the request is of another run")
        if exchange.study != self._plan.study_hash:
            raise RefusalError(Reason.WRONG_STUDY, "the request is of another study")
        answered = self._store.rounds()
        known = (
            self._store.answer(exchange.round) if exchange.round < answered else None
        )
        if known is not None:
            decode(known, DecryptReply, Refusal)  # or it is damaged
            return known
        if exchange.round != answered:
            raise RefusalError(
                Reason.WRONG_ROUND, "rounds are answered in order, one at a time"
            )
        if exchange.purpose != self._plan.purpose(exchange.round):
            raise RefusalError(Reason.WRONG_ROUND, "the study has no such round")
        return None

    def answer_once(
        self, exchange: RoundId, checked: Callable[[], Callable[[], Integers]]
    ) -> bytes:
        """The one answer of a round, made now or remembered.

        Parameters
        ----------
        checked
            Refuses what may not be decrypted; else gives what decrypts it.
        """
        known = self.known_answer(exchange)
        if known is not None:
            return known
        decrypt = checked()
        reply: DecryptReply | Refusal
        try:
            reply = DecryptReply.signed(self._key, round_id=exchange, values=decrypt())
        except CipherbayesError as error:
            # Whether a chosen ciphertext decrypts well says something about the
            # key, so a round that failed here is over: there is no second try.
            reply = refuse("csp", error)
            log.warning("round %d is over: %s", exchange.round, error)
        given = encode(reply)
        kept = self._store.keep(exchange.round, given)
        if kept != given:
            decode(kept, DecryptReply, Refusal)  # or it is damaged
        return kept

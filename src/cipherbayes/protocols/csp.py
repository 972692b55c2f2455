"""The crypto service provider: holds the secret key, answers one sum a round.

It is no decryption oracle. Before it decrypts it checks that every site of the
round's roster signed exactly these bytes for exactly this exchange; it adds the
ciphertexts itself; it decrypts the sum of each round once; and it returns only the
integers of the study's vector, if they lie in the range that public numbers allow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cipherbayes.crypto.bfv.ciphertext import Ciphertext, add
from cipherbayes.crypto.bfv.keys import KeyPair
from cipherbayes.crypto.identity.signatures import Identity, SigningKey
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.errors import CipherbayesError, ProtocolError
from cipherbayes.protocols.meeting import meet
from cipherbayes.protocols.messages import (
    DecryptReply,
    DecryptRequest,
    KeyOffer,
    Reason,
    Refusal,
    RunManifest,
    decode,
    encode,
)
from cipherbayes.protocols.plan import StudyPlan
from cipherbayes.protocols.refusals import RefusalError, refuse
from cipherbayes.protocols.releases import Phase
from cipherbayes.protocols.stores import AnswerStore, Heads
from cipherbayes.typing import Integers

log = logging.getLogger("cipherbayes.csp")


class Csp:
    """The party with the secret key.

    Parameters
    ----------
    run
        Id of the run.
    plan
        What the study implies for every party.
    pair
        The key pair of this run.
    key
        Identity that signs what the CSP says.
    store
        Durable memory of the answers given.
    pinned
        Identity of each site, as the study's roster pins it.

    Formal guarantees
    -----------------
    For each round at most one vector leaves this object, and it is the decryption
    of a sum over a roster of at least the study's minimum, each summand signed by
    its site for this run, study, round, attempt and roster. A repeated question
    gets the stored answer again, whatever it asks.
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
        plan: StudyPlan,
        pair: KeyPair,
        key: SigningKey,
        store: AnswerStore,
        pinned: dict[str, Identity],
    ) -> None:
        self._run = run
        self._plan = plan
        self._pair = pair
        self._key = key
        self._store = store
        self._pinned = pinned
        self._manifest: RunManifest | None = None

    def offer(self) -> bytes:
        """The run's public key, signed."""
        return encode(
            KeyOffer.signed(
                self._key,
                run=self._run,
                study=self._plan.study_hash,
                public_key=self._pair.public.to_bytes(),
            )
        )

    def join(self, data: bytes) -> None:
        """Take the run's manifest, if it is the study's."""
        manifest = decode(data, RunManifest)
        self._plan.check_manifest(manifest, self._run, self._pinned)
        meet(self.heads, self._plan, manifest, self._store.rounds())
        if manifest.key_id != self._pair.public.key_id:
            raise ProtocolError("the manifest names another key", where="csp")
        self._manifest = manifest

    def end(self) -> None:
        """The run is over: erase its keys, and answer nothing more."""
        if not self._over:
            self._over = True
            self._drop_secret()
        if self.forget_keys is not None:
            self.forget_keys()

    def _drop_secret(self) -> None:
        del self._pair

    def handle(self, data: bytes) -> bytes:
        """Answer a :class:`DecryptRequest` with a total, or refuse."""
        try:
            if self._over:
                raise RefusalError(Reason.WRONG_RUN, "the run is over")
            return encode(self._respond(data))
        except CipherbayesError as error:
            refusal = refuse("csp", error)
            log.warning("refused (%s): %s", refusal.reason.value, refusal.text)
            return encode(refusal)

    def _respond(self, data: bytes) -> object:
        """The message that answers a question."""
        request = decode(data, DecryptRequest)

        def checked(phase: Phase) -> Callable[[], Integers]:
            total = self._total(request, phase)
            return lambda: self._decrypt(total, phase)

        return self._once(request.round_id, checked)

    def _once(
        self,
        exchange: RoundId,
        checked: Callable[[Phase], Callable[[], Integers]],
    ) -> DecryptReply | Refusal:
        """The one answer of a round, made now or remembered.

        Parameters
        ----------
        checked
            Refuses what may not be decrypted; else what decrypts it.
        """
        if exchange.run != self._run:
            raise RefusalError(Reason.WRONG_RUN, "the request is of another run")
        if exchange.study != self._plan.study_hash:
            raise RefusalError(Reason.WRONG_STUDY, "the request is of another study")
        known = self._store.answer(exchange.round)
        if known is not None:
            return decode(known, DecryptReply, Refusal)
        if exchange.round != self._store.rounds():
            raise RefusalError(
                Reason.WRONG_ROUND, "rounds are answered in order, one at a time"
            )
        phase = self._plan.phase_of(exchange.round)
        if phase is None or exchange.purpose != phase.purpose:
            raise RefusalError(Reason.WRONG_ROUND, "the study has no such round")
        decrypt = checked(phase)
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
        return reply if kept == given else decode(kept, DecryptReply, Refusal)

    def _total(self, request: DecryptRequest, phase: Phase) -> Ciphertext:
        """The sum of what the whole roster signed."""
        if self._manifest is None:
            raise RefusalError(Reason.WRONG_RUN, "the run has no manifest yet")
        sites = [reply.site for reply in request.replies]
        roster = self._manifest.roster.restrict(sites)
        if roster.digest != request.round_id.roster:
            raise RefusalError(
                Reason.WRONG_ROSTER, "the replies are not those of the signed roster"
            )
        if len(roster) < self._plan.minimum_roster:
            raise RefusalError(
                Reason.WRONG_ROSTER, "the roster is smaller than the study allows"
            )
        for reply in request.replies:
            reply.verify(self._pinned[reply.site])
        public = self._pair.public
        return add(
            [
                Ciphertext.from_bytes(
                    reply.ciphertext,
                    parameters=public.parameters,
                    key_id=public.key_id,
                    dimension=phase.dimension,
                )
                for reply in request.replies
            ]
        )

    def _decrypt(self, total: Ciphertext, phase: Phase) -> Integers:
        values = self._pair.secret.decrypt(total)
        if not phase.in_range(values):
            raise RefusalError(
                Reason.RANGE, "the total is outside the range the study allows"
            )
        return values

"""A site of an encrypted update: sends its noised sum, and checks the server's work.

In each round it is asked twice. First for its sum: clipped, boxed, on the grid, with
its share of the noise, charged to its ledger, encrypted, masked, signed. Then, with
every site's signed ciphertext before it, it computes the server's output itself and
signs the digest of what came out. The CSP decrypts nothing that a site has not signed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.crypto.ckks.circuit import SiteEncryptor
from cipherbayes.crypto.ckks.masking import ring_mask
from cipherbayes.crypto.identity.roster import Roster
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.errors import ProtocolError
from cipherbayes.protocols.encrypted_update.messages import (
    Attestation,
    ReplayRequest,
)
from cipherbayes.protocols.encrypted_update.offers import opened_trio
from cipherbayes.protocols.encrypted_update.plan import EncryptedPlan
from cipherbayes.protocols.encrypted_update.replay import Replay
from cipherbayes.protocols.messages import (
    Reason,
    RoundRequest,
    RunManifest,
    SiteReply,
    decode,
    encode,
)
from cipherbayes.protocols.refusals import RefusalError, joined
from cipherbayes.protocols.site import SummingSite
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.typing import Floats, Integers

_REPLY = "reply"


class EncryptedSite(SummingSite[EncryptedPlan]):
    """The party that has records, in an encrypted update.

    Parameters
    ----------
    plan
        What the study implies for every party.
    memory
        Durable memory of its evaluator and of its last reply.

    Formal guarantees
    -----------------
    What leaves this object for round t is a function of one vector, the site's boxed
    sum on the grid plus a discrete Gaussian share, drawn once and recorded before;
    and of all sites' ciphertexts. Together with the messages of the other honest sites
    it is a randomised function of the **sum** of their vectors
    (:class:`~cipherbayes.crypto.ckks.masking.RingMask`), to all others together, and
    even if they have the secret key. It signs an output only if it computed it from
    one reply of every site of the run, each signed for exactly this exchange.

    Edge cases
    ----------
    It cannot see whether another site's message is an honest encryption: any pair of
    polynomials is a ciphertext of something. Such a message may make the output depend
    on the secret key. So the key is not secret from the server together with a
    malicious site, and no promise to a record rests on it.
    """

    def __init__(self, *, memory: Checkpoint, **common: Any) -> None:
        super().__init__(**common)
        self._memory = memory
        self._encryptor: SiteEncryptor | None = None
        self._replay: Replay | None = None
        self._key_id = b""

    def take_keys(self, manifest: RunManifest, offer: bytes) -> None:
        public, evaluation = opened_trio(
            offer, self._pinned["csp"], manifest.key_id, f"site {self._name}"
        )
        self._encryptor = self._plan.circuit.encryptor(public)
        self._replay = Replay(self._plan.circuit, evaluation, self._memory)
        self._key_id = public.key_id

    def forget(self) -> None:
        super().forget()
        self._encryptor = self._replay = None

    def prepare(self) -> None:
        super().prepare()
        encryptor = self._encryptor
        if encryptor is None or encryptor.prepared:
            return
        if self._plan.phase_of(self._next) is not None:
            encryptor.prepare()

    def respond(self, data: bytes) -> object:
        request = decode(data, RoundRequest, ReplayRequest)
        if isinstance(request, ReplayRequest):
            return self._attest(request)
        known = self._memory.fact(_REPLY)
        exchange = request.round_id.digest
        if known is not None and known[: len(exchange)] == exchange:
            # The same ciphertext after a restart, so that all replays agree.
            return decode(known[len(exchange) :], SiteReply)
        reply = self.answer(request)
        self._memory.keep_fact(_REPLY, exchange + encode(reply))
        return reply

    def bounded(self, total: Floats) -> Floats:
        return np.clip(total, -self._plan.box, self._plan.box)

    def seal(
        self, exchange: RoundId, roster: Roster, vector: Integers, question: bytes
    ) -> bytes:
        mask = ring_mask(
            self.masks(),
            exchange,
            roster,
            question,
            self._plan.circuit.parameters,
            vector.size,
        )
        encryptor = joined(self._encryptor)
        return encryptor.encrypt(vector, exchange.round + 1, mask).to_bytes()

    def _attest(self, request: ReplayRequest) -> Attestation:
        """Compute the round's output and sign its digest."""
        exchange = request.round_id
        phase = self.phase_of(exchange)
        if request.theta.size != phase.dimension:
            raise ProtocolError("theta does not have the study's length")
        messages = self._checked(request)
        output = joined(self._replay).output(
            exchange.round, messages, self._plan.drift(request.theta)
        )
        return Attestation.signed(
            self._key, round_id=exchange, site=self._name, output=output.digest()
        )

    def _checked(self, request: ReplayRequest) -> list[CkksCiphertext]:
        """One ciphertext of every site, each signed for this exchange."""
        roster = joined(self._roster)
        sites = tuple(reply.site for reply in request.replies)
        if sites != roster.sites or request.round_id.roster != roster.digest:
            raise RefusalError(
                Reason.WRONG_ROSTER, "the replies are not one of every site"
            )
        for reply in request.replies:
            reply.verify(self._pinned[reply.site])
        own = next(r for r in request.replies if r.site == self._name)
        known = self._memory.fact(_REPLY)
        sent = None if known is None else known[len(own.round_id.digest) :]
        if sent != encode(own):
            raise RefusalError(
                Reason.REPLAY, "the reply under this site's name is not its last one"
            )
        return [
            self._plan.circuit.read_message(reply.ciphertext, self._key_id)
            for reply in request.replies
        ]

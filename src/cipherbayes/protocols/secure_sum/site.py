"""A site of a secure sum: masks and encrypts its noised vector."""

from __future__ import annotations

from typing import Any

from cipherbayes.crypto.bfv.keys import PublicKey
from cipherbayes.crypto.identity.roster import Roster
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.errors import ProtocolError
from cipherbayes.protocols.messages import KeyOffer, RoundRequest, RunManifest, decode
from cipherbayes.protocols.refusals import joined
from cipherbayes.protocols.secure_sum.plan import SecureSumPlan
from cipherbayes.protocols.site import SummingSite
from cipherbayes.typing import Integers


class SecureSumSite(SummingSite[SecureSumPlan]):
    """The party that has records, in a secure sum.

    Formal guarantees
    -----------------
    What leaves this object for round t is a function of one vector: the site's sum
    on the grid plus a discrete Gaussian share, drawn once and recorded before. To
    anyone but the CSP it is encrypted; to the CSP, alone or with the server, it is
    masked unless all other sites of the roster help.
    """

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._public: PublicKey | None = None

    def take_keys(self, manifest: RunManifest, offer: bytes) -> None:
        key = decode(offer, KeyOffer)
        key.verify(self._pinned["csp"])
        public = PublicKey.from_bytes(key.public_key)
        expected = manifest.key_id, self._plan.parameters
        if (public.key_id, public.parameters) != expected:
            raise ProtocolError(
                "the public key is not the one of the manifest",
                where=f"site {self._name}",
            )
        self._public = public

    def forget(self) -> None:
        super().forget()
        self._public = None

    def prepare(self) -> None:
        super().prepare()
        phase = self._plan.phase_of(self._next)
        if self._public is not None and phase is not None:
            self._public.prepare(phase.dimension)

    def respond(self, data: bytes) -> object:
        """Answer a :class:`RoundRequest`, or refuse."""
        return self.answer(decode(data, RoundRequest))

    def seal(
        self, exchange: RoundId, roster: Roster, vector: Integers, question: bytes
    ) -> bytes:
        masked = vector + self.masks().total(exchange, roster, question, vector.size)
        return joined(self._public).encrypt(masked).to_bytes()

"""The CSP of a secure sum: answers one sum a round.

It is no decryption oracle. Before it decrypts it checks that every site of the
round's roster signed exactly these bytes for exactly this exchange; it adds the
ciphertexts itself; it decrypts the sum of each round once; and it returns only the
integers of the study's vector, if they lie in the range that public numbers allow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cipherbayes.crypto.bfv.ciphertext import Ciphertext, add
from cipherbayes.crypto.bfv.keys import KeyPair
from cipherbayes.protocols.csp import Csp
from cipherbayes.protocols.messages import (
    DecryptRequest,
    KeyOffer,
    Reason,
    decode,
    encode,
)
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.refusals import RefusalError
from cipherbayes.protocols.secure_sum.plan import SecureSumPlan
from cipherbayes.typing import Integers


class SecureSumCsp(Csp[SecureSumPlan]):
    """The party with the secret key, in a secure sum.

    Parameters
    ----------
    pair
        The key pair of this run.

    Formal guarantees
    -----------------
    For each round at most one vector leaves this object, and it is the decryption
    of a sum over a roster of at least the study's minimum, each summand signed by
    its site for this run, study, round, attempt and roster. A repeated question
    gets the stored answer again, whatever it asks.
    """

    def __init__(self, *, pair: KeyPair, **common: Any) -> None:
        super().__init__(**common)
        self._pair = pair

    @property
    def key_id(self) -> bytes:
        return self._pair.public.key_id

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

    def erase_secret(self) -> None:
        del self._pair

    def respond(self, data: bytes) -> object:
        """Answer a :class:`DecryptRequest` with a total, or refuse."""
        request = decode(data, DecryptRequest)

        def checked() -> Callable[[], Integers]:
            phase = self._plan.phase_at(request.round_id.round)
            total = self._total(request, phase)
            return lambda: self._decrypt(total, phase)

        return self.answer_once(request.round_id, checked)

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

    def opened(self, values: Integers) -> Integers:
        """The study's vector in a decrypted sum: the sum itself, unless a site's
        ``seal`` lays vectors out in another way. Its range is checked afterwards."""
        return values

    def _decrypt(self, total: Ciphertext, phase: Phase) -> Integers:
        values = self.opened(self._pair.secret.decrypt(total))
        if not phase.in_range(values):
            raise RefusalError(
                Reason.RANGE, "the total is outside the range the study allows"
            )
        return values

"""The CSP of an encrypted update: decrypts what every site computed, and floods it.

It never sees a site's ciphertext. It decrypts an output only if every site of the run
attested to the digest of exactly these coefficients, once a round, adds noise that
hides what a CKKS decryption would tell about the secret key, and returns d integers
on a grid.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.privacy.noise import NoiseSource, PreparedNoise
from cipherbayes.protocols.encrypted_update.flooding import Flooding
from cipherbayes.protocols.encrypted_update.key_holder import CkksCsp
from cipherbayes.protocols.encrypted_update.messages import OutputRequest
from cipherbayes.protocols.encrypted_update.plan import EncryptedPlan
from cipherbayes.protocols.messages import Reason, decode
from cipherbayes.protocols.refusals import RefusalError
from cipherbayes.typing import Floats, Integers


class EncryptedCsp(CkksCsp[EncryptedPlan]):
    """The party with the secret key, in an encrypted update.

    Parameters
    ----------
    keys
        The key trio of this run.
    noise
        Source of the flooding noise.

    Formal guarantees
    -----------------
    For each round at most one vector leaves this object. It is the decryption of an
    output that all sites of the run computed, plus flooding noise whose size follows
    from a derived bound on the CKKS error: over all values of all rounds it hides that
    error, and with it the secret key, up to ``plan.flooding_bits`` statistical bits, as
    long as all sites' messages are honest encryptions. A round whose answer is out of
    range is over.

    Edge cases
    ----------
    The circuits ``fast`` and ``literal`` are not flooded (their error leaves no room
    for it): the server may find the key in decrypted values, so nothing is certified.
    A malicious site may make an output depend on the key as much as it likes: together
    with the server it finds the key of any circuit. Neither opens a single site's
    message, which is masked.
    """

    def __init__(self, *, noise: NoiseSource, **common: Any) -> None:
        super().__init__(**common)
        self._noise = noise

    def respond(self, data: bytes) -> object:
        """Answer an :class:`OutputRequest` with what it decrypts to, or refuse."""
        request = decode(data, OutputRequest)

        def checked() -> Callable[[], Integers]:
            output = self._attested(request)
            return lambda: self._released(output, request.round_id.round)

        return self.answer_once(request.round_id, checked)

    def _attested(self, request: OutputRequest) -> CkksCiphertext:
        """The output, if the whole roster attested to it."""
        if self._manifest is None:
            raise RefusalError(Reason.WRONG_RUN, "the run has no manifest yet")
        roster, exchange = self._manifest.roster, request.round_id
        signers = tuple(each.site for each in request.attestations)
        if signers != roster.sites or exchange.roster != roster.digest:
            raise RefusalError(
                Reason.WRONG_ROSTER, "not every site of the run attests to the output"
            )
        if len(request.outputs) != 1 or request.stage != 0:
            raise RefusalError(Reason.MALFORMED, "a round has one output")
        output = self._plan.circuit.read_output(request.outputs[0], self.key_id)
        digest = output.digest()
        for attestation in request.attestations:
            if attestation.round_id != exchange:
                raise RefusalError(
                    Reason.WRONG_ROUND, "an attestation belongs to another exchange"
                )
            attestation.verify(self._pinned[attestation.site])
            if not hmac.compare_digest(attestation.output, digest):
                raise RefusalError(
                    Reason.BAD_SIGNATURE,
                    f"the output is not the one that site {attestation.site} computed",
                )
        return output

    def _released(self, output: CkksCiphertext, number: int) -> Integers:
        values = np.rint(self._values(output, number + 1) / self._plan.grid)
        if not np.abs(values).max() <= self._plan.bound:
            raise RefusalError(
                Reason.RANGE, "the output is outside the range the study allows"
            )
        return values.astype(np.int64)

    def _values(self, output: CkksCiphertext, t: int) -> Floats:
        circuit, secret = self._plan.circuit, self._keys.secret
        flooding = self._flooding
        if flooding is None:
            return circuit.decrypt_exactly(secret, output, t)
        return np.asarray(flooding.release(circuit, secret, output, t, self._noise))

    @cached_property
    def _flooding(self) -> Flooding | None:
        """How outputs are flooded; None for a circuit that leaves no room for it."""
        bits, releases = self._plan.flooding_bits, self._plan.rounds
        return Flooding(bits=bits, releases=releases) if bits else None

    def prepare(self) -> None:
        """Draw the next round's flooding noise, which depends on the round alone."""
        noise, flooding = self._noise, self._flooding
        if self._over or flooding is None or not isinstance(noise, PreparedNoise):
            return
        number = self._store.rounds()
        if number < self._plan.rounds:
            noise.prepare([flooding.share(self._plan.circuit, number + 1)])

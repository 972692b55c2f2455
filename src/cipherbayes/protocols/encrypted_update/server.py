"""The server of an encrypted update: computes θ's direction without seeing it.

It adds the sites' ciphertexts, evaluates the circuit, lets every site check the
result, and has it decrypted. It holds no secret key and draws no noise.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.errors import CipherbayesError, ProtocolError, RunError
from cipherbayes.inference.released import Release
from cipherbayes.protocols.encrypted_update.messages import (
    Attestation,
    OutputRequest,
    ReplayRequest,
)
from cipherbayes.protocols.encrypted_update.offers import opened_trio
from cipherbayes.protocols.encrypted_update.plan import EncryptedPlan
from cipherbayes.protocols.encrypted_update.replay import Replay
from cipherbayes.protocols.messages import Refusal, SiteReply, decode, encode
from cipherbayes.protocols.refusals import convened
from cipherbayes.protocols.rounds import PhasedRounds
from cipherbayes.protocols.server import Server
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.typing import Integers


class EncryptedRounds(PhasedRounds[EncryptedPlan]):
    """Where an encrypted update stands: θ ← θ + η · direction."""

    def take(self, values: Integers, sites: int, lost: tuple[str, ...] = ()) -> None:
        recursion, state = self._ready()
        release = Release(np.asarray(values * self._plan.grid, np.float64), 0.0)
        self._state = recursion.advance(state, release)
        self._checkpoint.keep_state(self.round, self._state)
        self.round += 1


@dataclass(frozen=True)
class Computed:
    """A round's output, waiting for the sites to check it."""

    exchange: RoundId
    replies: tuple[SiteReply, ...]
    output: CkksCiphertext


class EncryptedServer(Server[EncryptedPlan]):
    """The party that drives a run and computes under encryption.

    A round has two exchanges with the sites: their sums, then their attestations.
    :meth:`request` and :meth:`collect` alternate between the two, so an engine's
    loop need not know.

    Parameters
    ----------
    plan
        What the study implies for every party.
    memory
        Durable memory of the evaluator.
    """

    def __init__(self, *, memory: Checkpoint, **common: Any) -> None:
        super().__init__(**common)
        self._memory = memory
        self._replay: Replay | None = None
        self._key_id = b""
        self._computed: Computed | None = None

    def take_offer(self, offer: bytes) -> bytes:
        public, evaluation = opened_trio(offer, self._pinned["csp"], None, "server")
        self._replay = Replay(self._plan.circuit, evaluation, self._memory)
        self._key_id = public.key_id
        return public.key_id

    def request(self) -> tuple[tuple[str, ...], bytes]:
        """The sites' sums, or, when the output is computed, their attestations."""
        computed = self._computed
        if computed is None:
            return super().request()
        message = ReplayRequest(
            computed.exchange, self._rounds.question(), computed.replies
        )
        return self.roster().sites, encode(message)

    def prepare(self) -> None:
        if self._computed is None and self._replay is not None:
            drift = self._plan.drift(self._rounds.question())
            self._replay.expect(self._rounds.round, drift)

    def collect(self, answers: Mapping[str, bytes | None]) -> bytes | None:
        """None until all sites have attested; then the question for the CSP."""
        if self._computed is not None:
            return self._attested(self._computed, answers)
        roster = self.roster()
        exchange = self.exchange(roster)
        replies = [self.read_reply(s, answers.get(s), exchange) for s in roster.sites]
        if self.stopped is not None:
            return None
        given = tuple(reply for reply in replies if reply is not None)
        missing = [
            site
            for site, reply in zip(roster.sites, replies, strict=True)
            if reply is None
        ]
        if missing:
            self.lose(missing, len(roster))
        self._computed = Computed(exchange, given, self._output(exchange, given))
        return None

    def _output(
        self, exchange: RoundId, replies: tuple[SiteReply, ...]
    ) -> CkksCiphertext:
        messages = []
        for reply in replies:
            try:
                messages.append(
                    self._plan.circuit.read_message(reply.ciphertext, self._key_id)
                )
            except CipherbayesError as error:
                raise RunError(
                    f"round {exchange.round}: {error.what}",
                    where=f"site {reply.site}",
                    remedy="see the site's log, then `cipherbayes resume`",
                ) from None
        drift = self._plan.drift(self._rounds.question())
        return convened(self._replay).output(exchange.round, messages, drift)

    def _attested(
        self, computed: Computed, answers: Mapping[str, bytes | None]
    ) -> bytes:
        digest = computed.output.digest()
        attestations = tuple(
            self._attestation(site, answers.get(site), computed.exchange, digest)
            for site in self.roster().sites
        )
        output = computed.output.to_bytes()
        return encode(OutputRequest(computed.exchange, 0, (output,), attestations))

    def _attestation(
        self, site: str, data: bytes | None, exchange: RoundId, digest: bytes
    ) -> Attestation:
        """A site's attestation to this output; without it the round stops."""
        try:
            if data is None:
                raise ProtocolError("no attestation came")
            message = decode(data, Attestation, Refusal)
            if isinstance(message, Refusal):
                raise ProtocolError(f"refused to attest: {message.text}")
            if message.round_id != exchange or message.site != site:
                raise ProtocolError("the attestation belongs to another exchange")
            message.verify(self._pinned[site])
            if not hmac.compare_digest(message.output, digest):
                raise ProtocolError("the site computed another output")
        except ProtocolError as error:
            raise RunError(
                f"round {exchange.round} stops: {error.what}",
                where=f"site {site}",
                remedy="see the logs of the site and the server: every party must "
                "run the same release",
            ) from None
        return message

    def accept(self, data: bytes) -> None:
        """Take the CSP's answer: move θ, make it durable, go to the next round."""
        super().accept(data)
        self._computed = None

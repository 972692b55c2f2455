"""The server of the paper's own method: draws the noise z itself, as printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.crypto.ckks.keys import EvaluationKeys
from cipherbayes.crypto.ckks.precomputation import (
    PARAMETERS,
    MaskedMaximum,
    total,
    weighted_total,
)
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.errors import ProtocolError, RunError
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.released import ServerState
from cipherbayes.privacy.noise import NoiseSource
from cipherbayes.protocols.as_printed.plan import (
    LARGEST_DRIFT,
    UNIT,
    PrintedPlan,
)
from cipherbayes.protocols.encrypted_update.messages import (
    CiphertextReply,
    OutputRequest,
)
from cipherbayes.protocols.encrypted_update.offers import opened_trio
from cipherbayes.protocols.encrypted_update.replay import Replay
from cipherbayes.protocols.messages import (
    DecryptReply,
    Refusal,
    SiteReply,
    decode,
    encode,
)
from cipherbayes.protocols.refusals import convened
from cipherbayes.protocols.rounds import StudyRounds
from cipherbayes.protocols.server import Server
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.typing import Floats, Integers

MOST_DRAWS = 1000
NORMAL_UNIT = 2.0**-30
"""z is a discrete Gaussian on this grid."""


class PrintedRounds(StudyRounds[PrintedPlan]):
    """Where the paper's own method stands."""

    def theta(self) -> Floats:
        """θ now; it starts at a draw from the prior ("random θ₁")."""
        if self._state is None:
            rng = np.random.default_rng(self._plan.study.inference.seed)
            prior = self._plan.prior
            start = prior.mean + prior.scale * rng.standard_normal(prior.mean.size)
            self._state = ServerState(start, np.zeros(1), 0)
        return self._state.theta

    def question(self) -> Floats:
        if self.purpose == "means":
            return np.zeros(1)
        if self.purpose == "variances":
            records = self._need("means")[0]
            return np.concatenate([[records], self._mean()])
        if self.purpose == "maximum":
            return np.concatenate([self._mean(), self._sd()])
        moments = self.moments()
        theta = self.theta()
        return theta if moments is None else np.concatenate([moments, theta])

    def check_total(self, values: Integers, what: str, *, where: str) -> None:
        """Only its length: nothing bounds what a round decrypts to."""
        width = self._plan.columns
        sizes = {"means": 1 + width, "variances": width, "maximum": 1}
        if values.size != sizes.get(self.purpose, self._plan.dimension):
            raise ProtocolError(f"{what} has another length", where=where)

    def take(self, values: Integers, sites: int, lost: tuple[str, ...] = ()) -> None:
        """Take what a round decrypted to: θ's move, or a step of the preparation."""
        opened: Floats = np.asarray(values * UNIT, np.float64)
        if self.purpose == "gradient":
            opened = opened * self._plan.gain(self.round - self._plan.prepared + 1)
        self._keep(opened)

    def _keep(self, values: Floats) -> None:
        if self.purpose != "gradient":
            self._checkpoint.keep_fact(self.purpose, values.tobytes())
        else:
            theta = self.theta() + values
            rounds = 1 if self._state is None else self._state.rounds + 1
            self._state = ServerState(theta, np.zeros(1), rounds)
            self._checkpoint.keep_state(self.round, self._state)
        self.round += 1

    def moments(self) -> Floats | None:
        """Means, and deviations times the largest norm: x = (z − m)/(s · norm)."""
        if not self._plan.prepared or self._checkpoint.fact("maximum") is None:
            return None
        largest = float(self._need("maximum")[0])
        return np.concatenate([self._mean(), self._sd() * largest])

    def draws(self) -> Draws | None:
        trajectory = self._checkpoint.trajectory()
        if not trajectory:
            return None
        kept = trajectory[int(self._plan.study.inference.burn_in * len(trajectory)) :]
        kept = kept[:: -(-len(kept) // MOST_DRAWS)]
        sizes = np.full((1, len(kept)), np.nan)
        return Draws(
            np.array(kept)[None], sizes, is_point=False, rounds=len(trajectory)
        )

    def _mean(self) -> Floats:
        known = self._need("means")
        records = max(np.rint(known[0]), 1.0)
        return np.asarray(known[1:] / records)

    def _sd(self) -> Floats:
        variance = self._need("variances")
        # The paper removes columns with one value; here they stay as they are.
        return np.where(variance > 1e-12, np.sqrt(np.maximum(variance, 1e-12)), 1.0)

    def _need(self, name: str) -> Floats:
        return np.frombuffer(self._checkpoint.known(name), dtype=np.float64)


class PrintedServer(Server[PrintedPlan]):
    """The party that drives the run, computes under encryption, and draws z.

    Formal guarantees
    -----------------
    None: it knows z and gets θ back, so it can remove it.
    """

    _rounds: PrintedRounds

    def __init__(
        self, *, memory: Checkpoint, noise: NoiseSource, **common: Any
    ) -> None:
        super().__init__(**common)
        self._memory = memory
        self._noise = noise
        self._keys: EvaluationKeys | None = None
        self._replay: Replay | None = None
        self._masks: MaskedMaximum | None = None
        self._unmasked: bytes | None = None

    def take_offer(self, offer: bytes) -> bytes:
        public, keys = opened_trio(offer, self._pinned["csp"], None, "server")
        self._keys = keys
        self._replay = Replay(self._plan.circuit, keys, self._memory)
        return public.key_id

    def request(self) -> tuple[tuple[str, ...], bytes]:
        """The sites' ciphertexts; nobody's, where only the CSP is to be asked."""
        return ((), b"") if self._unmasked is not None else super().request()

    def collect(self, answers: Mapping[str, bytes | None]) -> bytes | None:
        roster = self.roster()
        exchange = self.exchange(roster)
        if self._unmasked is not None:
            return encode(OutputRequest(exchange, 1, (self._unmasked,), ()))
        replies = {
            s: self.read_reply(s, answers.get(s), exchange) for s in roster.sites
        }
        if self.stopped is not None:
            return None
        missing = [site for site, reply in replies.items() if reply is None]
        if missing:
            self.lose(missing, len(roster))
        given = [reply for reply in replies.values() if reply is not None]
        outputs = tuple(o.to_bytes() for o in self._outputs(exchange, given))
        return encode(OutputRequest(exchange, 0, outputs, ()))

    def _outputs(
        self, exchange: RoundId, replies: list[SiteReply]
    ) -> list[CkksCiphertext]:
        purpose, width = exchange.purpose, self._plan.columns
        if purpose == "gradient":
            return [self._moved(exchange.round, replies)]
        if purpose == "means":
            half = len(replies[0].ciphertext) // 2
            counts = [self._read_values(r.ciphertext[:half], width) for r in replies]
            means = [self._read_values(r.ciphertext[half:], width) for r in replies]
            return [total(counts), weighted_total(counts, means, convened(self._keys))]
        length = width if purpose == "variances" else 1
        values = [self._read_values(r.ciphertext, length) for r in replies]
        if purpose == "variances":
            return [total(values)]
        self._masks = MaskedMaximum(convened(self._keys))
        return self._masks.masked(values)

    def _read_values(self, data: bytes, dimension: int) -> CkksCiphertext:
        key_id = convened(self._keys).key_id
        return CkksCiphertext.from_bytes(
            data, parameters=PARAMETERS, key_id=key_id, dimension=dimension
        )

    def _moved(self, number: int, replies: list[SiteReply]) -> CkksCiphertext:
        """Algorithm 3 at the server: θ's encrypted move."""
        t = number - self._plan.prepared + 1
        scale = 1.0 / NORMAL_UNIT
        drawn = self._noise.share(self._plan.dimension, scale, f"z {t}")
        z = np.asarray(drawn * NORMAL_UNIT, np.float64)
        key_id = convened(self._keys).key_id
        messages = [
            self._plan.circuit.read_message(reply.ciphertext, key_id)
            for reply in replies
        ]
        drift = self._plan.drift(t, self._rounds.theta(), z)
        if not np.abs(drift).max() <= LARGEST_DRIFT:
            raise RunError(
                f"θ ran away before round {t}: gradients times c left the interval of "
                "the paper's polynomial",
                where="server",
                remedy="lower paper.scale, or normalise with preparation.method = "
                '"as-printed" and intercept = 0',
            )
        return convened(self._replay).output(t - 1, messages, drift)

    def accept(self, data: bytes) -> None:
        """Take the CSP's answer; the masked maximum takes a second question."""
        asked = self.exchange(self.roster())
        masked = asked.purpose == "maximum" and self._unmasked is None
        expected = CiphertextReply if masked else DecryptReply
        reply = decode(data, expected, Refusal)
        if isinstance(reply, Refusal):
            raise RunError(
                f"the CSP refused round {asked.round}: {reply.text}",
                where="csp",
                remedy="see the CSP's log",
            )
        assert isinstance(reply, CiphertextReply | DecryptReply)
        reply.verify(self._pinned["csp"])
        if reply.round_id != asked:
            raise ProtocolError("the CSP answered another round", where="csp")
        if isinstance(reply, CiphertextReply):
            if self._masks is None:
                raise ProtocolError("the CSP answered before it was asked", where="csp")
            largest = self._read_values(reply.ciphertext, 1)
            self._unmasked = self._masks.unmasked(largest).to_bytes()
            return
        self._unmasked = None
        self._rounds.accept(data, reply.values, len(self.roster()))

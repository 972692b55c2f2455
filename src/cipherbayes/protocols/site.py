"""A site of any protocol, and one that answers with a noised sum of its records.

Clipped sum → grid → its share of the noise → entry in its ledger → seal → signature.
The ledger's entry is durable before anything leaves, and it holds the noised vector:
the same round asked again gets the same vector, never a fresh one. How a vector is
sealed (masked and encrypted) is each protocol's own.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Generic

import numpy as np

from cipherbayes.crypto.identity.roster import LINK_BYTES, Member, Roster
from cipherbayes.crypto.identity.signatures import Identity, SigningKey
from cipherbayes.crypto.masks import ExchangeKey, PairwiseMasks
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.noise import NoiseSource, PreparedNoise
from cipherbayes.protocols.answers import (
    answer_vector,
    charged_answer,
    noise_label,
    noised_answer,
    require_order,
    require_theta,
)
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.ledger_heads import check_ledger_heads
from cipherbayes.protocols.messages import (
    Enrolment,
    Reason,
    RoundRequest,
    RunManifest,
    SiteReply,
    decode,
    encode,
)
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.plan import AnyPlan
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.refusals import RefusalError, joined, refuse, told_inside
from cipherbayes.protocols.signed_totals import released_scales
from cipherbayes.protocols.stores import Heads
from cipherbayes.protocols.study_plan import AnyStudyPlan
from cipherbayes.protocols.transcripts import Transcript
from cipherbayes.typing import Floats, Integers

log = logging.getLogger("cipherbayes.site")


class Site(ABC, Generic[AnyPlan]):
    """The party that has records.

    Parameters
    ----------
    name
        The site's name in the study.
    run
        Id of the run.
    plan
        What the study implies for every party.
    contributions
        The site's bounded sums.
    ledger
        The table's ledger, which may refuse.
    key, exchange
        The site's identity, and its key for this run's masks.
    noise
        Where its share of the noise comes from.
    pinned
        Identity of every site and, under ``"csp"``, of the CSP.
    """

    heads: Heads | None = None
    """What is remembered of the others' ledgers; None where all are on one machine."""
    forget_keys: Callable[[], object] | None = None
    """Erases the keys of the run, where they are kept."""
    _over = False

    def __init__(
        self,
        *,
        name: str,
        run: bytes,
        plan: AnyPlan,
        contributions: Contributions,
        ledger: Ledger,
        key: SigningKey,
        exchange: ExchangeKey,
        noise: NoiseSource,
        pinned: Mapping[str, Identity],
    ) -> None:
        self._name = name
        self._run = run
        self._plan = plan
        self._contributions = contributions
        self._ledger = ledger
        self._key = key
        self._exchange = exchange
        self._noise = noise
        self._pinned = dict(pinned)
        self._roster: Roster | None = None
        self._masks: PairwiseMasks | None = None
        self._last: tuple[bytes, bytes] | None = None
        self._next = ledger.rounds(run, name)
        plan.check_site(name, contributions.count)

    @property
    def rounds_charged(self) -> int:
        """Rounds of this run, up to the last one that the ledger has an answer to."""
        return self._ledger.rounds(self._run, self._name)

    def enrol(self) -> bytes:
        """Join the run."""
        head = self._ledger.head
        member = Member.enrol(
            self._key,
            run=self._run,
            study=self._plan.study_hash,
            site=self._name,
            exchange=self._exchange.public,
            ledger=self._ledger.id,
            records=head.records,
            link=head.link or bytes(LINK_BYTES),
        )
        return encode(Enrolment(self._run, self._plan.study_hash, member))

    def join(self, manifest: bytes, offer: bytes) -> None:
        """Take the run's manifest and keys, if both are the study's."""
        agreed = decode(manifest, RunManifest)
        self._plan.check_manifest(agreed, self._run, self._pinned)
        self._meet(agreed)
        self.take_keys(agreed, offer)
        self._roster = agreed.roster
        self._masks = PairwiseMasks(
            self._name,
            self._exchange,
            agreed.roster,
            run=self._run,
            study=self._plan.study_hash,
            colluders=self._plan.study.colluders,
        )

    @abstractmethod
    def take_keys(self, manifest: RunManifest, offer: bytes) -> None:
        """Take the CSP's keys; raise ProtocolError unless they are the manifest's."""

    @abstractmethod
    def respond(self, data: bytes) -> object:
        """The message that answers a question; refuses by raising."""

    def forget(self) -> None:
        """Drop what this party holds of the run's keys; it never joins again."""
        self._roster = self._masks = self._last = None
        self._exchange = ExchangeKey.generate()

    def prepare(self) -> None:
        """Do now what the next round needs and its question does not change."""

    def masks(self) -> PairwiseMasks:
        """The masks that this site shares with the others of the run."""
        return joined(self._masks)

    def _meet(self, agreed: RunManifest) -> None:
        """Refuse to go on with a site whose ledger went back."""
        # Of the last round that this site answered another may know nothing yet.
        done = max(self._ledger.rounds(self._run, self._name) - 1, 0)
        check_ledger_heads(self.heads, self._plan, agreed, done)

    def end(self) -> None:
        """The run is over: erase its keys and the answers in the ledger.

        Whoever drives the run says so. It may say so too early: that ends the run and
        releases nothing.
        """
        self._over = True
        try:
            self.forget()
        finally:
            self._ledger.end(self._run, self._name)
            if self.forget_keys is not None:
                self.forget_keys()

    def handle(self, data: bytes) -> bytes:
        """Answer a :class:`RoundRequest`, or refuse.

        Whatever fails here may depend on the records, foreseen or not: one text leaves
        for all of it (:func:`~cipherbayes.protocols.refusals.said_outside`).
        """
        if self._last is not None and self._last[0] == data:
            return self._last[1]
        try:
            if self._over:
                raise RefusalError(Reason.WRONG_RUN, "the run is over")
            answer = encode(self.respond(data))
        except Exception as error:
            refusal, why = refuse(self._name, error), told_inside(error)
            log.warning(
                "site %s refused (%s): %s", self._name, refusal.reason.value, why
            )
            return encode(refusal)
        self._last = (data, answer)
        return answer

    def conclude(self, data: bytes) -> None:
        """Take the run's transcript; refuse one without the rounds answered here."""
        transcript = Transcript.from_bytes(data)
        transcript.check(self._plan, self._run, self._pinned)
        transcript.check_site(self._name, self._rounds_answered())

    def _rounds_answered(self) -> int | None:
        """Rounds that this site has answered; None where it cannot say."""
        return self.rounds_charged

    def check_run(self, exchange: RoundId) -> None:
        joined(self._roster)
        if exchange.run != self._run:
            raise RefusalError(Reason.WRONG_RUN, "the request is of another run")
        if exchange.study != self._plan.study_hash:
            raise RefusalError(Reason.WRONG_STUDY, "the request is of another study")

    def agreed_roster(self, request: RoundRequest) -> Roster:
        roster = joined(self._roster).restrict(request.sites)
        if roster.digest != request.round_id.roster or self._name not in request.sites:
            raise RefusalError(
                Reason.WRONG_ROSTER, "the roster is not the one the round names"
            )
        if len(roster) < self._plan.minimum_roster:
            raise RefusalError(
                Reason.WRONG_ROSTER, "the roster is smaller than the study allows"
            )
        return roster


class SummingSite(Site[AnyStudyPlan]):
    """A site that answers with the noised sum of its records.

    Formal guarantees
    -----------------
    What leaves this object for round t is a function of one vector: the site's sum
    on the grid plus a discrete Gaussian share, drawn once and recorded before.
    """

    @abstractmethod
    def seal(
        self, exchange: RoundId, roster: Roster, vector: Integers, question: bytes
    ) -> bytes:
        """A vector masked and encrypted for one exchange and the question's hash."""

    def bounded(self, total: Floats) -> Floats:
        """A projection of the site's sum that comes before grid and noise."""
        return total

    def prepare(self) -> None:
        """Do now what the next round needs and its question does not change.

        The share of the noise, the randomness of the encryption, the privacy spent.
        """
        phase = self._plan.phase_of(self._next)
        if phase is None:
            return
        if isinstance(self._noise, PreparedNoise):
            self._noise.prepare(phase.shares(noise_label(self._next)))
        self._ledger.expect(self._run, phase.release)

    def answer(self, request: RoundRequest) -> SiteReply:
        """The site's part in a round: charged, noised, sealed and signed."""
        phase = self.phase_of(request.round_id)
        roster = self.agreed_roster(request)
        question = self._question(phase, request)
        vector = self._noised(phase, request.round_id.round, question)
        return SiteReply.signed(
            self._key,
            round_id=request.round_id,
            site=self._name,
            ciphertext=self.seal(request.round_id, roster, vector, question.digest),
        )

    def phase_of(self, exchange: RoundId) -> Phase:
        """The phase of an exchange, if it is one of this run and study."""
        self.check_run(exchange)
        phase = self._plan.phase_of(exchange.round)
        if phase is None or phase.purpose != exchange.purpose:
            raise RefusalError(Reason.WRONG_ROUND, "the study has no such round")
        return phase

    def _question(self, phase: Phase, request: RoundRequest) -> Question:
        """What is asked, if the study allows it: the message alone decides."""
        theta = np.ascontiguousarray(request.theta)
        require_theta(self._plan, phase, theta)
        scales = released_scales(
            self._plan,
            phase,
            request.releases,
            run=self._run,
            csp=self._pinned["csp"],
        )
        return Question(theta, scales)

    def _noised(self, phase: Phase, number: int, question: Question) -> Integers:
        """The round's noised vector: drawn and recorded once, read back after."""
        if number > self._next:
            require_order(number, self._ledger.rounds(self._run, self._name))

        def compute() -> bytes:
            total = self.bounded(self._contributions.total(phase, question))
            return noised_answer(phase, total, self._noise, number)

        stored = charged_answer(
            self._ledger,
            self._plan,
            phase,
            question,
            run=self._run,
            site=self._name,
            number=number,
            compute=compute,
        )
        self._next = number + 1
        return answer_vector(stored)

"""The server of any protocol: asks the sites, has totals decrypted, moves θ, remembers.

It holds ciphertexts, released totals and θ. It never holds a secret key, a noise
value or a record, and it imports nothing that could: adding ciphertexts is adding
their coefficients, and all it learns is already private.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Generic

from cipherbayes.crypto.identity.roster import Member, Roster
from cipherbayes.crypto.identity.signatures import Identity
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.errors import ProtocolError, RunError
from cipherbayes.protocols.messages import (
    DecryptReply,
    Enrolment,
    Reason,
    Refusal,
    RoundRequest,
    RunManifest,
    SiteReply,
    decode,
    encode,
)
from cipherbayes.protocols.plan import AnyPlan
from cipherbayes.protocols.refusals import convened
from cipherbayes.protocols.rounds import StudyRounds
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.protocols.transcripts import (
    TranscriptHead,
    roster_of,
    transcript_bytes,
)

log = logging.getLogger("cipherbayes.server")


class Server(ABC, Generic[AnyPlan]):
    """The party that drives a run.

    Parameters
    ----------
    run
        Id of the run.
    plan
        What the study implies for every party.
    rounds
        Where the study stands, and what becomes of each total.
    checkpoint
        Durable memory of the sites that were lost.
    pinned
        Identity of each site and, under ``"csp"``, of the CSP.
    """

    def __init__(
        self,
        *,
        run: bytes,
        plan: AnyPlan,
        rounds: StudyRounds[AnyPlan],
        checkpoint: Checkpoint,
        pinned: Mapping[str, Identity],
    ) -> None:
        self._run = run
        self._plan = plan
        self._checkpoint = checkpoint
        self._pinned = dict(pinned)
        self._rounds = rounds
        self._lost = checkpoint.lost()
        self._attempt = len(self._lost)
        self._manifest: RunManifest | None = None
        self._exchange: tuple[tuple[int, int, bytes], RoundId] | None = None
        self._verified: dict[str, tuple[bytes, SiteReply]] = {}
        self.stopped: str | None = None
        """Why the run ended before its last round, in words."""

    # -- before the first round --------------------------------------------

    def convene(self, enrolments: Sequence[bytes], offer: bytes) -> bytes:
        """The run's manifest, from the sites' enrolments and the CSP's key.

        A site without an enrolment is lost, as one without an answer is.
        """
        members = []
        for data in enrolments:
            enrolment = decode(data, Enrolment)
            if enrolment.run != self._run or enrolment.study != self._plan.study_hash:
                raise ProtocolError(
                    "a site enrolled for another run or study",
                    where=f"site {enrolment.member.site}",
                    remedy="give every party the same study file",
                )
            members.append(enrolment.member)
        enrolled = {member.site for member in members}
        absent = [site for site in self.present if site not in enrolled]
        if 0 < len(absent) <= self.spare:
            self.lose(absent, len(self.present))
        lost = set(self._lost) - enrolled
        members += [m for m in self._remembered() if m.site in lost]
        scheme = self._plan.scheme
        if scheme is None:
            raise ProtocolError(
                "a study with parties needs encryption, and its plan names none",
                where="server",
            )
        manifest = RunManifest(
            run=self._run,
            study=self._plan.study_hash,
            parameters=scheme,
            key_id=self.take_offer(offer),
            rounds=self._plan.rounds,
            csp=self._pinned["csp"].raw,
            roster=Roster.of(members),
        )
        self._plan.check_manifest(manifest, self._run, self._pinned)
        self._manifest = manifest
        agreed = encode(manifest)
        self._checkpoint.keep_fact("manifest", agreed)
        return agreed

    def _remembered(self) -> tuple[Member, ...]:
        """How the sites enrolled before: a lost one need not come back for it."""
        known = self._checkpoint.fact("manifest")
        return () if known is None else decode(known, RunManifest).roster.members

    @property
    def present(self) -> tuple[str, ...]:
        """Sites that are not lost: those that must enrol."""
        return tuple(
            site for site in sorted(self._plan.study.sites) if site not in self._lost
        )

    @property
    def spare(self) -> int:
        """How many sites may still be lost."""
        return len(self.present) - self._plan.minimum_roster

    @abstractmethod
    def take_offer(self, offer: bytes) -> bytes:
        """Take the keys that the CSP offers; the id of the public one."""

    # -- rounds ------------------------------------------------------------

    @property
    def rounds_done(self) -> int:
        """Rounds whose total is in the checkpoint."""
        return self._rounds.round

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to ask."""
        return self.stopped is not None or self._rounds.finished

    def roster(self) -> Roster:
        """The sites that take part now."""
        everyone = convened(self._manifest).roster
        return everyone.restrict([s for s in everyone.sites if s not in self._lost])

    def request(self) -> tuple[tuple[str, ...], bytes]:
        """The sites to ask in this attempt, and what to ask them."""
        roster = self.roster()
        message = RoundRequest(
            self.exchange(roster),
            roster.sites,
            self._rounds.question(),
            self._rounds.signed_totals(),
        )
        return roster.sites, encode(message)

    def prepare(self) -> None:
        """Do now, while sites compute, what their answers do not change."""

    def exchange(self, roster: Roster) -> RoundId:
        """The present attempt of the present round, among these sites."""
        now = self._rounds.round, self._attempt, roster.digest
        if self._exchange is None or self._exchange[0] != now:
            number, attempt, digest = now
            exchange = RoundId(
                run=self._run,
                study=self._plan.study_hash,
                round=number,
                attempt=attempt,
                purpose=self._rounds.purpose,
                roster=digest,
            )
            self._exchange = now, exchange
        return self._exchange[1]

    def verify(self, site: str, data: bytes | None) -> None:
        """Check the signature of an answer while others are still on their way.

        Nothing is decided here: :meth:`collect` refuses a wrong answer, and uses what
        was verified here already.
        """
        with suppress(ProtocolError):
            if data is not None:
                reply = decode(data, SiteReply)
                reply.verify(self._pinned[site])
                self._verified[site] = (data, reply)

    @abstractmethod
    def collect(self, answers: Mapping[str, bytes | None]) -> bytes | None:
        """The question for the CSP, or None if the sites must be asked again.

        Parameters
        ----------
        answers
            Each asked site's answer, None where none came.
        """

    def read_reply(
        self, site: str, data: bytes | None, exchange: RoundId
    ) -> SiteReply | None:
        """A site's reply; None if the site is to be left out."""
        if data is None:
            log.warning("round %d: no answer from site %s", exchange.round, site)
            return None
        known, verified = self._verified.pop(site, (None, None))
        try:
            if known is data and verified is not None:
                message: SiteReply | Refusal = verified
            else:
                message = decode(data, SiteReply, Refusal)
            if isinstance(message, Refusal):
                if message.reason is Reason.BUDGET:
                    self.stopped = f"site {site}: {message.text}"
                log.warning(
                    "round %d: site %s refused: %s", exchange.round, site, message.text
                )
                return None
            if message.round_id != exchange or message.site != site:
                raise ProtocolError("a reply belongs to another exchange")
            if message is not verified:
                message.verify(self._pinned[site])
        except ProtocolError as error:
            log.warning("round %d: site %s: %s", exchange.round, site, error.what)
            return None
        return message

    def lose(self, lost: list[str], present: int) -> None:
        names = ", ".join(lost)
        if present - len(lost) < self._plan.minimum_roster:
            raise RunError(
                f"no usable answer from {names} in round {self._rounds.round}, and "
                f"the study needs {self._plan.minimum_roster} sites",
                where="server",
                remedy="see the sites' logs, then `cipherbayes resume`",
            )
        self._checkpoint.keep_lost(lost, self._rounds.round)
        self._lost = self._checkpoint.lost()
        self._attempt += 1
        log.warning("round %d: going on without %s", self._rounds.round, names)

    def accept(self, data: bytes) -> None:
        """Take the CSP's answer: move θ, make it durable, go to the next round."""
        reply = decode(data, DecryptReply, Refusal)
        if isinstance(reply, Refusal):
            raise RunError(
                f"the CSP refused round {self._rounds.round}: {reply.text}",
                where="csp",
                remedy="see the CSP's log",
            )
        reply.verify(self._pinned["csp"])
        asked = self.exchange(self.roster())
        same = (asked.run, asked.study, asked.round, asked.purpose)
        given = reply.round_id
        if (given.run, given.study, given.round, given.purpose) != same:
            raise ProtocolError("the CSP answered another round", where="csp")
        self._rounds.check_total(reply.values, "the CSP's answer", where="csp")
        everyone = convened(self._manifest).roster
        # A repeated round is answered for its first roster.
        present = roster_of(given, everyone, self._lost).sites
        lost = tuple(s for s in sorted(self._plan.study.sites) if s not in present)
        self._rounds.accept(data, reply.values, len(present), lost)

    def transcript(self) -> bytes:
        """What anybody needs to compute the result again, and to see who signed it."""
        agreed = convened(self._checkpoint.fact("manifest"))
        return transcript_bytes(
            TranscriptHead(
                run=self._run,
                study=self._plan.study_hash,
                manifest=agreed,
                lost=tuple(self._lost),
            ),
            self._rounds.messages(),
        )

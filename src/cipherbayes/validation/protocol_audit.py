"""The same attack on the real parties: their messages, ledgers, masks and keys.

Two consortia are set up in temporary folders, alike but for one record of one site.
A malicious server asks both the same questions. Whatever comes back before noise may
not tell which is which: both answer or both refuse with the same bytes, and both are
charged alike. What the CSP decrypts, less the exact sums that an auditor knows, is
the noise that really stands between the server and the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.errors import CipherbayesError, PrivacyError
from cipherbayes.protocols.messages import (
    DecryptReply,
    DecryptRequest,
    Refusal,
    RoundRequest,
    SiteReply,
    decode,
    encode,
)
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.protocol import Protocol, protocol_of
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.study_plan import StudyPlan, plan_releases
from cipherbayes.study import tables as site_tables
from cipherbayes.study.protocol_rules import choices
from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats, Integers
from cipherbayes.validation.mechanisms import Scores
from cipherbayes.validation.neighbours import Neighbours, neighbours, questions
from cipherbayes.validation.sensitivity import shift_at
from cipherbayes.validation.study_audit import (
    StudyAudit,
    certain_scores,
    honest_variance,
    result_of,
)

ROWS = 65
TOLD_RUNS = 1_000
"""How often an attacker who is right every time is counted."""
MOST_ROUNDS = 40
"""Rounds that are asked; a prefix of a run is post-processing of the whole."""


def audit_protocol(study: Study, *, confidence: float = 0.95) -> StudyAudit:
    """Attack the parties of a study over invented tables; no site's table is read."""
    if study.insecure or not protocol_of(study).messages_audited:
        audited = choices(
            lambda each: isinstance(each, Protocol) and each.messages_audited
        )
        raise PrivacyError(
            f"messages are audited of {audited} studies with secure noise",
            where=f"study '{study.name}'",
            remedy="leave --protocol out: the releases themselves are audited then",
        )
    plan = plan_releases(study)
    near = neighbours(study, ROWS, canary=1, alike=True)
    with TemporaryDirectory(prefix="cipherbayes-audit-") as folder:
        worlds = [
            _World(Path(folder) / name, study, table)
            for name, table in (("present", near.present), ("absent", near.absent))
        ]
        return _attack(plan, near, worlds, confidence)


def _one_table_twice(study: Study, near: Neighbours) -> list[str]:
    """Whether a run would count one table as two sites': each record then counts
    twice, whatever noise there is."""
    if len(study.sites) < 2:
        return []
    tables = {
        name: neighbours(study, ROWS, canary=0, seed=number).present
        for number, name in enumerate(sorted(study.sites))
    }
    one, other, *_ = sorted(tables)
    tables[one] = tables[other] = near.present
    try:
        site_tables.refuse_equal_rows(tables)
    except PrivacyError:
        return []
    return ["one table at two sites is taken for two"]


class _World:
    """A consortium whose first site has one of two neighbouring tables."""

    def __init__(self, path: Path, study: Study, table: PreparedTable) -> None:
        self.folder = RunFolder.create(path, study, dict.fromkeys(study.sites))
        self.plan = plan_releases(study)
        names = sorted(study.sites)
        self.tables = {
            name: neighbours(study, ROWS, canary=0, seed=number).present
            for number, name in enumerate(names)
        }
        self.tables[names[0]] = table
        self.sites = {n: self.folder.site(n, t) for n, t in self.tables.items()}
        self.csp = self.folder.csp()
        self._server, _ = self.folder.server()
        offer = self.csp.offer()
        enrolled = [site.enrol() for site in self.sites.values()]
        manifest = self._server.convene(enrolled, offer)
        self.csp.join(manifest)
        for site in self.sites.values():
            site.join(manifest, offer)
        self.released: list[DecryptReply] = []
        """Totals of the preparatory rounds."""

    @property
    def target(self) -> str:
        """The site whose table differs."""
        return min(self.sites)

    def request(self, number: int, phase: Phase, question: Question) -> RoundRequest:
        """An honest message about any question."""
        roster = self._server.roster()
        exchange = RoundId(
            run=self.folder.run,
            study=self.folder.plan.study_hash,
            round=number,
            attempt=0,
            purpose=phase.purpose,
            roster=roster.digest,
        )
        sent = tuple(self.released[: len(self.plan.before(phase))])
        return RoundRequest(exchange, roster.sites, question.theta, sent)

    def reaction(self, request: RoundRequest) -> tuple[bytes, int]:
        """What leaves the target, less what is random, and what it was charged."""
        site = self.sites[self.target]
        answer = site.handle(encode(request))
        try:
            decode(answer, SiteReply)
            answer = b"an answer"
        except CipherbayesError:
            pass  # a refusal must have the same bytes
        return answer, site.rounds_charged

    def total(self, request: RoundRequest) -> Integers | None:
        """What the CSP decrypts of a round; None where a site refuses."""
        answers = [
            decode(self.sites[name].handle(encode(request)), SiteReply, Refusal)
            for name in request.sites
        ]
        replies = tuple(each for each in answers if isinstance(each, SiteReply))
        if len(replies) < len(answers):
            return None
        question = DecryptRequest(request.round_id, replies)
        reply = decode(self.csp.handle(encode(question)), DecryptReply)
        phase = self.plan.phase_of(reply.round_id.round)
        if phase is not None and phase.preparatory:
            self.released.append(reply)
        return reply.values

    def exact(self, phase: Phase, question: Question) -> Integers:
        """The sums without noise, as only an auditor knows them."""
        sums = [
            phase.on_grid(self.folder.contributions(n, t).total(phase, question))
            for n, t in self.tables.items()
        ]
        total: Integers = np.sum(sums, axis=0)
        return total


def _attack(
    plan: StudyPlan, near: Neighbours, worlds: Sequence[_World], confidence: float
) -> StudyAudit:
    differences = _one_table_twice(plan.study, near)
    shifts, information = [], 0.0
    noise: list[list[Floats]] = [[], []]
    for number in range(min(plan.rounds, MOST_ROUNDS)):
        phase = plan.phase_at(number)
        for name, requests in _malicious(worlds, number, phase):
            if len({w.reaction(r) for w, r in zip(worlds, requests, strict=True)}) > 1:
                differences.append(f"{name}, round {number}")
        if differences:
            break  # the round may be spent: there is nothing more to compare
        name, theta = _asked(plan, phase, near, number)
        question = Question(theta)
        for index, world in enumerate(worlds):
            released = plan.facts([reply.values for reply in world.released])
            question = Question(theta, plan.scales(phase, released))
            values = world.total(world.request(number, phase, question))
            if values is None:
                differences.append(f"an honest question is refused, round {number}")
                break
            left = values - world.exact(phase, question)
            noise[index] += [
                piece / (np.sqrt(part.sites) * part.share_scale)
                for part, piece in zip(phase.parts, phase.split(left), strict=True)
            ]
        if differences:
            break
        shift = shift_at(plan, phase, near, name, question)
        shifts.append(shift)
        if shift.difference is None:
            differences.append(f"{name}, round {number}")
        elif phase.rows in (None, plan.dearest_part):  # a record is in one part only
            information += _information(phase, shift.difference)
    if differences:
        scores = certain_scores(TOLD_RUNS)
    else:
        present, absent = (np.concatenate(each) for each in noise)
        scores = Scores(present + np.sqrt(information), absent, "secure")
    result = result_of(
        plan.study, f"{plan.study.protocol} messages", scores, confidence, gaussian=True
    )
    return StudyAudit(result, shifts, differences)


def _information(phase: Phase, difference: Integers) -> float:
    """μ² that a round adds for whoever knows the colluders' shares."""
    return sum(
        float(np.sum(piece.astype(np.float64) ** 2)) / honest_variance(part)
        for part, piece in zip(phase.parts, phase.split(difference), strict=True)
    )


def _asked(
    plan: StudyPlan, phase: Phase, near: Neighbours, number: int
) -> tuple[str, Floats]:
    """The name and θ of a round's question; rounds take the attacks in turn."""
    usable = [
        (name, question.theta)
        for name, question in questions(plan, phase, near)
        if plan.usable_theta(phase, question.theta)
    ]
    return usable[number % len(usable)]


def _malicious(
    worlds: Sequence[_World], number: int, phase: Phase
) -> Iterator[tuple[str, list[RoundRequest]]]:
    """Messages that no honest server sends, one for each consortium."""
    size = worlds[0].plan.question_size(phase)
    plain = Question(np.zeros(size))
    honest = [world.request(number, phase, plain) for world in worlds]
    yield "theta far out", [replace(r, theta=np.full(size, 1e10)) for r in honest]
    yield "theta too long", [replace(r, theta=np.zeros(size + 1)) for r in honest]
    yield (
        "a later round",
        [replace(r, round_id=replace(r.round_id, round=number + 1)) for r in honest],
    )
    forger = SigningKey.generate()
    for name, change in (("smallest", -1), ("largest", 1)):
        forged = [
            replace(r, releases=tuple(_forged(each, forger, change) for each in kept))
            for r, kept in zip(honest, (w.released for w in worlds), strict=True)
            if kept
        ]
        if forged:
            yield f"forged {name} scales", forged
            yield "no scales", [replace(r, releases=()) for r in honest]


def _forged(reply: DecryptReply, key: SigningKey, change: int) -> DecryptReply:
    """A total that the CSP never signed."""
    values = np.full(reply.values.size, change, dtype=np.int64)
    return DecryptReply.signed(key, round_id=reply.round_id, values=values)

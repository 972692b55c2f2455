"""The checks, one after the other."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from cipherbayes.errors import CipherbayesError, ProtocolError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.plan import Plan, plan_study
from cipherbayes.protocols.protocol import protocol_of
from cipherbayes.protocols.stores import CheckpointReader
from cipherbayes.typing import Floats
from cipherbayes.validation.verify.comparing import alike, paths_differ
from cipherbayes.validation.verify.evidence import FOLDER, MANIFEST, RunEvidence
from cipherbayes.validation.verify.findings import Findings
from cipherbayes.validation.verify.replaying import Replayed, replay
from cipherbayes.validation.verify.result_checks import check_result

ONE_PARTY = (
    "one party held all tables, so nobody signed these totals: whoever wrote them can "
    "write others"
)


def verify(
    folder: str | Path,
    *,
    study: str | Path | None = None,
    roster: str | Path | None = None,
    result: str | Path | None = None,
    exact: bool = False,
) -> Findings:
    """Compute a private run's result again from its totals, and compare.

    Parameters
    ----------
    folder
        A run's folder, the folder of a result, or a site's own copy (KIT/runs/RUN).
    study
        The study file as you know it. Left out: the one that this party approved, or
        the one in the folder.
    roster
        A ``roster.json`` that you pinned yourself. Left out: this party's own, or what
        the folder says.
    result
        Folder of the result to compare, where it is another one.
    exact
        Count draws that are not the same bit for bit as a failure: for whoever has
        the server's release and kind of machine.

    Raises
    ------
    CipherbayesError
        If there is nothing to check, or a file cannot be read at all.
    """
    evidence = RunEvidence.gather(
        Path(folder),
        study=None if study is None else Path(study),
        roster=None if roster is None else Path(roster),
        result=None if result is None else Path(result),
    )
    study_hash = evidence.study.fingerprint()
    findings = Findings(run=evidence.transcript.head.run.hex(), study_hash=study_hash)
    if not evidence.study.private:
        findings.fails("study", f"{evidence.study_from} is of no private run")
        return findings
    plan = plan_study(evidence.study)
    sizes = _signed(findings, evidence, plan)
    if sizes is not None:
        replayed = _replayed(findings, evidence, plan, sizes)
        if replayed is not None:
            _checkpoint(findings, evidence, replayed)
            _ledgers(findings, evidence, plan, replayed)
            check_result(findings, evidence, plan, replayed, exact=exact)
    _never(findings, evidence)
    return findings


# -- signatures and rounds -------------------------------------------------


def _signed(findings: Findings, evidence: RunEvidence, plan: Plan) -> list[int] | None:
    """Sites in each total; None where it makes no sense to go on."""
    transcript = evidence.transcript
    with findings.checking("study"):
        transcript.check_study(plan, transcript.head.run)
        findings.holds(
            "study",
            f"{evidence.study_from} is the study that the parties ran "
            f"({findings.study_hash[:16]})",
        )
    if findings.failed:
        return None
    if transcript.pooled == plan.protocol.federated:
        findings.fails("study", "a transcript without signatures is of a pooled study")
        return None
    with findings.checking("rounds"):
        transcript.check_rounds(plan)
        findings.holds("rounds", _rounds_in_words(len(transcript.totals), plan))
    if transcript.pooled:
        findings.unknown("signatures", ONE_PARTY)
        return None if findings.failed else [1] * len(transcript.totals)
    _identities(findings, evidence, plan)
    with findings.checking("totals"):
        transcript.check_signatures(evidence.pinned["csp"])
        count = len(transcript.totals)
        findings.holds("totals", f"the CSP signed each of the {count} totals")
    if findings.failed:
        return None
    sizes = None
    with findings.checking("sites in each total"):
        sizes = [len(roster) for roster in transcript.rosters(plan)]
        findings.holds("sites in each total", _sizes_in_words(sizes, plan))
    return None if findings.failed else sizes


def _rounds_in_words(count: int, plan: Plan) -> str:
    if count == plan.rounds:
        return f"all {count} rounds are there, in order, none twice"
    return (
        f"rounds 1 to {count} of {plan.rounds} are there, in order, none twice; it "
        "stopped there: that no later round was answered only the sites' ledgers tell"
    )


def _identities(findings: Findings, evidence: RunEvidence, plan: Plan) -> None:
    transcript = evidence.transcript
    enrolled = transcript.manifest.roster.sites
    missing = sorted({"csp", *enrolled} - set(evidence.pinned))
    if missing:
        raise ProtocolError(
            f"no identity of {', '.join(missing)} is pinned", where=evidence.pinned_by
        )
    if evidence.pinned_by in (MANIFEST, FOLDER):
        prints = ", ".join(
            f"{name} {identity.fingerprint}"
            for name, identity in sorted(evidence.pinned.items())
        )
        findings.unknown(
            "identities",
            "the parties' keys are named by what is checked here, and by nobody else: "
            "compare these by telephone, or give your roster.json with --roster: "
            f"{prints}",
        )
    with findings.checking("roster"):
        plan.check_manifest(transcript.manifest, transcript.head.run, evidence.pinned)
        findings.holds(
            "roster",
            f"each of the {len(enrolled)} sites signed its enrolment for this run and "
            f"study, under the keys of {evidence.pinned_by}",
        )


def _sizes_in_words(sizes: list[int], plan: Plan) -> str:
    if not sizes:
        return "there is no total yet"
    span = f"{min(sizes)} to {max(sizes)}" if len(set(sizes)) > 1 else f"{sizes[0]}"
    text = f"every total is over {span} sites, at least {plan.minimum_roster}"
    noise = plan.noise_in_words(sizes)
    return f"{text}; {noise}" if noise else text


# -- what the totals imply -------------------------------------------------


def _replayed(
    findings: Findings, evidence: RunEvidence, plan: Plan, sizes: list[int]
) -> Replayed | None:
    with findings.checking("range"):
        replayed = replay(plan, evidence.transcript, sizes)
        ranged = plan.protocol.totals_have_range
        findings.holds(
            "range",
            f"every total has the length{' and range' if ranged else ''} of the study",
        )
        return replayed
    return None


def _checkpoint(findings: Findings, evidence: RunEvidence, replayed: Replayed) -> None:
    if evidence.checkpoint is None:
        return
    try:
        with CheckpointReader(evidence.checkpoint) as checkpoint:
            path = [theta for _, theta in checkpoint.trajectory()]
            memory, lost = checkpoint.last_memory(), dict(checkpoint.lost())
    except (sqlite3.Error, ValueError, TypeError):
        findings.fails("theta", "the server's checkpoint cannot be read")
        return
    found, how = paths_differ(path, replayed.trajectory)
    findings.judge(
        "theta",
        None if found is None else f"in the server's checkpoint, {found}",
        f"θ in the server's checkpoint follows from the totals after each of the "
        f"{len(path)} rounds of the fit, {how}",
    )
    if not _as_remembered(memory, replayed.memory):
        findings.fails(
            "theta", "what the method remembers in the server's checkpoint is another"
        )
    # A site that was lost after the last total is in every total that is told here.
    if {s: n for s, n in lost.items() if n < replayed.rounds} != dict(replayed.lost):
        findings.fails(
            "sites in each total",
            "the server's checkpoint names other sites as lost, or other rounds",
        )


def _as_remembered(said: Floats | None, implied: Floats | None) -> bool:
    if said is None or implied is None:
        return said is implied
    return said.shape == implied.shape and alike(said, implied)


def _ledgers(
    findings: Findings, evidence: RunEvidence, plan: Plan, replayed: Replayed
) -> None:
    """That sites were asked for these rounds, where a site's ledger is here."""
    transcript = evidence.transcript
    if transcript.pooled or not plan.protocol.charges_every_round:
        return
    for site, path in sorted(evidence.ledgers.items()):
        check = f"ledger of {site}"
        try:
            asked = _asked(path, transcript.head.run)
        except CipherbayesError as error:
            findings.unknown(check, f"cannot be opened: {error.what}")
            continue
        with findings.checking(check):
            answered = max((number for number, _ in asked), default=-1) + 1
            transcript.check_site(site, answered)
            findings.holds(check, f"its {answered} rounds are those told here")
            implied = {
                (number, str(plan.purpose(number))): digest
                for number, digest in enumerate(replayed.questions)
            }
            if any(asked.get(key, digest) != digest for key, digest in implied.items()):
                findings.unknown(
                    check,
                    "not every round was asked at the θ that is computed here, to the "
                    "last bit: another machine or release, or a server that asked "
                    "something else",
                )
            else:
                findings.holds(
                    check, "each round was asked at the θ that the totals before imply"
                )


def _asked(path: Path, run: bytes) -> dict[tuple[int, str], bytes]:
    ledger = Ledger.read(path)
    try:
        return ledger.questions(run)
    finally:
        ledger.close()


def _never(findings: Findings, evidence: RunEvidence) -> None:
    """Report what a transcript cannot show."""
    if evidence.transcript.pooled:
        findings.unknown("noise", "that the curator drew it, and told every round")
    else:
        findings.unknown(
            "decryption",
            "that the CSP decrypted honestly: it signs what it says it found",
        )
        findings.unknown("noise", protocol_of(evidence.study).unverifiable_noise)
    if evidence.result is not None:
        findings.unknown(
            "other files",
            "report.html and whatever else lies in the folder: write the page again "
            "with `cipherbayes report`",
        )

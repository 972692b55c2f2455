"""What a result may promise: the fields of a certificate, and their words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NotRequired, TypedDict

if TYPE_CHECKING:  # descriptors, which import this, load nothing else
    from cipherbayes.protocols.plan import Plan
    from cipherbayes.protocols.study_plan import StudyPlan
    from cipherbayes.study.schema import PrivateStudy

NOT_CERTIFIED = "nothing: this result is not certified"


class CertificateRecord(TypedDict):
    """(ε, δ) of what was released, and against whom it holds.

    ``result.json`` has it like this; keys that are not required are there where they
    mean something. What only one protocol says is in a type of its own, in its folder.

    Attributes
    ----------
    epsilon, delta, relation
        What is promised about neighbouring tables; None where nothing is.
    certified
        Whether the promise was kept, and nothing is missing for it.
    holds_against
        Whom it holds against, in words; empty where it is not certified.
    unit, covers
        What one record is, and whose rows and what of a result are covered.
    spent
        ε of the rounds that the result comes from. ``epsilon`` is that of the whole
        study also where a run stopped early: parties may have seen answers of a round
        whose total is not in the result.
    mechanism, noise_multiplier, clip, sampling_rate, colluders, dropouts
        How the promise is kept.
    """

    epsilon: float | None
    delta: float | None
    relation: str | None
    certified: bool
    holds_against: list[str]
    unit: str | None
    covers: str | None
    spent: NotRequired[float]
    mechanism: NotRequired[str]
    noise_multiplier: NotRequired[float]
    clip: NotRequired[float]
    sampling_rate: NotRequired[float]
    colluders: NotRequired[int]
    dropouts: NotRequired[int]


def promised(privacy: CertificateRecord) -> tuple[float, float] | None:
    """(ε, δ) of a result; None where there was no budget."""
    epsilon, delta = privacy["epsilon"], privacy["delta"]
    return None if epsilon is None or delta is None else (epsilon, delta)


def no_budget() -> CertificateRecord:
    """The certificate of a study without a budget: it promises nothing."""
    return {
        "epsilon": None,
        "delta": None,
        "relation": None,
        "certified": False,
        "holds_against": [],
        "unit": None,
        "covers": None,
    }


def certificate(plan: StudyPlan, rounds: int) -> CertificateRecord:
    """The certificate of sums that are noised before they leave a site or a curator."""
    from cipherbayes.privacy.accountant import RELATION

    study, release = plan.study, plan.last_phase.sums
    return {
        "epsilon": study.privacy.epsilon,
        "delta": study.privacy.delta,
        "relation": RELATION.value,
        "certified": plan.certified,
        "holds_against": plan.protocol.holds_against(study) if plan.certified else [],
        "unit": protected_unit(study),
        "covers": covers(plan),
        "spent": plan.epsilon_after(rounds),
        "mechanism": f"discrete Gaussian on sums of {plan.last_phase.contributions}",
        "noise_multiplier": plan.noise_multiplier,
        "clip": release.clip,
        "sampling_rate": release.rate,
        "colluders": release.colluders,
        "dropouts": release.dropouts,
    }


def protected_unit(study: PrivateStudy) -> str:
    """What one record is: a row (a person with several rows is then several records),
    or a person with all rows."""
    return "row" if study.privacy.person is None else "person"


def covers(plan: Plan) -> str:
    """Whose rows a certificate is about, and what of a result, in words."""
    study = plan.study
    if study.insecure or not plan.protocol.certifies:
        return NOT_CERTIFIED
    rows, outside = "every row", ["the times that parties took"]
    if study.privacy.person is not None:
        rows = "every person with all their rows at a site"
        outside.append("that rows at two sites are the same person's")
    if study.privacy.records is not None:
        units = study.privacy.units
        outside.insert(0, f"the number of {units}, which the study declares public")
    if study.evaluation is not None and not study.checks_privately:
        rows = "every row that was not held out"
        outside.insert(
            0,
            "the held-out rows, which the study declares public: they are not "
            "protected, and scores on them are exact",
        )
    return f"{rows}, in everything that this study released; not covered: " + "; ".join(
        outside
    )


def parties_held_against(study: PrivateStudy) -> list[str]:
    """Whom the promise of a federated study holds against, in words."""
    parties = ["the public", "the server", "the CSP"]
    c = study.colluders
    if c:
        parties.append("any one site" if c == 1 else f"any {c} sites together")
    if study.privacy.dropouts:
        parties.append(
            "coalitions of these, unless a site's answer reaches them after it was "
            "counted as lost"
        )
    else:
        parties.append("coalitions of these")
    return parties

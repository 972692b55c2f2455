"""What the paper's own method says of itself: the honest figure, never a promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from cipherbayes.protocols.certificate import CertificateRecord, covers, protected_unit
from cipherbayes.protocols.encrypted_update.certificate import EncryptedCertificate

if TYPE_CHECKING:
    from cipherbayes.protocols.as_printed.plan import PrintedPlan

NAME = "as-printed"
CIRCUIT = "literal"
BANNER = (
    "NOT CERTIFIED: the paper's Algorithm 3 as printed does not keep its claim; "
    "see docs/where-the-paper-is-wrong.md"
)


class PrintedCertificate(EncryptedCertificate):
    """The paper's claim, and what its method releases without any noise."""

    claimed_epsilon: float
    exact_releases: list[str]


def is_printed(privacy: CertificateRecord) -> TypeGuard[PrintedCertificate]:
    """Whether a certificate has the paper's claim."""
    return "claimed_epsilon" in privacy


def printed_certificate(plan: PrintedPlan) -> PrintedCertificate:
    """The honest figure, and that it is no certificate."""
    from cipherbayes.privacy.accountant import RELATION

    setting, claim = plan.setting, plan.claim
    return {
        "epsilon": claim.honest_epsilon,
        "delta": setting.delta,
        "relation": RELATION.value,
        "certified": False,
        "holds_against": [],
        "unit": protected_unit(plan.study),
        "covers": covers(plan),
        "spent": claim.honest_epsilon,
        "mechanism": "the paper's Algorithm 3 as printed: noise drawn by the server, "
        "preconditioner of un-noised gradients",
        "noise_multiplier": setting.noise_multiplier(1),
        "colluders": 0,
        "dropouts": 0,
        "circuit": CIRCUIT,
        "flooding_bits": 0,
        "claimed_epsilon": claim.claimed_epsilon,
        "exact_releases": exact_releases(plan),
    }


def exact_releases(plan: PrintedPlan) -> list[str]:
    """What is released without any noise."""
    if not plan.prepared:
        return []
    return ["number of records", "column means", "column variances", "largest norm"]


def printed_cautions(plan: PrintedPlan) -> list[str]:
    """Warnings that every output of the paper's own mode carries."""
    warnings = [BANNER, str(plan.claim)]
    if plan.prepared:
        warnings.append(
            "Algorithms 4 and 5 release the exact "
            + ", ".join(exact_releases(plan))
            + ": no ε covers them"
        )
    if plan.prepared and len(plan.study.sites) == 2:
        warnings.append("with two sites each learns the other's exact moments")
    return warnings

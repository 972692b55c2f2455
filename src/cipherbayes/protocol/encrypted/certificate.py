"""What an encrypted update may promise, to whom, and what it must warn of.

Without masks a site's message is protected by encryption and by the site's own share
of the noise. So there are two figures: the study's ε, against all who see only
released values and up to c sites' shares; and a larger one, against a CSP that gets
hold of single ciphertexts, which the server and every other site have.
"""

from __future__ import annotations

import math
from typing import Any

from cipherbayes.planning import StudyPlan
from cipherbayes.protocol.encrypted.plan import EncryptedPlan

UNFLOODED = (
    'circuit = "{circuit}" releases decrypted values without noise that hides the CKKS '
    "error: a server that attacks the secret key may find it; it protects only against "
    'a server that does not (use "hardened" otherwise)'
)


def encrypted_promise(plan: StudyPlan, rounds: int) -> dict[str, Any]:
    """What a certificate says about an encrypted update, and only there.

    Formal guarantees
    -----------------
    ``epsilon`` holds against the public, the server, any c sites, and these
    together, if the secret key stays with the CSP; and against the CSP alone.
    ``single_messages`` holds against the CSP together with the server or with sites,
    whatever their number: they can decrypt every message, each noised by its own
    site's share only.

    Edge cases
    ----------
    That the CSP alone sees no more than the sum rests on encryption noise hiding
    the rounding of each site's encoding (below one unit in the last place, against
    errors of hundreds), which is no part of the (ε, δ) proof.
    """
    assert isinstance(plan, EncryptedPlan)
    study = plan.study
    assert study.privacy is not None
    delta = study.privacy.delta
    return {
        "holds_against": [] if study.insecure else holds_against(plan),
        "mechanism": "discrete Gaussian on sums of clipped per-record gradients, "
        "before the encrypted preconditioner and update",
        "circuit": study.circuit,
        "flooding_bits": plan.flooding_bits,
        "single_messages": {
            "against": "the CSP together with the server or with another site",
            "epsilon": plan.epsilon_of_single_messages(rounds, delta),
            "delta": delta,
        },
    }


def holds_against(plan: EncryptedPlan) -> list[str]:
    """Whom the promise holds against, in words."""
    server = (
        "the server"
        if plan.flooding_bits
        else ("a server that does not attack the secret key")
    )
    parties = ["the public", server, "the CSP"]
    c = plan.study.colluders
    if c:
        parties.append("any one site" if c == 1 else f"any {c} sites together")
        parties.append("the server together with these sites")
    if plan.gradient.privacy.sites - c == 1:
        # Every site's own share is the whole noise.
        parties.append("coalitions of all of these with the CSP")
    return parties


def cautions(plan: StudyPlan) -> list[str]:
    """What a plan and a result must say about an encrypted update."""
    if not isinstance(plan, EncryptedPlan):
        from cipherbayes.protocol.encrypted.printed_plan import printed_cautions

        return printed_cautions(plan)
    study, release = plan.study, plan.gradient.privacy
    privacy = study.privacy
    assert privacy is not None
    warnings = []
    if not plan.flooding_bits:
        warnings.append(UNFLOODED.format(circuit=study.circuit))
    if release.sites - release.colluders > 1:
        single = plan.epsilon_of_single_messages(plan.rounds, privacy.delta)
        warnings.append(
            "not masked: the CSP together with the server or another site sees each "
            f"site's message with that site's noise alone, ε = {_rounded_up(single)}; "
            f"privacy.colluders = {release.sites - 1} makes the promise hold there too"
        )
    return warnings


def _rounded_up(value: float) -> str:
    return f"{math.ceil(100.0 * value) / 100.0:g}"

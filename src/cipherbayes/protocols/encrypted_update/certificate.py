"""What an encrypted update may promise, to whom, and what it must warn of.

Two things are promised, on different grounds. **The records**: (ε, δ), by the noise of
the sites and by pairwise masks, whatever keys the others have. **The sums**: that not
even a round's noised sum is seen, by the encryption, for as long as the secret key is
hidden. Released values hide it if they are flooded. Without flooding the second promise
cannot be kept, and a certificate covers both or is not given.
"""

from __future__ import annotations

from typing import Any

from cipherbayes.protocols.encrypted_update.plan import EncryptedPlan
from cipherbayes.protocols.plan import StudyPlan

UNFLOODED = (
    'not certified: circuit = "{circuit}" releases decrypted values without noise that '
    "hides the CKKS error, so the server may find the secret key in them and read "
    'every round\'s sum, which this protocol is there to hide (use "hardened")'
)


def encrypted_promise(plan: StudyPlan) -> dict[str, Any]:
    """What a certificate says about an encrypted update, and only there.

    Formal guarantees
    -----------------
    ``epsilon`` holds against the public, the server, the CSP, any c sites, and all of
    these together, malicious or not: what the other sites send is a randomised function
    of the sum of their noised vectors, to whoever has all keys but their own.
    ``flooding_bits`` hide the secret key from a server whose sites encrypt honestly.

    Edge cases
    ----------
    A malicious site together with the server can find the secret key (no site can see
    whether another's message is an honest encryption). They then see each round's
    noised sum, as everyone does in a secure sum: ε is the same.
    """
    assert isinstance(plan, EncryptedPlan)
    study = plan.study
    promise: dict[str, Any] = {
        "certified": plan.certified,
        "mechanism": "discrete Gaussian on sums of clipped per-record gradients, "
        "before the encrypted preconditioner and update",
        "circuit": study.circuit,
        "flooding_bits": plan.flooding_bits,
    }
    if not plan.certified:
        promise["holds_against"] = []
    if not plan.flooding_bits:
        promise["not_certified_because"] = UNFLOODED.format(circuit=study.circuit)
    return promise


def cautions(plan: StudyPlan) -> list[str]:
    """What a plan and a result must say about an encrypted update."""
    if not isinstance(plan, EncryptedPlan):
        from cipherbayes.protocols.as_printed.plan import printed_cautions

        return printed_cautions(plan)
    if plan.flooding_bits:
        return []
    return [UNFLOODED.format(circuit=plan.study.circuit)]

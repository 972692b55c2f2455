"""What an encrypted update may promise, to whom, and what it must warn of.

Two things are promised, on different grounds. **The records**: (ε, δ), by the noise of
the sites and by pairwise masks, whatever keys the others have. **The sums**: that not
even a round's noised sum is seen, by the encryption, for as long as the secret key is
hidden. Released values hide it if they are flooded. Without flooding the second promise
cannot be kept, and a certificate covers both or is not given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, TypeGuard

from cipherbayes.protocols.certificate import CertificateRecord, certificate

if TYPE_CHECKING:
    from cipherbayes.protocols.encrypted_update.plan import EncryptedPlan

UNFLOODED = (
    'not certified: circuit = "{circuit}" releases decrypted values without noise that '
    "hides the CKKS error, so the server may find the secret key in them and read "
    'every round\'s sum, which this protocol is there to hide (use "hardened")'
)


class SingleMessages(TypedDict):
    """What single messages alone keep, as releases without masks told it."""

    epsilon: float
    delta: float
    against: str


class EncryptedCertificate(CertificateRecord):
    """The certificate of an update that was computed under encryption."""

    circuit: str
    flooding_bits: int


class UnfloodedCertificate(EncryptedCertificate):
    """One whose circuit does not hide the secret key."""

    not_certified_because: str


class UnmaskedCertificate(EncryptedCertificate):
    """One of a release whose messages were not masked."""

    single_messages: SingleMessages


def is_of_an_update(privacy: CertificateRecord) -> TypeGuard[EncryptedCertificate]:
    """Whether a certificate says how an update was encrypted."""
    return "circuit" in privacy and "flooding_bits" in privacy


def is_unflooded(privacy: CertificateRecord) -> TypeGuard[UnfloodedCertificate]:
    """Whether a certificate says that the secret key is not hidden."""
    return is_of_an_update(privacy) and "not_certified_because" in privacy


def is_unmasked(privacy: CertificateRecord) -> TypeGuard[UnmaskedCertificate]:
    """Whether a certificate says what single messages keep without masks."""
    return is_of_an_update(privacy) and "single_messages" in privacy


def encrypted_certificate(plan: EncryptedPlan, rounds: int) -> EncryptedCertificate:
    """What a certificate says about an encrypted update.

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
    found: EncryptedCertificate = {
        **certificate(plan, rounds),
        "mechanism": "discrete Gaussian on sums of clipped per-record gradients, "
        "before the encrypted preconditioner and update",
        "circuit": plan.circuit_name,
        "flooding_bits": plan.flooding_bits,
    }
    if plan.flooding_bits:
        return found
    unflooded: UnfloodedCertificate = {
        **found,
        "not_certified_because": unflooded_caution(plan),
    }
    return unflooded


def unflooded_caution(plan: EncryptedPlan) -> str:
    """Why a circuit whose values are not flooded is not certified."""
    return UNFLOODED.format(circuit=plan.circuit_name)

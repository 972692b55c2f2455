"""The encrypted update: only the direction in which θ moves is ever decrypted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cipherbayes.protocols.encrypted_update.certificate import (
    EncryptedCertificate,
    encrypted_certificate,
    is_of_an_update,
    is_unflooded,
    is_unmasked,
    unflooded_caution,
)
from cipherbayes.protocols.protocol import (
    CspParts,
    Fact,
    PartyFolder,
    Protocol,
    ServerParts,
    SiteParts,
)
from cipherbayes.study.protocol_rules import choices

if TYPE_CHECKING:
    from cipherbayes.crypto.ckks.keys import CkksKeys
    from cipherbayes.data.prepared import PreparedTable
    from cipherbayes.protocols.certificate import CertificateRecord
    from cipherbayes.protocols.encrypted_update.csp import EncryptedCsp
    from cipherbayes.protocols.encrypted_update.plan import EncryptedPlan
    from cipherbayes.protocols.encrypted_update.server import (
        EncryptedRounds,
        EncryptedServer,
    )
    from cipherbayes.protocols.encrypted_update.site import EncryptedSite
    from cipherbayes.protocols.plan_description import PlanDescription
    from cipherbayes.protocols.stores import Checkpoint
    from cipherbayes.study.schema import PrivateStudy, Study

MOST_SITES = 64


class EncryptedUpdate(Protocol["EncryptedPlan"]):
    """Sites' noised sums are preconditioned and added to θ under encryption.

    Beside what every run keeps, the server and each site keep their evaluator's state
    in ``evaluator.sqlite`` of their own folder.
    """

    name = "encrypted-update"
    noise_aware = False
    why_not_noise_aware = "it releases the direction of its update, and no sums"
    why_not_multilevel = "its update mixes all sites"
    certifies = True
    leaves = "masked, encrypted, signed"
    headline = "The update was computed under encryption"

    # -- study files -------------------------------------------------------

    def check(self, study: Study) -> None:
        check_update(study)

    def refuse_elsewhere(self, study: Study) -> None:
        if study.study.circuit is not None and study.protocol != self.name:
            raise ValueError(
                'study.circuit belongs to protocol = "encrypted-update": remove it'
            )

    def defaults(self, study: Study) -> dict[str, str]:
        from cipherbayes.protocols.encrypted_update.plan import DEFAULT_CIRCUIT

        return {"circuit": study.study.circuit or DEFAULT_CIRCUIT}

    # -- releases and parties ----------------------------------------------

    def plan(self, study: PrivateStudy) -> EncryptedPlan:
        from cipherbayes.protocols.encrypted_update.plan import plan_encrypted

        return plan_encrypted(study)

    def rounds(self, plan: EncryptedPlan, checkpoint: Checkpoint) -> EncryptedRounds:
        from cipherbayes.protocols.encrypted_update.server import EncryptedRounds

        return EncryptedRounds(plan, checkpoint)

    def site(
        self, folder: PartyFolder, table: PreparedTable, parts: SiteParts[EncryptedPlan]
    ) -> EncryptedSite:
        from cipherbayes.protocols.encrypted_update.site import EncryptedSite

        return EncryptedSite(**parts, memory=evaluator(folder, parts["name"]))

    def csp(self, folder: PartyFolder, parts: CspParts[EncryptedPlan]) -> EncryptedCsp:
        from cipherbayes.privacy.noise import PreparedNoise
        from cipherbayes.protocols.encrypted_update.csp import EncryptedCsp

        noise = PreparedNoise(folder.noise("csp"))
        return EncryptedCsp(**parts, keys=run_keys(folder), noise=noise)

    def server(
        self, folder: PartyFolder, parts: ServerParts[EncryptedPlan]
    ) -> EncryptedServer:
        from cipherbayes.protocols.encrypted_update.server import EncryptedServer

        return EncryptedServer(**parts, memory=evaluator(folder, "server"))

    # -- words -------------------------------------------------------------

    def certificate(self, plan: EncryptedPlan, rounds: int) -> EncryptedCertificate:
        return encrypted_certificate(plan, rounds)

    def holds_against(self, study: PrivateStudy) -> list[str]:
        from cipherbayes.protocols.certificate import parties_held_against

        return parties_held_against(study)

    def cautions(self, plan: EncryptedPlan) -> list[str]:
        return [] if plan.flooding_bits else [unflooded_caution(plan)]

    def describe(self, plan: EncryptedPlan) -> PlanDescription:
        from cipherbayes.inference.methods import POINT

        return super().describe(plan).with_warning(POINT)

    def method_words(self, study: Study) -> str:
        return "encrypted ascent"

    def not_certified(self, privacy: CertificateRecord) -> tuple[str, str] | None:
        if not is_unflooded(privacy):
            return None
        return (
            "Not certified: the secret key is not hidden",
            f"The circuit “{privacy['circuit']}” releases decrypted values without "
            "noise that hides the error of the encryption. Whoever sees them may find "
            "the secret key and read every round’s sum, which this protocol is there "
            "to hide. Use the circuit “hardened”.",
        )

    def limits(self, privacy: CertificateRecord) -> list[Fact]:
        if not is_unmasked(privacy):
            return []
        single = privacy["single_messages"]
        said = f"(ε, δ) = ({single['epsilon']:.3g}, {single['delta']:g})"
        return [Fact("Only this much", f"{said} against {single['against']}")]

    def security(self, privacy: CertificateRecord) -> tuple[str, list[Fact]]:
        lead = (
            "Preconditioner and step were computed under encryption; only the "
            "direction in which the parameters move was ever decrypted, once a round, "
            "after every site had computed it too and signed what it found."
        )
        if not is_of_an_update(privacy):
            return lead, []
        bits = privacy["flooding_bits"]
        hidden = f"{bits} statistical bits hide the error of each decrypted value"
        shown = "none: the server may find the secret key in what is released"
        return lead, [
            Fact("Scheme", f"CKKS, circuit “{privacy['circuit']}”"),
            Fact("Flooding", hidden if bits else shown, alarming=not bits),
            Fact(
                "Replay",
                "every site recomputes every output; the CSP decrypts no other",
            ),
            *_masks(privacy),
        ]


def check_update(study: Study) -> None:
    """Raise ValueError for a study whose update cannot be computed under encryption."""
    if study.privacy is not None and study.privacy.dropouts:
        raise ValueError(
            "privacy.dropouts: an encrypted update needs every site in every "
            "round, because all of them check it: set dropouts = 0"
        )
    if study.releases_scales:
        raise ValueError(
            f'preparation.method = "{study.preparation_method}" is not for an '
            'encrypted update, which uses "public-bounds"'
        )
    if (
        study.inference.method is not None
        and not study.inference_method.under_encryption
    ):
        raise ValueError(
            f'inference.method = "{study.inference.method}": an encrypted update has '
            "steps of its own and only a point: remove it, or use "
            + choices(lambda protocol: protocol.noise_aware)
        )
    if study.inference.step.schedule != "constant":
        raise ValueError(
            "inference.step.schedule: the steps of an encrypted update are "
            "constant (the paper's own come with [paper]): remove it"
        )
    if study.inference.preconditioner not in (None, "rmsprop"):
        raise ValueError(
            "inference.preconditioner: an encrypted update computes rmsprop"
        )
    if len(study.sites) > MOST_SITES:
        raise ValueError(f"an encrypted update has at most {MOST_SITES} sites")


def evaluator(folder: PartyFolder, name: str) -> Checkpoint:
    """Where a party's evaluator is kept."""
    from cipherbayes.protocols.stores import Checkpoint

    return Checkpoint(folder.home(name) / "evaluator.sqlite")


def run_keys(folder: PartyFolder) -> CkksKeys:
    """The run's keys, made at the first call."""
    keys = folder.keys("csp")
    if keys.has_ckks(folder.run):
        return keys.load_ckks(folder.run)
    return keys.create_ckks(folder.run, folder.plan.circuit)


def _masks(privacy: EncryptedCertificate) -> list[Fact]:
    """What hides a single message from whoever has the secret key."""
    # Runs of releases without masks say what that costs.
    if is_unmasked(privacy):
        single = privacy["single_messages"]
        cost = f"none: against {single['against']} ε is {single['epsilon']:.3g}"
        return [Fact("Masks", cost)]
    masks = "X25519, pairwise, modulo the ciphertext’s modulus; they cancel in the sum"
    key = (
        "not hidden from the server together with a malicious site; no promise to a "
        "record rests on it"
    )
    return [Fact("Masks", masks), Fact("Secret key", key)]

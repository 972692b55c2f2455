"""The paper's own method as a protocol: for reproduction only, never certified."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cipherbayes.protocols.as_printed.certificate import (
    CIRCUIT,
    NAME,
    PrintedCertificate,
    is_printed,
    printed_cautions,
    printed_certificate,
)
from cipherbayes.protocols.protocol import (
    CspParts,
    Fact,
    PartyFolder,
    Protocol,
    ServerParts,
    SiteParts,
)

if TYPE_CHECKING:
    from cipherbayes.data.prepared import PreparedTable
    from cipherbayes.protocols.as_printed.csp import PrintedCsp
    from cipherbayes.protocols.as_printed.plan import PrintedPlan
    from cipherbayes.protocols.as_printed.server import PrintedRounds, PrintedServer
    from cipherbayes.protocols.as_printed.site import PrintedSite
    from cipherbayes.protocols.certificate import CertificateRecord
    from cipherbayes.protocols.paper_claim import PaperSetting
    from cipherbayes.protocols.plan_description import PlanDescription
    from cipherbayes.protocols.stores import Checkpoint
    from cipherbayes.study.schema import PrivateStudy, Study


class AsPrinted(Protocol["PrintedPlan"]):
    """Algorithms 3, 4 and 5 of the paper, whose claim (Theorem 4) is false.

    A study asks for it with ``protocol = "encrypted-update"`` and
    ``noise = "as-printed"``.
    """

    name = "encrypted-update"
    noise = NAME
    noise_aware = False
    why_not_noise_aware = "it releases parameters, and no sums with noise"
    why_not_multilevel = "its update mixes all sites"
    leaves = "encrypted, signed, without noise"
    charges_every_round = False
    totals_have_range = False
    headline = "The update was computed under encryption"
    unverifiable_noise = "the server drew it itself and knows it"

    # -- study files -------------------------------------------------------

    def check(self, study: Study) -> None:
        from cipherbayes.protocols.encrypted_update.protocol import check_update

        if study.paper is None:
            raise ValueError(
                'study.noise = "as-printed" needs a [paper] table with scale, '
                "lipschitz, gamma, batch and epochs"
            )
        check_update(study)
        if study.model.formula is not None:
            raise ValueError(
                "model.formula: the paper's own mode has main effects only: name the "
                "outcome, or use another protocol"
            )
        if study.study.circuit not in (None, CIRCUIT):
            raise ValueError(
                'study.circuit: the paper\'s own mode is the circuit "literal"'
            )
        if study.inference.chain_settings:
            raise ValueError(
                f"inference.{study.inference.chain_settings[0]}: batches, rounds and "
                "steps of the paper's own mode come from [paper]: remove it"
            )
        exact = study.preparation.method == NAME
        if exact and len(study.sites) == 2 and not study.paper.accept_two_sites:
            raise ValueError(
                "with two sites Algorithm 4 tells each the other's exact number of "
                "rows, means and variances: set paper.accept_two_sites = true to "
                'accept that, or preparation.method = "public-bounds"'
            )

    def refuse_elsewhere(self, study: Study) -> None:
        if study.paper is not None:
            raise ValueError(
                'a [paper] table belongs to protocol = "encrypted-update" with '
                'noise = "as-printed": remove it'
            )
        if study.preparation.method == NAME:
            raise ValueError(
                'preparation.method = "as-printed" releases exact moments: it belongs '
                'to noise = "as-printed"'
            )

    def defaults(self, study: Study) -> dict[str, str]:
        return {"circuit": study.study.circuit or CIRCUIT}

    # -- releases and parties ----------------------------------------------

    def plan(self, study: PrivateStudy) -> PrintedPlan:
        from cipherbayes.protocols.as_printed.plan import plan_as_printed

        return plan_as_printed(study)

    def first_budget(self, study: PrivateStudy) -> float:
        """The honest ε: the claimed one would stop the run at its first round."""
        from cipherbayes.protocols.as_printed.plan import paper_setting
        from cipherbayes.protocols.paper_claim import composed_epsilon

        return composed_epsilon(paper_setting(study))

    def rounds(self, plan: PrintedPlan, checkpoint: Checkpoint) -> PrintedRounds:
        from cipherbayes.protocols.as_printed.server import PrintedRounds

        return PrintedRounds(plan, checkpoint)

    def site(
        self, folder: PartyFolder, table: PreparedTable, parts: SiteParts[PrintedPlan]
    ) -> PrintedSite:
        from cipherbayes.protocols.as_printed.site import PrintedSite

        return PrintedSite(**parts, table=table)

    def csp(self, folder: PartyFolder, parts: CspParts[PrintedPlan]) -> PrintedCsp:
        from cipherbayes.protocols.as_printed.csp import PrintedCsp
        from cipherbayes.protocols.encrypted_update.protocol import run_keys

        return PrintedCsp(**parts, keys=run_keys(folder))

    def server(
        self, folder: PartyFolder, parts: ServerParts[PrintedPlan]
    ) -> PrintedServer:
        from cipherbayes.protocols.as_printed.server import PrintedServer
        from cipherbayes.protocols.encrypted_update.protocol import evaluator

        return PrintedServer(
            **parts,
            memory=evaluator(folder, "server"),
            noise=folder.noise("server"),
        )

    # -- words -------------------------------------------------------------

    def certificate(self, plan: PrintedPlan, rounds: int) -> PrintedCertificate:
        return printed_certificate(plan)

    def holds_against(self, study: PrivateStudy) -> list[str]:
        return []

    def cautions(self, plan: PrintedPlan) -> list[str]:
        return printed_cautions(plan)

    def describe(self, plan: PrintedPlan) -> PlanDescription:
        from cipherbayes.protocols.plan_description import (
            NO_PARAMETERS,
            PlanDescription,
        )

        study, setting, claim = plan.study, plan.setting, plan.claim
        parameters = plan.encryption.record()
        lines = [
            f"{study.name}: {study.model.kind}, the paper's method as printed",
            f"claimed     ε = {claim.claimed_epsilon:g} (Theorem 4, c = "
            f"{setting.scale:g})",
            f"honest      ε ≈ {claim.honest_epsilon:,.0f} over {claim.rounds:,} "
            f"rounds, {claim.first_round_epsilon:,.0f} from the first alone, "
            "not certified",
            f"encryption  {plan.encryption}",
        ]
        return PlanDescription(
            lines,
            rounds=claim.rounds,
            noise_multiplier=setting.noise_multiplier(1),
            epsilon=claim.honest_epsilon,
            delta=setting.delta,
            paper_claim={
                "claimed_epsilon": claim.claimed_epsilon,
                "honest_epsilon": claim.honest_epsilon,
            },
            parameters={key: parameters[key] for key in NO_PARAMETERS},
            bytes_per_round_site=plan.encryption.message_bytes,
            warnings=self.cautions(plan),
        )

    def approval(self, plan: PrintedPlan) -> list[str]:
        from cipherbayes.protocols.plan_description import INSECURE_NOISE

        lines = [
            "promise     NONE: the paper's method as printed is not certified",
            f"rounds      {plan.rounds}, charged to the table's ledger first",
        ]
        return [*lines, INSECURE_NOISE] if plan.study.insecure else lines

    def method_words(self, study: Study) -> str:
        return "the paper’s method"

    def interval_caution(self, study: Study) -> str | None:
        return (
            "The paper’s sampler takes its steps from the claimed ε, not from the "
            "posterior: its intervals miss the truth far more often than they say."
        )

    def not_certified(self, privacy: CertificateRecord) -> tuple[str, str] | None:
        if not is_printed(privacy):
            return None
        return (
            "Not certified: the paper’s method as printed",
            f"The claimed ε = {privacy['claimed_epsilon']:g} does not hold. Were the "
            f"preconditioner public, ε would be {privacy['epsilon']:,.4g}; it is not, "
            "for it is made of gradients without noise. For reproduction only, never "
            "on private rows.",
        )

    def asked_epsilon(self, privacy: CertificateRecord) -> float | None:
        if not is_printed(privacy):
            return super().asked_epsilon(privacy)
        return privacy["claimed_epsilon"]

    def limits(self, privacy: CertificateRecord) -> list[Fact]:
        if not is_printed(privacy) or not privacy["exact_releases"]:
            return []
        exact = ", ".join(privacy["exact_releases"])
        return [Fact("Without any noise", exact, alarming=True)]

    def security(self, privacy: CertificateRecord) -> tuple[str, list[Fact]]:
        lead = (
            "This is the paper’s own protocol, kept for comparison. The CSP decrypts "
            "whatever the server sends, so a server that wants the secret key gets it."
        )
        return lead, [
            Fact("Scheme", "CKKS, the paper’s circuit"),
            Fact("Flooding", "none", alarming=True),
            Fact("Replay", "none", alarming=True),
            Fact("Masks", "none", alarming=True),
            Fact("Noise", "drawn by the server, who can remove it", alarming=True),
        ]

    def audited_claim(self, study: PrivateStudy) -> PaperSetting:
        from cipherbayes.protocols.as_printed.plan import paper_setting

        return paper_setting(study)

"""The secure sum: only the sum over all sites is ever decrypted, once a round."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from cipherbayes.protocols.certificate import CertificateRecord
    from cipherbayes.protocols.secure_sum.csp import SecureSumCsp
    from cipherbayes.protocols.secure_sum.plan import SecureSumPlan
    from cipherbayes.protocols.secure_sum.server import SecureSumServer
    from cipherbayes.protocols.secure_sum.site import SecureSumSite
    from cipherbayes.study.schema import PrivateStudy


class SecureSum(Protocol["SecureSumPlan"]):
    """Sites mask and encrypt noised sums; server and CSP add and open them."""

    name = "secure-sum"
    certifies = True
    multilevel = True
    leaves = "masked, encrypted, signed"
    messages_audited = True
    headline = "Sites’ sums were added under encryption"

    def plan(self, study: PrivateStudy) -> SecureSumPlan:
        from cipherbayes.protocols.releases import phases_of
        from cipherbayes.protocols.secure_sum.plan import SecureSumPlan
        from cipherbayes.study.tables import preparation_of

        return SecureSumPlan(study, phases_of(study, preparation_of(study).design))

    def site(
        self, folder: PartyFolder, table: PreparedTable, parts: SiteParts[SecureSumPlan]
    ) -> SecureSumSite:
        from cipherbayes.protocols.secure_sum.site import SecureSumSite

        return SecureSumSite(**parts)

    def server(
        self, folder: PartyFolder, parts: ServerParts[SecureSumPlan]
    ) -> SecureSumServer:
        from cipherbayes.protocols.secure_sum.server import SecureSumServer

        return SecureSumServer(**parts)

    def csp(self, folder: PartyFolder, parts: CspParts[SecureSumPlan]) -> SecureSumCsp:
        from cipherbayes.protocols.secure_sum.csp import SecureSumCsp

        keys = folder.keys("csp")
        known = any(record.run == folder.run.hex() for record in keys.records())
        pair = (
            keys.load_pair(folder.run)
            if known
            else keys.create_pair(folder.run, parts["plan"].parameters)
        )
        return SecureSumCsp(**parts, pair=pair)

    def holds_against(self, study: PrivateStudy) -> list[str]:
        from cipherbayes.protocols.certificate import parties_held_against

        return parties_held_against(study)

    def security(self, privacy: CertificateRecord) -> tuple[str, list[Fact]]:
        lead = (
            "Each site’s noised sum was masked and encrypted; only the sum over all "
            "sites was ever decrypted, once a round."
        )
        return lead, [
            Fact("Scheme", "BFV, sums only: exact integers, no multiplication"),
            Fact(
                "Masks",
                "X25519, pairwise, modulo the word size; they cancel in the sum",
            ),
        ]

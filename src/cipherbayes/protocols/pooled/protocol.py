"""The pooled protocol: one curator holds all tables. Not private without a budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cipherbayes.protocols.protocol import CuratedProtocol

if TYPE_CHECKING:
    from cipherbayes.privacy.ledger import Ledger
    from cipherbayes.protocols.contributions import Contributions
    from cipherbayes.protocols.pooled.curator import Curator
    from cipherbayes.protocols.protocol import PartyFolder
    from cipherbayes.protocols.study_plan import StudyPlan
    from cipherbayes.study.schema import PrivateStudy


class Pooled(CuratedProtocol["StudyPlan"]):
    """All tables in one place."""

    name = "pooled"
    certifies = True
    multilevel = True
    headline = "All tables in one place"

    def plan(self, study: PrivateStudy) -> StudyPlan:
        from cipherbayes.protocols.releases import phases_of
        from cipherbayes.protocols.study_plan import StudyPlan
        from cipherbayes.study.tables import preparation_of

        return StudyPlan(study, phases_of(study, preparation_of(study).design))

    def holds_against(self, study: PrivateStudy) -> list[str]:
        return ["everyone but whoever holds the pooled tables"]

    def curator(
        self,
        folder: PartyFolder,
        tables: Mapping[str, tuple[Contributions, Ledger]],
    ) -> Curator:
        from cipherbayes.protocols.pooled.curator import Curator

        return Curator(
            run=folder.run,
            plan=folder.plan,
            tables=tables,
            noise=folder.noise("curator"),
        )

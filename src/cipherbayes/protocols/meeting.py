"""How a party meets the others' ledgers when a run begins or goes on."""

from __future__ import annotations

from cipherbayes.protocols.messages import RunManifest
from cipherbayes.protocols.plan import StudyPlan
from cipherbayes.protocols.stores import Heads


def meet(
    heads: Heads | None, plan: StudyPlan, manifest: RunManifest, answered: int
) -> None:
    """Raise ProtocolError where a site's ledger went back.

    Parameters
    ----------
    heads
        What the party remembers; None where all parties are on one machine, whose
        owner has every ledger anyway.
    answered
        Rounds of the run that every site has surely answered.
    """
    if heads is None:
        return
    privacy = plan.study.privacy
    assert privacy is not None
    heads.meet(
        manifest.run,
        manifest.roster,
        # The paper's own method charges a run once, not its rounds.
        answered=0 if plan.study.as_printed else answered,
        dropouts=privacy.dropouts > 0,
    )

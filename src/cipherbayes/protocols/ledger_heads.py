"""The check, when a run begins or goes on, that no site's ledger lost records."""

from __future__ import annotations

from cipherbayes.protocols.messages import RunManifest
from cipherbayes.protocols.plan import Plan
from cipherbayes.protocols.stores import Heads


def check_ledger_heads(
    heads: Heads | None, plan: Plan, manifest: RunManifest, answered: int
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
    heads.check(
        manifest.run,
        manifest.roster,
        answered=answered if plan.protocol.charges_every_round else 0,
        dropouts=plan.study.privacy.dropouts > 0,
    )

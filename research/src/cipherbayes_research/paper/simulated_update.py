"""The encrypted update without its encryption: many runs in the time of one.

Sums, boxes, grids, shares of noise, the noise against the CKKS error, steps and
averages are the product's own. Only what the circuit ``hardened`` computes under
encryption is computed in float64 instead: with the same noise the two release the same
integers, but where a number lies at the edge of two steps of the grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cipherbayes.engine.run_folder import noise_source
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.encrypted_update.flooding import Flooding
from cipherbayes.protocols.encrypted_update.plan import EncryptedPlan, plan_encrypted
from cipherbayes.protocols.encrypted_update.server import EncryptedRounds
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import open_site, with_sites
from cipherbayes.typing import Floats, Integers
from cipherbayes_research.benchmarks.reference_update import ReferenceUpdate


def simulate_update(
    study: Study, tables: Mapping[str, Any]
) -> tuple[Floats, list[Floats]]:
    """The draws of a run, shape (1, d), and θ after each of its rounds.

    It has the noise of a run and no certificate: one process sees all tables.
    """
    study = with_sites(study, tables)
    plan = plan_encrypted(study.with_privacy())
    noise = {name: noise_source(study, name) for name in (*study.sites, "csp")}
    sums = {
        name: Contributions.of_site(study, name, open_site(study, name, table))
        for name, table in tables.items()
    }
    checkpoint = Checkpoint()
    rounds = EncryptedRounds(plan, checkpoint)
    reference = ReferenceUpdate(plan.circuit.update)
    while not rounds.finished:
        phase, asked, number = rounds.phase, rounds.asked(), rounds.round
        total = sum(
            phase.noised(
                np.clip(each.total(phase, asked), -plan.box, plan.box),
                noise[name],
                f"round {number}",
            )
            for name, each in sums.items()
        )
        direction = reference.step(np.asarray(total), plan.drift(rounds.question()))
        flooding = Flooding(bits=plan.flooding_bits, releases=plan.rounds)
        flooded = flooding.flooded(plan.circuit, direction, number + 1, noise["csp"])
        rounds.take(_on_grid(flooded, plan), len(sums))
    draws = rounds.draws()
    assert draws is not None
    thetas = checkpoint.trajectory()
    checkpoint.close()
    return draws.theta.reshape(1, -1), thetas


def _on_grid(values: Floats, plan: EncryptedPlan) -> Integers:
    """Values rounded to the grid to which the CSP rounds what it decrypts."""
    return np.rint(values / plan.grid).astype(np.int64)

"""How wide an interval would be without privacy, from what was released.

With H the shrunk average of the released information matrices, V the variance of the
weighted score sum (:mod:`~.down_weighting`) and Λ the prior's precision, the posterior
of the same sums without noise would have about the covariance (H V⁻¹ H + Λ)⁻¹. Nothing
but released sums is used.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cipherbayes.inference.between_sites import SitePrior
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.lost_sites import prior_without, read_memory
from cipherbayes.inference.noise_aware.recursion import NoiseAware, window_averages
from cipherbayes.inference.noise_aware.schedule import ROUNDS
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.inference.noise_aware.sites import compared_sites, in_context
from cipherbayes.inference.site_comparison import common_sd
from cipherbayes.models import Design, Model
from cipherbayes.models.influence import InfluenceBound
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.typing import Floats


def expected_sd(
    memory: Floats,
    prior: ResolvedPrior,
    model: Model,
    design: Design,
    bound: InfluenceBound | None,
) -> tuple[float, ...] | None:
    """Posterior sd to expect without privacy noise, on the prepared scale.

    Where sites may differ, it is that of the common parameters. None where the run has
    not finished.
    """
    _, lost, state = read_memory(memory, prior)
    if state.rounds != ROUNDS:
        return None
    if lost and isinstance(prior, SitePrior):
        prior = prior_without(prior, lost)
    slots = prior.slots if isinstance(prior, SitePrior) else None
    recursion = NoiseAware(prior, ScoreShape.of(model, design, slots, bound=bound))
    recursion, state = recursion.measured_at(window_averages(state)[0], state)
    evidence = Evidence.of(recursion, state)
    shape, h = recursion.shape, evidence.estimate
    from_records = h @ np.linalg.solve(
        replace(evidence, variance=0.0).score_covariance(h), h
    )
    prior = in_context(recursion, evidence).prior
    if isinstance(prior, SitePrior):
        compared = compared_sites(recursion, prior, evidence, prior.start)
        root = np.linalg.inv(shape.basis)
        quadratic = root.T @ from_records @ root
        return tuple(common_sd(prior, quadratic, prior.spreads(compared.likely)))
    precision = from_records + np.linalg.inv(evidence.prior_covariance)
    covariance = shape.basis @ np.linalg.inv(precision) @ shape.basis.T
    return tuple(np.sqrt(np.diag(covariance)).tolist())

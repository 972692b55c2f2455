"""How wide an interval would be without privacy, from what was released.

A fit without privacy adds no noise and bounds no record. Let H be the information of
the bounded scores and D the diagonal of how much of each parameter's information they
keep (rows that are weighted down, hazards that are followed up to a bound, residuals
that are held). All records in full then have about the information F = D^(-½) H D^(-½),
and the posterior the covariance (F + Λ)⁻¹, Λ the prior's precision. H is known through
noise, so what it says of each parameter, one over its variance, is averaged over draws
of H; where sites may differ, H is the shrunk average of the released matrices. Nothing
but released sums and the number of records is used.
"""

from __future__ import annotations

import numpy as np

from cipherbayes.inference.between_sites import SitePrior
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.lost_sites import prior_without, read_memory
from cipherbayes.inference.noise_aware.posterior import plausible_information
from cipherbayes.inference.noise_aware.recursion import (
    NoiseAware,
    NoiseAwareState,
    window_averages,
)
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
    records: int | None,
) -> tuple[float, ...] | None:
    """Posterior sd to expect without privacy, on the prepared scale.

    ``records`` is how many were fitted, where that is known. Where sites may differ, it
    is that of the common parameters. None where the run has not finished.
    """
    _, lost, state = read_memory(memory, prior)
    if state.rounds != ROUNDS:
        return None
    if lost and isinstance(prior, SitePrior):
        prior = prior_without(prior, lost)
    slots = prior.slots if isinstance(prior, SitePrior) else None
    return sd_of(
        NoiseAware(prior, ScoreShape.of(model, design, slots, bound=bound)),
        state,
        records,
    )


def sd_of(
    recursion: NoiseAware, state: NoiseAwareState, records: int | None
) -> tuple[float, ...]:
    """The same of a finished recursion."""
    recursion, state = recursion.measured_at(window_averages(state)[0], state)
    evidence = Evidence.of(recursion, state)
    shape, estimate = recursion.shape, evidence.estimate
    kept = shape.kept(evidence.place, estimate, evidence.information_sd, records)
    root = kept**-0.5
    prior = in_context(recursion, evidence).prior
    if isinstance(prior, SitePrior):
        compared = compared_sites(recursion, prior, evidence, prior.start)
        quadratic = shape.information_outside(estimate * root * root[:, None])
        return tuple(common_sd(prior, quadratic, prior.spreads(compared.likely)))
    in_full = plausible_information(recursion, state) * root * root[:, None]
    precision = in_full + np.linalg.inv(evidence.prior_covariance)
    covariance = shape.basis @ np.linalg.inv(precision) @ shape.basis.T
    variances = np.diagonal(covariance, axis1=1, axis2=2)
    return tuple(((1.0 / variances).mean(axis=0) ** -0.5).tolist())

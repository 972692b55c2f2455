"""How the sites of a private study compare, from what was released.

Given H the log likelihood of the releases is quadratic in θ, with matrix L H and linear
term L (ḡ + H θ̄), L = H (V + s² I)⁻¹. The comparison of sites needs no more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cipherbayes.inference.between_sites import SitePrior
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.recursion import NoiseAware
from cipherbayes.inference.site_comparison import SiteComparison, compare_sites
from cipherbayes.typing import Floats


def in_context(recursion: NoiseAware, evidence: Evidence) -> NoiseAware:
    """This recursion with levels that may follow the means of the sites' columns.

    How much each column may explain is stated for the estimated H. Only the posterior
    uses this; the θ of a round is chosen without.
    """
    prior = recursion.prior
    if not isinstance(prior, SitePrior):
        return recursion
    fit = recursion.shape.fitted(evidence.place, evidence.estimate)
    return replace(recursion, prior=prior.with_context(fit))


def compared_sites(
    recursion: NoiseAware, prior: SitePrior, evidence: Evidence, between: Floats
) -> SiteComparison:
    """How the sites compare, at a typical τ and with H as estimated."""
    return compare_sites(prior, *_likelihood(recursion, evidence), between)


def _likelihood(recursion: NoiseAware, evidence: Evidence) -> tuple[Floats, Floats]:
    """Matrix and linear term of the log likelihood in θ, with H as estimated."""
    h = evidence.estimate
    weight = np.linalg.solve(evidence.score_covariance(h), h).T
    quadratic = weight @ h
    linear = weight @ (evidence.gradient + h @ evidence.place)
    inverse = np.linalg.inv(recursion.shape.basis)
    quadratic = inverse.T @ (0.5 * (quadratic + quadratic.T)) @ inverse
    return quadratic, inverse.T @ linear

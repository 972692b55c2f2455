"""Where the releases contradict the prior, and how much harm that does.

Without a prior the averaged score sum says θ̂ = θ̄ + H⁻¹ ḡ, with variance
C = H⁻¹ (V + s² I) H⁻¹. Under the prior N(μ₀, Λ⁻¹) the difference θ̂ − μ₀ is normal with
covariance Λ⁻¹ + C, so its squared length is χ² distributed (Box 1980). The posterior
mean would not do, because the prior that is being judged has shrunk it.

References
----------
Box (1980), Sampling and Bayes' inference in scientific modelling and robustness.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, ndtri

from cipherbayes.inference.noise_aware.evidence import Evidence

FAR = 4.0
"""Distance between releases and prior, in expected standard deviations, beyond which a
parameter with a heavy-tailed prior is flagged."""
SURPRISE = 0.01
"""Probability under a normal prior below which the distance between releases and prior
is flagged."""
HARMFUL = 1.0
"""Pull of the prior on an estimate, in posterior standard deviations, above which a
conflict with the prior makes intervals unusable: a 90 % interval that is moved by that
much covers in fewer than three of four cases."""


@dataclass(frozen=True)
class PriorConflict:
    """Releases that a prior holds for all but impossible.

    Attributes
    ----------
    parameters
        Those that lie farthest out.
    pull
        How far the prior moves an estimate, at most, in its posterior standard
        deviations: θ̂ less the posterior mean is P Λ (θ̂ − μ₀), P = (Λ + C⁻¹)⁻¹.
    """

    parameters: tuple[int, ...]
    pull: float


def prior_conflict(evidence: Evidence, *, normal: bool) -> PriorConflict | None:
    """The conflict of releases and prior; None where there is none.

    With heavy-tailed priors (not ``normal``) only single parameters are judged.
    """
    inverse = np.linalg.inv(evidence.estimate)
    spread = inverse @ evidence.score_covariance(evidence.estimate) @ inverse
    expected = evidence.prior_covariance + spread
    away = evidence.place + inverse @ evidence.gradient - evidence.prior_mean
    each = np.abs(away) / np.sqrt(np.diag(expected))
    farthest = -ndtri(0.5 * SURPRISE / away.size) if normal else FAR
    length = float(away @ np.linalg.solve(expected, away))
    if not (each.max() > farthest or (normal and length > chdtri(away.size, SURPRISE))):
        return None
    named = np.flatnonzero(each >= min(farthest, each.max()))
    precision = np.linalg.inv(evidence.prior_covariance)
    variance = np.linalg.inv(precision + np.linalg.inv(spread))
    moved = np.abs(variance @ precision @ away) / np.sqrt(np.diag(variance))
    return PriorConflict(tuple(map(int, named)), float(moved.max()))

"""How wide an interval would be without privacy, from what was released.

A noise-aware run releases noised information matrices. With H their shrunk average
and Λ the prior's precision, the posterior without privacy noise would have about the
covariance (H + Λ)⁻¹; nothing but released sums is used.
"""

from __future__ import annotations

import numpy as np

from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.recursion import (
    NoiseAware,
    NoiseAwareState,
    averages,
)
from cipherbayes.inference.noise_aware.schedule import ROUNDS
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.models import Design, Model
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.typing import Floats


def expected_sd(
    memory: Floats, prior: ResolvedPrior, model: Model, design: Design
) -> tuple[float, ...] | None:
    """Posterior sd to expect without privacy noise, on the prepared scale.

    None where the run has not finished.
    """
    state = NoiseAwareState.from_vector(memory)
    if state.rounds != ROUNDS:
        return None
    recursion = NoiseAware(prior, ScoreShape.of(model, design))
    recursion, state = recursion.measured_at(averages(state)[0], state)
    evidence = Evidence.of(recursion, state)
    shape = recursion.shape
    precision = evidence.estimate + np.linalg.inv(evidence.prior_covariance)
    covariance = shape.basis @ np.linalg.inv(precision) @ shape.basis.T
    return tuple(np.sqrt(np.diag(covariance)).tolist())

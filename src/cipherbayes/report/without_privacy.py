"""How wide an interval would be without privacy, from what was released.

A noise-aware run releases noised information matrices. With H their shrunk average
and Λ the prior's precision, the posterior without privacy noise would have about the
covariance (H + Λ)⁻¹; nothing but released sums is used.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np

from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.recursion import NoiseAware, State
from cipherbayes.inference.noise_aware.schedule import ROUNDS
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.protocols.plan import resolve_prior
from cipherbayes.protocols.stores import CheckpointReader
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of


def sd_without_privacy(study: Study, checkpoint: Path) -> tuple[float, ...] | None:
    """Posterior sd to expect without privacy noise, on the prepared scale.

    None where the run was not noise-aware, not finished, or its checkpoint was not
    kept with the result.
    """
    if not study.private or study.method != "noise-aware" or not checkpoint.is_file():
        return None
    try:
        with CheckpointReader(checkpoint) as reader:
            memory = reader.last_memory()
    except sqlite3.DatabaseError:
        return None
    if memory is None:
        return None
    state = State.from_vector(memory)
    if state.rounds != ROUNDS:
        return None
    design = preparation_of(study).design
    shape = ScoreShape.of(study.model, design)
    rounds = NoiseAware(resolve_prior(study, design), shape)
    evidence = Evidence.of(rounds, state)
    precision = evidence.estimate + np.linalg.inv(evidence.prior_covariance)
    covariance = shape.basis @ np.linalg.inv(precision) @ shape.basis.T
    return tuple(np.sqrt(np.diag(covariance)).tolist())

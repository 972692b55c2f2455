"""Which mean a model's averaged score sum has as a function of θ.

Linear, H (θ − θ̄), unless the model says otherwise; of :mod:`~.saturation` where the
score is bounded (logistic), of :mod:`~.tilting` where it grows with the exponential of
the linear predictor (hazards and counts).
"""

from __future__ import annotations

import numpy as np

from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.saturation import (
    LARGEST_FALL,
    SaturatingScore,
    SiteLevels,
    limited_bend,
    unflattened,
    unflattened_all,
)
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.inference.noise_aware.slicing import Score
from cipherbayes.inference.noise_aware.tilting import TiltedBySite, TiltedScore
from cipherbayes.typing import Floats


def score_of(
    shape: ScoreShape, evidence: Evidence, information: Floats, bend: Floats
) -> Score | None:
    """The mean of the score sum for a stack of H; None where it is linear in θ."""
    if bend.any() or shape.level_values is not None:
        slope = unflattened_all(information, evidence.place, bend)
        levels = None
        if (values := shape.level_values) is not None:
            levels = SiteLevels.of(evidence, information, values)
        return SaturatingScore.of(evidence, slope, bend, levels)
    if shape.unit is None:
        return None
    sites = evidence.layout.sites
    if sites is not None and sites.masses is not None:
        return TiltedBySite.of(evidence, shape, shape.unit, information)
    return TiltedScore.of(evidence, shape, shape.unit, information)


def estimated_score(shape: ScoreShape, evidence: Evidence) -> Score | None:
    """:func:`score_of` for the shrunk estimate of H, as a stack of one."""
    bend = np.array([first_bend(shape, evidence)])
    return score_of(shape, evidence, evidence.estimate[None], bend)


def first_bend(shape: ScoreShape, evidence: Evidence) -> float:
    """β for the shrunk estimate of H, by fixed-point iteration.

    β depends on A, and A of the estimate of H depends on β.
    """
    start, bend = evidence.estimate, np.zeros(1)
    for _ in range(30):
        slope = unflattened(start, evidence.place, float(bend[0]))
        found = bend_of_traces(
            shape, np.array([np.trace(slope)]), evidence.first_trace[0]
        )
        bend = 0.5 * (bend + limited_bend(evidence, slope[None], found))
    return float(bend[0])


def bend_of_traces(shape: ScoreShape, now: Floats, first: Floats) -> Floats:
    """β from how far the curvature has fallen since the first round.

    ``now`` is the trace of A of every chain, ``first`` that of the first round's
    information sum.
    """
    fall = now / np.maximum(first, now)
    return shape.bend(np.maximum(fall, LARGEST_FALL))

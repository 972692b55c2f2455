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
    SaturatingBySite,
    SaturatingScore,
    fall_by_levels,
    limited_bend,
    unbent,
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
    if (values := shape.level_values) is not None:
        return SaturatingBySite.of(evidence, information, bend, values)
    if bend.any():
        slope = unflattened_all(information, evidence.place, bend)
        return SaturatingScore.of(evidence, slope, bend)
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
    start, bend = evidence.estimate[None], np.zeros(1)
    for _ in range(30):
        found = next_bend(shape, evidence, start, bend, evidence.first_trace[:1])
        bend = 0.5 * (bend + limited_bend(evidence, start, bend, found))
    return float(bend[0])


def next_bend(
    shape: ScoreShape,
    evidence: Evidence,
    information: Floats,
    bend: Floats,
    first: Floats,
) -> Floats:
    """β from how far the curvature has fallen since the first round.

    ``information`` and ``bend`` are H and β of every chain, from which A follows, and
    ``first`` is the trace of the first round's information sum. Where sites may differ,
    β is for what their levels do not explain.
    """
    slope = unbent(evidence, information, bend)
    now = np.trace(slope, axis1=1, axis2=2)
    fall = now / np.maximum(first, now)
    if (values := shape.level_values) is not None:
        fall = fall / fall_by_levels(evidence, information, values, bend)
    return shape.bend(np.clip(fall, LARGEST_FALL, 1.0))

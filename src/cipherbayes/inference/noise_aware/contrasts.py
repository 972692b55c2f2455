"""What the differences between the rounds say about the information matrix.

The score sums of two rounds differ by their noise and by where they were taken, and by
nothing else: they are sums over the same records and outcomes. With F(θ) the part of a
score sum that θ changes and a weighted mean over the rounds taken off,

    g_t − ḡ = −(F(θ_t) − Σ_s w_s F(θ_s)) + noise = −H m_t + noise,

m_t = θ_t − θ̄ where the score is a line. Where it is not, rounds that came from far
would tell of the curvature there: a hazard's intercept comes down from where every
record has the event, and the curvature along that way is many times the one at its end.
There F is that of :mod:`~.tilting` or :mod:`~.saturation`, H times a vector that
depends on H through a few numbers only (by how much the linear predictor changes, on
average and in its spread), for which the estimated Ĥ is good enough:

    m_t = Ĥ⁻¹ (F̂(θ_t) − Σ_s w_s F̂(θ_s)).

How much that is away from H (θ_t − θ̄) counts as noise: so far, at most, the columns'
laws and Ĥ may be wrong about it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.recursion import NoiseAware, NoiseAwareState
from cipherbayes.inference.noise_aware.scores import estimated_score
from cipherbayes.inference.noise_aware.slicing import Score
from cipherbayes.typing import Floats


def evidence_of(recursion: NoiseAware, state: NoiseAwareState) -> Evidence:
    """What a finished recursion knows, with the contrasts of its score."""
    evidence = Evidence.of(recursion, state)
    if (score := estimated_score(recursion.shape, evidence)) is None:
        return evidence
    line = (state.visited - evidence.place) @ evidence.estimate
    bend = _changes(evidence, score) - line
    # Of the contrasts and of ḡ alike: together they are the likelihood of all rounds.
    evidence = Evidence.of(recursion, state, (bend**2).mean(axis=1))
    if (score := estimated_score(recursion.shape, evidence)) is None:
        return evidence
    changes = _changes(evidence, score)
    moves = np.asarray(np.linalg.solve(evidence.estimate, changes.T).T)
    weighted = (evidence.weights / evidence.variance)[:, None] * moves
    rest = state.gradients - evidence.gradient
    return replace(evidence, quadratic=moves.T @ weighted, linear=rest.T @ weighted)


def _changes(evidence: Evidence, score: Score) -> Floats:
    """F̂(θ_t) − Σ_s w_s F̂(θ_s) of every round."""
    return np.asarray(score.mean(evidence.visited[:, None, :])[:, 0])

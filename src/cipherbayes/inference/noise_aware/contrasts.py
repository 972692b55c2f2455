"""What the differences between the rounds say about the information matrix.

The score sums of two rounds are over the same records and outcomes. They differ only by
their noise and by the θ at which they were taken. With F(θ) the part of a score sum
that depends on θ, and weighted means over the rounds subtracted,

    g_t − ḡ = −(F(θ_t) − Σ_s w_s F(θ_s)) + noise = −H m_t + noise,

where m_t = θ_t − θ̄ if the score is linear in θ. If it is not, early rounds would tell
about the curvature far from θ̄: a hazard's intercept starts where every record has the
event, and the curvature on the way is many times that at its end. There F is that of
:mod:`~.tilting` or :mod:`~.saturation`. It is H times a vector that depends on H only
through the mean and the variance of the change of the linear predictor, for which the
estimate Ĥ is good enough:

    m_t = Ĥ⁻¹ (F̂(θ_t) − Σ_s w_s F̂(θ_s)).

The difference between F̂ and the linear H (θ_t − θ̄) is added to the noise, because F̂
may be wrong by that much: the columns need not be normal, and Ĥ is an estimate. It is
averaged over the parameters. Where sites may differ, the largest is taken: a column has
many times the information of one site's level, and so has its error, which an average
over all sites' levels would hide.
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
    """The evidence of a finished recursion, its contrasts as the score bends them."""
    evidence = Evidence.of(recursion, state)
    if (score := estimated_score(recursion.shape, evidence)) is None:
        return evidence
    line = (state.visited - evidence.place) @ evidence.estimate
    bend = _changes(evidence, score) - line
    # Added to the noise of the contrasts and of ḡ alike: together they are the
    # likelihood of all rounds.
    by_site = evidence.layout.sites is not None
    wrong = (bend**2).max(axis=1) if by_site else (bend**2).mean(axis=1)
    evidence = Evidence.of(recursion, state, wrong)
    if (score := estimated_score(recursion.shape, evidence)) is None:
        return evidence
    changes = _changes(evidence, score)
    moves = np.asarray(np.linalg.solve(evidence.estimate, changes.T).T)
    weighted = (evidence.weights / evidence.variance)[:, None] * moves
    rest = state.gradients - evidence.gradient
    return replace(evidence, quadratic=moves.T @ weighted, linear=rest.T @ weighted)


def _changes(evidence: Evidence, score: Score) -> Floats:
    """F̂(θ_t) − Σ_s w_s F̂(θ_s) for every round t."""
    return np.asarray(score.mean(evidence.visited[:, None, :])[:, 0])

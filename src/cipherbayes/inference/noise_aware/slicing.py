"""Draws of θ given H where the mean of the score is not a line.

    ḡ ~ N(E ḡ(θ), γ(θ) V + s² I),     θ ~ N(μ₀, Λ⁻¹),

γ(θ) how much more the scores of the records vary under θ than under θ̄, where the score
grows with the exponential of the linear predictor (:mod:`~.tilting`); one elsewhere.
With the V of θ̄ everywhere, releases would be taken for possible under a baseline so low
that there are no events, of which nothing can be learnt and which has all the room of
the prior.

References
----------
Murray, Adams and MacKay (2010), Elliptical slice sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from cipherbayes.inference.noise_aware import compiled
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.typing import Floats

NEWTON_STEPS = 3
NEAR_ENOUGH = 0.1
"""Squared length of a Newton step, in standard deviations, after which none follows."""
LESS = (0.3, 0.65) * 3
"""The precision of the ellipse is that of the normal at the mode, less this share in
up to forty dimensions and √(40 / d) of it in d, for one slice after the other: a target
with tails heavier than its ellipse is explored slowly, and so is one that is much
narrower in many dimensions."""
TRIES = 40
"""Angles after which a slice stays where it was; a few do where nothing is broken."""


class Score(Protocol):
    """The mean of a score sum, for a stack of H."""

    def mean(self, theta: Floats) -> Floats:
        """E ḡ of a stack of θ."""

    def derivative(self, theta: Floats) -> Floats:
        """Its derivative, shape ``(chains, d, d)``."""

    def growth(self, theta: Floats) -> Floats | None:
        """γ of every chain; None where it is one."""


def slice_theta(
    rng: np.random.Generator,
    evidence: Evidence,
    score: Score,
    information: Floats,
    prior_precision: Floats,
    theta: Floats,
    near: Floats,
) -> tuple[Floats, Floats]:
    """θ given H and the mean of the score, from the θ before.

    By elliptical slice sampling. The ellipse is that of a normal at the mode, somewhat
    widened; the slice corrects for what the posterior is not that normal. The mode is
    looked for from ``near``, that of the H before, and returned beside θ.
    """
    chains, d = theta.shape
    kept = 1.0 - np.array(LESS) * min(1.0, np.sqrt(40.0 / d))
    random = (
        rng.standard_normal((chains, kept.size, d)),
        rng.random((chains, kept.size)),
        rng.random((chains, kept.size, TRIES)),
    )
    matrices = (information, prior_precision)
    if compiled.COMPILED and isinstance(score, compiled.SCORES):
        return compiled.slice_theta(
            evidence, score, matrices, kept, random, theta, near
        )
    return sliced(evidence, score, matrices, kept, random, theta, near)


def sliced(
    evidence: Evidence,
    score: Score,
    matrices: tuple[Floats, Floats],
    kept: Floats,
    random: tuple[Floats, Floats, Floats],
    theta: Floats,
    near: Floats,
) -> tuple[Floats, Floats]:
    """:func:`slice_theta` by numpy, with random numbers.

    ``matrices`` are H and the prior's precision; ``kept`` is the share of the ellipse's
    precision and ``random`` are the normals, levels and angles of every slice.
    """
    information, prior_precision = matrices
    fixed = np.asarray(np.linalg.inv(evidence.score_covariance(information)))
    mean = evidence.prior_mean

    def inverse_at(here: Floats) -> tuple[Floats, Floats | float]:
        """Of the covariance, and the log of its determinant unless that is constant."""
        if (growth := score.growth(here)) is None:
            return fixed, 0.0
        total = evidence.score_covariance(information, growth)
        return np.asarray(np.linalg.inv(total)), np.linalg.slogdet(total).logabsdet

    def log_density(here: Floats) -> Floats:
        residual = evidence.gradient - score.mean(here)
        inverse, value = inverse_at(here)
        value = value + np.vecdot(residual, np.matvec(inverse, residual))
        value += np.vecdot(here - mean, np.matvec(prior_precision, here - mean))
        return np.asarray(-0.5 * value)

    def normal_at(here: Floats) -> tuple[Floats, Floats, Floats]:
        derivative, inverse = score.derivative(here), inverse_at(here)[0]
        pulled = derivative.transpose(0, 2, 1) @ inverse
        precision = pulled @ derivative + prior_precision
        residual = evidence.gradient - score.mean(here)
        gradient = np.matvec(pulled, residual)
        gradient -= np.matvec(prior_precision, here - mean)
        step = np.linalg.solve(precision, gradient[..., None])[..., 0]
        return precision, step, np.vecdot(step, gradient)

    # Every chain by itself: once its step is short neither mode nor precision moves.
    mode, precision = near, np.empty_like(information)
    height, found = log_density(mode), np.zeros(len(near), dtype=bool)
    for _ in range(NEWTON_STEPS):
        here, step, squared = normal_at(mode)
        precision = np.where(found[:, None, None], precision, here)
        for _ in range(6):
            value = log_density(mode + step)
            worse = ~(value >= height)
            if not worse.any():
                break
            step = np.where(worse[:, None], 0.5 * step, step)
        value = log_density(mode + step)
        better = (value >= height) & ~found
        mode = np.where(better[:, None], mode + step, mode)
        height = np.where(better, value, height)
        found = found | (squared < NEAR_ENOUGH)
        if found.all():
            break
    else:
        precision = np.where(found[:, None, None], precision, normal_at(mode)[0])
    root = np.linalg.inv(np.linalg.cholesky(precision)).transpose(0, 2, 1)
    away, (white, levels, angles) = theta - mode, random
    for which, share in enumerate(kept):

        def log_ratio(away: Floats, share: float = share) -> Floats:
            quadratic = np.vecdot(away, np.matvec(precision, away))
            return np.asarray(log_density(mode + away) + 0.5 * share * quadratic)

        other = np.matvec(root, white[:, which]) / np.sqrt(share)
        level = log_ratio(away) + np.log(levels[:, which])
        away = _slice(away, other, level, angles[:, which], log_ratio)
    return np.asarray(mode + away), mode


def _slice(
    away: Floats,
    other: Floats,
    level: Floats,
    angles: Floats,
    log_ratio: Callable[[Floats], Floats],
) -> Floats:
    """One elliptical slice update of every chain."""
    angle = 2.0 * np.pi * angles[:, 0]
    low, high = angle - 2.0 * np.pi, angle.copy()
    for share in (*angles[:, 1:].T, None):
        proposed = away * np.cos(angle)[:, None] + other * np.sin(angle)[:, None]
        refused = ~(log_ratio(proposed) > level)
        if share is None or not refused.any():
            break
        low = np.where(refused & (angle < 0.0), angle, low)
        high = np.where(refused & (angle >= 0.0), angle, high)
        angle = np.where(refused, low + (high - low) * share, angle)
    return np.asarray(np.where(refused[:, None], away, proposed))

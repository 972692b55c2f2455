"""Draws of θ given H by elliptical slice sampling, where the score is not linear in θ.

    ḡ ~ N(E ḡ(θ), γ(θ) V + s² I),     θ ~ N(μ₀, Λ⁻¹),

with γ(θ) how many times as much the scores vary under θ as under θ̄. It is other than
one where the score grows with the exponential of the linear predictor
(:mod:`~.tilting`). There the variance must shrink with the number of events: with the V
of θ̄ everywhere, the releases would seem possible under a baseline so low that there are
no events at all, and under a wide prior most of the posterior would lie there.

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
"""Most Newton steps towards the mode; it need not be exact, and the next call goes on
from where this one ended."""
NEAR_ENOUGH = 0.1
"""Squared length of a Newton step, in posterior standard deviations, after which no
other follows."""
WIDENING = (0.3, 0.65) * 3
"""Share by which the precision of the ellipse is less than that of the normal at the
mode, for each slice of an update. In d > 40 dimensions it is √(40 / d) of this. A
posterior with heavier tails than its ellipse is explored slowly, and so is one that is
much narrower than its ellipse in many dimensions: so slices of two widths alternate."""
TRIES = 40
"""Angles tried before a slice leaves θ where it was. Most slices need a few."""


class Score(Protocol):
    """Mean and variance of the averaged score sum as functions of θ, by chain."""

    def mean(self, theta: Floats) -> Floats:
        """E ḡ for the θ of every chain."""

    def derivative(self, theta: Floats) -> Floats:
        """The derivative of :meth:`mean` by θ, shape ``(chains, d, d)``."""

    def variance_growth(self, theta: Floats) -> Floats | None:
        """γ(θ) of every chain; None where the variance is taken not to depend on θ."""


def slice_theta(
    rng: np.random.Generator,
    evidence: Evidence,
    score: Score,
    information: Floats,
    prior_precision: Floats,
    theta: Floats,
    near: Floats,
) -> tuple[Floats, Floats]:
    """The next θ of every chain given H, and the mode of θ given H.

    The ellipse is that of a normal at the mode, somewhat widened; the slice corrects
    for the difference between that normal and the posterior. The search for the mode
    starts at ``near``, the mode for the H before.
    """
    chains, d = theta.shape
    kept = 1.0 - np.array(WIDENING) * min(1.0, np.sqrt(40.0 / d))
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
    """:func:`slice_theta` in numpy, given the random numbers to use.

    ``matrices`` are H and the prior's precision, ``kept`` is the precision of each
    slice's ellipse over that of the normal at the mode, and ``random`` holds the
    normals, levels and angles of every slice.
    """
    information, prior_precision = matrices
    fixed = np.asarray(np.linalg.inv(evidence.score_covariance(information)))
    mean = evidence.prior_mean

    def inverse_at(here: Floats) -> tuple[Floats, Floats | float]:
        """Inverse of the covariance of ḡ, and the log determinant; 0 if constant."""
        if (growth := score.variance_growth(here)) is None:
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
        """Precision, Newton step, and the step's squared length in that precision."""
        derivative, inverse = score.derivative(here), inverse_at(here)[0]
        pulled = derivative.transpose(0, 2, 1) @ inverse
        precision = pulled @ derivative + prior_precision
        residual = evidence.gradient - score.mean(here)
        gradient = np.matvec(pulled, residual)
        gradient -= np.matvec(prior_precision, here - mean)
        step = np.linalg.solve(precision, gradient[..., None])[..., 0]
        return precision, step, np.vecdot(step, gradient)

    # Chains are independent: one whose step was short keeps its mode and precision.
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
    """One elliptical slice update of every chain; ``away`` is θ less the mode."""
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

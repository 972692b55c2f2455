"""The mean of the score sum far from where it was taken.

A score sum at θ̄ has mean H (θ − θ̄) only where the curvature is constant. Where the
linear predictor is about normal with variance v(θ) = θ'Mθ, Stein's lemma gives

    E g(θ̄) = N M (κ(v(θ)) θ − κ(v(θ̄)) θ̄),    κ(v) = E l''(√v Z),

and with κ(v) ∝ (1 + b v)^(−½), as for a logistic curve (b = π / 8, MacKay 1992),

    E g(θ̄) = A (k(θ) θ − θ̄),    k(θ) = √((1 + β) / (1 + β θ'Aθ / θ̄'Aθ̄)),
    H = A − β / (1 + β) · A θ̄ θ̄'A / θ̄'A θ̄,    A = κ(v(θ̄)) N M,    β = b v(θ̄),

in which neither N nor M occurs. β = 0 is H (θ − θ̄); the slope at θ̄ is H always. H is
A with the one direction flattened in which θ̄ itself lies: a prior that knows of no
directions belongs to A, not to H, whose least informed direction it would fill up.

References
----------
Stein (1981), Estimation of the mean of a multivariate normal distribution. MacKay
(1992), The evidence framework applied to classification networks. Murray, Adams and
MacKay (2010), Elliptical slice sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.typing import Floats

LARGEST_FALL = 0.15
"""The curvature is never taken to have fallen below this share of its start."""
LARGEST_UNDER_PRIOR = 20.0
"""Largest b v of a θ that is typical of the prior."""
NEWTON_STEPS = 3
WIDER = 1.3
"""Standard deviations of the ellipse over those of the normal at the mode: a target
with tails heavier than its ellipse is explored slowly."""
SLICES = 4


@dataclass(frozen=True)
class SaturatingScore:
    """E ḡ as a function of θ, for a stack of H and β.

    Attributes
    ----------
    slope
        A, shape ``(chains, d, d)``.
    strength
        β / θ̄'Aθ̄, shape ``(chains,)``.
    bend
        β, shape ``(chains,)``.
    origin
        Σ w_t k(θ_t) θ_t over the rounds, shape ``(chains, d)``.
    """

    slope: Floats
    strength: Floats
    bend: Floats
    origin: Floats

    @classmethod
    def of(cls, evidence: Evidence, slope: Floats, bend: Floats) -> SaturatingScore:
        """With θ̄ and the θ_t of all rounds."""
        pushed, length = _pushed(slope, evidence.place)
        strength = bend / length
        score = cls(slope, strength, bend, np.zeros_like(pushed))
        origin = np.zeros_like(pushed)
        for weight, visited in zip(evidence.weights, evidence.visited, strict=True):
            here = np.broadcast_to(visited, pushed.shape)
            origin += weight * score._factor(here)[0][:, None] * here
        return cls(slope, strength, bend, origin)

    def _factor(self, theta: Floats) -> tuple[Floats, Floats, Floats]:
        """k(θ), Aθ and 1 + β θ'Aθ / θ̄'Aθ̄."""
        along = np.einsum("cij,cj->ci", self.slope, theta)
        below = 1.0 + self.strength * (along * theta).sum(axis=1)
        return np.sqrt((1.0 + self.bend) / below), along, below

    def mean(self, theta: Floats) -> Floats:
        """A (k(θ) θ − origin), of a stack of θ."""
        factor, along, _ = self._factor(theta)
        fixed = np.einsum("cij,cj->ci", self.slope, self.origin)
        return np.asarray(factor[:, None] * along - fixed)

    def derivative(self, theta: Floats) -> Floats:
        """d mean / dθ, shape ``(chains, d, d)``."""
        factor, along, below = self._factor(theta)
        outer = along[:, :, None] * along[:, None, :]
        shrinking = (self.strength / below)[:, None, None] * outer
        return np.asarray(factor[:, None, None] * (self.slope - shrinking))


def _pushed(slope: Floats, place: Floats) -> tuple[Floats, Floats]:
    """A θ̄ and θ̄'Aθ̄."""
    pushed = slope @ place
    return pushed, np.maximum(pushed @ place, 1e-300)


def flattened(slope: Floats, place: Floats, bend: Floats) -> Floats:
    """H of a stack of A."""
    pushed, length = _pushed(slope, place)
    share = bend / (1.0 + bend) / length
    outer = pushed[:, :, None] * pushed[:, None, :]
    return np.asarray(slope - share[:, None, None] * outer)


def unflattened(information: Floats, place: Floats, bend: float) -> Floats:
    """A of one H, the inverse of :func:`flattened`."""
    pushed = information @ place
    length = max(float(pushed @ place), 1e-300)
    return np.asarray(information + bend / length * np.outer(pushed, pushed))


def pulled_back(gradient: Floats, slope: Floats, place: Floats, bend: Floats) -> Floats:
    """The gradient with respect to A from that with respect to H."""
    pushed, length = _pushed(slope, place)
    share = (bend / (1.0 + bend) / length)[:, None]
    turned = np.einsum("cij,cj->ci", gradient, pushed)
    along = ((turned * pushed).sum(axis=1) / length)[:, None]
    # Of aa'/θ̄'a with a = Aθ̄: da = dA θ̄ in both factors and in the denominator.
    half = share * (turned - 0.5 * along * place)
    outer = half[:, :, None] * place
    return np.asarray(gradient - outer - outer.transpose(0, 2, 1))


def tame(evidence: Evidence, slope: Floats, bend: Floats) -> Floats:
    """β no larger than a θ typical of the prior allows.

    β is b v(θ̄), so where θ̄ is almost zero so is β, whatever noise says.
    """
    length = _pushed(slope, evidence.place)[1]
    typical = np.einsum("cjj,j->c", slope, evidence.prior_sd**2)
    return np.asarray(np.minimum(bend, LARGEST_UNDER_PRIOR * length / typical))


def slice_theta(
    rng: np.random.Generator,
    evidence: Evidence,
    slope: Floats,
    prior_variance: Floats,
    bend: Floats,
    theta: Floats,
    near: Floats,
) -> tuple[Floats, Floats]:
    """θ given A and β, from the θ before, by elliptical slice sampling.

    The ellipse is that of a normal at the mode, somewhat widened; the slice corrects
    for what the posterior is not that normal. The mode is looked for from ``near``,
    that of the A before, and returned beside θ.
    """
    score = SaturatingScore.of(evidence, slope, bend)
    index = np.arange(evidence.dimension)
    total = flattened(slope, evidence.place, bend)
    total[:, index, index] += evidence.variance
    inverse = np.linalg.inv(total)
    mean = evidence.prior_mean

    def log_density(here: Floats) -> Floats:
        residual = evidence.gradient - score.mean(here)
        value = np.einsum("ci,cij,cj->c", residual, inverse, residual)
        value += ((here - mean) ** 2 / prior_variance).sum(axis=1)
        return np.asarray(-0.5 * value)

    def normal_at(here: Floats) -> tuple[Floats, Floats]:
        derivative = score.derivative(here)
        pulled = derivative.transpose(0, 2, 1) @ inverse
        precision = pulled @ derivative
        precision[:, index, index] += 1.0 / prior_variance
        residual = evidence.gradient - score.mean(here)
        gradient = np.einsum("cij,cj->ci", pulled, residual)
        gradient -= (here - mean) / prior_variance
        return precision, np.linalg.solve(precision, gradient[..., None])[..., 0]

    mode = near
    height = log_density(mode)
    for _ in range(NEWTON_STEPS):
        step = normal_at(mode)[1]
        for _ in range(6):
            value = log_density(mode + step)
            worse = ~(value >= height)
            if not worse.any():
                break
            step = np.where(worse[:, None], 0.5 * step, step)
        value = log_density(mode + step)
        better = value >= height
        mode = np.where(better[:, None], mode + step, mode)
        height = np.where(better, value, height)
    precision = normal_at(mode)[0] / WIDER**2
    root = np.linalg.inv(np.linalg.cholesky(precision)).transpose(0, 2, 1)

    def log_ratio(away: Floats) -> Floats:
        quadratic = np.einsum("ci,cij,cj->c", away, precision, away)
        return np.asarray(log_density(mode + away) + 0.5 * quadratic)

    away = theta - mode
    for _ in range(SLICES):
        away = _slice(rng, away, root, log_ratio)
    return np.asarray(mode + away), mode


def _slice(
    rng: np.random.Generator,
    away: Floats,
    root: Floats,
    log_ratio: Callable[[Floats], Floats],
) -> Floats:
    """One elliptical slice update of every chain."""
    white = rng.standard_normal(away.shape)
    other = np.einsum("cij,cj->ci", root, white)
    level = log_ratio(away) + np.log(rng.random(len(away)))
    angle = rng.uniform(0.0, 2.0 * np.pi, len(away))
    low, high = angle - 2.0 * np.pi, angle.copy()
    while True:
        proposed = away * np.cos(angle)[:, None] + other * np.sin(angle)[:, None]
        refused = ~(log_ratio(proposed) > level) & (high - low > 1e-9)
        if not refused.any():
            return np.asarray(proposed)
        low = np.where(refused & (angle < 0.0), angle, low)
        high = np.where(refused & (angle >= 0.0), angle, high)
        angle = np.where(refused, rng.uniform(low, high), angle)

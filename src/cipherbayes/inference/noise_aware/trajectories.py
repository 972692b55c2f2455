"""Draws of θ given H by Hamiltonian Monte Carlo, where there are many parameters.

The density is that of :mod:`~.slicing`,

    ḡ ~ N(E ḡ(θ), γ(θ) V + s² I),     θ ~ N(μ₀, Λ⁻¹).

With many parameters most of it lies where γ is well above one, so that everywhere near
the mode's normal the scores vary too little, and slices along its ellipses are short.
HMC follows the gradient. With V = Q diag(λ) Q', residual r = ḡ − E ḡ(θ) and
u = Q'r / (γ λ + s²),

    ∇ log p = J'Q u − Λ (θ − μ₀) − ½ ∇γ (Σ λ / (γ λ + s²) − Σ λ u²),   J = d E ḡ / dθ,

in units of the posterior that is normal with J and γ of about its middle.

References
----------
Neal (2011), MCMC using Hamiltonian dynamics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.inference.noise_aware.compiled import share_out
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.step_sizes import StepSizes
from cipherbayes.inference.noise_aware.tilting import TiltedScore
from cipherbayes.typing import Floats

LENGTH = 1.5
"""Length of a trajectory in posterior standard deviations."""
MOST_LEAPS = 40
"""Most leapfrog steps of a trajectory."""
LATELY = 0.05
"""Weight of the last θ in the average of where a chain has been."""


@dataclass(frozen=True)
class Target:
    """The density of θ given H, for every chain.

    Attributes
    ----------
    values, vectors
        λ and Q.
    root
        R with R R' the covariance of the normal posterior.
    """

    evidence: Evidence
    score: TiltedScore
    precision: Floats
    values: Floats
    vectors: Floats
    root: Floats

    @classmethod
    def of(
        cls,
        evidence: Evidence,
        score: TiltedScore,
        information: Floats,
        prior_precision: Floats,
        near: Floats,
    ) -> Target:
        """The target for the H and the Λ of every chain, in units of what it is near.

        ``near`` is a θ for every chain that does not depend on where it is.
        """
        slope, growth = score.derivative(near), score.growth(near)[0]
        varied = evidence.variation[:, None] * evidence.variation * information
        values, roots = np.empty(near.shape), np.empty_like(information)
        vectors = np.empty_like(information)

        def decompose(some: slice) -> None:
            values[some], vectors[some] = np.linalg.eigh(varied[some])
            spread = growth[some, None] * np.maximum(values[some], 0.0)
            spread += evidence.variance
            half = vectors[some].transpose(0, 2, 1) @ slope[some]
            half /= np.sqrt(spread)[:, :, None]
            normal = half.transpose(0, 2, 1) @ half + prior_precision[some]
            lower = np.linalg.cholesky(normal)
            roots[some] = np.linalg.inv(lower).transpose(0, 2, 1)

        share_out(decompose, len(near))
        values = np.maximum(values, 0.0)
        return cls(evidence, score, prior_precision, values, vectors, roots)

    def density(self, theta: Floats) -> tuple[Floats, Floats]:
        """log p of the θ of every chain, and its gradient."""
        evidence = self.evidence
        growth, rising = self.score.growth(theta)
        residual = evidence.gradient - self.score.mean(theta)
        spread = growth[:, None] * self.values + evidence.variance
        turned = np.vecmat(residual, self.vectors)
        scaled = turned / spread
        away = theta - evidence.prior_mean
        pulled = np.matvec(self.precision, away)
        value = np.log(spread).sum(axis=1) + np.vecdot(turned, scaled)
        value += np.vecdot(away, pulled)
        solved = np.matvec(self.vectors, scaled)
        gradient = np.vecmat(solved, self.score.derivative(theta)) - pulled
        share = (self.values * (1.0 / spread - scaled**2)).sum(axis=1)
        return -0.5 * value, gradient - 0.5 * share[:, None] * rising


class ThetaTrajectories:
    """θ of every chain along trajectories, with step sizes of their own.

    Attributes
    ----------
    near
        Where each chain has been lately while step sizes were adapted.
    """

    def __init__(self, theta: Floats) -> None:
        self._steps, self.near = StepSizes(len(theta)), theta

    def moved(
        self,
        rng: np.random.Generator,
        target: Target,
        theta: Floats,
        *,
        adapting: bool,
    ) -> Floats:
        """The next θ of every chain."""
        size = self._steps.current * rng.uniform(0.8, 1.2, len(theta))
        leaps = int(np.clip(np.ceil(LENGTH / size.mean()), 2, MOST_LEAPS))
        momentum = rng.standard_normal(theta.shape)
        place, gain = leapfrog(target, theta, momentum, size, leaps)
        chance = np.exp(np.minimum(np.where(np.isnan(gain), -np.inf, gain), 0.0))
        accepted = rng.random(chance.size) < chance
        theta = np.where(accepted[:, None], place, theta)
        if adapting:
            self._steps.update(chance)
            self.near = self.near + LATELY * (theta - self.near)
        return theta

    def stop_adapting(self) -> None:
        """Fix the step sizes at their averages."""
        self._steps.fix()


def leapfrog(
    target: Target, theta: Floats, momentum: Floats, size: Floats, leaps: int
) -> tuple[Floats, Floats]:
    """Where trajectories end, and the log of the acceptance ratio."""
    step, place = size[:, None], theta
    with np.errstate(all="ignore"):
        value, gradient = target.density(place)
        start = value - 0.5 * (momentum**2).sum(axis=1)
        for _ in range(leaps):
            momentum = momentum + 0.5 * step * np.vecmat(gradient, target.root)
            place = place + step * np.matvec(target.root, momentum)
            value, gradient = target.density(place)
            momentum = momentum + 0.5 * step * np.vecmat(gradient, target.root)
        gain = value - 0.5 * (momentum**2).sum(axis=1) - start
    return place, np.asarray(gain)

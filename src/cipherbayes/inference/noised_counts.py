"""The posterior of what stands behind counts that were released with noise.

Cells have rates r(φ), a smooth function of a few parameters φ with a normal prior. A
released count ñ is Poisson with its rate, plus noise of a known standard deviation s.
Its mean is r and its variance r + s², as if

    ñ_c + s² ~ Poisson(r_c(φ) + s²),     φ ~ N(m, P⁻¹),

which is exact without noise and normal with much of it. (A normal density with variance
r + s² is not the same: where counts are small its score is correlated with its square,
and intervals are too narrow.) So an interval of any function of φ counts both that the
rows are a sample and that noise was added to their counts.

The sampler draws from a wide distribution around the mode, keeps draws in proportion to
how much likelier they are under the posterior, and moves them on by a few trajectories
of Hamiltonian Monte Carlo (Neal 2011), all at a time, in coordinates in which the
posterior is close to a standard normal. It reads released numbers only, and its seed is
fixed: the same release gives the same posterior.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cipherbayes.typing import Floats

PROPOSED, FREEDOM = 2000, 8.0
"""Draws around the mode, and degrees of freedom of their t distribution."""
CHAINS, BURN_IN, KEPT = 150, 5, 8
"""How many are moved, and by how many trajectories before and while they count."""
LEAPS, LEAP = 5, 0.4
"""Most steps of a trajectory, and their size to begin with."""
ACCEPTED = 0.8
"""Share of trajectories that should be taken."""
LEAST_RATE = 1e-6
NEWTON, STEP, LEAST_CURVATURE = 5, 1e-4, 1e-2
"""Newton steps to the mode, the step of their differences, and the least curvature."""


Pull = Callable[[Floats], Floats]
"""From weights of the cells, ``(k, c)``, to the gradient of Σ_c weights_c r_c(φ)."""
Cells = Callable[[Floats], tuple[Floats, Pull]]
"""From rows of parameters, ``(k, d)``, to rates of the cells and how to pull them."""


@dataclass(frozen=True)
class Smooth:
    """A normal prior: mean, and a matrix R with P = R'R."""

    mean: Floats
    root: Floats


def second_differences(count: int, sd: float, level_sd: float) -> Floats:
    """Rows of R for ``count`` values along a line: second differences have the
    standard deviation ``sd``, each value the far larger ``level_sd`` by itself."""
    bends = np.diff(np.eye(count), n=2, axis=0) / sd
    return np.concatenate([bends, np.eye(count) / level_sd])


def sample_rates(
    counts: Floats, noise: float, cells: Cells, prior: Smooth, seed: int = 1
) -> Floats:
    """Draws of φ, shape ``(s, d)``.

    Parameters
    ----------
    counts, noise
        Released counts, and the standard deviation of their noise.
    """
    target = _Target(counts, noise, cells, prior)
    rng = np.random.default_rng(seed)
    mode, whiten = target.mode()
    phi = _proposed(target, mode, whiten, rng)
    density, slope = target.density(phi)
    size = LEAP
    kept = []
    for step in range(BURN_IN + KEPT):
        speed = rng.standard_normal(phi.shape)
        there, moved, gradient = phi, speed, slope
        for _ in range(int(rng.integers(2, LEAPS + 1))):
            moved = moved + 0.5 * size * gradient @ whiten
            there = there + size * moved @ whiten.T
            reached, gradient = target.density(there)
            moved = moved + 0.5 * size * gradient @ whiten
        gain = reached - density - 0.5 * ((moved**2).sum(1) - (speed**2).sum(1))
        gain = np.where(np.isfinite(gain), gain, -np.inf)
        taken = np.log(rng.random(CHAINS)) < gain
        phi = np.where(taken[:, None], there, phi)
        density = np.where(taken, reached, density)
        slope = np.where(taken[:, None], gradient, slope)
        if step < BURN_IN:
            share = float(np.exp(np.minimum(gain, 0.0)).mean())
            size *= np.exp(share - ACCEPTED)
        else:
            kept.append(phi)
    return np.concatenate(kept)


def _proposed(
    target: _Target, mode: Floats, whiten: Floats, rng: np.random.Generator
) -> Floats:
    """Draws around the mode, each kept as often as its importance says."""
    normal = rng.standard_normal((PROPOSED, mode.size))
    normal *= np.sqrt(FREEDOM / rng.chisquare(FREEDOM, (PROPOSED, 1)))
    phi = mode + normal @ whiten.T
    square = (normal**2).sum(axis=1) / FREEDOM
    weight = target.density(phi)[0] + 0.5 * (FREEDOM + mode.size) * np.log1p(square)
    share = np.exp(weight - weight.max())
    # Evenly spaced over the cumulated shares: no draw is kept more often by chance.
    places = (np.arange(CHAINS) + rng.random()) / CHAINS
    found = np.searchsorted(np.cumsum(share) / share.sum(), places)
    chosen: Floats = phi[np.minimum(found, PROPOSED - 1)]
    return chosen


@dataclass(frozen=True)
class _Target:
    """The log density of φ, and what leads to its mode."""

    counts: Floats
    noise: float
    cells: Cells
    prior: Smooth

    def mode(self) -> tuple[Floats, Floats]:
        """The mode, and a matrix W with WW' the inverse of the curvature there."""
        from scipy.optimize import least_squares  # takes half a second to load

        nearby = least_squares(
            self.distances, self.prior.mean, self.slopes, x_scale="jac", max_nfev=60
        )
        phi, size = np.asarray(nearby.x), nearby.x.size
        for _ in range(NEWTON):
            steps = STEP * np.eye(size)
            slopes = self.density(np.concatenate([phi[None], phi + steps, phi - steps]))
            gradient, ahead, behind = np.split(slopes[1], [1, size + 1])
            curvature = (behind - ahead) / (2.0 * STEP)
            values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T))
            values = np.maximum(values, LEAST_CURVATURE)
            away = vectors @ ((vectors.T @ gradient[0]) / values)
            phi = phi + np.clip(away, -1.0, 1.0)
        return phi, vectors / np.sqrt(values)

    def distances(self, phi: Floats) -> Floats:
        """Of counts from their rates and of φ from its prior, in deviations."""
        rate = np.maximum(self.cells(phi[None])[0][0], LEAST_RATE)
        return np.concatenate(
            [
                (self.counts - rate) / np.sqrt(rate + self.noise**2),
                self.prior.root @ (phi - self.prior.mean),
            ]
        )

    def slopes(self, phi: Floats) -> Floats:
        """Derivatives of :meth:`distances`."""
        repeated = np.tile(phi, (self.counts.size, 1))
        rates, pull = self.cells(repeated)
        rate = np.maximum(rates[0], LEAST_RATE)
        variance = rate + self.noise**2
        by_rate = -1.0 / np.sqrt(variance) - 0.5 * (self.counts - rate) / variance**1.5
        return np.concatenate([pull(np.diag(by_rate)), self.prior.root])

    def density(self, phi: Floats) -> tuple[Floats, Floats]:
        """Its logarithm for each row of parameters, and the gradient."""
        rates, pull = self.cells(phi)
        rate = np.maximum(rates, LEAST_RATE)
        mean = rate + self.noise**2
        seen = np.maximum(self.counts + self.noise**2, 0.0)
        fit = (seen * np.log(mean) - mean).sum(axis=1)
        away = (phi - self.prior.mean) @ self.prior.root.T
        density: Floats = fit - 0.5 * (away**2).sum(axis=1)
        return density, pull(seen / mean - 1.0) - away @ self.prior.root

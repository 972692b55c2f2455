"""The posterior of what stands behind counts that were released with noise.

Cells have rates r(φ), a smooth function of a few parameters φ with a normal prior. A
released count is Poisson with its rate, plus noise of a known standard deviation s:

    ñ_c ~ N(r_c(φ), r_c(φ) + s²),     φ ~ N(m, P⁻¹).

So an interval of any function of φ counts both that the rows are a sample and that
noise was added to their counts.

The sampler is a random walk in coordinates in which the posterior is close to a
standard normal, many chains at a time. It reads released numbers only, and its seed is
fixed: the same release gives the same posterior.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cipherbayes.typing import Floats

CHAINS, BURN_IN, STEPS, THIN = 40, 300, 900, 10
ACCEPTED = 0.25
"""Share of steps that a random walk should take."""
LEAST_RATE = 1e-6


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


def sample_posterior(
    counts: Floats,
    noise: float,
    rates: Callable[[Floats], Floats],
    prior: Smooth,
    seed: int = 1,
) -> Floats:
    """Draws of φ, shape ``(s, d)``.

    Parameters
    ----------
    counts, noise
        Released counts, and the standard deviation of their noise.
    rates
        Rates of the cells for each row of parameters, ``(k, d)`` to ``(k, cells)``.
    """
    from scipy.optimize import least_squares  # takes half a second to load

    def distances(phi: Floats) -> Floats:
        rate = np.maximum(rates(phi[None])[0], LEAST_RATE)
        return np.concatenate(
            [
                (counts - rate) / np.sqrt(rate + noise**2),
                prior.root @ (phi - prior.mean),
            ]
        )

    def log_density(phi: Floats) -> Floats:
        rate = np.maximum(rates(phi), LEAST_RATE)
        variance = rate + noise**2
        fit = ((counts - rate) ** 2 / variance + np.log(variance)).sum(axis=1)
        away = (phi - prior.mean) @ prior.root.T
        density: Floats = -0.5 * (fit + (away**2).sum(axis=1))
        return np.where(np.isfinite(density), density, -np.inf)

    mode = least_squares(distances, prior.mean, x_scale="jac", max_nfev=60)
    precision = mode.jac.T @ mode.jac + 1e-9 * np.eye(mode.x.size)
    whiten = np.linalg.inv(np.linalg.cholesky(precision)).T
    rng = np.random.default_rng(seed)
    size = 2.38 / np.sqrt(mode.x.size)
    phi = mode.x + 0.5 * rng.standard_normal((CHAINS, mode.x.size)) @ whiten.T
    density = log_density(phi)
    kept = []
    for step in range(BURN_IN + STEPS):
        proposed = phi + size * rng.standard_normal(phi.shape) @ whiten.T
        there = log_density(proposed)
        taken = np.log(rng.random(CHAINS)) < there - density
        phi = np.where(taken[:, None], proposed, phi)
        density = np.where(taken, there, density)
        if step < BURN_IN:
            size *= np.exp((taken.mean() - ACCEPTED) / np.sqrt(1.0 + step / 10.0))
        elif step % THIN == 0:
            kept.append(phi)
    return np.concatenate(kept)

"""The posterior of θ after the rounds, the noise of every release counted.

Given H the averaged score sum is Gaussian, ḡ ~ N(H (θ − θ̄), H + s² I), so

    θ | H ~ N(J⁻¹ (Λ μ₀ + K (ḡ + H θ̄)), J⁻¹),  K = H (H + s² I)⁻¹,  J = Λ + K H;

H itself is only known through noise and is drawn by
:class:`~cipherbayes.inference.noise_aware.information.InformationSampler`. Laplace
and Student-t priors are scale mixtures of normals: the scales are drawn given θ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cipherbayes.inference.chains import Draws
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.flags import Flag, raised
from cipherbayes.inference.noise_aware.information import InformationSampler
from cipherbayes.inference.noise_aware.recursion import NoiseAware, State
from cipherbayes.inference.noise_aware.schedule import ROUNDS
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.typing import Floats

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Posterior:
    """Draws of θ on the prepared scale, and what must be said about them."""

    draws: Draws
    flags: tuple[Flag, ...]


@dataclass(frozen=True)
class Effort:
    """Chains, discarded and kept sweeps of each, draws of θ for each kept sweep."""

    chains: int = 4
    warm_up: int = 200
    kept: int = 400

    @classmethod
    def for_dimension(cls, dimension: int) -> Effort:
        """What a study gets: fewer sweeps where one is expensive."""
        if dimension <= 60:
            return cls()
        return cls(chains=2, warm_up=100, kept=150)


def sample_posterior(
    recursion: NoiseAware,
    state: State,
    *,
    seed: int,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Posterior:
    """Draws of θ given everything that a finished recursion has seen.

    Parameters
    ----------
    recursion, state
        After the last round.
    seed
        Of the sampler's randomness, which protects nobody.
    effort
        Chains and sweeps; chosen by the dimension where None.
    progress
        Called with (sweeps done, sweeps in all).
    """
    evidence = Evidence.of(recursion, state)
    effort = effort or Effort.for_dimension(evidence.dimension)
    rng = np.random.default_rng([seed, ROUNDS])
    sampler = InformationSampler(evidence, effort.chains, rng)
    variance = np.tile(evidence.prior_sd**2, (effort.chains, 1))
    total = effort.warm_up + effort.kept
    theta = np.empty((effort.chains, effort.kept, evidence.dimension))
    for sweep in range(total):
        if sweep in (effort.warm_up // 4, effort.warm_up // 2):
            sampler.renew_metric()
        sampler.sweep(variance, adapting=sweep < effort.warm_up)
        if sweep == effort.warm_up - 1:
            sampler.stop_adapting()
        drawn = _draw_theta(rng, evidence, sampler.information(), variance)
        if recursion.prior.kind != "normal":
            variance = _draw_scales(rng, recursion, drawn)
        if sweep >= effort.warm_up:
            theta[:, sweep - effort.warm_up] = drawn
        if progress is not None:
            progress(sweep + 1, total)
    sizes = np.full(theta.shape[:2], np.nan)
    draws = Draws(theta * recursion.scale, sizes, is_point=False, rounds=ROUNDS)
    return Posterior(draws, raised(recursion, state, evidence, draws))


def _draw_theta(
    rng: np.random.Generator,
    evidence: Evidence,
    information: Floats,
    prior_variance: Floats,
) -> Floats:
    """One θ for every H of a stack."""
    index = np.arange(evidence.dimension)
    noisy = information.copy()
    noisy[:, index, index] += evidence.variance
    weight = np.linalg.solve(noisy, information).transpose(0, 2, 1)
    precision = weight @ information
    precision = 0.5 * (precision + precision.transpose(0, 2, 1))
    precision[:, index, index] += 1.0 / prior_variance
    seen = evidence.gradient + information @ evidence.place
    right = np.einsum("cij,cj->ci", weight, seen)
    right += evidence.prior_mean / prior_variance
    lower = np.linalg.cholesky(precision)
    white = rng.standard_normal(right.shape)
    half = np.linalg.solve(lower, right[..., None])[..., 0] + white
    drawn = np.linalg.solve(lower.transpose(0, 2, 1), half[..., None])
    return np.asarray(drawn[..., 0])


def _draw_scales(
    rng: np.random.Generator, recursion: NoiseAware, theta: Floats
) -> Floats:
    """Variances of a scale mixture of normals given θ.

    Laplace: 1/v ~ inverse Gaussian(1 / (b |u|), 1 / b²) (Park and Casella 2008);
    Student-t: v ~ inverse gamma((df + 1) / 2, (df b² + u²) / 2), u = θ − μ₀.
    """
    prior: ResolvedPrior = recursion.prior
    scale = recursion.prior_sd
    away = np.maximum(np.abs(theta - recursion.prior_mean), 1e-12 * scale)
    if prior.kind == "laplace":
        return np.asarray(1.0 / rng.wald(1.0 / (scale * away), 1.0 / scale**2))
    rate = 0.5 * (prior.df * scale**2 + away**2)
    return np.asarray(rate / rng.gamma(0.5 * (prior.df + 1.0), size=theta.shape))

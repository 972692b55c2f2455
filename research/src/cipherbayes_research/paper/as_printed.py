"""Algorithm 3 as printed, simulated in plaintext. Not certified.

    g̃ = c·ḡ, magnitudes of at least 1e-3, bounded by L,
    V = α V + (1−α) g̃²,   G = P(V) ≈ 1/(λ+√V),
    θ ← θ + [η_t/2 (∇log p(θ) + N g̃) + √((λ+L) η_t) z] G,   z ~ N(0, I),

with three corrections without which nothing is learnt: the drift's sign, the sign of
a floored coordinate, and the bound L that the paper's proof assumes. P is the paper's
Chebyshev polynomial where the update would be encrypted and 1/(λ+√V) where it would
not; the error of encryption itself is not simulated.

Formal guarantees
-----------------
None. z comes from a seed, and the algorithm spends far more than it claims
(:mod:`cipherbayes.protocols.paper_claim`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.chebyshev import Chebyshev

from cipherbayes.protocols.paper_claim import PaperSetting
from cipherbayes.typing import Floats, Integers

ALPHA = 0.9
SMALLEST = 1e-3
INTERVAL, DEGREE = (1e-3, 1.0), 7

MeanGradient = Callable[[Floats, Integers], Floats]


@dataclass(frozen=True)
class Trace:
    """Every ``stride``-th θ of a run, and the mean of its last half."""

    theta: Floats
    mean: Floats
    stride: int


def preconditioner_polynomial(floor: float) -> Callable[[Floats], Floats]:
    """The paper's degree-7 Chebyshev interpolant of 1/(λ+√x) on [1e-3, 1]."""
    return Chebyshev.interpolate(
        lambda x: 1.0 / (floor + np.sqrt(x)), DEGREE, domain=list(INTERVAL)
    )


def simulate(
    setting: PaperSetting,
    mean_gradient: MeanGradient,
    sites: Sequence[Integers],
    *,
    dimension: int,
    seed: int,
    encrypted: bool,
    prior_scale: float = 1.0,
    epochs: int | None = None,
    private: bool = True,
    start: Floats | None = None,
    noise: Callable[[int], Floats] | None = None,
) -> Trace:
    """Run the paper's sampler.

    Parameters
    ----------
    setting
        N, τ, T, c and the claim, which fix the steps.
    mean_gradient
        Mean gradient of the log-likelihood at θ over some rows.
    sites
        Rows of each site; a minibatch takes τ/K from each.
    encrypted
        Whether G is the polynomial.
    epochs
        Stop earlier than after T epochs; the steps stay those of T.
    private
        False for the paper's setting (1): c = 1, η_t = 0.0165/t, and exact
        Langevin noise N(0, ηG).
    start, noise
        θ₁ and z of each round, to follow a run that has drawn them; else drawn here.
    """
    rng = np.random.default_rng([seed, len(sites)])
    lipschitz, floor = setting.lipschitz, setting.floor
    scale_of = preconditioner_polynomial(floor)
    rounds = setting.records * (epochs or setting.epochs) // setting.batch
    each = setting.batch // len(sites)
    theta = 0.1 * rng.standard_normal(dimension) if start is None else start
    moment = np.zeros(dimension)
    stride = max(rounds // 100, 1)
    kept, total, count = [], np.zeros(dimension), 0
    for t in range(1, rounds + 1):
        rows = np.concatenate([rng.choice(r, each, replace=False) for r in sites])
        gradient = mean_gradient(theta, rows)
        step = setting.step_size(t) if private else 1.65e-2 / t
        if private:
            gradient = adjusted(gradient, setting.scale, lipschitz)
        moment = ALPHA * moment + (1.0 - ALPHA) * gradient**2
        scale = scale_of(moment) if encrypted else 1.0 / (floor + np.sqrt(moment))
        drift = 0.5 * step * (setting.records * gradient - theta / prior_scale**2)
        z = noise(t) if noise else rng.standard_normal(dimension)
        if private:
            spread = math.sqrt((floor + lipschitz) * step)
            theta = theta + (drift + spread * z) * scale
        else:
            theta = theta + drift * scale + np.sqrt(step * scale) * z
        if t % stride == 0:
            kept.append(theta)
        if 2 * t > rounds:
            total, count = total + theta, count + 1
    return Trace(np.array(kept), total / count, stride)


def adjusted(gradient: Floats, scale: float, lipschitz: float) -> Floats:
    """c·ḡ with magnitudes between 1e-3 and L, signs kept."""
    scaled = scale * gradient
    sizes = np.clip(np.abs(scaled), SMALLEST, lipschitz)
    return np.asarray(np.where(scaled < 0.0, -sizes, sizes))

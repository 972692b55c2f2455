"""Preconditioned stochastic gradient Langevin dynamics with RMSprop.

With ĝ the mean gradient of a minibatch, N the number of records and p(θ) the
prior,

    V ← α V + (1 − α) ĝ ⊙ ĝ,        G = 1 / (λ + √V),
    θ ← θ + η/2 · [ G (∇log p(θ) + N ĝ) + Γ ] + N(0, η G).

This is Algorithm 1 of the paper with the drift's sign corrected: as printed it
descends the log posterior. Without a preconditioner G = 1: plain SGLD.

References
----------
Welling and Teh (2011), Bayesian learning via stochastic gradient Langevin
dynamics. Li, Chen, Carlson and Carin (2016), Preconditioned stochastic gradient
Langevin dynamics for deep neural networks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.typing import Floats


@dataclass(frozen=True)
class PsgldState:
    """Where a chain stands after ``rounds`` updates."""

    theta: Floats
    second_moment: Floats
    rounds: int


@dataclass(frozen=True)
class Info:
    """What one update did.

    ``langevin_share`` is the smallest share, over coordinates, of the Langevin
    variance η G that had to be injected; the rest came with the gradient's known
    noise. Zero means that the gradient's noise alone was at least as large.
    """

    step_size: Floats | float
    langevin_share: float


def init(theta: Floats) -> PsgldState:
    """A chain that starts at ``theta`` with V = 0."""
    return PsgldState(theta.copy(), np.zeros_like(theta), 0)


def update_second_moment(
    state: PsgldState, mean_gradient: Floats, alpha: float
) -> PsgldState:
    """V ← α V + (1 − α) ĝ²."""
    moment = alpha * state.second_moment + (1.0 - alpha) * mean_gradient**2
    return PsgldState(state.theta, moment, state.rounds)


def preconditioner(state: PsgldState, floor: float) -> Floats:
    """The diagonal of G = 1 / (λ + √V)."""
    return np.asarray(1.0 / (floor + np.sqrt(state.second_moment)))


def gamma(
    state: PsgldState,
    mean_gradient: Floats,
    mean_information: Floats,
    *,
    alpha: float,
    floor: float,
) -> Floats:
    """Γ_i = ∂G_ii/∂θ_i of the present round's contribution to V.

    With I_i = −∂ĝ_i/∂θ_i the mean information, dV_i/dθ_i = −2(1−α) ĝ_i I_i and
    so Γ_i = (1−α) ĝ_i I_i / (√V_i (λ + √V_i)²). ``state`` already holds V.
    """
    root = np.sqrt(state.second_moment)
    slope = (1.0 - alpha) * mean_gradient * mean_information
    scale = root * (floor + root) ** 2
    return np.divide(slope, scale, out=np.zeros_like(slope), where=scale > 0.0)


def step(
    normal: Floats,
    state: PsgldState,
    *,
    mean_gradient: Floats,
    prior_gradient: Floats,
    records: float,
    size: Floats | float,
    scale: Floats | float = 1.0,
    correction: Floats | float = 0.0,
    noise_variance: float = 0.0,
) -> tuple[PsgldState, Info]:
    """One update of θ with preconditioner diagonal ``scale`` (1: plain SGLD).

    Parameters
    ----------
    normal
        Standard normal numbers for the Langevin noise, as many as θ has. They protect
        nobody, so a seed is fine.
    size
        η; of several chains side by side one for each, shape ``(chains, 1)``.
    scale, correction
        The diagonal of G, and Γ where it is wanted.
    noise_variance
        Known variance of each coordinate of ``mean_gradient`` (differential
        privacy noise). It already enters θ as (η/2)² G² N² · variance, so that
        much less is injected.
    """
    drift = scale * (prior_gradient + records * mean_gradient) + correction
    target = size * np.broadcast_to(np.asarray(scale), state.theta.shape)
    missing, share = target, 1.0
    if noise_variance > 0.0:
        brought = (0.5 * size * scale * records) ** 2 * noise_variance
        missing = np.maximum(target - brought, 0.0)
        share = float(np.min(missing / target))
    theta = state.theta + 0.5 * size * drift + np.sqrt(missing) * normal
    info = Info(size, share)
    return PsgldState(theta, state.second_moment, state.rounds + 1), info

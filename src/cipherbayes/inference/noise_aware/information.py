"""Draws of the information matrix H, given the releases, by Hamiltonian Monte Carlo.

    A = D^½ exp(S) D^½,   D = diag(exp ℓ),   S symmetric with zero diagonal,
    ℓ_j ~ N(m, ω²),   S_ij ~ N(S⁰_ij, τ²) for i < j,   τ = ρ / √d,

with m, ω and ρ learnt; H is A flattened along θ̄ where the score saturates
(:mod:`~cipherbayes.inference.noise_aware.saturation`), else A itself. Every such H is
positive definite. The prior treats A and A⁻¹ alike, where a Wishart prior with few
degrees of freedom puts its smallest eigenvalues near zero. S⁰ holds the few directions
that stand far out of the noise (:func:`~.recursion.spiked`): with S⁰ = 0 one of them
raises ρ for all, and the small eigenvalues, which noise hides, spread over decades.

HMC moves (ℓ, S) in a metric that combines the prior's and the Fisher noise's
precision; m, ω² and ρ² have conjugate conditionals; ρ is moved once more with
S/τ held fixed (interweaving), or it would creep where the releases say little.

References
----------
Leonard and Hsu (1992), Bayesian inference for a covariance matrix. Archakov and
Hansen (2021), A new parametrization of correlation matrices. Neal (2011), MCMC using
Hamiltonian dynamics. Yu and Meng (2011), To center or not to center.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from cipherbayes.inference.influence import pack
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.recursion import shrunk, spikes_of
from cipherbayes.inference.noise_aware.saturation import (
    flattened,
    pulled_back,
    tame,
    unflattened,
)
from cipherbayes.typing import Floats

TRAJECTORY = 1.4
"""Length of a trajectory in the metric's units; π/2 forgets a Gaussian's start."""
MOST_LEAPS = 24
FIRST_STEP = 0.25
DENSE = 60
"""Largest d for which the metric is a dense matrix (1,830 coordinates)."""
LARGEST_COORDINATE = 1e3
"""No ℓ or S of a sane trajectory is so large."""
LARGEST_LOG = 12.0
"""Eigenvalues and diagonals are held within e^±12 of the usual."""
ACCEPTANCE = 0.8
STRENGTH_SHAPE, STRENGTH_SCALE = 3.0, 0.4
"""ρ² is inverse-gamma: median of ρ 0.39, one in a hundred above 1. Where noise hides
the correlations a heavier tail would fill the posterior with almost singular H."""
SPREAD_SHAPE, SPREAD_SCALE = 1.0, 0.25
"""ω² is inverse-gamma: half a decade of spread between columns is ordinary."""


@dataclass
class Chains:
    """Where all chains stand: arrays with one row a chain."""

    log_diagonal: Floats
    entries: Floats
    centre: Floats
    spread: Floats
    strength: Floats
    step: Floats
    bend: Floats


class InformationSampler:
    """HMC within Gibbs over H, vectorised over chains.

    Parameters
    ----------
    evidence
        The window's averages.
    chains
        How many chains.
    rng
        Source of the draws; it protects nobody.
    bend
        β to start with.
    """

    def __init__(
        self,
        evidence: Evidence,
        chains: int,
        rng: np.random.Generator,
        bend: float = 0.0,
    ) -> None:
        self.evidence = evidence
        self.rng = rng
        d = evidence.dimension
        self._above = np.triu_indices(d, 1)
        start = shrunk(evidence.fisher, evidence.fisher_sd)
        start = unflattened(start, evidence.place, bend)
        log_diagonal, entries = coordinates(start)
        self._typical = log_diagonal
        self._centre = coordinates(spikes_of(start, evidence.fisher_sd))[1]
        rest = entries - self._centre
        strength = np.sqrt(d * (rest**2).mean()) if d > 1 else 0.0
        self.chains = Chains(
            np.tile(log_diagonal, (chains, 1)),
            np.tile(entries, (chains, 1)),
            centre=np.full(chains, log_diagonal.mean()),
            spread=np.full(chains, max(float(log_diagonal.std()), 0.3)),
            strength=np.full(chains, max(float(strength), 0.1)),
            step=np.full(chains, FIRST_STEP),
            bend=np.full(chains, bend),
        )
        self._steps = _StepAdaptation(chains)
        self._metric = self._new_metric()
        # Twice as wide as the posterior is in the metric, so that R-hat can tell.
        self._shift(2.0 * rng.standard_normal((chains, d + entries.size)) / d)

    def information(self) -> Floats:
        """H of every chain, shape ``(chains, d, d)``."""
        return flattened(self.slope(), self.evidence.place, self.chains.bend)

    def slope(self) -> Floats:
        """A of every chain."""
        here = self.chains
        return self._build(here.log_diagonal, here.entries)[0]

    def set_bend(self, bend: Floats) -> None:
        """Take β from now on, A as it is."""
        self.chains.bend = tame(self.evidence, self.slope(), bend)

    def _log_density(
        self, slope: Floats, prior_variance: Floats
    ) -> tuple[Floats, Floats]:
        """log p(releases | A, β) and its gradient with respect to A."""
        place, bend = self.evidence.place, self.chains.bend
        information = flattened(slope, place, bend)
        value, gradient = self.evidence.log_density(information, prior_variance)
        return value, pulled_back(gradient, slope, place, bend)

    def sweep(self, prior_variance: Floats, *, adapting: bool) -> Floats:
        """One update of everything; the chance with which each move was accepted."""
        accepted = self._hmc(prior_variance)
        if adapting:
            self.chains.step = self._steps.update(accepted)
        self._draw_centre_and_spread()
        self._draw_strength()
        self._interweave_strength(prior_variance)
        return accepted

    def renew_metric(self) -> None:
        """Take the metric at where the chains are now."""
        self._metric = self._new_metric()
        self._steps = _StepAdaptation(self.chains.step.size)

    def stop_adapting(self) -> None:
        """Fix the step sizes at their averages."""
        self.chains.step = self._steps.averaged

    def _new_metric(self) -> Floats:
        """A with A A' the inverse of (J'J / s_H² + prior precision), J = dH / d(ℓ, S).

        The Fisher noise is isotropic in H, so J'J / s_H² is its precision in these
        coordinates. Only the diagonal (a vector) where the dense matrix would be
        too large.
        """
        here, d = self.chains, self.evidence.dimension
        centre = here.log_diagonal.mean(axis=0), here.entries.mean(axis=0)
        tau = float(np.median(here.strength)) / np.sqrt(d)
        prior = np.full(d + centre[1].size, tau**-2.0)
        prior[:d] = float(np.median(here.spread)) ** -2.0
        if d > DENSE:
            typical = np.exp(centre[0])
            pairs = typical[self._above[0]] * typical[self._above[1]]
            seen = (
                np.concatenate([typical**2, 2.0 * pairs]) / self.evidence.fisher_sd**2
            )
            return np.asarray(1.0 / np.sqrt(seen + prior))
        jacobian = self._jacobian(*centre) / self.evidence.fisher_sd
        precision = jacobian @ jacobian.T + np.diag(prior)
        lower = np.linalg.cholesky(precision)
        return np.asarray(solve_triangular(lower, np.eye(len(prior)), lower=True).T)

    def _jacobian(self, log_diagonal: Floats, entries: Floats) -> Floats:
        """Derivatives of the packed H, one row a coordinate."""
        information, root, values, vectors = self._build(
            log_diagonal[None], entries[None]
        )
        d = log_diagonal.size
        half = np.zeros((d, d, d))
        index = np.arange(d)
        half[index, index] = 0.5 * information[0]
        inner = np.einsum(
            "ka,kb->kab", vectors[0][self._above[0]], vectors[0][self._above[1]]
        )
        inner = (inner + inner.transpose(0, 2, 1)) * _divided_differences(values)[0]
        moved = vectors[0] @ inner @ vectors[0].T
        moved *= root[0][:, None] * root[0]
        return pack(np.concatenate([half + half.transpose(0, 2, 1), moved]))

    def _spread_out(self, white: Floats) -> Floats:
        """A v, of a stack of v."""
        return np.asarray(
            white * self._metric if self._metric.ndim == 1 else white @ self._metric.T
        )

    def _pulled_back(self, slope: Floats) -> Floats:
        """A' v, of a stack of v."""
        return np.asarray(
            slope * self._metric if self._metric.ndim == 1 else slope @ self._metric
        )

    def _shift(self, white: Floats) -> None:
        move = self._spread_out(white)
        d = self.evidence.dimension
        self.chains.log_diagonal = self.chains.log_diagonal + move[:, :d]
        self.chains.entries = self.chains.entries + move[:, d:]

    def _build(
        self, log_diagonal: Floats, entries: Floats
    ) -> tuple[Floats, Floats, Floats, Floats]:
        chains, d = log_diagonal.shape
        logarithm = np.zeros((chains, d, d))
        logarithm[:, self._above[0], self._above[1]] = entries
        logarithm[:, self._above[1], self._above[0]] = entries
        values, vectors = np.linalg.eigh(logarithm)
        values = np.clip(values, -LARGEST_LOG, LARGEST_LOG)
        powers = np.exp(values)
        usual = self._typical
        near = np.clip(log_diagonal, usual - LARGEST_LOG, usual + LARGEST_LOG)
        root = np.exp(0.5 * near)
        exponential = (vectors * powers[:, None, :]) @ vectors.transpose(0, 2, 1)
        information = exponential * root[:, :, None] * root[:, None, :]
        return information, root, values, vectors

    def _density(
        self, log_diagonal: Floats, entries: Floats, prior_variance: Floats
    ) -> tuple[Floats, Floats]:
        """log p(ℓ, S | m, ω, τ, releases) and its gradient."""
        information, root, values, vectors = self._build(log_diagonal, entries)
        value, slope = self._log_density(information, prior_variance)
        for_diagonal = (slope * information).sum(axis=2)
        # Daleckii–Krein: the derivative of exp(S) in the basis of S.
        inner = slope * root[:, :, None] * root[:, None, :]
        inner = vectors.transpose(0, 2, 1) @ inner @ vectors
        inner = inner * _divided_differences(values)
        inner = vectors @ inner @ vectors.transpose(0, 2, 1)
        for_entries = 2.0 * inner[:, self._above[0], self._above[1]]
        here = self.chains
        away = (log_diagonal - here.centre[:, None]) / here.spread[:, None]
        tau = self._tau(here.strength)
        value = value - 0.5 * (away**2).sum(axis=1)
        rest = entries - self._centre
        value = value - 0.5 * ((rest / tau) ** 2).sum(axis=1)
        slopes = (
            for_diagonal - away / here.spread[:, None],
            for_entries - rest / tau**2,
        )
        return value, np.concatenate(slopes, axis=1)

    def _tau(self, strength: Floats) -> Floats:
        return np.asarray(strength[:, None] / np.sqrt(self.evidence.dimension))

    def _hmc(self, prior_variance: Floats) -> Floats:
        here, rng, d = self.chains, self.rng, self.evidence.dimension
        step = (here.step * rng.uniform(0.8, 1.2, here.step.size))[:, None]
        leaps = int(np.clip(np.ceil(TRAJECTORY / step.mean()), 2, MOST_LEAPS))
        start = np.concatenate([here.log_diagonal, here.entries], axis=1)
        place, momentum = start, rng.standard_normal(start.shape)
        value, slope = self._density(place[:, :d], place[:, d:], prior_variance)
        before = value - 0.5 * (momentum**2).sum(axis=1)
        with np.errstate(all="ignore"):
            for _ in range(leaps):
                momentum = momentum + 0.5 * step * self._pulled_back(slope)
                place = place + step * self._spread_out(momentum)
                place = np.where(np.abs(place) < LARGEST_COORDINATE, place, start)
                value, slope = self._density(place[:, :d], place[:, d:], prior_variance)
                momentum = momentum + 0.5 * step * self._pulled_back(slope)
            after = value - 0.5 * (momentum**2).sum(axis=1)
            chance = np.exp(np.minimum(after - before, 0.0))
        lost = ~np.isfinite(chance) | (np.abs(place) >= LARGEST_COORDINATE).any(axis=1)
        chance = np.where(lost, 0.0, chance)
        place = np.where((rng.random(chance.size) < chance)[:, None], place, start)
        here.log_diagonal, here.entries = place[:, :d], place[:, d:]
        return chance

    def _draw_centre_and_spread(self) -> None:
        """m (flat prior) and ω² (inverse-gamma) given ℓ."""
        here, rng = self.chains, self.rng
        chains, d = here.log_diagonal.shape
        mean = here.log_diagonal.mean(axis=1)
        here.centre = mean + here.spread / np.sqrt(d) * rng.standard_normal(chains)
        squares = ((here.log_diagonal - here.centre[:, None]) ** 2).sum(axis=1)
        rate = SPREAD_SCALE + 0.5 * squares
        gamma = rng.gamma(SPREAD_SHAPE + 0.5 * d, size=chains)
        here.spread = np.sqrt(rate / gamma)

    def _draw_strength(self) -> None:
        """ρ² (inverse-gamma) given S."""
        here = self.chains
        chains, count = here.entries.shape
        squares = ((here.entries - self._centre) ** 2).sum(axis=1)
        squares = squares * self.evidence.dimension
        gamma = self.rng.gamma(STRENGTH_SHAPE + 0.5 * count, size=chains)
        here.strength = np.sqrt((STRENGTH_SCALE + 0.5 * squares) / gamma)

    def _interweave_strength(self, prior_variance: Floats) -> None:
        """ρ given (S − S⁰) / ρ: Metropolis in log ρ, of a length from 0.01 to 0.5."""
        here, rng = self.chains, self.rng
        lengths = 10.0 ** rng.uniform(-2.0, -0.3, here.strength.size)
        change = lengths * rng.standard_normal(here.strength.size)
        entries = here.entries - self._centre
        entries = self._centre + entries * np.exp(change)[:, None]
        proposed = here.strength * np.exp(change)

        def log_density(values: Floats, strength: Floats) -> Floats:
            information = self._build(here.log_diagonal, values)[0]
            data = self._log_density(information, prior_variance)[0]
            # Inverse-gamma of ρ², as a density of log ρ.
            shape, scale = STRENGTH_SHAPE, STRENGTH_SCALE
            prior = -2.0 * shape * np.log(strength) - scale / strength**2
            return np.asarray(data + prior)

        gain = log_density(entries, proposed) - log_density(here.entries, here.strength)
        moved = np.log(rng.random(change.size)) < gain
        here.entries = np.where(moved[:, None], entries, here.entries)
        here.strength = np.where(moved, proposed, here.strength)


def _divided_differences(values: Floats) -> Floats:
    """(e^a − e^b) / (a − b), e^a where a = b, of all pairs."""
    half = 0.5 * (values[:, :, None] - values[:, None, :])
    middle = np.exp(0.5 * (values[:, :, None] + values[:, None, :]))
    small = np.abs(half) < 1e-4
    safe = np.where(small, 1.0, half)
    ratio = np.where(small, 1.0 + half**2 / 6.0, np.sinh(safe) / safe)
    return np.asarray(middle * ratio)


class _StepAdaptation:
    """Dual averaging of log step sizes (Hoffman and Gelman 2014, section 3.2)."""

    def __init__(self, chains: int) -> None:
        self._mean = np.log(2.0 * FIRST_STEP) * np.ones(chains)
        self._error = np.zeros(chains)
        self._log_average = np.log(FIRST_STEP) * np.ones(chains)
        self._count = 0

    def update(self, accepted: Floats) -> Floats:
        self._count += 1
        share = 1.0 / (self._count + 10.0)
        self._error = (1.0 - share) * self._error + share * (ACCEPTANCE - accepted)
        log_step = self._mean - np.sqrt(self._count) / 0.15 * self._error
        log_step = np.clip(log_step, np.log(1e-3), np.log(1.2))
        fade = self._count**-0.75
        self._log_average = fade * log_step + (1.0 - fade) * self._log_average
        return np.asarray(np.exp(log_step))

    @property
    def averaged(self) -> Floats:
        return np.asarray(np.exp(self._log_average))


def coordinates(information: Floats) -> tuple[Floats, Floats]:
    """(ℓ, S above the diagonal) of a positive definite H, by fixed-point iteration.

    ℓ is such that log(D^-½ H D^-½) has a zero diagonal (Archakov and Hansen 2021,
    section 3, where convergence is shown).
    """
    log_diagonal = np.log(np.diag(information))
    logarithm = np.zeros_like(information)
    for _ in range(100):
        root = np.exp(0.5 * log_diagonal)
        values, vectors = np.linalg.eigh(information / np.outer(root, root))
        logarithm = (vectors * np.log(np.maximum(values, 1e-12))) @ vectors.T
        log_diagonal = log_diagonal + np.diag(logarithm)
        if np.abs(np.diag(logarithm)).max() < 1e-9:
            break
    return log_diagonal, logarithm[np.triu_indices(len(information), 1)]

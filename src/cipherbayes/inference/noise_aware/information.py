"""Draws of the information matrix H, given the releases, by Hamiltonian Monte Carlo.

In the coordinates (p, U, ℓ, S) of :mod:`~.coordinates`,

    p_j ~ N(m, 3²),   U_jk ~ N(0, υ²),   ℓ_j ~ N(m, ω²),   S_ij ~ N(S⁰_ij, τ²),

τ = ρ / √d, with m, υ, ω and ρ learnt; H is A flattened along θ̄ where the score
saturates (:mod:`~.saturation`), else A itself. The prior treats B and B⁻¹ alike, where
a Wishart prior with few degrees of freedom puts its smallest eigenvalues near zero. S⁰
holds the few directions that stand far out of the noise (:func:`~.shrinkage.spiked`):
with S⁰ = 0 one of them raises ρ for all, and the small eigenvalues, which noise hides,
spread over decades.

HMC moves the coordinates in a metric that combines the prior's and the Fisher noise's
precision; m, υ², ω² and ρ² have conjugate conditionals; ρ is moved once more with
(S − S⁰)/τ held fixed (interweaving), or it would creep where the releases say little.
With more than 60 parameters S is not moved but taken as estimated: what that leaves
out is in the evidence's noise (:meth:`~.evidence.Evidence.blurred`).

References
----------
Neal (2011), MCMC using Hamiltonian dynamics. Yu and Meng (2011), To center or not to
center.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from cipherbayes.inference.noise_aware.coordinates import Coordinates
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.saturation import (
    flattened,
    pulled_back,
    tame,
    unflattened,
)
from cipherbayes.inference.noise_aware.shrinkage import spikes_of
from cipherbayes.typing import Floats

TRAJECTORY = 1.4
"""Length of a trajectory in the metric's units; π/2 forgets a Gaussian's start."""
MOST_LEAPS = 24
FIRST_STEP = 0.25
DENSE = 60
"""Largest d for which S is among the coordinates (1,830 of them)."""
LARGEST_COORDINATE = 1e3
"""No coordinate of a sane trajectory is so large."""
ACCEPTANCE = 0.8
STRENGTH_SHAPE, STRENGTH_SCALE = 3.0, 0.4
"""ρ² is inverse-gamma: median of ρ 0.39, one in a hundred above 1. Where noise hides
the correlations a heavier tail would fill the posterior with almost singular H."""
SPREAD_SHAPE, SPREAD_SCALE = 1.0, 0.25
"""ω² is inverse-gamma: half a decade of spread between columns is ordinary."""
MEANS_SHAPE, MEANS_SCALE = 1.0, 0.05
"""υ² is inverse-gamma: columns lie within [-1, 1]."""
MASS_SPREAD = 3.0


@dataclass
class Chains:
    """Where all chains stand: arrays with one row a chain."""

    place: Floats
    centre: Floats
    spread: Floats
    strength: Floats
    means: Floats
    step: Floats
    bend: Floats


class InformationSampler:
    """HMC within Gibbs over H, vectorised over chains.

    Parameters
    ----------
    evidence
        The averages over the rounds.
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
        start = unflattened(evidence.estimate, evidence.place, bend)
        parts = self.parts = Coordinates(
            start,
            evidence.constants,
            correlated=evidence.dimension <= DENSE,
            frame=evidence.frame,
        )
        place = parts.usual
        self._centre = np.zeros(0)
        if parts.correlated:
            # A is not flat along θ̄ where H is A flattened.
            along = None if bend or evidence.along is None else evidence.along
            spikes = spikes_of(
                parts.blocks(start)[2],
                evidence.fisher_sd,
                None if along is None else parts.turned(along),
            )
            self._centre = parts.off_diagonal(spikes)
        rest = place[parts.entries] - self._centre
        strength = np.sqrt(parts.others * (rest**2).mean()) if rest.size else 0.0
        diagonal, means = place[parts.diagonal], place[parts.means]
        size = np.sqrt((means**2).mean()) if means.size else 0.0
        self.chains = Chains(
            np.tile(place, (chains, 1)),
            centre=np.full(chains, diagonal.mean()),
            spread=np.full(chains, max(float(diagonal.std()), 0.3)),
            strength=np.full(chains, max(float(strength), 0.1)),
            means=np.full(chains, max(float(size), 0.1)),
            step=np.full(chains, FIRST_STEP),
            bend=np.full(chains, bend),
        )
        self._steps = _StepAdaptation(chains)
        self._metric = self._new_metric()
        # Twice as wide as the posterior is in the metric, so that R-hat can tell.
        white = rng.standard_normal((chains, parts.size))
        self.chains.place = self.chains.place + 2.0 / evidence.dimension * (
            white @ self._metric.T
        )

    def information(self) -> Floats:
        """H of every chain, shape ``(chains, d, d)``."""
        return flattened(self.slope(), self.evidence.place, self.chains.bend)

    def slope(self) -> Floats:
        """A of every chain."""
        return self.parts.build(self.chains.place).matrix

    def set_bend(self, bend: Floats) -> None:
        """Take β from now on, A as it is."""
        self.chains.bend = tame(self.evidence, self.slope(), bend)

    def sweep(self, prior_variance: Floats, *, adapting: bool) -> Floats:
        """One update of everything; the chance with which each move was accepted."""
        accepted = self._hmc(prior_variance)
        if adapting:
            self.chains.step = self._steps.update(accepted)
        self._draw_scales()
        if self._centre.size:
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
        """A with A A' the inverse of J'J / s_H² + the prior's precision, J = dA / dx.

        The Fisher noise is isotropic in H, so J'J / s_H² is its precision in these
        coordinates.
        """
        jacobian = self.parts.jacobian(self.chains.place.mean(axis=0))
        jacobian /= self.evidence.fisher_sd
        prior = np.median(self._prior()[1], axis=0)
        lower = np.linalg.cholesky(jacobian @ jacobian.T + np.diag(prior))
        identity = np.eye(self.parts.size)
        return np.asarray(solve_triangular(lower, identity, lower=True).T)

    def _prior(self) -> tuple[Floats, Floats]:
        """Means and precisions of all coordinates given the learnt scales."""
        here, parts = self.chains, self.parts
        means = np.zeros((here.step.size, parts.size))
        precisions = np.empty_like(means)
        means[:, parts.masses] = means[:, parts.diagonal] = here.centre[:, None]
        means[:, parts.entries] = self._centre
        precisions[:, parts.masses] = MASS_SPREAD**-2.0
        precisions[:, parts.means] = here.means[:, None] ** -2.0
        precisions[:, parts.diagonal] = here.spread[:, None] ** -2.0
        precisions[:, parts.entries] = parts.others / here.strength[:, None] ** 2
        return means, precisions

    def _log_density(
        self, slope: Floats, prior_variance: Floats
    ) -> tuple[Floats, Floats]:
        """log p(releases | A, β) and its gradient with respect to A."""
        place, bend = self.evidence.place, self.chains.bend
        information = flattened(slope, place, bend)
        value, gradient = self.evidence.log_density(information, prior_variance)
        return value, pulled_back(gradient, slope, place, bend)

    def density(self, place: Floats, prior_variance: Floats) -> tuple[Floats, Floats]:
        """log p(coordinates | learnt scales, releases) and its gradient."""
        built = self.parts.build(place)
        value, slope = self._log_density(built.matrix, prior_variance)
        means, precisions = self._prior()
        pull = precisions * (place - means)
        value = value - 0.5 * (pull * (place - means)).sum(axis=1)
        return value, self.parts.pulled_back(built, slope) - pull

    def _hmc(self, prior_variance: Floats) -> Floats:
        here, rng, metric = self.chains, self.rng, self._metric
        step = (here.step * rng.uniform(0.8, 1.2, here.step.size))[:, None]
        leaps = int(np.clip(np.ceil(TRAJECTORY / step.mean()), 2, MOST_LEAPS))
        start = place = here.place
        momentum = rng.standard_normal(start.shape)
        value, slope = self.density(place, prior_variance)
        before = value - 0.5 * (momentum**2).sum(axis=1)
        with np.errstate(all="ignore"):
            for _ in range(leaps):
                momentum = momentum + 0.5 * step * (slope @ metric)
                place = place + step * (momentum @ metric.T)
                place = np.where(np.abs(place) < LARGEST_COORDINATE, place, start)
                value, slope = self.density(place, prior_variance)
                momentum = momentum + 0.5 * step * (slope @ metric)
            after = value - 0.5 * (momentum**2).sum(axis=1)
            chance = np.exp(np.minimum(after - before, 0.0))
        lost = ~np.isfinite(chance) | (np.abs(place) >= LARGEST_COORDINATE).any(axis=1)
        chance = np.where(lost, 0.0, chance)
        moved = rng.random(chance.size) < chance
        here.place = np.where(moved[:, None], place, start)
        return chance

    def _draw_scales(self) -> None:
        """m (flat prior) and υ², ω², ρ² (inverse-gamma) given the coordinates."""
        here, rng, parts = self.chains, self.rng, self.parts
        chains = here.step.size

        def scale(away: Floats, shape: float, least: float) -> Floats:
            rate = least + 0.5 * (away**2).sum(axis=1)
            gamma = rng.gamma(shape + 0.5 * away.shape[1], size=chains)
            return np.asarray(np.sqrt(rate / gamma))

        masses, diagonal = here.place[:, parts.masses], here.place[:, parts.diagonal]
        precision = masses.shape[1] / MASS_SPREAD**2
        precision = precision + diagonal.shape[1] / here.spread**2
        total = masses.sum(axis=1) / MASS_SPREAD**2
        total = total + diagonal.sum(axis=1) / here.spread**2
        white = rng.standard_normal(chains) / np.sqrt(precision)
        here.centre = total / precision + white
        here.spread = scale(diagonal - here.centre[:, None], SPREAD_SHAPE, SPREAD_SCALE)
        here.means = scale(here.place[:, parts.means], MEANS_SHAPE, MEANS_SCALE)
        away = here.place[:, parts.entries] - self._centre
        away = away * np.sqrt(parts.others)
        here.strength = scale(away, STRENGTH_SHAPE, STRENGTH_SCALE)

    def _interweave_strength(self, prior_variance: Floats) -> None:
        """ρ given (S − S⁰) / ρ: Metropolis in log ρ, of a length from 0.01 to 0.5."""
        here, rng, entries = self.chains, self.rng, self.parts.entries
        lengths = 10.0 ** rng.uniform(-2.0, -0.3, here.strength.size)
        change = lengths * rng.standard_normal(here.strength.size)
        place = here.place.copy()
        place[:, entries] -= self._centre
        place[:, entries] *= np.exp(change)[:, None]
        place[:, entries] += self._centre
        proposed = here.strength * np.exp(change)

        def log_density(where: Floats, strength: Floats) -> Floats:
            slope = self.parts.build(where).matrix
            data = self._log_density(slope, prior_variance)[0]
            # Inverse-gamma of ρ², as a density of log ρ.
            shape, scale = STRENGTH_SHAPE, STRENGTH_SCALE
            prior = -2.0 * shape * np.log(strength) - scale / strength**2
            return np.asarray(data + prior)

        gain = log_density(place, proposed) - log_density(here.place, here.strength)
        moved = np.log(rng.random(change.size)) < gain
        here.place = np.where(moved[:, None], place, here.place)
        here.strength = np.where(moved, proposed, here.strength)


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

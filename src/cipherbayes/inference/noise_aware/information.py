"""Draws of the information matrix H, given the releases, by Hamiltonian Monte Carlo.

The density is the prior of :mod:`~.information_prior` times the likelihood of
:mod:`~.evidence`. HMC moves all coordinates of H and the scales m, ω, ρ and τ of
their prior together: moved by themselves, the scales would hardly move at all, held in
place by hundreds of coordinates. A step is

    z += ε/2 M'g,   x += ε M z,   z += ε/2 M'g,

g the gradient and M M' the inverse of the prior's precision plus that of the noise in
the information sums. What the first round says about correlations is part of the
density (:mod:`~.first_round`). The scales of the means (υ, ψ and those of
:mod:`~.site_means`) are drawn from their conditional laws. With many parameters, and
with more than 20 where noise hides correlations, S is not moved but taken as estimated
(:attr:`~.evidence.Evidence.draws_correlations`), and the error of that is counted as
noise (:meth:`~.evidence.Evidence.blurred`).

References
----------
Neal (2011), MCMC using Hamiltonian dynamics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from cipherbayes.inference.noise_aware import compiled
from cipherbayes.inference.noise_aware.compiled import Loops, TrajectoryLaw
from cipherbayes.inference.noise_aware.coordinates import Coordinates, correlations_of
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.first_round import FirstRound
from cipherbayes.inference.noise_aware.information_prior import InformationPrior
from cipherbayes.inference.noise_aware.saturation import (
    flattened,
    limited_bend,
    pulled_back,
    unbent,
    unflattened,
)
from cipherbayes.inference.noise_aware.site_means import Means
from cipherbayes.inference.noise_aware.step_sizes import StepSizes
from cipherbayes.inference.site_context import SiteContext
from cipherbayes.typing import Floats

TRAJECTORY = 1.4
"""Length of a trajectory in the metric's units. After π/2 that of a Gaussian no longer
depends on where it started."""
MOST_LEAPS = 24
"""Most leapfrog steps of a trajectory."""
LARGEST_COORDINATE = 1e3
"""Size of a coordinate beyond which a trajectory is taken to have diverged."""


@dataclass
class Chains:
    """Where all chains stand, one row for each chain.

    Attributes
    ----------
    moved
        The vector that HMC moves, (p, U, y of ℓ, y of S, log τ, m, log ω, log ρ).
    built
        A, built from it; H itself where sites may differ.
    means
        The laws of the means U: their centres and scales.
    bend
        β of :mod:`~.saturation`.
    following
        How much sites' levels follow the means of columns, √f τ
        (:mod:`~cipherbayes.inference.site_context`).
    """

    moved: Floats
    built: Floats
    means: Means
    bend: Floats
    following: Floats


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
    follows
        What sites' levels may follow, in internal units; None where nothing.
    """

    def __init__(
        self,
        evidence: Evidence,
        chains: int,
        rng: np.random.Generator,
        bend: float = 0.0,
        follows: SiteContext | None = None,
    ) -> None:
        self.evidence, self._follows = evidence, follows
        self.rng = rng
        layout = evidence.layout
        # Of the sites' indicators one is not zero in each record, so their block is
        # diagonal in H; in A it is not.
        self._direct = layout.sites is not None
        start = evidence.estimate
        if not self._direct:
            start = unflattened(start, evidence.place, bend)
        parts = self.parts = Coordinates(
            start,
            layout.constants,
            correlated=evidence.draws_correlations,
            frame=layout.frame,
        )
        tilts = None
        if follows is not None:
            tilts = follows.tilted_means()[:, parts.order[len(parts.constants) :]]
        self.information_prior = InformationPrior(
            parts, evidence.unlike, layout.shares, layout.sites, tilts
        )
        moved, means = self.information_prior.start(chains)
        self._loops: Loops | None = None
        if compiled.COMPILED:
            self._loops = Loops(
                evidence, parts, self.information_prior, self._direct, follows
            )
        self.chains = Chains(
            moved,
            built=np.tile(start, (chains, 1, 1)),
            means=means,
            bend=np.full(chains, bend),
            following=np.zeros(chains),
        )
        self._steps = StepSizes(chains)
        self.renew_metric()
        # Start wider than the posterior is, so that R-hat can tell chains that do not
        # mix.
        white = rng.standard_normal(self.chains.moved.shape)
        wide = 2.0 / evidence.dimension * (white @ self._metric.T)
        self.chains.moved = self.chains.moved + wide
        place = self.information_prior.to_coordinates(self.chains.moved)
        self.chains.built = parts.build(place).matrix

    def information(self) -> Floats:
        """H of every chain, shape ``(chains, d, d)``."""
        if self._direct:
            return self.chains.built
        return flattened(self.chains.built, self.evidence.place, self.chains.bend)

    def slope(self) -> Floats:
        """A of every chain, shape ``(chains, d, d)``."""
        if not self._direct:
            return self.chains.built
        return unbent(self.evidence, self.chains.built, self.chains.bend)

    def set_bend(self, bend: Floats) -> None:
        """Use this β from now on, within its limit; what was built stays the same."""
        here = self.chains.bend
        self.chains.bend = limited_bend(self.evidence, self.information(), here, bend)

    def sweep(self, prior_covariance: Floats, *, adapting: bool) -> Floats:
        """Update H and the laws of its means; the probability of each acceptance.

        ``prior_covariance`` is Λ⁻¹ without what sites' levels follow.
        """
        accepted = self._hmc(prior_covariance)
        if adapting:
            self._steps.update(accepted)
        here = self.chains
        here.means = self.information_prior.drawn_means(
            here.moved, here.means, self.rng
        )
        return accepted

    def renew_metric(self) -> None:
        """Compute the metric, and the λ of the centring, at where the chains are now.

        The metric is M with M M' the inverse of J'J / s_H² + the prior's precision,
        J = dA / dx: the noise of a packed information sum is the same in each entry.
        """
        here, law = self.chains, self.information_prior
        place = law.to_coordinates(here.moved).mean(axis=0)
        jacobian = self.parts.jacobian(place) / self.evidence.information_sd
        if (first := self._first) is not None:
            more = first.slopes(self.parts.correlation_jacobian(place))
            jacobian = np.hstack([jacobian, more])
        here.moved = law.recentred(here.moved, (jacobian**2).sum(axis=1))
        if self._loops is not None:
            self._loops.renew()
        # From derivatives by coordinates to those by the moved vector, for every entry.
        middle = here.moved.mean(axis=0)
        rows = np.broadcast_to(middle, (jacobian.shape[1], middle.size))
        jacobian = law.chain_rule(rows, jacobian.T).T
        prior = law.precision(middle, here.means)
        lower = np.linalg.cholesky(jacobian @ jacobian.T + prior)
        identity = np.eye(len(lower))
        inverse = solve_triangular(lower, identity, lower=True)
        # In single precision, because it is read over and over: any metric gives the
        # right distribution.
        self._metric = np.ascontiguousarray(np.triu(inverse.T), dtype=np.float32)
        self._steps.restart()

    @property
    def _first(self) -> FirstRound | None:
        """What the first round says, where correlations are drawn."""
        return self.evidence.first if self.parts.correlated else None

    def stop_adapting(self) -> None:
        """Fix the step sizes at their averages."""
        self._steps.fix()

    def density(
        self, moved: Floats, prior_covariance: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """log p(moved vector | laws of the means, releases), its gradient, and A.

        −∞ where the vector is out of bounds. ``H`` for A where sites may differ.
        """
        place, bend = self.evidence.place, self.chains.bend
        coordinates = self.information_prior.to_coordinates(moved)
        # A scale may have grown such that the coordinates overflow.
        lost = ~(np.abs(coordinates) < LARGEST_COORDINATE).all(axis=1)
        coordinates[lost] = self.parts.reference
        built = self.parts.build(coordinates)
        information = built.matrix
        if not self._direct:
            information = flattened(built.matrix, place, bend)
        value, slope = self.evidence.log_density(
            information, prior_covariance, self._follows, self.chains.following
        )
        if not self._direct:
            slope = pulled_back(slope, built.matrix, place, bend)
        by_rest = None
        if (first := self._first) is not None:
            told, by_rest = _told_by_first(first, built.rest)
            value = value + told
        gradient = self.information_prior.chain_rule(
            moved, self.parts.pulled_back(built, slope, by_rest)
        )
        prior, pull = self.information_prior.log_density(moved, self.chains.means)
        value = np.where(lost, -np.inf, value + prior)
        return value, gradient + pull, built.matrix

    def _hmc(self, prior_covariance: Floats) -> Floats:
        """Move every chain along one trajectory; the probability of each acceptance."""
        here, rng = self.chains, self.rng
        step = self._steps.current * rng.uniform(0.8, 1.2, len(here.moved))
        leaps = int(np.clip(np.ceil(TRAJECTORY / step.mean()), 2, MOST_LEAPS))
        momentum = rng.standard_normal(here.moved.shape)
        if self._loops is None:
            place, built, gain = self.leapfrog(step, leaps, momentum, prior_covariance)
        else:
            law = TrajectoryLaw(here.means, prior_covariance, here.bend, here.following)
            place, built, gain = self._loops.leapfrog(
                self._metric, step, leaps, here.moved, momentum, law
            )
        chance = np.exp(np.minimum(np.where(np.isnan(gain), -np.inf, gain), 0.0))
        moved = rng.random(chance.size) < chance
        here.moved = np.where(moved[:, None], place, here.moved)
        here.built = np.where(moved[:, None, None], built, here.built)
        return chance

    def leapfrog(
        self, step: Floats, leaps: int, momentum: Floats, prior_covariance: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Where trajectories end, A there, and the log of the acceptance ratio.

        The ratio is NaN where a trajectory went out of bounds.
        """
        metric = self._metric.astype(np.float64)
        place, size = self.chains.moved, step[:, None]
        value, gradient, built = self.density(place, prior_covariance)
        before = value - 0.5 * (momentum**2).sum(axis=1)
        lost = np.zeros(step.size, dtype=bool)
        with np.errstate(all="ignore"):
            for _ in range(leaps):
                momentum = momentum + 0.5 * size * (gradient @ metric)
                place = place + size * (momentum @ metric.T)
                lost |= ~(np.abs(place) < LARGEST_COORDINATE).all(axis=1)
                place = np.where(lost[:, None], self.chains.moved, place)
                value, gradient, built = self.density(place, prior_covariance)
                lost |= ~np.isfinite(value)
                gradient[lost] = 0.0
                momentum = momentum + 0.5 * size * (gradient @ metric)
            gain = value - 0.5 * (momentum**2).sum(axis=1) - before
        return place, built, np.where(lost, np.nan, gain)


def _told_by_first(first: FirstRound, rest: Floats) -> tuple[Floats, Floats]:
    """The log likelihood of the first round for a stack of B, and its gradient by B."""
    correlation = correlations_of(rest, rest)
    value, slope = first.log_density(correlation)
    # A larger B_jj alone makes all correlations of column j smaller.
    index = np.arange(correlation.shape[-1])
    slope[:, index, index] -= (slope * correlation).sum(axis=2)
    return value, correlations_of(rest, slope)

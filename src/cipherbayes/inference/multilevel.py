"""The posterior of sites that may differ, over tables in one place, without privacy.

With θ of all sites as in :mod:`~.site_slots` and its prior as in
:mod:`~.between_sites`, a sweep draws

    θ | τ   by elliptical slices, the ellipse a normal around the mode,
    τ, c    by :meth:`~.between_sites.SitePrior.update`.

The normal is that of one Newton step from a mode found once: with H the likelihood's
curvature and g its gradient there, precision J = H + Λ(τ) and mean
J⁻¹ (H θ̂ + g + Λ(τ) μ₀). The slice corrects for the difference between that normal and
the posterior.

References
----------
Murray, Adams and MacKay (2010), Elliptical slice sampling. Nishihara, Murray and Adams
(2014), Parallel MCMC with generalized elliptical slice sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.inference.between_sites import SitePrior, typical
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.gradient import gradient_sum, log_likelihood_sum
from cipherbayes.inference.imputed import Expand
from cipherbayes.inference.method import SiteRecords
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.inference.settings import Inference
from cipherbayes.inference.site_comparison import (
    SiteComparison,
    compare_sites,
)
from cipherbayes.inference.site_context import FittedInformation
from cipherbayes.inference.target import Target
from cipherbayes.models import Model
from cipherbayes.typing import Floats, Progress

CHAINS, ROUNDS = 4, 1_000
"""Chains, and sweeps of each, of a study that states none."""
WIDER = 1.3
"""Variance of the ellipse over that of the normal. Above one, because a posterior whose
tails are heavier than the ellipse's is explored slowly."""
DIFFERENCE = 1e-4
"""Step of the central differences that give the curvature, over 1 + |θ|."""


@dataclass(frozen=True)
class SiteTarget(Target):
    """log p(records | θ) of all sites together; ``owners`` are the tables' sites."""

    site_prior: SitePrior
    owners: tuple[str, ...]

    def log_likelihood(self, theta: Floats) -> float:
        """log p(records | θ), summed over all records of all sites."""
        slots = self.site_prior.slots
        return sum(
            log_likelihood_sum(
                self.model, theta[slots.of_site(site)], table, expand=self.expand
            )
            for site, table in zip(self.owners, self.tables, strict=True)
        )

    def likelihood_slope(self, theta: Floats) -> Floats:
        """The gradient of :meth:`log_likelihood`."""
        slots, total = self.site_prior.slots, np.zeros_like(theta)
        for site, table in zip(self.owners, self.tables, strict=True):
            own = theta[slots.of_site(site)]
            slope = gradient_sum(self.model, own, table, expand=self.expand)
            total += slots.spread(site, slope)
        return total

    def likelihood_curvature(self, theta: Floats) -> Floats:
        """Minus the second derivative of :meth:`log_likelihood`, by differences.

        Its entries between the own parameters of two sites are zero.
        """
        slots = self.site_prior.slots
        total = np.zeros((theta.size, theta.size))
        for site, table in zip(self.owners, self.tables, strict=True):
            places = slots.of_site(site)
            total[np.ix_(places, places)] += _curvature(
                partial(_slope_at, self.model, table, self.expand), theta[places]
            )
        return total

    def fitted(self, theta: Floats, curvature: Floats) -> FittedInformation:
        """The curvature at θ, with how the records of each site count in it."""
        slots = self.site_prior.slots
        counts = np.zeros(len(slots.sites))
        for site, table in zip(self.owners, self.tables, strict=True):
            counts[slots.sites.index(slots.owner(site))] += table.count
        records = SiteRecords(counts, 0.0)
        shape = ScoreShape.of(self.model, self.tables[0].design, slots, records)
        inside = shape.basis.T @ curvature @ shape.basis
        return shape.fitted(shape.inside(theta), inside)

    def mode_given(self, between: Floats) -> Floats:
        """The mode of θ given τ, by L-BFGS from the prior mean."""
        from scipy.optimize import minimize  # takes half a second to load

        precision = np.linalg.inv(self.site_prior.covariance(between))
        mean = self.site_prior.mean

        def minus(theta: Floats) -> tuple[float, Floats]:
            away = theta - mean
            pull = precision @ away
            value = self.log_likelihood(theta) - 0.5 * float(away @ pull)
            return -value, pull - self.likelihood_slope(theta)

        found = minimize(
            minus, mean, jac=True, method="L-BFGS-B", options={"maxiter": 2000}
        )
        return np.asarray(found.x)


def sample(target: SiteTarget, settings: Inference, progress: Progress) -> Draws:
    """Chains over pooled tables whose sites may differ.

    Parameters
    ----------
    progress
        Called with (rounds done, rounds in all), chains counted one after another.
    """
    prior = target.site_prior
    chains, rounds = settings.chains or CHAINS, settings.rounds or ROUNDS
    burn_in = int(settings.burn_in * rounds)
    kept = list(range(burn_in, rounds, settings.thin))
    shape = (chains, len(kept))
    theta = np.empty((*shape, prior.slots.dimension))
    common = np.empty((*shape, prior.slots.width))
    between = np.empty((*shape, len(prior.groups)))
    walk = _Walk(target)
    for chain in range(chains):
        walk.begin(np.random.default_rng([settings.seed, chain]))
        for t in range(rounds):
            walk.step()
            if t >= burn_in and (t - burn_in) % settings.thin == 0:
                k = (t - burn_in) // settings.thin
                theta[chain, k], common[chain, k] = walk.theta, walk.common
                between[chain, k] = walk.spread
            if t % 64 == 0 or t == rounds - 1:
                progress(chain * rounds + t + 1, chains * rounds)
    return Draws(
        common,
        np.full(shape, np.nan),
        is_point=False,
        rounds=rounds,
        sites=prior.site_draws(theta, common, between),
        comparison=walk.comparison(typical(between)),
    )


class _Walk:
    """The sampler of one chain, used for one chain after the other."""

    def __init__(self, target: SiteTarget) -> None:
        self._target, self._prior = target, target.site_prior
        self._mode = target.mode_given(self._prior.start)
        curvature = target.likelihood_curvature(self._mode)
        values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T))
        values = np.maximum(values, 1e-10 * values.max())
        self._curvature = np.asarray((vectors * values) @ vectors.T)
        slope = target.likelihood_slope(self._mode)
        self._right = self._curvature @ self._mode + slope
        fit = target.fitted(self._mode, self._curvature)
        self._prior = self._prior.with_context(fit)

    def comparison(self, between: Floats) -> SiteComparison:
        """How the sites compare, at a typical τ."""
        prior = self._prior.told
        return compare_sites(prior, self._curvature, self._right, between)

    def begin(self, rng: np.random.Generator) -> None:
        """Start a chain around the mode, spread twice as wide as the posterior."""
        self._rng = rng
        scale = np.exp(rng.standard_normal(len(self._prior.groups)))
        self.between = self._prior.start * scale
        mean, root, _ = self._normal()
        self.theta = mean + 2.0 * root @ rng.standard_normal(mean.size)
        self.common, self.spread = self._prior.common.mean.copy(), self.between

    def step(self) -> None:
        """One sweep over θ, τ and c."""
        self._slice()
        theta, between, common, spread = self._prior.update(
            self._rng, self.theta[None], self.between[None], self._log_likelihood
        )
        self.theta, self.between, self.common = theta[0], between[0], common[0]
        self.spread = spread[0]

    def _log_likelihood(self, theta: Floats) -> Floats:
        """The log likelihood of every row of θ."""
        return np.array([self._target.log_likelihood(each) for each in theta])

    def _normal(self) -> tuple[Floats, Floats, Floats]:
        """Mean and root of the covariance of the normal given τ, and Λ(τ)."""
        prior = self._prior
        own = np.linalg.inv(prior.covariance(self.between))
        lower = np.linalg.cholesky(self._curvature + own)
        right = self._right + own @ prior.mean
        mean: Floats = np.linalg.solve(lower.T, np.linalg.solve(lower, right))
        return mean, np.asarray(np.linalg.inv(lower).T), np.asarray(own)

    def _slice(self) -> None:
        """Draw θ given τ by one elliptical slice."""
        mean, root, own = self._normal()
        inverse = np.linalg.inv(root)
        root = np.sqrt(WIDER) * root
        prior, rng = self._prior, self._rng

        def log_ratio(away: Floats) -> float:
            theta = mean + away
            pull = theta - prior.mean
            white = inverse @ away
            value = self._target.log_likelihood(theta) - 0.5 * float(pull @ own @ pull)
            return value + 0.5 * float(white @ white) / WIDER

        away = self.theta - mean
        other = root @ rng.standard_normal(mean.size)
        level = log_ratio(away) + np.log(rng.random())
        angle = rng.uniform(0.0, 2.0 * np.pi)
        low, high = angle - 2.0 * np.pi, angle
        while high - low > 1e-9:
            proposed = away * np.cos(angle) + other * np.sin(angle)
            if log_ratio(proposed) > level:
                self.theta = mean + proposed
                return
            low, high = (angle, high) if angle < 0.0 else (low, angle)
            angle = rng.uniform(low, high)


def _slope_at(
    model: Model, table: PreparedTable, expand: Expand | None, theta: Floats
) -> Floats:
    """The gradient of one table's log likelihood."""
    return gradient_sum(model, theta, table, expand=expand)


def _curvature(slope: Callable[[Floats], Floats], theta: Floats) -> Floats:
    """Minus the derivative of a gradient, by central differences."""
    step = DIFFERENCE * (1.0 + np.abs(theta))
    columns = np.empty((theta.size, theta.size))
    for j in range(theta.size):
        ahead, behind = theta.copy(), theta.copy()
        ahead[j] += step[j]
        behind[j] -= step[j]
        columns[j] = (slope(behind) - slope(ahead)) / (ahead[j] - behind[j])
    return 0.5 * (columns + columns.T)

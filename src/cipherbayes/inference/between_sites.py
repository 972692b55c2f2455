"""The prior of sites that may differ: θ = E c + Σ_g F_g b_g.

c are the common parameters, with the study's prior; of a baseline hazard with several
intervals that is the prior of the first log hazard, and each further one is normal
around the one before (:data:`NEIGHBOURS`). b_g are the deviations of group g (such as
the sites' intercepts, or their slopes for one column), b_g ~ N(0, τ_g²) with τ_g
half-normal. E repeats each common parameter at every site
(:class:`~.site_slots.SiteSlots`), F_g adds each deviation to the entries of θ that it
moves. Given τ, θ is normal with covariance

    E Σ₀ E' + Σ_g τ_g² F_g F_g',   Σ₀ = Cov(c).

Unless a study says otherwise, a site's level may follow the means m_k of its patients'
columns: part of b_k is m_k'γ, whose size goes with τ (:mod:`~.site_context`). That is
for the effects of columns and the sites' levels. What is told of c, b and τ is their
law given these levels as if they followed nothing: where sites lie and how much they
differ, whatever explains it.

Given θ, c and b are drawn by Matheron's rule, as a linear function of a draw from their
prior; given b, each τ is drawn from a one-dimensional density. Where sites' effects are
``fixed`` there is no group: every site's parameter has the study's prior by itself, and
the common parameter is the mean over the sites.

References
----------
Gelman (2006), Prior distributions for variance parameters in hierarchical models.
Papaspiliopoulos, Roberts and Sköld (2007), A general framework for the parametrization
of hierarchical models. Yu and Meng (2011), To center or not to center.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cipherbayes.inference.site_context import (
    FOLLOWED,
    FittedInformation,
    SiteContext,
)
from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.typing import Floats

GRID = 400
"""Number of values of τ at which its density is computed."""
SMALLEST, LARGEST = 1e-3, 6.0
"""Smallest and largest τ, as multiples of its prior's scale."""
NUGGET = 0.02
"""sd of an entry of θ around E c + F b, where one deviation moves several entries:
without it their covariance would be singular."""
NEIGHBOURS = 1.0
"""Prior sd of the change of a log hazard from one interval of the baseline to the next:
a hazard seldom becomes eight times as large, or an eighth. Were all log hazards taken
for unrelated, one that noise hides could be that of an interval without any event."""
TELLING = 4
"""Sweeps over c and τ given the levels, for what is told of sites."""
STEPS = (0.1, 0.4, 1.5)
"""sds of proposed moves of log τ with b / τ kept fixed; one is chosen at random."""


@dataclass(frozen=True)
class Group:
    """Deviations that share one τ.

    Attributes
    ----------
    name
        Name of the parameter that differs between sites.
    loading
        F, shape ``(D, m)``: one column for each deviation.
    follows
        Whether the deviations, one for each site, may follow the means of its columns.
    """

    name: str
    loading: Floats
    follows: bool = False


@dataclass(frozen=True)
class SiteDraws:
    """Draws of what differs between sites, on the prepared scale.

    Attributes
    ----------
    sites, places
        The sites, and the numbers of the model's parameters that differ.
    effects
        A site's parameters less the common ones, shape ``(…, K, q)``.
    groups, between
        Names of the groups, and τ of each, shape ``(…, G)``; none where sites are
        fixed.
    """

    sites: tuple[str, ...]
    places: tuple[int, ...]
    effects: Floats
    groups: tuple[str, ...]
    between: Floats

    def at_site(self, common: Floats, site: str) -> Floats:
        """Draws of one site's parameters, given those of the common ones."""
        theta = common.copy()
        theta[..., list(self.places)] += self.effects[..., self.sites.index(site), :]
        return theta

    def at_all_sites(self, common: Floats) -> Floats:
        """Draws of θ of all sites together, given those of the common parameters."""
        slots = SiteSlots(self.sites, common.shape[-1], self.places)
        theta = np.empty((*common.shape[:-1], slots.dimension))
        for site in self.sites:
            theta[..., slots.of_site(site)] = self.at_site(common, site)
        return theta


@dataclass(frozen=True)
class SitePrior(ResolvedPrior):
    """The prior of θ of all sites; ``mean`` and ``scale`` are those of each entry.

    Attributes
    ----------
    slots
        The layout of θ.
    common
        The prior of the common parameters c.
    groups
        The groups of deviations; none where sites' effects are fixed.
    width
        Scale of the half-normal prior of every τ.
    follows
        What levels may follow; None where they follow nothing.
    context
        What γ_j / σ_j adds to θ, shape ``(D, e)``, or ``(chains, D, e)`` where each
        chain has means of its own; None where it is not counted.
    intervals
        Numbers of the common parameters that are the log hazards of a baseline's
        intervals, each near the one before; none where each has a prior of its own.
    """

    slots: SiteSlots
    common: ResolvedPrior
    groups: tuple[Group, ...]
    width: float
    follows: SiteContext | None = None
    context: Floats | None = None
    intervals: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        common: ResolvedPrior,
        slots: SiteSlots,
        groups: tuple[Group, ...],
        width: float,
        intervals: tuple[int, ...] = (),
    ) -> SitePrior:
        """The prior with the mean and the scale of each entry of θ computed."""
        variances = slots.expanded(common.scale**2)
        for group in groups:
            variances = variances + width**2 * (group.loading**2).sum(axis=1)
        return cls(
            common.kind,
            slots.expanded(common.mean),
            np.sqrt(variances),
            common.df,
            slots,
            common,
            groups,
            width,
            intervals=intervals,
        )

    @cached_property
    def common_covariance(self) -> Floats:
        """Σ₀, the covariance of the common parameters."""
        found = np.diag(self.common.scale**2)
        if self.intervals:
            steps = np.arange(len(self.intervals))
            walked = NEIGHBOURS**2 * np.minimum(steps[:, None], steps)
            found[np.ix_(self.intervals, self.intervals)] = (
                found[self.intervals[0], self.intervals[0]] + walked
            )
        return found

    def with_context(self, fit: FittedInformation) -> SitePrior:
        """This prior with levels that may follow the means of the sites' columns."""
        if self._level is None:
            return self
        follows = SiteContext.of(self.slots, self.groups[self._level].loading, fit)
        return replace(self, follows=follows, context=follows.at(fit.information))

    def in_context(self, information: Floats) -> SitePrior:
        """This prior with the means of a stack of H, one for each chain."""
        if self.follows is None:
            return self
        return replace(self, context=self.follows.at(information))

    @property
    def told(self) -> SitePrior:
        """This prior with levels that follow nothing, as they are told."""
        return replace(self, follows=None, context=None)

    @property
    def _level(self) -> int | None:
        """Number of the group that may follow the means of columns, if any."""
        return next((g for g, each in enumerate(self.groups) if each.follows), None)

    def following(self, between: Floats) -> Floats:
        """√f τ, the sd of γ_j / σ_j, for a stack of τ; zero where there is no γ."""
        if self.follows is None or self._level is None:
            return np.zeros(between.shape[:-1])
        return np.asarray(np.sqrt(FOLLOWED) * between[..., self._level])

    def _own(self, g: int) -> float:
        """Share of τ² of group g that nothing explains."""
        return 1.0 if self.follows is None or g != self._level else self.follows.own

    @property
    def start(self) -> Floats:
        """The τ of every group from which samplers start."""
        return np.full(len(self.groups), 0.5 * self.width)

    @cached_property
    def _nugget(self) -> Floats:
        """Variance of every entry of θ around E c + Σ F b."""
        alike = [g for g in self.groups if (g.loading.sum(axis=0) > 1.0).any()]
        own = [g for g in self.groups if not (g.loading.sum(axis=0) > 1.0).any()]
        found = np.zeros(self.slots.dimension)
        for group in alike:
            touched = group.loading.any(axis=1)
            for other in own:
                touched &= ~other.loading.any(axis=1)
            found[touched] = NUGGET**2
        return found

    def spreads(self, by_place: Floats) -> Floats:
        """τ of every group, from one for each parameter that differs, averaged."""
        count = len(self.slots.sites)
        found = []
        for group in self.groups:
            rows = np.flatnonzero(group.loading.any(axis=1))
            found.append(by_place[np.unique(rows // count)].mean())
        least = SMALLEST * self.width
        return np.maximum(np.array(found, dtype=np.float64), least)

    def covariance(self, between: Floats) -> Floats:
        """Covariance of θ given τ, for a stack of τ of shape ``(…, G)``."""
        if not self.groups:
            own = np.diag(self.slots.expanded(self.common.scale**2))
            return np.broadcast_to(own, (*between.shape[:-1], *own.shape)).copy()
        loading = self.slots.loading
        shared = loading @ self.common_covariance @ loading.T + np.diag(self._nugget)
        found = np.zeros((*between.shape[:-1], *shared.shape)) + shared
        if self.context is not None:
            outer = self.context @ np.swapaxes(self.context, -1, -2)
            found += self.following(between)[..., None, None] ** 2 * outer
        for g, group in enumerate(self.groups):
            outer = self._own(g) * (group.loading @ group.loading.T)
            found += between[..., g, None, None] ** 2 * outer
        return found

    def split(
        self, rng: np.random.Generator, theta: Floats, between: Floats
    ) -> tuple[Floats, list[Floats], Floats]:
        """A draw of c, of b of every group and of γ / σ given θ and τ.

        One row for each chain. b of the levels is without m'γ.
        """
        slots, chains = self.slots, len(theta)
        if not self.groups:
            common = np.empty((chains, slots.width))
            for place in range(slots.width):
                common[:, place] = theta[:, slots.copies(place)].mean(axis=1)
            return common, [], np.zeros((chains, 0))
        white = rng.standard_normal((chains, slots.width))
        root = np.linalg.cholesky(self.common_covariance)
        common = self.common.mean + white @ root.T
        sizes = [between[:, [g]] * self._own(g) ** 0.5 for g in range(len(self.groups))]
        deviations = [
            size * rng.standard_normal((chains, group.loading.shape[1]))
            for size, group in zip(sizes, self.groups, strict=True)
        ]
        context = (
            np.zeros((slots.dimension, 0)) if self.context is None else self.context
        )
        spread = self.following(between)[:, None]
        following = spread * rng.standard_normal((chains, context.shape[-1]))
        drawn = self.joined(common, deviations, following)
        drawn += np.sqrt(self._nugget) * rng.standard_normal(drawn.shape)
        missed = np.linalg.solve(self.covariance(between), (theta - drawn)[..., None])
        missed = missed[..., 0]
        common = common + missed @ slots.loading @ self.common_covariance
        deviations = [
            b + size**2 * (missed @ group.loading)
            for b, size, group in zip(deviations, sizes, self.groups, strict=True)
        ]
        following = following + spread**2 * np.vecmat(missed, context)
        return common, deviations, following

    def joined(
        self, common: Floats, deviations: list[Floats], following: Floats
    ) -> Floats:
        """θ of c, of b of every group and of γ / σ."""
        theta = self.slots.expanded(common)
        for group, b in zip(self.groups, deviations, strict=True):
            theta = theta + b @ group.loading.T
        if self.context is None:
            return theta
        return np.asarray(theta + np.matvec(self.context, following))

    def update(
        self,
        rng: np.random.Generator,
        theta: Floats,
        between: Floats,
        log_likelihood: Callable[[Floats], Floats],
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """(θ, τ, c, told τ) after one sweep over τ, with two kinds of moves.

        The first draws τ given b, the second moves τ with b / τ kept fixed, and θ with
        it. Both leave the joint posterior invariant. The first mixes well where sites'
        parameters are known well compared with τ, the second where they are not.
        ``log_likelihood`` takes a stack of θ, one row for each chain. c and the last τ
        are what is told of sites; where levels follow nothing the two τ are the same.
        """
        between = between.copy()
        common, deviations, following = self.split(rng, theta, between)
        for g, b in enumerate(deviations):
            between[:, g] = self._drawn_between(rng, self._scaled(g, b, following))
        common, deviations, following = self.split(rng, theta, between)
        here = log_likelihood(theta) if self.groups else np.zeros(len(theta))
        for g, group in enumerate(self.groups):
            size = rng.choice(STEPS, len(theta))
            factor = np.exp(size * rng.standard_normal(len(theta)))
            proposed = between[:, g] * factor
            step = deviations[g] @ group.loading.T
            if g == self._level and self.context is not None:
                step = step + np.matvec(self.context, following)
            moved = theta + (factor - 1.0)[:, None] * step
            there = log_likelihood(moved)
            gain = there - here + np.log(factor)
            gain -= 0.5 * (proposed**2 - between[:, g] ** 2) / self.width**2
            low, high = SMALLEST * self.width, LARGEST * self.width
            taken = np.log(rng.random(len(theta))) < gain
            taken &= (proposed > low) & (proposed < high)
            between[taken, g] = proposed[taken]
            theta = np.where(taken[:, None], moved, theta)
            here = np.where(taken, there, here)
        if self.context is None:
            return theta, between, common, between
        return theta, between, *self._told(rng, theta, between)

    def _told(
        self, rng: np.random.Generator, theta: Floats, between: Floats
    ) -> tuple[Floats, Floats]:
        """A draw of c and τ given θ, as if levels followed nothing.

        By sweeps over both that begin at this τ and have forgotten it in the end.
        """
        alone = self.told
        told = between.copy()
        for _ in range(TELLING):
            _, deviations, _ = alone.split(rng, theta, told)
            for g, b in enumerate(deviations):
                told[:, g] = alone._drawn_between(rng, b)
        return alone.split(rng, theta, told)[0], told

    def _scaled(self, g: int, b: Floats, following: Floats) -> Floats:
        """What has variance τ_g² in group g: b, and γ / σ where levels follow means."""
        b = b / self._own(g) ** 0.5
        if g != self._level or self.context is None:
            return b
        return np.hstack([b, following / FOLLOWED**0.5])

    def _drawn_between(self, rng: np.random.Generator, b: Floats) -> Floats:
        """A draw of τ ∝ half-normal(τ) Π N(b; 0, τ²), on a grid of log τ."""
        grid = np.linspace(np.log(SMALLEST), np.log(LARGEST), GRID)
        grid = grid + np.log(self.width)
        square, count = (b**2).sum(axis=1)[:, None], b.shape[1]
        log_density = -0.5 * np.exp(2.0 * grid) / self.width**2 - (count - 1) * grid
        log_density = log_density - 0.5 * square * np.exp(-2.0 * grid)
        weights = np.exp(log_density - log_density.max(axis=1, keepdims=True))
        total = np.cumsum(weights, axis=1)
        level = rng.random((len(b), 1)) * total[:, -1:]
        place = np.minimum((total < level).sum(axis=1), GRID - 1)
        step = grid[1] - grid[0]
        jitter = rng.uniform(-0.5, 0.5, len(b)) * step
        return np.asarray(np.exp(grid[place] + jitter))

    def at_new_site(
        self, rng: np.random.Generator, common: Floats, between: Floats
    ) -> Floats:
        """Draws of the parameters of a site that took no part, one row for each."""
        first = self.slots.of_site(self.slots.sites[0])
        theta = common.copy()
        for g, group in enumerate(self.groups):
            own = group.loading[first]
            own = own[:, own.any(axis=0)]
            white = rng.standard_normal((len(common), own.shape[1]))
            theta += between[:, [g]] * (white @ own.T)
        return theta

    def site_draws(self, theta: Floats, common: Floats, between: Floats) -> SiteDraws:
        """What differs between sites, from draws of θ, c and τ of any leading shape."""
        slots = self.slots
        effects = np.stack(
            [
                theta[..., slots.of_site(site)[list(slots.places)]]
                - common[..., list(slots.places)]
                for site in slots.sites
            ],
            axis=-2,
        )
        groups = tuple(group.name for group in self.groups)
        return SiteDraws(slots.sites, slots.places, effects, groups, between)


def typical(between: Floats) -> Floats:
    """The median of each group's τ, over draws of shape ``(chains, draws, G)``."""
    return np.array([np.median(each) for each in between.T])

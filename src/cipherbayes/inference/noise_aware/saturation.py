"""The mean of a score sum that saturates, as that of a logistic regression does.

A score sum taken at θ̄ has mean H (θ − θ̄) only where the curvature is constant. If the
linear predictor is about normal with variance v(θ) = θ'Mθ, Stein's lemma gives

    E g(θ̄) = N M (κ(v(θ)) θ − κ(v(θ̄)) θ̄),    κ(v) = E l''(√v Z),

and with κ(v) ∝ (1 + b v)^(−½), as for a logistic curve (b = π / 8, MacKay 1992),

    E g(θ̄) = A (k(θ) θ − θ̄),    k(θ) = √((1 + β) / (1 + β θ'Aθ / θ̄'Aθ̄)),
    H = A − β / (1 + β) · A θ̄ θ̄'A / θ̄'A θ̄,    A = κ(v(θ̄)) N M,    β = b v(θ̄),

in which neither N nor M occurs. With β = 0 this is H (θ − θ̄), and the slope at θ̄ is H
for every β. H is A with less information in one direction, that of θ̄ itself. The prior
of :mod:`~.information_prior` prefers no direction, so it is stated for A: as a prior of
H it would add information in just that direction.

Where sites may differ, the formula above does not see one site's own level a: a site
with few records hardly changes θ'Aθ. With ā its level at θ̄ and p the logistic curve,
its outcomes have the probability p(a) and not p(ā) + p'(ā)(a − ā). So its level enters
all of the above as

    ā + (p(a) − p(ā)) / p'(ā).

A site without any events then says that a is low, and not how low.

References
----------
Stein (1981), Estimation of the mean of a multivariate normal distribution. MacKay
(1992), The evidence framework applied to classification networks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import expit

from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.typing import Floats, Integers

LARGEST_FALL = 0.15
"""Smallest curvature at θ̄ that is believed, as a share of that at θ = 0."""
LARGEST_LEVEL = 6.0
"""Largest distance of a site's level from zero, on the logit scale: one event in 400
records."""
LARGEST_UNDER_PRIOR = 20.0
"""Largest b v(θ) that a θ typical of the prior may have; it bounds β."""


@dataclass(frozen=True)
class SiteLevels:
    """The sites' own levels, and how the logistic curve turns them into outcomes.

    Attributes
    ----------
    constants, values
        Numbers of the parameters with constant columns, and what each such column is in
        the records where it is not zero.
    place
        θ̄.
    level
        ā of every chain: the site's linear predictor at θ̄, shape ``(chains, b)``.
    """

    constants: Integers
    values: Floats
    place: Floats
    level: Floats

    @classmethod
    def of(cls, evidence: Evidence, information: Floats, values: Floats) -> SiteLevels:
        """Levels at θ̄ of records with the mean columns of their site, taken from H."""
        constants = np.array(evidence.layout.constants, dtype=np.int64)
        others = np.setdiff1d(np.arange(evidence.dimension), constants)
        masses = np.maximum(information[:, constants, constants], 1e-300)
        means = information[:, constants[:, None], others] / masses[:, :, None]
        place = evidence.place
        level = values * (place[constants] + means @ place[others])
        far = np.clip(level, -LARGEST_LEVEL, LARGEST_LEVEL)
        return cls(constants, values, place, far)

    def counted(self, theta: Floats) -> tuple[Floats, Floats]:
        """θ with each level a replaced by ā + (p(a) − p(ā)) / p'(ā), of a stack of θ.

        And the derivative of each replaced level by the level.
        """
        place = self.place[self.constants]
        moved = self.values * (theta[..., self.constants] - place)
        here = expit(self.level)
        there, slope = expit(self.level + moved), here * (1.0 - here)
        found = np.broadcast_to(theta, (*there.shape[:-1], theta.shape[-1])).copy()
        found[..., self.constants] = place + (there - here) / (slope * self.values)
        return found, there * (1.0 - there) / slope


@dataclass(frozen=True)
class SaturatingScore:
    """The mean of ḡ as a function of θ, for the A and β of every chain.

    Attributes
    ----------
    slope
        A, shape ``(chains, d, d)``.
    strength
        β / θ̄'Aθ̄, shape ``(chains,)``.
    bend
        β, shape ``(chains,)``.
    origin
        Σ w_t k(θ_t) θ_t over the rounds, shape ``(chains, d)``.
    sites
        Levels of sites that may differ, if they do.
    """

    slope: Floats
    strength: Floats
    bend: Floats
    origin: Floats
    sites: SiteLevels | None = None

    @classmethod
    def of(
        cls,
        evidence: Evidence,
        slope: Floats,
        bend: Floats,
        sites: SiteLevels | None = None,
    ) -> SaturatingScore:
        """The score of a finished study, for the A and β of every chain."""
        pushed, length = _pushed(slope, evidence.place)
        strength = bend / length
        score = cls(slope, strength, bend, np.zeros_like(pushed), sites)
        visited = np.broadcast_to(
            evidence.visited[:, None, :], (len(evidence.visited), *pushed.shape)
        )
        if sites is not None:
            visited = sites.counted(visited)[0]
        weighted = evidence.weights[:, None] * score._factor(visited)[0]
        return replace(score, origin=np.einsum("tc,tcj->cj", weighted, visited))

    @cached_property
    def fixed(self) -> Floats:
        """A Σ w_t k(θ_t) θ_t."""
        return np.asarray(np.matvec(self.slope, self.origin))

    def _factor(self, theta: Floats) -> tuple[Floats, Floats, Floats]:
        """k(θ), Aθ and 1 + β θ'Aθ / θ̄'Aθ̄."""
        along = np.matvec(self.slope, theta)
        below = 1.0 + self.strength * (along * theta).sum(axis=-1)
        return np.sqrt((1.0 + self.bend) / below), along, below

    def mean(self, theta: Floats) -> Floats:
        """E ḡ = A (k(θ) θ − origin) for the θ of every chain."""
        if self.sites is not None:
            theta = self.sites.counted(theta)[0]
        factor, along, _ = self._factor(theta)
        return np.asarray(factor[:, None] * along - self.fixed)

    def derivative(self, theta: Floats) -> Floats:
        """d mean / dθ, shape ``(chains, d, d)``."""
        more: Floats | None = None
        if self.sites is not None:
            theta, more = self.sites.counted(theta)
        factor, along, below = self._factor(theta)
        outer = along[:, :, None] * along[:, None, :]
        shrinking = (self.strength / below)[:, None, None] * outer
        found = factor[:, None, None] * (self.slope - shrinking)
        if self.sites is not None and more is not None:
            found[:, :, self.sites.constants] *= more[:, None, :]
        return np.asarray(found)

    def variance_growth(self, theta: Floats) -> Floats | None:
        """None: the variance of the scores is taken to be that at θ̄."""
        return None


def _pushed(slope: Floats, place: Floats) -> tuple[Floats, Floats]:
    """A θ̄ and θ̄'Aθ̄."""
    pushed = slope @ place
    return pushed, np.maximum(pushed @ place, 1e-300)


def flattened(slope: Floats, place: Floats, bend: Floats) -> Floats:
    """H of every chain from its A: less information in the direction of θ̄."""
    pushed, length = _pushed(slope, place)
    share = bend / (1.0 + bend) / length
    outer = pushed[:, :, None] * pushed[:, None, :]
    return np.asarray(slope - share[:, None, None] * outer)


def unflattened(information: Floats, place: Floats, bend: float) -> Floats:
    """A from one H, the inverse of :func:`flattened`."""
    pushed = information @ place
    length = max(float(pushed @ place), 1e-300)
    return np.asarray(information + bend / length * np.outer(pushed, pushed))


def unflattened_all(information: Floats, place: Floats, bend: Floats) -> Floats:
    """A of every chain from its H, the inverse of :func:`flattened`."""
    pushed, length = _pushed(information, place)
    outer = pushed[:, :, None] * pushed[:, None, :]
    return np.asarray(information + (bend / length)[:, None, None] * outer)


def pulled_back(gradient: Floats, slope: Floats, place: Floats, bend: Floats) -> Floats:
    """The gradient by A of something whose gradient by H is ``gradient``."""
    pushed, length = _pushed(slope, place)
    share = (bend / (1.0 + bend) / length)[:, None]
    turned = np.matvec(gradient, pushed)
    along = ((turned * pushed).sum(axis=1) / length)[:, None]
    # The derivative of aa' / θ̄'a, a = Aθ̄: da = dA θ̄ is in both factors and below.
    half = share * (turned - 0.5 * along * place)
    outer = half[:, :, None] * place
    return np.asarray(gradient - outer - outer.transpose(0, 2, 1))


def limited_bend(evidence: Evidence, slope: Floats, bend: Floats) -> Floats:
    """β, held below what is plausible for a θ that is typical of the prior.

    β = b v(θ̄), so where θ̄ is almost zero β must be, whatever the noised traces say.
    """
    length = _pushed(slope, evidence.place)[1]
    typical = np.einsum("cjk,jk->c", slope, evidence.prior_covariance)
    return np.asarray(np.minimum(bend, LARGEST_UNDER_PRIOR * length / typical))

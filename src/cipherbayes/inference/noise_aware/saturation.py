"""The mean of the score sum far from where it was taken.

A score sum at θ̄ has mean H (θ − θ̄) only where the curvature is constant. Where the
linear predictor is about normal with variance v(θ) = θ'Mθ, Stein's lemma gives

    E g(θ̄) = N M (κ(v(θ)) θ − κ(v(θ̄)) θ̄),    κ(v) = E l''(√v Z),

and with κ(v) ∝ (1 + b v)^(−½), as for a logistic curve (b = π / 8, MacKay 1992),

    E g(θ̄) = A (k(θ) θ − θ̄),    k(θ) = √((1 + β) / (1 + β θ'Aθ / θ̄'Aθ̄)),
    H = A − β / (1 + β) · A θ̄ θ̄'A / θ̄'A θ̄,    A = κ(v(θ̄)) N M,    β = b v(θ̄),

in which neither N nor M occurs. β = 0 is H (θ − θ̄); the slope at θ̄ is H always. H is
A with the one direction flattened in which θ̄ itself lies: a prior that knows of no
directions belongs to A, not to H, whose least informed direction it would fill up.

Where sites may differ, that knows of no site by itself: one with few records hardly
changes θ'Aθ, whatever its own level a. With ā its level at θ̄ and p the logistic curve,
its outcomes then come with p(a) and not p(ā) + p'(ā)(a − ā), so its level is counted as

    ā + (p(a) − p(ā)) / p'(ā)

in all of the above: of a site without any outcome the score tells that a is low, and
not how low.

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
"""The curvature is never taken to have fallen below this share of its start."""
LARGEST_LEVEL = 6.0
"""A site's level is taken to be no farther from zero than this, one in 400."""
LARGEST_UNDER_PRIOR = 20.0
"""Largest b v of a θ that is typical of the prior."""


@dataclass(frozen=True)
class SiteLevels:
    """Sites' levels, as the outcomes of each site count them.

    Attributes
    ----------
    constants, values
        Places of the constant columns, and what they are where they are not zero.
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
        """At the sites' means of all columns, as H has them."""
        constants = np.array(evidence.layout.constants, dtype=np.int64)
        others = np.setdiff1d(np.arange(evidence.dimension), constants)
        masses = np.maximum(information[:, constants, constants], 1e-300)
        means = information[:, constants[:, None], others] / masses[:, :, None]
        place = evidence.place
        level = values * (place[constants] + means @ place[others])
        far = np.clip(level, -LARGEST_LEVEL, LARGEST_LEVEL)
        return cls(constants, values, place, far)

    def counted(self, theta: Floats) -> tuple[Floats, Floats]:
        """θ with levels as they count, of a stack; how much more per unit of each."""
        place = self.place[self.constants]
        moved = self.values * (theta[..., self.constants] - place)
        here = expit(self.level)
        there, slope = expit(self.level + moved), here * (1.0 - here)
        found = np.broadcast_to(theta, (*there.shape[:-1], theta.shape[-1])).copy()
        found[..., self.constants] = place + (there - here) / (slope * self.values)
        return found, there * (1.0 - there) / slope


@dataclass(frozen=True)
class SaturatingScore:
    """E ḡ as a function of θ, for a stack of H and β.

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
        """With θ̄ and the θ_t of all rounds."""
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
        """A (k(θ) θ − origin), of a stack of θ."""
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

    def growth(self, theta: Floats) -> None:
        """None: how the scores' variance grows with θ is not counted here."""


def _pushed(slope: Floats, place: Floats) -> tuple[Floats, Floats]:
    """A θ̄ and θ̄'Aθ̄."""
    pushed = slope @ place
    return pushed, np.maximum(pushed @ place, 1e-300)


def flattened(slope: Floats, place: Floats, bend: Floats) -> Floats:
    """H of a stack of A."""
    pushed, length = _pushed(slope, place)
    share = bend / (1.0 + bend) / length
    outer = pushed[:, :, None] * pushed[:, None, :]
    return np.asarray(slope - share[:, None, None] * outer)


def unflattened(information: Floats, place: Floats, bend: float) -> Floats:
    """A of one H, the inverse of :func:`flattened`."""
    pushed = information @ place
    length = max(float(pushed @ place), 1e-300)
    return np.asarray(information + bend / length * np.outer(pushed, pushed))


def unflattened_all(information: Floats, place: Floats, bend: Floats) -> Floats:
    """A of a stack of H, the inverse of :func:`flattened`."""
    pushed, length = _pushed(information, place)
    outer = pushed[:, :, None] * pushed[:, None, :]
    return np.asarray(information + (bend / length)[:, None, None] * outer)


def pulled_back(gradient: Floats, slope: Floats, place: Floats, bend: Floats) -> Floats:
    """The gradient with respect to A from that with respect to H."""
    pushed, length = _pushed(slope, place)
    share = (bend / (1.0 + bend) / length)[:, None]
    turned = np.matvec(gradient, pushed)
    along = ((turned * pushed).sum(axis=1) / length)[:, None]
    # Of aa'/θ̄'a with a = Aθ̄: da = dA θ̄ in both factors and in the denominator.
    half = share * (turned - 0.5 * along * place)
    outer = half[:, :, None] * place
    return np.asarray(gradient - outer - outer.transpose(0, 2, 1))


def limited_bend(evidence: Evidence, slope: Floats, bend: Floats) -> Floats:
    """β no larger than a θ typical of the prior allows.

    β is b v(θ̄), so where θ̄ is almost zero so is β, whatever noise says.
    """
    length = _pushed(slope, evidence.place)[1]
    typical = np.einsum("cjk,jk->c", slope, evidence.prior_covariance)
    return np.asarray(np.minimum(bend, LARGEST_UNDER_PRIOR * length / typical))

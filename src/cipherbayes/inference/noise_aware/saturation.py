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

Where sites may differ, their levels and the columns within them saturate each by
itself. With P, U and B the masses, means and rest of H (:mod:`~.coordinates`), α_k the
level of site k, γ the coefficients of the other columns, p the logistic curve and
l_k = α_k + U_k γ,

    E g_k = P_k (p(λ l_k) − p(λ l̄_k)) / (λ p'(λ l̄_k)),    λ = (1 + b v)^(−½),
    E g_γ = Σ_k U_k' E g_k + W (k(γ) γ − γ̄),

where v is the variance of the linear predictor within sites, which makes the curve of a
site's outcomes less steep, and W and k are A and k of the first formula for B alone.
Were levels part of k too, the saturation of the curve would be counted twice. A site
without any events says that its level is low, and not how low.

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
from cipherbayes.inference.noise_aware.site_masses import LARGEST_LEVEL
from cipherbayes.typing import Floats, Integers

LARGEST_FALL = 0.15
"""Smallest curvature at θ̄ that is believed, as a share of that at θ = 0."""
LARGEST_UNDER_PRIOR = 20.0
"""Largest b v(θ) that a θ typical of the prior may have; it bounds β."""


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
    """

    slope: Floats
    strength: Floats
    bend: Floats
    origin: Floats

    @classmethod
    def of(cls, evidence: Evidence, slope: Floats, bend: Floats) -> SaturatingScore:
        """The score of a finished study, for the A and β of every chain."""
        pushed, length = _pushed(slope, evidence.place)
        strength = bend / length
        score = cls(slope, strength, bend, np.zeros_like(pushed))
        visited = np.broadcast_to(
            evidence.visited[:, None, :], (len(evidence.visited), *pushed.shape)
        )
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
        factor, along, _ = self._factor(theta)
        return np.asarray(factor[:, None] * along - self.fixed)

    def derivative(self, theta: Floats) -> Floats:
        """d mean / dθ, shape ``(chains, d, d)``."""
        factor, along, below = self._factor(theta)
        outer = along[:, :, None] * along[:, None, :]
        shrinking = (self.strength / below)[:, None, None] * outer
        return np.asarray(factor[:, None, None] * (self.slope - shrinking))

    def variance_growth(self, theta: Floats) -> Floats | None:
        """None: the variance of the scores is taken to be that at θ̄."""
        return None


@dataclass(frozen=True)
class SaturatingBySite:
    """The mean of ḡ as a function of θ, where each constant column is one site's.

    Attributes
    ----------
    constants, others
        Numbers of the parameters with constant columns, and of the others.
    values
        What each constant column is in the records where it is not zero.
    place
        θ̄.
    levels, masses, means
        l̄_k times its constant's value, P_k and U_k of every chain.
    slope, strength, bend
        W, β / γ̄'Wγ̄ and β = b v of every chain.
    origin
        Σ w_t F(θ_t) of every chain, F the part of the mean that depends on θ.
    """

    constants: Integers
    others: Integers
    values: Floats
    place: Floats
    levels: Floats
    masses: Floats
    means: Floats
    slope: Floats
    strength: Floats
    bend: Floats
    origin: Floats

    @classmethod
    def of(
        cls, evidence: Evidence, information: Floats, bend: Floats, values: Floats
    ) -> SaturatingBySite:
        """The score of a finished study, for the H and β of every chain."""
        constants = np.array(evidence.layout.constants, dtype=np.int64)
        others = np.setdiff1d(np.arange(evidence.dimension), constants)
        masses, means = _masses_and_means(information, constants)
        slope = within_sites(information, constants)
        slope = unflattened_all(slope, evidence.place, bend)
        strength = bend / _pushed(slope, evidence.place)[1]
        score = cls(
            constants,
            others,
            values,
            evidence.place,
            site_levels(evidence, information, values),
            masses,
            means[:, :, others],
            slope[:, others[:, None], others],
            strength,
            bend,
            np.zeros((len(information), evidence.dimension)),
        )
        everywhere = score.mean(evidence.visited[:, None, :])
        return replace(score, origin=np.tensordot(evidence.weights, everywhere, 1))

    def mean(self, theta: Floats) -> Floats:
        """E ḡ for the θ of every chain."""
        own, _, factor, along, _ = self._parts(theta)
        found = np.empty((*own.shape[:-1], self.place.size))
        found[..., self.constants] = own
        found[..., self.others] = np.vecmat(own, self.means) + factor[..., None] * along
        return np.asarray(found - self.origin)

    def derivative(self, theta: Floats) -> Floats:
        """d mean / dθ, shape ``(chains, d, d)``."""
        _, growth, factor, along, below = self._parts(theta)
        found = np.zeros((*self.origin.shape, self.origin.shape[1]))
        c, o = self.constants, self.others
        weighted = growth[:, :, None] * self.means
        found[:, c, c] = growth
        found[:, c[:, None], o] = weighted
        found[:, o[:, None], c] = weighted.transpose(0, 2, 1)
        outer = along[:, :, None] * along[:, None, :]
        within = self.slope - (self.strength / below)[:, None, None] * outer
        between = self.means.transpose(0, 2, 1) @ weighted
        found[:, o[:, None], o] = between + factor[:, None, None] * within
        return found

    def variance_growth(self, theta: Floats) -> Floats | None:
        """None: the variance of the scores is taken to be that at θ̄."""
        return None

    def _parts(self, theta: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """E g_k and its derivative by α_k; k(γ), Wγ and 1 + β γ'Wγ / γ̄'Wγ̄."""
        away = theta - self.place
        moved = away[..., self.constants]
        moved = moved + np.matvec(self.means, away[..., self.others])
        steep = ((1.0 + self.bend) ** -0.5)[:, None]
        here = expit(steep * self.levels)
        there = expit(steep * (self.levels + self.values * moved))
        slope = here * (1.0 - here)
        own = self.masses * (there - here) / (steep * self.values * slope)
        growth = self.masses * there * (1.0 - there) / slope
        rest = theta[..., self.others]
        along = np.matvec(self.slope, rest)
        below = 1.0 + self.strength * (along * rest).sum(axis=-1)
        return own, growth, np.sqrt((1.0 + self.bend) / below), along, below


def _masses_and_means(
    information: Floats, constants: Integers
) -> tuple[Floats, Floats]:
    """P_k, and row k of H over P_k, of every chain."""
    masses = np.maximum(information[:, constants, constants], 1e-300)
    return masses, information[:, constants] / masses[:, :, None]


def within_sites(information: Floats, constants: Integers) -> Floats:
    """B of every chain, with zeros where the constants stand."""
    rows = _masses_and_means(information, constants)[1]
    return np.asarray(information - information[:, :, constants] @ rows)


def site_levels(evidence: Evidence, information: Floats, values: Floats) -> Floats:
    """The linear predictor at θ̄ of a record with its site's mean columns."""
    constants = np.array(evidence.layout.constants, dtype=np.int64)
    rows = _masses_and_means(information, constants)[1]
    # The constants' block is diagonal: row k of a site has its own constant only.
    return np.clip(values * (rows @ evidence.place), -LARGEST_LEVEL, LARGEST_LEVEL)


def fall_by_levels(
    evidence: Evidence, information: Floats, values: Floats, bend: Floats
) -> Floats:
    """How far the sites' levels alone let the curvature fall since θ = 0.

    A record of site k has 4 p'(λ l_k) of the curvature that it had at θ = 0.
    """
    constants = np.array(evidence.layout.constants, dtype=np.int64)
    masses = _masses_and_means(information, constants)[0]
    steep = ((1.0 + bend) ** -0.5)[:, None]
    chance = expit(steep * site_levels(evidence, information, values))
    records = masses / (4.0 * chance * (1.0 - chance))
    return np.asarray(masses.sum(axis=1) / records.sum(axis=1))


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


def bent_part(evidence: Evidence, information: Floats) -> Floats:
    """The part of every H that is less in the direction of θ̄: H, or B within sites."""
    sites = evidence.layout.sites
    if sites is None or sites.masses is None:
        return information
    return within_sites(information, np.array(evidence.layout.constants, np.int64))


def unbent(evidence: Evidence, information: Floats, bend: Floats) -> Floats:
    """A of every chain from its H; with W in the place of B where sites may differ."""
    part = bent_part(evidence, information)
    return information - part + unflattened_all(part, evidence.place, bend)


def limited_bend(
    evidence: Evidence, information: Floats, bend: Floats, wanted: Floats
) -> Floats:
    """The wanted β, held below what is plausible for a θ that is typical of the prior.

    β = b v(θ̄), so where θ̄ is almost zero β must be, whatever the noised traces say. The
    limit is for the A that follows from H and the β so far.
    """
    slope = bent_part(evidence, information)
    slope = unflattened_all(slope, evidence.place, bend)
    length = _pushed(slope, evidence.place)[1]
    typical = np.einsum("cjk,jk->c", slope, evidence.prior_covariance)
    return np.asarray(np.minimum(wanted, LARGEST_UNDER_PRIOR * length / typical))

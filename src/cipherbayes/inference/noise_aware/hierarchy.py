"""The prior of the information matrix H.

In the coordinates (p, U, ℓ, S) of :mod:`~.coordinates`,

    p_j ~ N(m, 3²),   U_jk ~ N(0, υ²),   ℓ_j ~ N(m, ω²),   S_ij ~ N(S⁰_ij, τ²),

τ = ρ / √d, with m, υ, ω and ρ learnt; ℓ_j ~ N(m, 1) where parameter j is no coefficient
of a column or its column is hidden where most are not, as a rare level: their
information is not like the others'. Of a Weibull shape it is known instead
(:class:`~.shrinkage.Layout`): ℓ_j ~ N(p + log s, 0.2²). H is A flattened
along θ̄ where the score saturates (:mod:`~.saturation`), else A itself. The prior treats
B and B⁻¹ alike, where a Wishart prior with few degrees of freedom puts its smallest
eigenvalues near zero. S⁰ holds the few directions that stand far out of the noise
(:func:`~.shrinkage.spiked`): with S⁰ = 0 one of them raises ρ for all, and the small
eigenvalues, which noise hides, spread over decades. Where such a direction v has little
information, because columns almost follow from each other, noise may hide how little:
log B there is S⁰ − t vv' with t ~ N(0, 2²), so that one can lie a hundred times lower
than what is seen.

References
----------
Leonard and Hsu (1992), Bayesian inference for a covariance matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.inference.noise_aware.centring import Centring, InverseGamma
from cipherbayes.inference.noise_aware.coordinates import Coordinates
from cipherbayes.inference.noise_aware.shrinkage import SHARE_SPREAD, SiteLayout
from cipherbayes.typing import Floats, Integers

STRENGTH = InverseGamma(3.0, 0.15)
"""ρ² is inverse-gamma: median of ρ 0.24, one in a hundred above 0.6. Where noise hides
the correlations a heavier tail would fill the posterior with almost singular H."""
SPREAD = InverseGamma(1.0, 0.05)
"""ω² is inverse-gamma, median of ω 0.27, one in ten above 0.7: columns have about the
same information, unless more than noise says that they do not."""
MEANS = InverseGamma(1.0, 0.05)
"""υ² is inverse-gamma: columns lie within [-1, 1]."""
MASS_SPREAD, UNLIKE_SPREAD = 3.0, 1.0
"""Of p, and of ℓ where it need not be like the others."""
DEPTH = 2.0
"""Of t."""
MEAN_OF_MEANS, OWN_MEAN, NO_MEAN = 1.0, 1.0, 0.01
"""sd of u; of the mean of a column that one site has, there, and elsewhere: zero."""
LEARNT = 3
"""m, log ω and log ρ."""


@dataclass(frozen=True)
class Means:
    """u and υ of the means U, one row a chain; of all of them, or of one each."""

    centre: Floats
    scale: Floats


class Hierarchy:
    """The law of all coordinates, and the form in which they are moved.

    What is moved, one row a chain, is (p, U, y of ℓ, y of S, t, m, log ω, log ρ), with
    y as :class:`~.centring.Centring` has it.

    Parameters
    ----------
    parts
        The coordinates (p, U, ℓ, S).
    centre
        S⁰.
    low
        The directions v, one a column.
    unlike
        Parameters whose ℓ need not be like the others'.
    shares
        (j, s): of those the ones whose exp ℓ is about s exp p, p the constant's.
    sites
        Whose columns are whose, where sites may differ: p_k ~ N(log of the mass to
        expect, its spread²) and U_kj ~ N(u_j, υ_j²), with u_j and υ_j learnt for each
        column by itself. Under one υ for all columns the means of the one that is
        confounded with site would be shrunk, and taken for what it says within sites.
    """

    def __init__(
        self,
        parts: Coordinates,
        centre: Floats,
        low: Floats,
        unlike: tuple[int, ...],
        shares: tuple[tuple[int, float], ...] = (),
        sites: SiteLayout | None = None,
    ) -> None:
        self.parts, self._centre = parts, centre
        self._deeper = parts.log_outer(low)
        self.depths = slice(parts.size, parts.size + len(self._deeper))
        every = np.arange(parts.size)
        known = [j for j, _ in shares]
        apart = parts.diagonals_of(tuple(j for j in unlike if j not in known))
        self._known = parts.diagonals_of(tuple(known))
        self._shares = np.log([share for _, share in shares])
        self._alike = np.setdiff1d(every[parts.diagonal], [*apart, *self._known])
        self._loose: tuple[tuple[Integers, float], ...] = (
            (every[parts.masses], MASS_SPREAD),
            (apart, UNLIKE_SPREAD),
        )
        self._sites = sites
        self._masses: tuple[Floats, Floats] | None = None
        if sites is not None and sites.masses is not None and sites.spread is not None:
            self._loose = ((apart, UNLIKE_SPREAD),)
            self._masses = np.log(sites.masses), sites.spread
        self._diagonal = self._entries = Centring(0.5)

    @property
    def alike(self) -> tuple[int, ...]:
        """Parameters of columns that almost follow from each other."""
        return self.parts.involved(self._deeper)

    def start(self, chains: int) -> tuple[Floats, Means]:
        """Where to begin, u and υ: at the usual, with the scales that it has."""
        parts, place = self.parts, self.parts.usual
        rest, diagonal = place[parts.entries] - self._centre, place[self._alike]
        if not diagonal.size:  # every column is one site's
            diagonal = place[parts.diagonal]
        strength = np.sqrt(parts.others * (rest**2).mean()) if rest.size else 0.0
        means = place[parts.means]
        size = np.sqrt((means**2).mean()) if means.size else 0.0
        learnt = np.zeros(len(self._deeper) + LEARNT)
        learnt[-LEARNT:] = (
            diagonal.mean(),
            np.log(max(float(diagonal.std()), 0.3)),
            np.log(max(float(strength), 0.1)),
        )
        moved = self.from_coordinates(
            np.tile(place, (chains, 1)), np.tile(learnt, (chains, 1))
        )
        scales = np.full((chains, 1), max(float(size), 0.1))
        return moved, Means(np.zeros((chains, 1)), scales)

    def recentred(self, moved: Floats, data: Floats) -> Floats:
        """What is moved with λ renewed; ``data`` is what they say of (p, U, ℓ, S)."""
        parts, place = self.parts, self.to_coordinates(moved)
        _, spread, strength = np.exp(np.median(moved[:, -LEARNT:], axis=0))
        strength = strength / np.sqrt(parts.others)
        self._diagonal = Centring(_share(data[self._alike], spread))
        self._entries = Centring(_share(data[parts.entries], strength))
        return self.from_coordinates(place, moved[:, parts.size :])

    def to_coordinates(self, moved: Floats) -> Floats:
        """(p, U, ℓ, S) of what is moved."""
        place = moved[:, : self.parts.size].copy()
        for which, form, centre, scale in self._laws(moved):
            place[:, which] = form.to_coordinates(place[:, which], centre, scale)
        place[:, self.parts.entries] += self._centre
        return np.asarray(place - moved[:, self.depths] @ self._deeper)

    def from_coordinates(self, place: Floats, learnt: Floats) -> Floats:
        """What is moved, of (p, U, ℓ, S) and (t, m, log ω, log ρ)."""
        moved = np.hstack([place, learnt])
        moved[:, : self.parts.size] += moved[:, self.depths] @ self._deeper
        moved[:, self.parts.entries] -= self._centre
        for which, form, centre, scale in self._laws(moved):
            moved[:, which] = form.from_coordinates(moved[:, which], centre, scale)
        return moved

    def chain_rule(self, moved: Floats, slope: Floats) -> Floats:
        """Derivatives by what is moved, of those by (p, U, ℓ, S)."""
        by_depth = -slope @ self._deeper.T
        found = np.hstack([slope, by_depth, np.zeros((len(slope), LEARNT))])
        for column, (which, form, centre, scale) in enumerate(self._laws(moved), -2):
            found[:, which], by_centre, by_scale = form.chain_rule(
                moved[:, which], centre, scale, slope[:, which]
            )
            found[:, column] += by_scale
            if which is self._alike:
                found[:, -3] += by_centre
        return found

    def log_density(self, moved: Floats, means: Means) -> tuple[Floats, Floats]:
        """Of what is moved given u and υ, and its gradient."""
        value, gradient = np.zeros(len(moved)), np.zeros_like(moved)
        for column, (which, form, centre, scale) in enumerate(self._laws(moved), -2):
            here, slopes = form.log_density(moved[:, which], centre, scale)
            value += here
            gradient[:, which] += slopes[0]
            gradient[:, column] += slopes[2]
            if which is self._alike:
                gradient[:, -3] += slopes[1]
        for column, law in ((-2, SPREAD), (-1, STRENGTH)):
            value += law.log_density(moved[:, column])
            gradient[:, column] += law.slope(moved[:, column])
        for which, sd in self._loose:
            away = (moved[:, which] - moved[:, [-3]]) / sd
            value -= 0.5 * (away**2).sum(axis=1)
            gradient[:, which] -= away / sd
            gradient[:, -3] += away.sum(axis=1) / sd
        away = (moved[:, self._known] - moved[:, [0]] - self._shares) / SHARE_SPREAD
        value -= 0.5 * (away**2).sum(axis=1)
        gradient[:, self._known] -= away / SHARE_SPREAD
        gradient[:, 0] += away.sum(axis=1) / SHARE_SPREAD
        if self._masses is not None:
            centre, spread = self._masses
            away = (moved[:, self.parts.masses] - centre) / spread
            value -= 0.5 * (away**2).sum(axis=1)
            gradient[:, self.parts.masses] -= away / spread
        away = moved[:, self.depths] / DEPTH
        value -= 0.5 * (away**2).sum(axis=1)
        gradient[:, self.depths] -= away / DEPTH
        away = (moved[:, self.parts.means] - means.centre) / means.scale
        value -= 0.5 * (away**2).sum(axis=1)
        gradient[:, self.parts.means] -= away / means.scale
        return value, gradient

    def precision(self, moved: Floats, means: Floats) -> Floats:
        """About minus the second derivative of :meth:`log_density` at one place."""
        parts = self.parts
        diagonal = np.full(moved.size, DEPTH**-2.0)
        for loose, sd in self._loose:
            diagonal[loose] = sd**-2.0
        if self._masses is not None:
            diagonal[parts.masses] = self._masses[1] ** -2.0
        diagonal[parts.means] = means**-2.0
        counts, pulls, shares = [], [], []
        for which, form, _, scale in self._laws(moved[None]):
            pulls.append(float(np.exp(-2.0 * form.share * scale[0])))
            counts.append(moved[which].size)
            shares.append(form.share)
            diagonal[which] = pulls[-1]
        diagonal[-3] = 1e-2 + counts[0] * shares[0] ** 2 * pulls[0]
        diagonal[-2] = SPREAD.precision + 2.0 * counts[0] * shares[0] ** 2
        diagonal[-1] = STRENGTH.precision + 2.0 * counts[1] * shares[1] ** 2
        diagonal[self._known] = SHARE_SPREAD**-2.0
        diagonal[0] += self._known.size * SHARE_SPREAD**-2.0
        matrix = np.diag(diagonal)
        matrix[self._known, 0] = matrix[0, self._known] = -(SHARE_SPREAD**-2.0)
        matrix[self._alike, -3] = matrix[-3, self._alike] = -shares[0] * pulls[0]
        return matrix

    def drawn_means(
        self, moved: Floats, before: Means, rng: np.random.Generator
    ) -> Means:
        """u and υ given U."""
        means = moved[:, self.parts.means]
        if self._sites is not None:
            return self._means_by_column(self._sites, means, before, rng)
        rate = MEANS.scale + 0.5 * (means**2).sum(axis=1)
        shape = MEANS.shape + 0.5 * means.shape[1]
        scale = np.sqrt(rate / rng.gamma(shape, size=rate.size))
        return Means(before.centre, scale[:, None])

    def _means_by_column(
        self, sites: SiteLayout, means: Floats, before: Means, rng: np.random.Generator
    ) -> Means:
        """u_j, then υ_j, one after the other; columns of one site are held fixed."""
        chains, (b, e) = len(means), sites.apart.shape
        each = means.reshape(chains, b, e)
        scale = np.broadcast_to(before.scale, means.shape).reshape(chains, b, e)[:, 0]
        precision = b / scale**2 + 1.0 / MEAN_OF_MEANS**2
        centre = each.sum(axis=1) / scale**2 / precision
        centre = centre + rng.standard_normal((chains, e)) / np.sqrt(precision)
        rate = MEANS.scale + 0.5 * ((each - centre[:, None, :]) ** 2).sum(axis=1)
        scale = np.sqrt(rate / rng.gamma(MEANS.shape + 0.5 * b, size=rate.shape))
        one_site = sites.others >= 0
        centre = np.where(one_site, 0.0, centre)
        scales = np.where(one_site, OWN_MEAN, scale)[:, None, :]
        scales = np.where(sites.apart, NO_MEAN, scales)
        centres = np.broadcast_to(centre[:, None, :], scales.shape)
        return Means(centres.reshape(chains, -1), scales.reshape(chains, -1))

    def _laws(
        self, moved: Floats
    ) -> tuple[tuple[Integers | slice, Centring, Floats, Floats], ...]:
        """(which, λ, μ, log σ) of ℓ and of S; the scales are the last two columns."""
        centre, spread, strength = moved[:, -LEARNT:].T
        strength = strength - 0.5 * np.log(self.parts.others)
        return (
            (self._alike, self._diagonal, centre, spread),
            (self.parts.entries, self._entries, np.zeros_like(centre), strength),
        )


def _share(data: Floats, scale: float) -> float:
    """λ: of what is known about a coordinate, the data's share."""
    if not data.size:
        return 0.5
    return float((data / (data + scale**-2.0)).mean())

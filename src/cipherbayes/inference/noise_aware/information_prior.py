"""The prior of the information matrix H: the whole model of it.

    H̃ = H + E,  E symmetric, E_jj ~ N(0, s_H²), E_jk ~ N(0, s_H² / 2);   H = A,

or A flattened along θ̄ where the score saturates (:mod:`~.saturation`). What else the
releases say of H is in :mod:`~.evidence`. A is made of (p, U, ℓ, S) as
:mod:`~.coordinates` has it: masses exp p of the constant columns, means U of the d
other columns there, their own information exp ℓ, and correlations R, those of exp S.
With m, υ, ω and ρ learnt,

    p_j  ~ N(m − log b, 2²) of b constants each has a share of what a column has
    U_jk ~ N(0, υ²)         υ² ~ IG(1, 0.05): columns lie within [-1, 1]
    ℓ_j  ~ N(m, ω²)         ω² ~ IG(1, 0.05): they are standardised, hence much alike
    S_jk ~ t(½, 0, ρ / √d)  ρ² ~ IG(3, 0.003): few are related, those may be closely

and m flat. Where the information of one need not be like the others', its ℓ_j has
another law: N(m, 1) of a parameter that is no coefficient of a column, and of a rare
level; N(p + log s, 0.2²) of a Weibull shape, whose s is known
(:class:`~.layout.InformationLayout`). Where sites may differ,
:class:`InformationPrior` says how p and U do.

The law of S is the one that matters, because a small eigenvalue of R that noise hides
makes every interval wide or, denied, too narrow. It treats R and R⁻¹ alike, where a
Wishart law with few degrees of freedom puts its smallest eigenvalues near zero. With
ten columns half of the pairs are below 0.02 in absolute value, one in ten is above a
half, and one in twenty above two, where one column almost follows from others: a
table's columns are unrelated, but for some that measure the same thing.

References
----------
Leonard and Hsu (1992), Bayesian inference for a covariance matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cipherbayes.inference.noise_aware.centring import Centring, InverseGamma
from cipherbayes.inference.noise_aware.coordinates import Coordinates
from cipherbayes.inference.noise_aware.layout import SiteLayout
from cipherbayes.inference.noise_aware.shrinkage import SHARE_SPREAD
from cipherbayes.inference.noise_aware.site_means import Means, drawn_by_site
from cipherbayes.typing import Floats, Integers

STRENGTH, ENTRY_DF = InverseGamma(3.0, 0.003), 0.5
"""Of ρ², median of ρ 0.03; degrees of freedom of S. Less of a tail would deny that
columns may follow from others, a larger ρ would fill the posterior with almost singular
H wherever noise hides the correlations."""
SPREAD = InverseGamma(1.0, 0.05)
"""Of ω², median of ω 0.27, one in ten above 0.7."""
MEANS = InverseGamma(1.0, 0.05)
"""Of υ²."""
MASS_SPREAD, UNLIKE_SPREAD = 2.0, 1.0
"""Of p, and of ℓ where it need not be like the others. Less of the first would take an
interval of a baseline with few events for one with some, more for one with none."""
LEARNT = 3
"""m, log ω and log ρ."""


@dataclass(frozen=True)
class Law:
    """A law with a learnt scale, as :class:`~.centring.Centring` has it.

    Attributes
    ----------
    which
        The coordinates that have it.
    centre, scale
        Where μ and log σ stand among what is moved; μ = 0 where None.
    offset
        What log σ is more than what is moved.
    form, of_scale
        λ; the prior of σ² without the offset.
    df
        Degrees of freedom of a Student's t; normal where None.
    """

    which: Integers
    centre: int | None
    scale: int
    offset: float
    form: Centring
    of_scale: InverseGamma
    df: float | None = None

    def at(self, moved: Floats) -> tuple[Floats, Floats]:
        """μ and log σ of every chain."""
        log_scale = moved[:, self.scale] + self.offset
        if self.centre is None:
            return np.zeros_like(log_scale), log_scale
        return moved[:, self.centre], log_scale


class InformationPrior:
    """The law of all coordinates, and the form in which they are moved.

    What is moved, one row a chain, is (p, U, y of ℓ, y of S, m, log ω, log ρ), with
    y as :class:`~.centring.Centring` has it.

    Parameters
    ----------
    parts
        The coordinates (p, U, ℓ, S).
    unlike
        Parameters whose ℓ need not be like the others'.
    shares
        (j, s): of those the ones whose exp ℓ is about s exp p, p the constant's.
    sites
        Whose columns are whose, where sites may differ: p_k ~ N(log of the mass to
        expect, its spread²), and U as :mod:`~.site_means` has it. Where a site has a
        constant for each interval of a baseline, that is the law of the first one, and
        U_kj changes by N(0, ψ_j²) from one interval to the next: who is at risk is much
        the same.
    """

    def __init__(
        self,
        parts: Coordinates,
        unlike: tuple[int, ...],
        shares: tuple[tuple[int, float], ...] = (),
        sites: SiteLayout | None = None,
    ) -> None:
        self.parts = parts
        self.size = parts.size + LEARNT
        every, middle = np.arange(parts.size), self.size - LEARNT
        known = [j for j, _ in shares]
        apart = parts.diagonals_of(tuple(j for j in unlike if j not in known))
        self._known = parts.diagonals_of(tuple(known))
        alike = np.setdiff1d(every[parts.diagonal], [*apart, *self._known])
        self._sites = sites
        self._means_size = parts.means.stop - parts.means.start
        # What has no law is normal around something else that is moved, or around zero.
        self.pulled_by = np.full(self.size, -1, dtype=np.int64)
        self._offsets, self._precisions = np.zeros((2, self.size))
        self._precisions[apart] = UNLIKE_SPREAD**-2.0
        self._precisions[self._known] = SHARE_SPREAD**-2.0
        self._offsets[self._known] = np.log([share for _, share in shares])
        self.pulled_by[apart], self.pulled_by[self._known] = middle, 0
        if sites is not None and sites.masses is not None:
            self._precisions[parts.masses] = sites.masses.log_sd**-2.0
            self._offsets[parts.masses] = np.log(sites.masses.values)
        else:
            self._precisions[parts.masses] = MASS_SPREAD**-2.0
            self._offsets[parts.masses] = -np.log(max(len(parts.constants), 1))
            self.pulled_by[parts.masses] = middle
        self._walking(sites)
        half, rows = Centring(0.5), every[parts.entries]
        thin = -0.5 * float(np.log(parts.others)) if parts.others else 0.0
        self.laws = (
            Law(alike, middle, middle + 1, 0.0, half, SPREAD),
            Law(rows, None, middle + 2, thin, half, STRENGTH, ENTRY_DF),
        )

    def _walking(self, sites: SiteLayout | None) -> None:
        """Have the means of an interval pulled by those of the one before."""
        means = np.arange(self.parts.size)[self.parts.means]
        if sites is None or not means.size:
            return
        # Constants of one kind, the same of every site, stand next to each other.
        each = means.reshape(sites.kinds, -1, sites.others.size)
        of_all = sites.others < 0
        self.pulled_by[each[1:, :, of_all]] = each[:-1, :, of_all]

    def start(self, chains: int) -> tuple[Floats, Means]:
        """Where to begin, u and υ: at the usual, with the scales that it has."""
        parts, place = self.parts, self.parts.usual
        rest, diagonal = place[parts.entries], place[self.laws[0].which]
        if not diagonal.size:  # every column is one site's
            diagonal = place[parts.diagonal]
        strength = np.sqrt(parts.others * (rest**2).mean()) if rest.size else 0.0
        means = place[parts.means]
        size = np.sqrt((means**2).mean()) if means.size else 0.0
        learnt = np.array(
            [
                diagonal.mean(),
                np.log(max(float(diagonal.std()), 0.3)),
                np.log(max(float(strength), 0.1)),
            ]
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
        diagonal, entries = self.laws
        self.laws = (
            replace(diagonal, form=Centring(_share(data[diagonal.which], spread))),
            replace(entries, form=Centring(_share(data[entries.which], strength))),
        )
        return self.from_coordinates(place, moved[:, parts.size :])

    def to_coordinates(self, moved: Floats) -> Floats:
        """(p, U, ℓ, S) of what is moved."""
        place = moved[:, : self.parts.size].copy()
        for law in self.laws:
            which = law.which
            place[:, which] = law.form.to_coordinates(place[:, which], *law.at(moved))
        return np.asarray(place)

    def from_coordinates(self, place: Floats, learnt: Floats) -> Floats:
        """What is moved, of (p, U, ℓ, S) and (m, log ω, log ρ)."""
        moved = np.hstack([place, learnt])
        for law in self.laws:
            which = law.which
            moved[:, which] = law.form.from_coordinates(moved[:, which], *law.at(moved))
        return moved

    def chain_rule(self, moved: Floats, slope: Floats) -> Floats:
        """Derivatives by what is moved, of those by (p, U, ℓ, S)."""
        found = np.hstack([slope, np.zeros((len(slope), LEARNT))])
        for law in self.laws:
            which = law.which
            found[:, which], by_centre, by_scale = law.form.chain_rule(
                moved[:, which], *law.at(moved), slope[:, which]
            )
            found[:, law.scale] += by_scale
            if law.centre is not None:
                found[:, law.centre] += by_centre
        return found

    def normal(self, means: Means) -> tuple[Floats, Floats, Floats]:
        """Mean, less what pulls it, and precision of all that has no law of its own.

        Shape ``(chains, size)``; a precision of zero is none. And a of the means
        (:mod:`~.site_means`), whose precision is less by a a' of each constant.
        """
        chains = len(means.scale)
        mean, precision = (
            np.tile(each, (chains, 1)) for each in (self._offsets, self._precisions)
        )
        mean[:, self.parts.means] = means.centre
        precision[:, self.parts.means] = means.scale**-2.0
        return mean, precision, means.along(self._means_size)

    def log_density(self, moved: Floats, means: Means) -> tuple[Floats, Floats]:
        """Of what is moved given u and υ, and its gradient."""
        value, gradient = np.zeros(len(moved)), np.zeros_like(moved)
        for law in self.laws:
            here, slopes = law.form.log_density(
                moved[:, law.which], *law.at(moved), law.df
            )
            log_scale = moved[:, law.scale]
            value += here + law.of_scale.log_density(log_scale)
            gradient[:, law.which] += slopes[0]
            gradient[:, law.scale] += slopes[2] + law.of_scale.slope(log_scale)
            if law.centre is not None:
                gradient[:, law.centre] += slopes[1]
        mean, precision, along = self.normal(means)
        pulled = self.pulled_by >= 0
        away = moved - mean
        away[:, pulled] -= moved[:, self.pulled_by[pulled]]
        force = precision * away
        value -= 0.5 * (force * away).sum(axis=1)
        gradient -= force
        np.add.at(gradient.T, self.pulled_by[pulled], force[:, pulled].T)
        by_row = (len(moved), len(self.parts.constants), self.parts.others)
        length = (along * away[:, self.parts.means]).reshape(by_row).sum(axis=2)
        value += 0.5 * (length**2).sum(axis=1)
        together = along.reshape(by_row) * length[:, :, None]
        gradient[:, self.parts.means] += together.reshape(along.shape)
        return value, gradient

    def precision(self, moved: Floats, means: Means) -> Floats:
        """About minus the second derivative of :meth:`log_density` at one place."""
        matrix = np.diag(self._precisions)
        rows = np.arange(self.parts.size)[self.parts.means]
        if rows.size:
            rows = rows.reshape(len(self.parts.constants), -1)
            blocks = means.precisions(*rows.shape)
            matrix[rows[:, :, None], rows[:, None, :]] = blocks
        diagonal = np.diag(matrix).copy()
        walking = np.arange(self.parts.size)[self.parts.means]
        walking = walking[self.pulled_by[walking] >= 0]
        by = self.pulled_by[walking]
        matrix[by, by] += diagonal[walking]
        matrix[walking, by] = matrix[by, walking] = -diagonal[walking]
        for law in self.laws:
            which, share = law.which, law.form.share
            pull = float(np.exp(-2.0 * share * law.at(moved[None])[1][0]))
            matrix[which, which] = pull
            own = 2.0 * which.size * share**2
            matrix[law.scale, law.scale] = law.of_scale.precision + own
            if law.centre is not None:
                # Of m the law of the others is left out, which is wide.
                matrix[law.centre, law.centre] = 1e-2 + which.size * share**2 * pull
                matrix[which, law.centre] = matrix[law.centre, which] = -share * pull
        sharp = SHARE_SPREAD**-2.0
        matrix[0, 0] += self._known.size * sharp
        matrix[self._known, 0] = matrix[0, self._known] = -sharp
        return matrix

    def drawn_means(
        self, moved: Floats, before: Means, rng: np.random.Generator
    ) -> Means:
        """u and υ given U."""
        means = moved[:, self.parts.means]
        if self._sites is not None:
            each = means.reshape(len(means), *self._sites.of_another_site.shape)
            return drawn_by_site(self._sites, each, before, rng)
        rate = MEANS.scale + 0.5 * (means**2).sum(axis=1)
        shape = MEANS.shape + 0.5 * means.shape[1]
        scale = np.sqrt(rate / rng.gamma(shape, size=rate.size))
        return Means(before.centre, scale[:, None])


def _share(data: Floats, scale: float) -> float:
    """λ: of what is known about a coordinate, the data's share."""
    if not data.size:
        return 0.5
    return float((data / (data + scale**-2.0)).mean())

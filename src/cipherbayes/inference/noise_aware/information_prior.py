"""The prior of the information matrix H.

The information sums release H̃ = H + E, with E symmetric, E_jj ~ N(0, s_H²) and
E_jk ~ N(0, s_H² / 2). H is A, or A with less information in the direction of θ̄ where
the score saturates (:mod:`~.saturation`). A is built from (p, U, ℓ, S), defined in
:mod:`~.coordinates`: the masses exp p of the b constant columns, the means U of the d
other columns, the information exp ℓ that is left about each of these, and their
correlations R, given by exp S. With m, υ, ψ, ω, ρ and τ learnt, the prior is

    p_j  ~ N(m − log b, 2²)   constants share the information that one column has
    U_1k ~ N(0, υ²)           υ² ~ IG(1, 0.05): columns lie within [-1, 1]
    U_jk ~ N(U_(j−1)k, ψ²)    ψ² ~ IG(1, 0.005): much the same records are at risk in
                              one interval of a baseline and the next
    ℓ_j  ~ N(m, ω²)           ω² ~ IG(1, 0.05): standardised columns are much alike
    S_jk ~ N(0, ρ² τ_j² τ_k² / d)     ρ² ~ IG(3, 0.03),  log τ_j ~ N(0, 2²): most
                              columns go with hardly any other, some with several

and m flat. Some parameters need not have as much information as the others. Their ℓ_j
is N(m, 1) for a parameter that is not a coefficient of a column and for a rare level,
and N(p + log s, 0.2²) for the shape of a Weibull hazard, whose share s of the mass is
known (:class:`~.layout.InformationLayout`). Where sites may differ, p and U have the
priors that :class:`InformationPrior` states.

The prior of S matters most. A small eigenvalue of R that noise hides makes intervals
wide if the prior allows it, and too narrow if the prior denies it and is wrong. This
prior treats R and R⁻¹ alike, while a Wishart prior with few degrees of freedom puts the
smallest eigenvalues near zero. With ten columns it has half of the |S_jk| below 0.02,
one in seven above a half, and one in seventeen above two, where one column almost
follows from the others: the columns of a table are mostly unrelated, but for some that
measure the same thing. Scales belong to columns and not to entries because related
columns come in groups: of three columns of which one is about the sum of the others, or
of four that measure one thing, all entries of S are large. Were each large by itself,
the prior would rather have some of them zero, which is another matrix, with more
information where noise hides it, or with much less.

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

STRENGTH = InverseGamma(3.0, 0.03)
"""Prior of ρ², the squared scale of S; the median of ρ is 0.11. A larger ρ would fill
the posterior with almost singular H wherever noise hides the correlations."""
COLUMN_SPREAD = 2.0
"""Prior sd of log τ_j. With a smaller one the prior would deny that columns may follow
from each other."""
SPREAD = InverseGamma(1.0, 0.05)
"""Prior of ω², the variance of ℓ over columns; the median of ω is 0.27, and one in ten
is above 0.7."""
MEANS = InverseGamma(1.0, 0.05)
"""Prior of υ², the variance of the columns' means."""
STEPS = InverseGamma(1.0, 0.005)
"""Prior of ψ², by how much the columns' means change from one interval of a baseline to
the next: much the same records are at risk."""
MASS_SPREAD = 2.0
"""Prior sd of p, the log mass of a constant. With a smaller one, an interval of a
baseline with few events would be taken to have some; with a larger one, to have
none."""
UNLIKE_SPREAD = 1.0
"""Prior sd of ℓ of a parameter whose information need not be like the others'."""
LEARNT = 3
"""How many scales of all columns HMC moves with the coordinates: m, log ω and log ρ."""


@dataclass(frozen=True)
class Law:
    """A prior N(μ, σ²) of some coordinates, with σ learnt.

    HMC moves the coordinates in the form of :class:`~.centring.Centring`.

    Attributes
    ----------
    which
        Indices of the coordinates that have this prior.
    centre, scale
        Indices of μ and log σ in the vector that HMC moves; μ = 0 where None.
    offset
        What is added to the moved entry to get log σ.
    form
        The centring, with its share λ.
    of_scale
        The prior of σ² before anything is added.
    columns
        For each coordinate, indices of two moved entries, log τ of its two columns,
        that are added to its log σ; None for none.
    """

    which: Integers
    centre: int | None
    scale: int
    offset: float
    form: Centring
    of_scale: InverseGamma
    columns: Integers | None = None

    def at(self, moved: Floats) -> tuple[Floats, Floats]:
        """μ and log σ of every chain."""
        log_scale = moved[:, self.scale, None] + self.offset
        if self.columns is not None:
            log_scale = log_scale + moved[:, self.columns].sum(axis=2)
        if self.centre is None:
            return np.zeros(len(moved)), log_scale
        return moved[:, self.centre], log_scale

    def add_by_scales(self, found: Floats, by_scale: Floats) -> None:
        """Add derivatives by each coordinate's log σ to those by the moved vector."""
        found[:, self.scale] += by_scale.sum(axis=1)
        if self.columns is not None:
            for one in self.columns.T:
                np.add.at(found.T, one, by_scale.T)


class InformationPrior:
    """The prior of all coordinates, and the form in which HMC moves them.

    HMC moves one vector for each chain, (p, U, y of ℓ, y of S, log τ, m, log ω, log ρ),
    with y the centred form of :class:`~.centring.Centring`. The prior is stated in
    tables that the C loops read too: ``laws`` for what has a learnt scale,
    ``pulled_by`` and :meth:`normal` for all else.

    Parameters
    ----------
    parts
        The coordinates (p, U, ℓ, S).
    unlike
        Parameters whose ℓ need not be like the others'.
    shares
        (j, s) for each of these whose exp ℓ is about s exp p, p the constant's.
    sites
        Which site each column belongs to, where sites may differ. Then p_k is normal
        around the log of the mass to expect, and U has the prior of
        :mod:`~.site_means`. Where a site has a constant for each interval of a
        baseline, that is the prior of the first interval's means, and U_kj changes by
        N(0, ψ_j²) from one interval to the next: much the same records are at risk.
    tilts
        What is known of how the means differ between sites (:mod:`~.site_means`), of
        every site and column; None for nothing.

    Attributes
    ----------
    laws
        The priors of ℓ and of S.
    own
        Where log τ of each column stands in the moved vector; nowhere where S is fixed.
    pulled_by
        For each moved entry without a law, the index of the entry that its normal
        prior is centred on; -1 for a fixed centre.
    """

    def __init__(
        self,
        parts: Coordinates,
        unlike: tuple[int, ...],
        shares: tuple[tuple[int, float], ...] = (),
        sites: SiteLayout | None = None,
        tilts: Floats | None = None,
    ) -> None:
        self.parts = parts
        pairs = np.array(np.triu_indices(parts.others, 1)).T
        own = parts.others if parts.correlated else 0
        self.size = parts.size + own + LEARNT
        self.own = slice(parts.size, parts.size + own)
        every, middle = np.arange(parts.size), self.size - LEARNT
        known = [j for j, _ in shares]
        free = parts.diagonals_of(tuple(j for j in unlike if j not in known))
        self._known = parts.diagonals_of(tuple(known))
        alike = np.setdiff1d(every[parts.diagonal], [*free, *self._known])
        self._sites, self._tilts = sites, tilts
        self._means_size = parts.means.stop - parts.means.start
        # What has no law is normal around another moved entry or around a number.
        self.pulled_by = np.full(self.size, -1, dtype=np.int64)
        self._offsets, self._precisions = np.zeros((2, self.size))
        self._precisions[free] = UNLIKE_SPREAD**-2.0
        self._precisions[self._known] = SHARE_SPREAD**-2.0
        self._offsets[self._known] = np.log([share for _, share in shares])
        self.pulled_by[free], self.pulled_by[self._known] = middle, 0
        if sites is not None and sites.masses is not None:
            self._precisions[parts.masses] = sites.masses.log_sd**-2.0
            self._offsets[parts.masses] = np.log(sites.masses.values)
        else:
            self._precisions[parts.masses] = MASS_SPREAD**-2.0
            self._offsets[parts.masses] = -np.log(max(len(parts.constants), 1))
            self.pulled_by[parts.masses] = middle
        self._precisions[self.own] = COLUMN_SPREAD**-2.0
        self._chain_intervals(sites)
        half, rows = Centring(0.5), every[parts.entries]
        thin = -0.5 * float(np.log(parts.others)) if parts.others else 0.0
        self.laws = (
            Law(alike, middle, middle + 1, 0.0, half, SPREAD),
            Law(
                rows,
                None,
                middle + 2,
                thin,
                half,
                STRENGTH,
                parts.size + pairs if parts.correlated else None,
            ),
        )

    def _chain_intervals(self, sites: SiteLayout | None) -> None:
        """Centre the means of each baseline interval on those of the one before."""
        means = np.arange(self.parts.size)[self.parts.means]
        if not means.size:
            return
        if sites is None:
            rows = means.reshape(len(self.parts.constants), -1)
            self.pulled_by[rows[1:]] = rows[:-1]
            return
        # One kind of constant at all sites, then the next kind at all sites.
        each = means.reshape(sites.kinds, -1, sites.others.size)
        of_all = sites.others < 0
        self.pulled_by[each[1:, :, of_all]] = each[:-1, :, of_all]

    def start(self, chains: int) -> tuple[Floats, Means]:
        """Where the chains begin: at the estimate of H, with the scales that it has.

        The vector that HMC moves, and the laws of the means.
        """
        parts, place = self.parts, self.parts.reference
        rest, diagonal = place[parts.entries], place[self.laws[0].which]
        if not diagonal.size:  # every column is one site's
            diagonal = place[parts.diagonal]
        strength = np.sqrt(parts.others * (rest**2).mean()) if rest.size else 0.0
        means = place[parts.means]
        size = np.sqrt((means**2).mean()) if means.size else 0.0
        learnt = np.array(
            [
                *np.zeros(self.own.stop - self.own.start),
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
        """The moved vector in a form with new λ, the coordinates being the same.

        ``data`` is the precision that the information sums give each coordinate.
        """
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
        """The coordinates (p, U, ℓ, S) of every chain's moved vector."""
        place = moved[:, : self.parts.size].copy()
        for law in self.laws:
            which = law.which
            place[:, which] = law.form.to_coordinates(place[:, which], *law.at(moved))
        return np.asarray(place)

    def from_coordinates(self, place: Floats, learnt: Floats) -> Floats:
        """The moved vector of coordinates and of scales (log τ, m, log ω, log ρ)."""
        moved = np.hstack([place, learnt])
        for law in self.laws:
            which = law.which
            moved[:, which] = law.form.from_coordinates(moved[:, which], *law.at(moved))
        return moved

    def chain_rule(self, moved: Floats, slope: Floats) -> Floats:
        """Derivatives by the moved vector, given those by (p, U, ℓ, S) in ``slope``."""
        scales = np.zeros((len(slope), self.size - self.parts.size))
        found = np.hstack([slope, scales])
        for law in self.laws:
            which = law.which
            found[:, which], by_centre, by_scale = law.form.chain_rule(
                moved[:, which], *law.at(moved), slope[:, which]
            )
            law.add_by_scales(found, by_scale)
            if law.centre is not None:
                found[:, law.centre] += by_centre
        return found

    def normal(self, means: Means) -> tuple[Floats, Floats, Floats]:
        """The normal prior of every moved entry that has no law of its own.

        Its mean (less the entry named in ``pulled_by``) and its precision, shape
        ``(chains, size)``; a precision of zero stands for no such prior. And a of
        :mod:`~.site_means`: the precision matrix of one constant's means is less by
        a a'.
        """
        chains = len(means.scale)
        mean, precision = (
            np.tile(each, (chains, 1)) for each in (self._offsets, self._precisions)
        )
        mean[:, self.parts.means] = means.centre
        precision[:, self.parts.means] = means.scale**-2.0
        return mean, precision, means.along(self._means_size)

    def log_density(self, moved: Floats, means: Means) -> tuple[Floats, Floats]:
        """log p(moved vector | laws of the means), and its gradient."""
        value, gradient = np.zeros(len(moved)), np.zeros_like(moved)
        for law in self.laws:
            here, slopes = law.form.log_density(moved[:, law.which], *law.at(moved))
            log_scale = moved[:, law.scale]
            value += here + law.of_scale.log_density(log_scale)
            gradient[:, law.which] += slopes[0]
            law.add_by_scales(gradient, slopes[2])
            gradient[:, law.scale] += law.of_scale.slope(log_scale)
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
        """Minus the second derivative of :meth:`log_density` at one place, about."""
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
            log_scale = law.at(moved[None])[1][0]
            pull = np.exp(-2.0 * share * log_scale) * np.ones(which.size)
            matrix[which, which] = pull
            own = 2.0 * share**2
            scales = np.full((which.size, 1), law.scale)
            if law.columns is not None:
                scales = np.hstack([scales, law.columns])
            # Each coordinate tells about the sum of the log scales that it has.
            np.add.at(matrix, (scales[:, :, None], scales[:, None, :]), own)
            matrix[law.scale, law.scale] += law.of_scale.precision
            if law.centre is not None:
                # The wide priors that are centred on m too are left out.
                matrix[law.centre, law.centre] = 1e-2 + share**2 * pull.sum()
                matrix[which, law.centre] = matrix[law.centre, which] = -share * pull
        sharp = SHARE_SPREAD**-2.0
        matrix[0, 0] += self._known.size * sharp
        matrix[self._known, 0] = matrix[0, self._known] = -sharp
        return matrix

    def drawn_means(
        self, moved: Floats, before: Means, rng: np.random.Generator
    ) -> Means:
        """A draw of the laws of the means (u, υ and more), given the means U."""
        means = moved[:, self.parts.means]
        if self._sites is not None:
            each = means.reshape(len(means), *self._sites.of_another_site.shape)
            return drawn_by_site(self._sites, each, before, rng, self._tilts)
        each = means.reshape(len(means), len(self.parts.constants), -1)
        scales = np.empty_like(each)
        if each.size:
            scales[:, :1] = MEANS.drawn(each[:, :1], rng)
            scales[:, 1:] = STEPS.drawn(np.diff(each, axis=1), rng)
        return Means(before.centre, scales.reshape(len(means), -1))


def _share(data: Floats, scale: float) -> float:
    """λ: the share of a coordinate's precision that comes from the data, on average."""
    if not data.size:
        return 0.5
    return float((data / (data + scale**-2.0)).mean())

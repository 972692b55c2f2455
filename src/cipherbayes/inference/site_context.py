"""What the levels of sites may follow: the means of their patients' columns.

With m_kj the mean of column j at site k, less its average over the sites, site k's
level is b_k ~ N(m_k'γ, (1 − f r) τ²) (Mundlak 1978) with

    γ_j ~ N(0, f τ² σ_j²),   σ_j² = 1 / (e (s_j² + (0.3 t_j)²)),   r = Σ_j σ_j² s_j²,

f = :data:`FOLLOWED`, e the number of columns, s_j² the mean square of m_kj over the
sites and t_j the standard deviation of column j over all patients. So τ is how much
levels differ in all, whatever the columns' units. All columns together explain the
share f r of that to be expected, and a column the less of it the more alike its sites
are; r ≤ 1. Were γ free of τ, sites that hardly differ would be told to differ wherever
noise hides their levels.

Where hospitals with older patients are also worse ones, a model without γ takes part of
that for an effect of age, and the more so the less the data say of patients within
sites. Each site counts as one observation there, so γ must be free to be large: with a
prior of the size of an effect's, the pull on the effect of age would stay.

The information matrix H has means in which a record counts by its information. Where
that depends on the linear predictor η, the means depend on the site's level, which must
not be mistaken for a level that follows them. With Σ the covariance of the columns
within sites, β their effects and l_k the derivative of the log of a record's
information by η, the mean is too large by about l_k Σβ (exactly so where columns are
normal and l_k is constant), which is taken off.

References
----------
Mundlak (1978), On the pooling of time series and cross section data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.typing import Floats, Integers

LARGEST_MEAN = 2.0
"""Largest mean of a column at a site that a level may follow. Columns lie within
[-1, 1] or have about mean 0 and standard deviation 1; an estimated mean that is larger
is mostly noise."""
FOLLOWED = 0.7
"""Share of the variance of the sites' levels that columns are expected to explain where
the sites' means of every column differ much. Small, and a column with which sites get
worse is taken for worse than it is; near one, and levels would be expected to follow
columns and nothing else."""
ALIKE = 0.3
"""Spread of a column's means over the sites, in standard deviations of the column,
below which sites count as alike in it."""


@dataclass(frozen=True)
class FittedInformation:
    """An information matrix, where it was taken, and how records count in it.

    Attributes
    ----------
    information, theta
        H, in the units of θ, and the θ at which it was taken.
    leaning
        l_k of every site.
    """

    information: Floats
    theta: Floats
    leaning: Floats


@dataclass(frozen=True)
class SiteContext:
    """The means that the sites' levels may follow, and the prior of how much they do.

    Attributes
    ----------
    loading
        F of the levels, shape ``(D, K)``.
    constants
        Indices in θ of each site's constants, shape ``(kinds, K)``.
    columns
        Indices in θ of each site's other parameters, shape ``(K, e)``.
    tilts
        l_k Σβ of every site, shape ``(K, e)``.
    scale
        σ_j of every column.
    explained
        r, of the means in the H that this was made of.
    units
        θ in units of this is θ on the prepared scale: H there is H_jk u_j u_k.
    """

    loading: Floats
    constants: Integers
    columns: Integers
    tilts: Floats
    scale: Floats
    explained: float
    units: Floats

    @classmethod
    def of(
        cls,
        slots: SiteSlots,
        loading: Floats,
        fit: FittedInformation,
    ) -> SiteContext:
        """The context of sites whose levels have this F, with σ and l Σβ of one H."""
        information = fit.information
        count = len(slots.sites)
        constants = np.flatnonzero(loading.any(axis=1)).reshape(-1, count)
        fixed = [slots.places[k] for k in constants[:, 0] // count]
        varying = [j for j in range(slots.width) if j not in fixed]
        columns = np.stack([slots.of_site(site)[varying] for site in slots.sites])
        plain, none = np.ones(slots.dimension), np.zeros(columns.shape)
        found = cls(loading, constants, columns, none, none[0], 0.0, plain)
        masses, means = found._means(information)
        share = masses / masses.sum()
        # A column that each site has by itself has its information in as many parts.
        blocks = information[columns[:, :, None], columns[:, None, :]]
        shared = (columns == columns[0]).all(axis=0)
        whole = np.where(shared & shared[:, None], blocks[0], blocks.sum(axis=0))
        within = (whole - (means.T * masses) @ means) / masses.sum()
        tilts = fit.leaning[:, None] * (fit.theta[columns] @ within)
        means = np.clip(means - tilts, -LARGEST_MEAN, LARGEST_MEAN)
        total = np.maximum(np.diag(within), 0.0)
        total = total + share @ (means - share @ means) ** 2
        away = ((means - means.mean(axis=0)) ** 2).mean(axis=0)
        spread = np.maximum(away + ALIKE**2 * total, 1e-300)
        scale = 1.0 / np.sqrt(len(varying) * spread)
        explained = float((scale**2 * away).sum())
        return cls(loading, constants, columns, tilts, scale, explained, plain)

    @property
    def own(self) -> float:
        """1 − f r, the share of τ² that the columns are not expected to explain."""
        return 1.0 - FOLLOWED * self.explained

    def inside(self, basis: Floats) -> SiteContext:
        """The same for H and θ in internal units, θ = B · (internal θ), B diagonal."""
        return replace(self, units=1.0 / np.diag(basis))

    def tilted_means(self) -> Floats:
        """What the tilts add to H_kj / H_kk of every site's first constant, (K, D)."""
        rows, found = self.constants[0], np.zeros((len(self.columns), self.units.size))
        units = self.units[rows][:, None] / self.units[self.columns]
        np.put_along_axis(found, self.columns, self.tilts * units, axis=1)
        return found

    def at(self, information: Floats) -> Floats:
        """What γ_j / σ_j adds to θ, for one H or a stack of them, ``(…, D, e)``.

        γ_j / σ_j has variance f τ².
        """
        means = self._means(information)[1] - self.tilts
        means = np.clip(means, -LARGEST_MEAN, LARGEST_MEAN)
        away = means - means.mean(axis=-2, keepdims=True)
        return np.asarray(self.units[:, None] * (self.loading @ (away * self.scale)))

    def pulled_back(self, information: Floats, by_context: Floats) -> Floats:
        """The gradient by H of something with this gradient by :meth:`at`.

        For stacks of both; symmetric, as the gradient of the evidence is.
        """
        masses, means = self._means(information)
        by_away = np.swapaxes(self.loading * self.units[:, None], 0, 1) @ by_context
        by_means = self.scale * (by_away - by_away.mean(axis=-2, keepdims=True))
        inner = np.abs(means - self.tilts) < LARGEST_MEAN
        by_means = np.where(inner, by_means, 0.0)
        by_sums = by_means / masses[..., None]
        by_masses = -(by_sums * means).sum(axis=-1)
        found = np.zeros_like(information)
        for rows in self.constants:
            units = self.units[rows]
            found[..., rows, rows] += by_masses * units**2
            half = 0.5 * by_sums * units[:, None] * self.units[self.columns]
            found[..., rows[:, None], self.columns] += half
            found[..., self.columns, rows[:, None]] += half
        return found

    def _means(self, information: Floats) -> tuple[Floats, Floats]:
        """Masses of the sites, and means over their records, weighted by information.

        A site's mean of column j is H_kj / H_kk.
        """
        rows, units = self.constants, self.units
        masses = (information[..., rows, rows] * units[rows] ** 2).sum(axis=-2)
        mixed = information[..., rows[:, :, None], self.columns]
        mixed = mixed * units[rows][:, :, None] * units[self.columns]
        masses = np.maximum(masses, 1e-300)
        return masses, mixed.sum(axis=-3) / masses[..., None]

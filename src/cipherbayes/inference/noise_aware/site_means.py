"""The prior of the columns' means where they may differ between sites.

With U_kj the mean of column j at site k, the prior is

    U_kj = u_j + t_kj + λ_j f_k + e_kj,   f_k ~ N(0, 1),   e_kj ~ t(10, 0, υ_j),
    u_j ~ N(0, 1),   λ_j ~ N(0, (2 υ_j)²),   υ_j² ~ IG(½, 0.0025).

with u, λ, f and υ learnt and t known: by how much a mean differs because records count
by their information, which depends on the site's level (:mod:`~..site_context`). Which
patients come to a site depends on some factor f, such
as their age or how ill they are. Columns that are correlated with it among patients
then differ with it between sites, in proportion to λ, and together (Pearson 1903). If
the means of a site were taken to be independent, the part of them that noise hides
would be mistaken for correlations within sites. Each column has a υ of its own: with
one for all, the means of a column that is confounded with site would be shrunk too
much, and what they explain would be mistaken for information within sites.

A t law is a mixture of normals, so e_kj has a scale s_kj of its own. Given λ and s, HMC
moves U with f integrated out: the means of site k are normal with precision

    S⁻¹ − a a',   a = S⁻¹λ / √(1 + λ'S⁻¹λ),   S = diag(s_k²).

All else is drawn from its conditional laws (:func:`drawn_by_site`).

References
----------
Pearson (1903), On the influence of natural selection on the variability and
correlation of organs. van Dyk and Park (2008), Partially collapsed Gibbs samplers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.inference.noise_aware.centring import InverseGamma
from cipherbayes.inference.noise_aware.layout import SiteLayout
from cipherbayes.typing import Bools, Floats

SITE_MEANS = InverseGamma(0.5, 0.0025)
"""Prior of υ_j², the variance between sites of a column's means; the median of υ_j is
about 0.1. It has a heavy tail: in most columns sites are much alike, in some not at
all."""
SITE_DF = 10.0
"""Degrees of freedom of e: a few sites, often small ones, are far from the others."""
LOADING = 2.0
"""Prior sd of λ_j, in units of υ_j."""
WALK = InverseGamma(1.0, 0.001)
"""Prior of ψ_j², the variance of the change of a site's mean from one baseline interval
to the next; the median of ψ_j is about 0.04."""
MEAN_OF_MEANS = 1.0
"""Prior sd of u_j, a column's mean over all sites; columns lie within [-1, 1]."""
OWN_MEAN = 1.0
"""Prior sd of the mean of a column that one site has, at that site."""
NO_MEAN = 0.01
"""Prior sd of the mean of such a column at the other sites, where it is zero."""
LEAST_TOGETHER = 3
"""Fewest sites for which the common factor f is used; with fewer, it cannot be told
from e."""


@dataclass(frozen=True)
class Means:
    """The normal law of the means U, one row for each chain.

    Where sites do not differ there is one centre and one scale, υ, for all means. Where
    they may, a mean that is centred on that of the interval before has the centre and
    the scale of the difference, and no λ.

    Attributes
    ----------
    centre, scale
        u_j and s_kj of each mean.
    spread
        υ_j of each column; None where sites do not differ.
    loading
        λ_j of each mean, shape ``(chains, b, e)``; None where sites do not differ.
    """

    centre: Floats
    scale: Floats
    spread: Floats | None = None
    loading: Floats | None = None

    def along(self, size: int) -> Floats:
        """a of every mean, zero where there is no λ, shape ``(chains, size)``."""
        if self.loading is None:
            return np.zeros((len(self.scale), size))
        pull = self.loading / self.scale.reshape(self.loading.shape) ** 2
        length = np.sqrt(1.0 + (pull * self.loading).sum(axis=2, keepdims=True))
        return np.asarray((pull / length).reshape(-1, size))

    def precisions(self, rows: int, columns: int) -> Floats:
        """Typical precision matrix of each row of U over the chains, ``(rows, e, e)``.

        From the median scale and the mean of λλ', because the sign of λ is arbitrary.
        """
        scale = np.broadcast_to(np.median(self.scale, axis=0), rows * columns)
        scale = scale.reshape(rows, 1, columns)
        if self.loading is None:
            return np.asarray(scale**-2.0 * np.eye(columns))
        outer = np.einsum("ckj,cki->kji", self.loading, self.loading)
        covariance = scale**2 * np.eye(columns) + outer / len(self.loading)
        return np.asarray(np.linalg.inv(covariance))


def drawn_by_site(
    sites: SiteLayout,
    means: Floats,
    before: Means,
    rng: np.random.Generator,
    tilts: Floats | None = None,
) -> Means:
    """A draw of λ, u, υ and s given U of shape ``(chains, b, e)``, one after the other.

    f is drawn for this and then dropped. The laws of columns that one site has are
    fixed. Where a baseline has intervals, λ, u, υ and s are those of the first one, and
    ψ is drawn for the others. ``tilts`` is t_kj; None for none.
    """
    chains, b, e = means.shape
    first = b // sites.kinds
    tilt = np.zeros((first, e)) if tilts is None else tilts
    each = means[:, :first] - tilt
    scale = np.broadcast_to(before.scale, (chains, b * e)).reshape(chains, b, e)
    scale = scale[:, :first]
    spread = scale[:, 0] if before.spread is None else before.spread
    shared = sites.others < 0
    own = np.zeros((chains, first))
    together = shared & (first >= LEAST_TOGETHER) & (shared.sum() > 1)
    if together.any():
        centre = np.broadcast_to(before.centre, (chains, b * e)).reshape(chains, b, e)
        if before.loading is None:
            loading = _first_loading(each, shared)
        else:
            loading = before.loading[:, 0]
        pull = loading[:, None, :] / scale**2
        precision = 1.0 + (pull * loading[:, None, :]).sum(axis=2)
        own = (pull * (each + tilt - centre[:, :first])).sum(axis=2) / precision
        own = own + rng.standard_normal(own.shape) / np.sqrt(precision)
    centre, loading = _drawn_lines(each, own, scale, spread, rng)
    loading = np.where(together, loading, 0.0)
    squares = (each - centre[:, None, :] - loading[:, None, :] * own[:, :, None]) ** 2
    weighted = (spread[:, None, :] / scale) ** 2 * squares
    rate = SITE_MEANS.scale + 0.5 * weighted.sum(axis=1)
    rate += 0.5 * (loading / LOADING) ** 2
    shape = SITE_MEANS.shape + 0.5 * first + 0.5 * together
    spread = np.sqrt(rate / rng.gamma(shape, size=rate.shape))
    rates = 0.5 * (SITE_DF * spread[:, None, :] ** 2 + squares)
    scale = np.sqrt(rates / rng.gamma(0.5 * (SITE_DF + 1.0), size=each.shape))
    centres, scales, loadings = np.zeros((3, chains, b, e))
    centres[:, :first], scales[:, :first] = centre[:, None, :] + tilt, scale
    loadings[:, :first] = loading[:, None, :]
    if first < b:
        scales[:, first:] = _drawn_walk(means, first, rng)
    centres = np.where(shared, centres, 0.0)
    scales = np.where(shared, scales, OWN_MEAN)
    scales = np.where(sites.of_another_site, NO_MEAN, scales)
    return Means(
        centres.reshape(chains, -1), scales.reshape(chains, -1), spread, loadings
    )


def _first_loading(means: Floats, shared: Bools) -> Floats:
    """A first guess of λ: the direction in which the sites' means differ most."""
    away = np.where(shared, means - means.mean(axis=1, keepdims=True), 0.0)
    _, sizes, directions = np.linalg.svd(away, full_matrices=False)
    return np.asarray(directions[:, 0] * sizes[:, :1] / np.sqrt(means.shape[1]))


def _drawn_lines(
    means: Floats, own: Floats, scale: Floats, spread: Floats, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """A draw of u_j and λ_j, intercept and slope of each column's means over f."""
    weights, along = scale**-2.0, own[:, :, None]
    p = weights.sum(axis=1) + MEAN_OF_MEANS**-2.0
    q = (weights * along).sum(axis=1)
    r = (weights * along**2).sum(axis=1) + (LOADING * spread) ** -2.0
    right, slope = (weights * means).sum(axis=1), (weights * along * means).sum(axis=1)
    left = r - q**2 / p
    loading = (slope - q / p * right) / left
    loading = loading + rng.standard_normal(loading.shape) / np.sqrt(left)
    centre = (right - q * loading) / p
    return centre + rng.standard_normal(centre.shape) / np.sqrt(p), loading


def _drawn_walk(means: Floats, first: int, rng: np.random.Generator) -> Floats:
    """A draw of ψ_j given U, shape ``(chains, 1, e)``."""
    changes = means[:, first:] - means[:, :-first]
    rate = WALK.scale + 0.5 * (changes**2).sum(axis=1, keepdims=True)
    shape = WALK.shape + 0.5 * changes.shape[1]
    return np.asarray(np.sqrt(rate / rng.gamma(shape, size=rate.shape)))

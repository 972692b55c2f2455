"""How the means of columns differ between sites.

With U_kj the mean of column j at site k, and all but U learnt,

    U_kj = u_j + λ_j f_k + e_kj,   f_k ~ N(0, 1),   e_kj ~ t(10, 0, υ_j),
    u_j ~ N(0, 1),   λ_j ~ N(0, (2 υ_j)²),   υ_j² ~ IG(½, 0.0025).

Who comes to a site depends on something that patients have more or less of, their age
or how ill they are. Columns that go with it among patients then go with it among sites,
in proportion to λ, and with each other (Pearson 1903). Were a site's means taken for
unrelated, then what noise hides of them would be taken for correlations within sites.

Given λ and each e's own scale s_kj (t is a mixture of normals), f_k is integrated out
of what HMC moves: a site's means are normal with the precision

    S⁻¹ − a a',   a = S⁻¹λ / √(1 + λ'S⁻¹λ),   S = diag(s_k²).

Under one υ for all columns the means of one that is confounded with site would be
shrunk, and taken for what it says within sites.

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

SITE_MEANS, SITE_DF = InverseGamma(0.5, 0.0025), 10.0
"""Of υ_j², most likely about 0.07, and degrees of freedom of e: in most columns sites
are much alike, in some not at all, and small sites are less alike than large ones."""
LOADING = 2.0
"""Scale of λ_j over υ_j."""
WALK = InverseGamma(1.0, 0.001)
"""Of ψ_j², most likely about 0.02: how a site's means change between intervals."""
MEAN_OF_MEANS, OWN_MEAN, NO_MEAN = 1.0, 1.0, 0.01
"""sd of u; of the mean of a column that one site has, there, and elsewhere: zero."""
LEAST_TOGETHER = 3
"""Sites, from which on a direction that they have in common can be told."""


@dataclass(frozen=True)
class Means:
    """u and υ of the means U, one row a chain; of all of them, or of one each.

    Where sites may differ ``centre`` and ``scale`` are u_j and s_kj of each mean,
    ``spread`` is υ_j of each column and ``loading`` λ_j of each mean, shape
    ``(chains, b, e)``. A mean that another one pulls has the centre and scale of the
    difference of the two, and no λ.
    """

    centre: Floats
    scale: Floats
    spread: Floats | None = None
    loading: Floats | None = None

    def along(self, size: int) -> Floats:
        """a of every mean, zero where there is none, shape ``(chains, size)``."""
        if self.loading is None:
            return np.zeros((len(self.scale), size))
        pull = self.loading / self.scale.reshape(self.loading.shape) ** 2
        length = np.sqrt(1.0 + (pull * self.loading).sum(axis=2, keepdims=True))
        return np.asarray((pull / length).reshape(-1, size))

    def precisions(self, rows: int, columns: int) -> Floats:
        """About the precision of each row of U, over all chains, ``(rows, e, e)``.

        Of the typical scale and the mean of λλ', whose sign means nothing.
        """
        scale = np.broadcast_to(np.median(self.scale, axis=0), rows * columns)
        scale = scale.reshape(rows, 1, columns)
        if self.loading is None:
            return np.asarray(scale**-2.0 * np.eye(columns))
        outer = np.einsum("ckj,cki->kji", self.loading, self.loading)
        covariance = scale**2 * np.eye(columns) + outer / len(self.loading)
        return np.asarray(np.linalg.inv(covariance))


def drawn_by_site(
    sites: SiteLayout, means: Floats, before: Means, rng: np.random.Generator
) -> Means:
    """λ, u, υ and s given U of shape ``(chains, b, e)``, one after the other.

    f is drawn for it and forgotten. Columns of one site are held fixed; of the
    intervals of a baseline all this is of the first.
    """
    chains, b, e = means.shape
    first = b // sites.kinds
    each = means[:, :first]
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
        own = (pull * (each - centre[:, :first])).sum(axis=2) / precision
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
    centres[:, :first], scales[:, :first] = centre[:, None, :], scale
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
    """λ to begin with: the direction in which the means differ most."""
    away = np.where(shared, means - means.mean(axis=1, keepdims=True), 0.0)
    _, sizes, directions = np.linalg.svd(away, full_matrices=False)
    return np.asarray(directions[:, 0] * sizes[:, :1] / np.sqrt(means.shape[1]))


def _drawn_lines(
    means: Floats, own: Floats, scale: Floats, spread: Floats, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """u_j and λ_j: intercept and slope of each column's means over f."""
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
    """ψ_j given U, shape ``(chains, 1, e)``."""
    changes = means[:, first:] - means[:, :-first]
    rate = WALK.scale + 0.5 * (changes**2).sum(axis=1, keepdims=True)
    shape = WALK.shape + 0.5 * changes.shape[1]
    return np.asarray(np.sqrt(rate / rng.gamma(shape, size=rate.shape)))

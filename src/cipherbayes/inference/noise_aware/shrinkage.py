"""A positive definite estimate of the information matrix H from a noised one, H̃.

A noised matrix may have negative eigenvalues, and its small ones are mostly noise.
:func:`shrunk` splits H̃ into the masses P of the constant columns, the means U of the
other columns and what is left of these, B,

    H = [P, PU; U'P, U'PU + B],

and shrinks U, the diagonal of B and its correlations, each by the share of its spread
that the known noise explains:

    shrunk value = centre + (seen − centre) · spread² / (spread² + noise²).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from cipherbayes.inference.noise_aware.layout import (
    NOTHING,
    ExpectedMasses,
    InformationLayout,
    SiteLayout,
)
from cipherbayes.typing import Floats

LEAST_FLOOR, MOST_FLOOR = 0.002, 0.1
"""Smallest eigenvalue that a shrunk correlation matrix may have: the first where there
is little noise, the second where there is much."""
SPIKE = 1.5
"""Distance of an eigenvalue from one, in units of the noise's largest eigenvalue, from
which on it is taken for real and not for noise."""
SPIKES = 3
"""Largest number of eigenvalues that are taken for real in this way."""
HEIGHT = 0.3
"""Prior sd of the information along the linear predictor around what the other
directions suggest, as an eigenvalue of a correlation matrix."""
LEAST_HEIGHT = 0.1
"""Smallest information along the linear predictor, as an eigenvalue of a correlation
matrix."""
MIDDLE, MIDDLE_SPREAD = 0.5, 0.3
"""Prior mean and sd of g in :func:`fitted_frame`."""
SHARE_SPREAD = 0.2
"""Prior sd of the log information of a column whose share of the mass is known."""
LEAST_MASS = 0.2
"""Smallest estimate of a site's mass, as a share of what is expected of it."""
SPREAD_STEPS = 10
"""Fixed-point steps for the variance of a column's means over the sites."""
LEAST_VARIANCE = 0.01
"""Smallest variance of a column's means by which sites are weighted."""
CLEAR = 3.0
"""Noise standard deviations that a mass must have before anything is divided by it."""


NONE: Mapping[int, float] = MappingProxyType({})
"""No column has an expected information."""


@dataclass(frozen=True)
class OtherCorrelations:
    """Correlations of some columns that another sum says.

    Attributes
    ----------
    columns
        Which parameters they are of.
    seen
        The correlations, with their noise.
    variance
        Variance of one, of noise and of what may be different there.
    """

    columns: tuple[int, ...]
    seen: Floats
    variance: float

    def among(self, parameters: list[int]) -> OtherCorrelations:
        """The same, with columns counted among these parameters."""
        return replace(
            self, columns=tuple(parameters.index(column) for column in self.columns)
        )

    def averaged(self, seen: Floats, edge: float) -> tuple[Floats, float]:
        """Both correlations, weighted by their precision, and the edge of the noise."""
        variance = (0.5 * edge) ** 2 / len(seen)
        share, where = (
            variance / (variance + self.variance),
            np.ix_(*[self.columns] * 2),
        )
        both = seen.copy()
        both[where] += share * (self.seen - both[where])
        return both, edge * float(np.sqrt(1.0 - share))


def shrunk(
    noisy: Floats,
    noise_sd: float,
    layout: InformationLayout = NOTHING,
    other: OtherCorrelations | None = None,
) -> Floats:
    """A positive definite estimate of H from H̃ with diagonal noise ``noise_sd``.

    With P the masses of the constant columns and U = P⁻¹ H̃₁₂ the means of the others,
    the means are shrunk to zero by the share of their size that noise explains, and
    B = H̃₂₂ − U'PU + Σ_j s_H² / 2 P_j is shrunk as below; the last term takes the noise
    that U'PU adds off again. Where a mass is hidden in its noise, the masses are shrunk
    like the diagonal of B, and the means that are taken off are shrunk before. With a
    frame R this is done to R H̃ R' and turned back.

    The diagonal of B is shrunk to its own mean (or to what the layout expects), its
    correlations, averaged with ``other`` ones, to zero as far as noise of this size
    would produce them. Eigenvalues below a floor are raised to it.
    """
    constants, along = layout.constants, layout.along
    if (frame := layout.frame) is not None:
        inverse = np.linalg.inv(frame)
        turned = None if along is None else inverse.T @ along
        unframed = replace(layout, frame=None, along=turned)
        inside = shrunk(frame @ noisy @ frame.T, noise_sd, unframed, other)
        return np.asarray(inverse @ inside @ inverse.T)
    masses = np.diag(noisy)[list(constants)]
    rest = [j for j in range(len(noisy)) if j not in constants]
    sites = layout.sites
    if sites is not None and sites.masses is not None and rest:
        masses, means, remainder = by_site(
            noisy, noise_sd, constants, sites, sites.masses
        )
    elif not constants or not rest:
        return _shrunk(noisy, noise_sd, along, other=other)
    elif masses.min() < CLEAR * noise_sd:
        masses = np.diag(_shrunk(noisy, noise_sd))[list(constants)]
        means = _shrunk_means(noisy[np.ix_(constants, rest)], masses, noise_sd)
        remainder = noisy[np.ix_(rest, rest)] - (means.T * masses) @ means
    else:
        means = _shrunk_means(noisy[np.ix_(constants, rest)], masses, noise_sd)
        remainder = without_means(noisy, noise_sd, constants)[1]
    along = None if along is None else along[rest]
    mixed = masses[:, None] * means
    result = np.zeros_like(noisy)
    result[np.ix_(constants, constants)] = np.diag(masses)
    result[np.ix_(constants, rest)] = mixed
    result[np.ix_(rest, constants)] = mixed.T
    other = None if other is None else other.among(rest)
    own = _shrunk(remainder, noise_sd, along, layout.expected(masses), other)
    result[np.ix_(rest, rest)] = means.T @ mixed + own
    return result


def _shrunk_means(mixed: Floats, masses: Floats, noise_sd: float) -> Floats:
    """The means U of columns, from P U with its noise, shrunk to zero."""
    means = mixed / masses[:, None]
    blurred = 0.5 * (noise_sd / masses[:, None]) ** 2
    size = np.maximum((means**2).mean(axis=1, keepdims=True) - blurred, 0.0)
    return np.asarray(means * size / (size + blurred))


def fitted_frame(
    frame: Floats, noisy: Floats, noise_sd: float, constants: tuple[int, ...]
) -> Floats:
    """The frame R with as much of the other columns in each row as H̃ suggests.

    Row i of the model's frame is e_i + b. With C the part of H̃ around the means, the
    row e_i + g b with g = −e_i'Cb / b'Cb is uncorrelated with b'z. What H̃ says of g is
    shrunk to one half: for the shape of a Weibull hazard g is one where every record is
    followed until its event, and zero where all are followed for the same time. Rows
    have unit length, so that noise is about the same in every entry of R H̃ R'.
    """
    result = frame.copy()
    varying = [j for j in range(len(noisy)) if j not in constants]
    around = without_means(noisy, noise_sd, constants)[1]
    for row, j in enumerate(varying):
        others = frame[j].copy()
        others[j] = 0.0
        added = others[varying]
        length, size = np.linalg.norm(added), float(added @ around @ added)
        if length == 0.0:
            continue
        part = MIDDLE
        if size > CLEAR * noise_sd * length**2:
            seen = -float(around[row] @ added) / size
            error = noise_sd * length / (np.sqrt(2.0) * size)
            trust = MIDDLE_SPREAD**2 / (MIDDLE_SPREAD**2 + error**2)
            part += trust * (seen - MIDDLE)
        result[j] += (part - 1.0) * others
    return np.asarray(result / np.linalg.norm(result, axis=1, keepdims=True))


def without_means(
    noisy: Floats, noise_sd: float, constants: tuple[int, ...]
) -> tuple[Floats, Floats]:
    """The means U and the remainder B of :func:`shrunk`, before they are shrunk."""
    masses = np.diag(noisy)[list(constants)]
    rest = [j for j in range(len(noisy)) if j not in constants]
    means = noisy[np.ix_(constants, rest)] / masses[:, None]
    remainder = noisy[np.ix_(rest, rest)] - (means.T * masses) @ means
    noise = 0.5 * float((noise_sd**2 / masses).sum())
    return means, remainder + noise * np.eye(len(rest))


def by_site(
    noisy: Floats,
    noise_sd: float,
    constants: tuple[int, ...],
    sites: SiteLayout,
    expected: ExpectedMasses,
) -> tuple[Floats, Floats, Floats]:
    """(P, U, B) of a noised H whose constant columns are sites', P and U shrunk.

    The mass of a site is a compromise between what is seen and what is expected of it,
    because that of a small site may be hidden in noise or even negative. The means of
    a column are shrunk to their average over the sites, by the share of their spread
    that noise explains. A column that is confounded with site keeps means that differ:
    what they explain must not be left in B, which stands for the column's information
    within sites. B is also less by what the shrunk means are expected to miss.
    """
    rest = [j for j in range(len(noisy)) if j not in constants]
    seen, doubt = np.diag(noisy)[list(constants)], expected.values * expected.log_sd
    trust = doubt**2 / (doubt**2 + noise_sd**2)
    masses = expected.values + trust * (seen - expected.values)
    masses = np.maximum(masses, LEAST_MASS * expected.values)
    absent = sites.of_another_site
    means = np.where(absent, 0.0, noisy[np.ix_(constants, rest)] / masses[:, None])
    blurred = 0.5 * (noise_sd / masses[:, None]) ** 2
    centre, size = _spread_of_means(means, blurred, sites)
    means = np.where(absent, 0.0, centre + (means - centre) * size / (size + blurred))
    hidden = np.where(absent, 0.0, size * blurred / (size + blurred))
    remainder = noisy[np.ix_(rest, rest)] - (means.T * masses) @ means
    remainder = remainder - np.diag(masses @ hidden)
    return masses, means, remainder


def _spread_of_means(
    means: Floats, blurred: Floats, sites: SiteLayout
) -> tuple[Floats, Floats]:
    """Mean and variance over the sites of each column's means, without their noise.

    In the variance a site has the weight 1 / (variance + its noise)², found by
    fixed-point iteration.
    """
    size = np.ones(means.shape[1])
    centre = np.zeros(means.shape[1])
    for _ in range(SPREAD_STEPS):
        weights = 1.0 / (blurred + np.maximum(size, LEAST_VARIANCE))
        weights = np.where(sites.of_another_site, 0.0, weights)
        # A column that one site has, has one mean: there is nothing to shrink it to.
        centre = (weights * means).sum(axis=0) / weights.sum(axis=0)
        centre = np.where(sites.others >= 0, 0.0, centre)
        weights = weights**2
        over = ((means - centre) ** 2 - blurred) * weights
        size = np.maximum(over.sum(axis=0) / weights.sum(axis=0), 0.0)
    return centre, size


def _shrunk(
    noisy: Floats,
    noise_sd: float,
    along: Floats | None = None,
    expected: Mapping[int, float] = NONE,
    other: OtherCorrelations | None = None,
) -> Floats:
    """A positive definite estimate of a matrix without constant columns.

    ``expected`` is the information to expect of some columns, by their number.
    """
    dimension = noisy.shape[0]
    seen = np.diag(noisy)
    others = np.delete(seen, list(expected)) if len(expected) < dimension else seen
    centre = max(float(others.mean()), noise_sd / np.sqrt(dimension))
    spread = max(float(((others - centre) ** 2).mean()) - noise_sd**2, 0.0)
    diagonal = centre + (seen - centre) * spread / (spread + noise_sd**2)
    diagonal = np.maximum(diagonal, 0.1 * centre)
    for j, own in expected.items():
        spread = (SHARE_SPREAD * own) ** 2
        found = own + (seen[j] - own) * spread / (spread + noise_sd**2)
        diagonal[j] = max(found, 0.1 * own)
    root = np.sqrt(diagonal)
    correlation, edge = correlations(noisy, noise_sd, root)
    if other is not None:
        correlation, edge = other.averaged(correlation, edge)
    floor = MOST_FLOOR
    if dimension > 1:
        # Noise of this size has eigenvalues up to `edge`. All that is not a spike is
        # multiplied by one number, such that its noise has eigenvalues up to one half.
        # Shrinking entry by entry would remove a direction with little information,
        # which is a small entry in many places.
        target = spiked(correlation, edge, None if along is None else root * along)
        kept = min(1.0, 0.5 / edge)
        correlation = target + kept * (correlation - target)
        np.fill_diagonal(correlation, 1.0)
        floor = min(MOST_FLOOR, max(LEAST_FLOOR, edge))
    values, vectors = np.linalg.eigh(correlation)
    values = np.maximum(values, floor)
    correlation = (vectors * values) @ vectors.T
    return np.asarray(correlation * np.outer(root, root))


def correlations(noisy: Floats, noise_sd: float, root: Floats) -> tuple[Floats, float]:
    """Correlations D^-½ H̃ D^-½ of H̃, and the largest eigenvalue of their noise.

    ``root`` is the diagonal of D^½. Symmetric noise of variance v off the diagonal has
    eigenvalues within ± 2 √(d v).
    """
    scales = np.outer(root, root)
    correlation = noisy / scales
    np.fill_diagonal(correlation, 1.0)
    off = ~np.eye(root.size, dtype=bool)
    variance = float((0.5 * (noise_sd / scales[off]) ** 2).mean()) if off.any() else 0.0
    return correlation, max(2.0 * float(np.sqrt(root.size * variance)), 1e-12)


def spiked(correlation: Floats, edge: float, along: Floats | None = None) -> Floats:
    """The matrix to which correlations are shrunk.

    A multiple of the identity, except in the few directions whose eigenvalues stand
    clear of the noise and in the direction ``along``, where the measured value, shrunk
    by its noise, is kept. Columns with a mean or a factor in common give H one
    eigenvalue far above all others, which shrinking to the identity would lose.
    """
    dimension = len(correlation)
    heights, spikes = _standing_out(correlation, SPIKE * edge)
    least = 1.0 / dimension
    bulk = (dimension - heights.sum()) / (dimension - heights.size)
    bulk = max(float(bulk), least)
    centre = bulk * np.eye(dimension) + (spikes * (heights - bulk)) @ spikes.T
    if along is None or not np.any(along):
        return np.asarray(centre)
    direction = along / np.linalg.norm(along)
    pushed = centre @ direction
    before, seen = direction @ pushed, direction @ correlation @ direction
    trust = HEIGHT**2 / (HEIGHT**2 + edge**2 / (2.0 * dimension))
    height = max(float(before + trust * (seen - before)), LEAST_HEIGHT)
    return np.asarray(
        centre - (1.0 - height / before) / before * np.outer(pushed, pushed)
    )


def _standing_out(correlation: Floats, far: float) -> tuple[Floats, Floats]:
    """Eigenvalues farther than ``far`` from one, at least 1 / d, and their vectors."""
    values, vectors = np.linalg.eigh(correlation)
    values = np.maximum(values, 1.0 / values.size)
    strengths = np.abs(np.log(values))
    strengths[np.abs(values - 1.0) <= far] = 0.0
    strongest = np.argsort(-strengths)[: min(SPIKES, values.size // 3)]
    chosen = strongest[strengths[strongest] > np.log(2.0)]
    return values[chosen], vectors[:, chosen]


@dataclass(frozen=True)
class SeenCorrelations:
    """How columns are correlated according to a noised information sum.

    Attributes
    ----------
    diagonal
        A shrunk estimate of the diagonal of B.
    seen, estimate
        The noised correlations, and a positive definite estimate of them.
    edge
        The largest eigenvalue of their noise.
    """

    diagonal: Floats
    seen: Floats
    estimate: Floats
    edge: float

    @property
    def noise(self) -> float:
        """Variance of the noise of one correlation."""
        return (0.5 * self.edge) ** 2 / len(self.seen)


def seen_correlations(
    noisy: Floats,
    noise_sd: float,
    constants: tuple[int, ...],
    columns: tuple[int, ...] | None = None,
    other: OtherCorrelations | None = None,
) -> SeenCorrelations:
    """Correlations of the columns that vary, or of some of them, their means off."""
    rest = [j for j in range(len(noisy)) if j not in constants]
    remainder = noisy
    if constants:
        remainder = without_means(noisy, noise_sd, constants)[1]
    if columns is not None:
        chosen = [rest.index(j) for j in columns]
        remainder, rest = remainder[np.ix_(chosen, chosen)], list(columns)
    other = None if other is None else other.among(rest)
    estimate = _shrunk(remainder, noise_sd, other=other)
    diagonal = np.diag(estimate).copy()
    root = np.sqrt(diagonal)
    seen, edge = correlations(remainder, noise_sd, root)
    if other is not None:
        seen, edge = other.averaged(seen, edge)
    return SeenCorrelations(diagonal, seen, estimate / np.outer(root, root), edge)


def estimation_error(
    noisy: Floats,
    noise_sd: float,
    constants: tuple[int, ...],
    other: OtherCorrelations | None = None,
) -> tuple[float, Floats]:
    """The error of :func:`shrunk`: (e, r) with E(H_jk − Ĥ_jk)² about e r_j r_k.

    For entries off the diagonal between columns that vary; r is zero elsewhere. With n
    the noise variance of a correlation, t the mean square of the true correlations
    around their spikes and k the share of them that was kept, e = k² n + (1 − k)² t.
    """
    varying = np.array([j for j in range(len(noisy)) if j not in constants])
    found = seen_correlations(noisy, noise_sd, constants, other=other)
    off = ~np.eye(varying.size, dtype=bool)
    around = (found.seen - spiked(found.seen, found.edge))[off]
    true = max(float((around**2).mean()) - found.noise, 0.0)
    kept = min(1.0, 0.5 / found.edge)
    sizes = np.zeros(len(noisy))
    sizes[varying] = found.diagonal
    return kept**2 * found.noise + (1.0 - kept) ** 2 * true, sizes


def noise_edge(noisy: Floats, noise_sd: float, constants: tuple[int, ...]) -> float:
    """The largest eigenvalue that noise alone gives the correlations of H̃."""
    return seen_correlations(noisy, noise_sd, constants).edge

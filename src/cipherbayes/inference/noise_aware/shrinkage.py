"""A positive definite estimate of the information matrix from a noised one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from cipherbayes.typing import Bools, Floats, Integers

LEAST_FLOOR, MOST_FLOOR = 0.002, 0.1
"""Floor of a shrunk correlation's eigenvalues, with little and with much noise."""
SPIKE, SPIKES = 1.5, 3
"""How far out of the noise's spectrum a spike is, and how many there are at most."""
HEIGHT, LEAST_HEIGHT = 0.3, 0.1
"""How much the height along the linear predictor differs from the usual, and its
least."""
MIDDLE, MIDDLE_SPREAD = 0.5, 0.3
"""g of :func:`fitted_frame`, where nothing is seen of it, and how much it differs."""
SHARE_SPREAD = 0.2
"""Of the logarithm of a column's information where it is known."""
LEAST_MASS = 0.2
"""Share of the mass to expect that a site's estimated mass has at least."""
SPREAD_STEPS, LEAST = 10, 0.01
"""Steps of the iteration for the variance of a column's means, and its least."""
CLEAR = 3.0
"""How far out of its noise the mass of a constant column must be to be divided by."""


@dataclass(frozen=True)
class SiteLayout:
    """Whose columns are whose, where sites may differ.

    Attributes
    ----------
    constants, others
        The site of each constant column, and of each other; -1 for all sites.
    masses, spread
        The mass to expect of each constant, and the sd of its logarithm; None where
        the constants belong to all sites.
    """

    constants: Integers
    others: Integers
    masses: Floats | None
    spread: Floats | None

    @property
    def kinds(self) -> int:
        """Constants of every site: the intervals of a baseline, or one."""
        if self.masses is None:
            return 1
        return self.constants.size // np.unique(self.constants).size

    @property
    def apart(self) -> Bools:
        """Where a mean is zero because its column is another site's, ``(b, e)``."""
        one, other = self.constants[:, None], self.others[None, :]
        return np.asarray((one >= 0) & (other >= 0) & (one != other))


@dataclass(frozen=True)
class InformationLayout:
    """What is known about H at one θ before it is seen.

    Attributes
    ----------
    constants
        Which parameters have a constant column, or columns that exclude each other.
    frame
        R of unrelated columns R z.
    along
        Coefficients of which the direction may be flatter than others: where the weight
        of a record depends on its linear predictor, that varies less.
    shares
        (j, s) where the information of column j of R z, its mean apart, is about s
        times the mass of the constant column.
    sites
        Whose columns are whose, where sites may differ.
    """

    constants: tuple[int, ...] = ()
    frame: Floats | None = None
    along: Floats | None = None
    shares: tuple[tuple[int, float], ...] = ()
    sites: SiteLayout | None = None

    def expected(self, masses: Floats) -> dict[int, float]:
        """Information by the column's number among those that vary."""
        before = {j: sum(c < j for c in self.constants) for j, _ in self.shares}
        return {j - before[j]: share * float(masses[0]) for j, share in self.shares}


NOTHING = InformationLayout()
NONE: Mapping[int, float] = MappingProxyType({})


def shrunk(
    noisy: Floats, noise_sd: float, layout: InformationLayout = NOTHING
) -> Floats:
    """A positive definite estimate of H from H̃ with diagonal noise ``noise_sd``.

    With P the masses of the constant columns and U = P⁻¹ H̃₁₂ the means of the others,
    the means are shrunk to zero by the share of their size that noise explains, and
    B = H̃₂₂ − U'PU + Σ_j s_H² / 2 P_j (the noise of U, squared, taken off again) is
    shrunk as below. Plain where a mass is hidden in its noise. In a frame R all this is
    done to R H̃ R'.

    The diagonal is shrunk to its mean by the share of its spread that the known
    noise explains, or to what is expected of it, the correlations to zero as far as
    their noise has eigenvalues of their own size; eigenvalues get a floor.
    """
    constants, along = layout.constants, layout.along
    if (frame := layout.frame) is not None:
        inverse = np.linalg.inv(frame)
        turned = None if along is None else inverse.T @ along
        unframed = replace(layout, frame=None, along=turned)
        inside = shrunk(frame @ noisy @ frame.T, noise_sd, unframed)
        return np.asarray(inverse @ inside @ inverse.T)
    masses = np.diag(noisy)[list(constants)]
    rest = [j for j in range(len(noisy)) if j not in constants]
    if layout.sites is not None and layout.sites.masses is not None and rest:
        masses, means, remainder = by_site(noisy, noise_sd, constants, layout.sites)
    elif not constants or not rest or masses.min() < CLEAR * noise_sd:
        return _shrunk(noisy, noise_sd, along)
    else:
        means, remainder = without_means(noisy, noise_sd, constants)
        blurred = 0.5 * (noise_sd / masses[:, None]) ** 2
        size = np.maximum((means**2).mean(axis=1, keepdims=True) - blurred, 0.0)
        means = means * size / (size + blurred)
    along = None if along is None else along[rest]
    mixed = masses[:, None] * means
    result = np.zeros_like(noisy)
    result[np.ix_(constants, constants)] = np.diag(masses)
    result[np.ix_(constants, rest)] = mixed
    result[np.ix_(rest, constants)] = mixed.T
    own = _shrunk(remainder, noise_sd, along, layout.expected(masses))
    result[np.ix_(rest, rest)] = means.T @ mixed + own
    return result


def fitted_frame(
    frame: Floats, noisy: Floats, noise_sd: float, constants: tuple[int, ...]
) -> Floats:
    """A frame whose rows add as much of other columns as H̃ says, in unit length.

    Row i of R is e_i + b; with C the part of H̃ around the means, g b with
    g = −e_i'Cb / b'Cb makes it unrelated to b'z. A noised g is shrunk to one half: the
    shape of a Weibull hazard has one where every record is followed as far as its
    hazard goes, and zero where all are followed for the same time. Rows of one length,
    because noise is then about the same in every entry of R H̃ R'.
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
        found = MIDDLE
        if size > CLEAR * noise_sd * length**2:
            seen = -float(around[row] @ added) / size
            error = noise_sd * length / (np.sqrt(2.0) * size)
            trust = MIDDLE_SPREAD**2 / (MIDDLE_SPREAD**2 + error**2)
            found += trust * (seen - MIDDLE)
        result[j] += (found - 1.0) * others
    return np.asarray(result / np.linalg.norm(result, axis=1, keepdims=True))


def without_means(
    noisy: Floats, noise_sd: float, constants: tuple[int, ...]
) -> tuple[Floats, Floats]:
    """(U, B) of :func:`shrunk`, before anything is shrunk."""
    masses = np.diag(noisy)[list(constants)]
    rest = [j for j in range(len(noisy)) if j not in constants]
    means = noisy[np.ix_(constants, rest)] / masses[:, None]
    remainder = noisy[np.ix_(rest, rest)] - (means.T * masses) @ means
    noise = 0.5 * float((noise_sd**2 / masses).sum())
    return means, remainder + noise * np.eye(len(rest))


def by_site(
    noisy: Floats, noise_sd: float, constants: tuple[int, ...], sites: SiteLayout
) -> tuple[Floats, Floats, Floats]:
    """(P, U, B) where each constant column is a site's, P and U shrunk.

    A site's mass is what is seen of it and what its size says, weighted by their
    noise: a small site's mass by itself may be hidden or negative. The means of one
    column, over the sites, are shrunk to their own mean by the share of their own
    spread that noise explains: where a column is confounded with site its means
    spread, and what they explain must not be left in B, which is what tells of its
    effect within sites. What noise hides of U P U is taken off B with it.
    """
    assert sites.masses is not None
    assert sites.spread is not None
    rest = [j for j in range(len(noisy)) if j not in constants]
    seen, doubt = np.diag(noisy)[list(constants)], sites.masses * sites.spread
    trust = doubt**2 / (doubt**2 + noise_sd**2)
    masses = sites.masses + trust * (seen - sites.masses)
    masses = np.maximum(masses, LEAST_MASS * sites.masses)
    means = np.where(sites.apart, 0.0, noisy[np.ix_(constants, rest)] / masses[:, None])
    blurred = 0.5 * (noise_sd / masses[:, None]) ** 2
    centre, size = _spread_of_means(means, blurred, sites)
    means = np.where(
        sites.apart, 0.0, centre + (means - centre) * size / (size + blurred)
    )
    hidden = np.where(sites.apart, 0.0, size * blurred / (size + blurred))
    remainder = noisy[np.ix_(rest, rest)] - (means.T * masses) @ means
    remainder = remainder - np.diag(masses @ hidden)
    return masses, means, remainder


def _spread_of_means(
    means: Floats, blurred: Floats, sites: SiteLayout
) -> tuple[Floats, Floats]:
    """Mean and variance over sites of each column's means, their noise taken off.

    Sites count by what they tell, 1 / (variance + noise)² of the variance, which is
    found by fixed-point iteration.
    """
    size = np.ones(means.shape[1])
    centre = np.zeros(means.shape[1])
    for _ in range(SPREAD_STEPS):
        weights = np.where(sites.apart, 0.0, 1.0 / (blurred + np.maximum(size, LEAST)))
        # A column of one site has one mean, which no other tells of.
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
) -> Floats:
    dimension = noisy.shape[0]
    seen = np.diag(noisy)
    usual = np.delete(seen, list(expected)) if len(expected) < dimension else seen
    centre = max(float(usual.mean()), noise_sd / np.sqrt(dimension))
    spread = max(float(((usual - centre) ** 2).mean()) - noise_sd**2, 0.0)
    diagonal = centre + (seen - centre) * spread / (spread + noise_sd**2)
    diagonal = np.maximum(diagonal, 0.1 * centre)
    for j, own in expected.items():
        spread = (SHARE_SPREAD * own) ** 2
        found = own + (seen[j] - own) * spread / (spread + noise_sd**2)
        diagonal[j] = max(found, 0.1 * own)
    root = np.sqrt(diagonal)
    correlation, edge = correlations(noisy, noise_sd, root)
    floor = MOST_FLOOR
    if dimension > 1:
        # Noise of this size has eigenvalues up to its edge: what is no spike is kept
        # as far as that stays below one half. Entry by entry a direction with little
        # information, a small entry in many places, would be shrunk away.
        centre_of = spiked(correlation, edge, None if along is None else root * along)
        kept = min(1.0, 0.5 / edge)
        correlation = centre_of + kept * (correlation - centre_of)
        np.fill_diagonal(correlation, 1.0)
        floor = min(MOST_FLOOR, max(LEAST_FLOOR, edge))
    values, vectors = np.linalg.eigh(correlation)
    values = np.maximum(values, floor)
    correlation = (vectors * values) @ vectors.T
    return np.asarray(correlation * np.outer(root, root))


def correlations(noisy: Floats, noise_sd: float, root: Floats) -> tuple[Floats, float]:
    """H̃ scaled by D^-½ on both sides, and where the spectrum of its noise ends.

    Symmetric noise of variance v off the diagonal has eigenvalues within ± 2 √(d v).
    """
    scales = np.outer(root, root)
    correlation = noisy / scales
    np.fill_diagonal(correlation, 1.0)
    off = ~np.eye(root.size, dtype=bool)
    variance = float((0.5 * (noise_sd / scales[off]) ** 2).mean()) if off.any() else 0.0
    return correlation, max(2.0 * float(np.sqrt(root.size * variance)), 1e-12)


def spiked(correlation: Floats, edge: float, along: Floats | None = None) -> Floats:
    """A multiple of the identity, and the few directions that stand out of the noise.

    And the one direction ``along``, whose height is as measured, shrunk by its noise.

    Columns with a mean, or with a factor in common, give H one eigenvalue far above
    all others; no amount of shrinking entry by entry does justice to both.
    """
    dimension = len(correlation)
    heights, apart = _standing_out(correlation, SPIKE * edge)
    least = 1.0 / dimension
    bulk = (dimension - heights.sum()) / (dimension - heights.size)
    bulk = max(float(bulk), least)
    centre = bulk * np.eye(dimension) + (apart * (heights - bulk)) @ apart.T
    if along is None or not np.any(along):
        return np.asarray(centre)
    direction = along / np.linalg.norm(along)
    pushed = centre @ direction
    usual, seen = direction @ pushed, direction @ correlation @ direction
    trust = HEIGHT**2 / (HEIGHT**2 + edge**2 / (2.0 * dimension))
    height = max(float(usual + trust * (seen - usual)), LEAST_HEIGHT)
    return np.asarray(
        centre - (1.0 - height / usual) / usual * np.outer(pushed, pushed)
    )


def _standing_out(correlation: Floats, far: float) -> tuple[Floats, Floats]:
    """Eigenvalues far out of the noise, at least 1 / d, and their vectors."""
    values, vectors = np.linalg.eigh(correlation)
    values = np.maximum(values, 1.0 / values.size)
    strengths = np.abs(np.log(values))
    strengths[np.abs(values - 1.0) <= far] = 0.0
    strongest = np.argsort(-strengths)[: min(SPIKES, values.size // 3)]
    chosen = strongest[strengths[strongest] > np.log(2.0)]
    return values[chosen], vectors[:, chosen]


def estimation_error(
    noisy: Floats, noise_sd: float, constants: tuple[int, ...]
) -> tuple[float, Floats]:
    """What :func:`shrunk` is wrong by: (e, r) with E(H_jk − Ĥ_jk)² about e r_j r_k.

    Off the diagonal of the columns that vary; r is zero elsewhere. With n the noise
    of a correlation, t the mean square of the true ones around their spikes and k the
    share of them that was kept, e = k² n + (1 − k)² t.
    """
    varying = np.array([j for j in range(len(noisy)) if j not in constants])
    remainder = without_means(noisy, noise_sd, constants)[1] if constants else noisy
    diagonal = np.diag(_shrunk(remainder, noise_sd))
    correlation, edge = correlations(remainder, noise_sd, np.sqrt(diagonal))
    off = ~np.eye(varying.size, dtype=bool)
    noise = (0.5 * edge) ** 2 / varying.size
    around = (correlation - spiked(correlation, edge))[off]
    true = max(float((around**2).mean()) - noise, 0.0)
    kept = min(1.0, 0.5 / edge)
    sizes = np.zeros(len(noisy))
    sizes[varying] = diagonal
    return kept**2 * noise + (1.0 - kept) ** 2 * true, sizes

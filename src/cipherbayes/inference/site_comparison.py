"""Sites beside each other: what a meta-analysis would say, and who weighs how much.

What rows or releases say of θ of all sites is taken as a normal likelihood
exp(r'θ − ½ θ'Qθ); with Λ the prior's precision the posterior is N(V (r + Λ μ₀), V),
V = (Q + Λ)⁻¹.

*Meta-analysis.* Each site's own parameters are estimated as if sites told nothing of
each other, and combined with random effects (DerSimonian and Laird 1986): two stages,
the common effects taken from all sites.

*Influence.* A site's parameters are set free from those of all others, so that it says
no more where sites lie; what it says within itself stays. The shift of the common
parameters, in posterior standard deviations, is what the site by itself brought about.

References
----------
DerSimonian and Laird (1986), Meta-analysis in clinical trials.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.inference.between_sites import SitePrior
from cipherbayes.typing import Floats

FREE = 1e4
"""Variance of a site's deviation that says nothing, over the study's own."""
GRID, MOST = 200, 5.0
"""Values of τ that are looked at, and the largest over the prior's scale."""


@dataclass(frozen=True)
class SiteComparison:
    """On the prepared scale.

    Attributes
    ----------
    common
        The parameters of one model as a meta-analysis has them.
    standard_errors, between
        Of the parameters that differ between sites, and their τ by its moments.
    likely
        The root mean square of τ under its prior and what sites' estimates say of it:
        few sites leave large ones open, which is what a common level is wide by.
    influence
        Shift of every common parameter without a site, in posterior standard
        deviations, shape ``(K, d)``.
    """

    common: Floats
    standard_errors: Floats
    between: Floats
    influence: Floats
    likely: Floats


def compare_sites(
    prior: SitePrior, quadratic: Floats, linear: Floats, between: Floats
) -> SiteComparison:
    """What a normal likelihood says of the sites.

    Parameters
    ----------
    quadratic, linear
        Q and r.
    between
        A typical τ of every group.
    """
    slots, places = prior.slots, list(prior.slots.places)
    apart = np.diag(FREE * prior.covariance(prior.start).diagonal())
    estimate, covariance = _posterior(prior, quadratic, linear, apart)
    common = np.empty(slots.width)
    shared = list(slots.shared)
    common[shared] = estimate[slots.slots :]
    errors, spreads, likely = np.empty((3, len(places)))
    for k, place in enumerate(places):
        own = slots.copies(place)
        alone = np.sqrt(np.diag(covariance)[own])
        common[place], errors[k], spreads[k] = random_effects(estimate[own], alone)
        likely[k] = likely_spread(estimate[own], alone, prior.width)
    influence = np.zeros((len(slots.sites), slots.width))
    if prior.groups:
        usual = prior.covariance(between)
        before, spread = _common(prior, quadratic, linear, usual)
        for k, site in enumerate(slots.sites):
            free = usual.copy()
            own = slots.of_site(site)[places]
            free[own, own] += FREE * usual[own, own]
            after, _ = _common(prior, quadratic, linear, free)
            influence[k] = (after - before) / spread
    return SiteComparison(common, errors, spreads, influence, likely)


def common_sd(prior: SitePrior, quadratic: Floats, between: Floats) -> Floats:
    """Posterior sd of the common parameters, for a likelihood's Q and a τ."""
    if prior.groups:
        nothing = np.zeros(len(quadratic))
        return _common(prior, quadratic, nothing, prior.covariance(between))[1]
    covariance = np.linalg.inv(quadratic + np.linalg.inv(prior.covariance(prior.start)))
    slots = prior.slots
    mean = slots.loading / slots.loading.sum(axis=0)
    return np.asarray(np.sqrt(np.diag(mean.T @ covariance @ mean)))


def random_effects(estimates: Floats, errors: Floats) -> tuple[float, float, float]:
    """Mean, its standard error and τ of DerSimonian and Laird."""
    weights = 1.0 / errors**2
    mean = float(weights @ estimates / weights.sum())
    excess = float(weights @ (estimates - mean) ** 2) - (estimates.size - 1)
    room = float(weights.sum() - (weights**2).sum() / weights.sum())
    variance = max(excess / room, 0.0) if room > 0.0 else 0.0
    weights = 1.0 / (errors**2 + variance)
    mean = float(weights @ estimates / weights.sum())
    return mean, float(weights.sum() ** -0.5), float(np.sqrt(variance))


def likely_spread(estimates: Floats, errors: Floats, width: float) -> float:
    """√E τ² with a half-normal prior of scale ``width`` and a flat one of the mean."""
    grid = width * (np.arange(GRID) + 0.5) / GRID * MOST
    weights = 1.0 / (grid[:, None] ** 2 + errors**2)
    total = weights.sum(axis=1)
    mean = weights @ estimates / total
    square = (weights * (estimates - mean[:, None]) ** 2).sum(axis=1)
    log_density = 0.5 * (np.log(weights).sum(axis=1) - np.log(total) - square)
    log_density -= 0.5 * (grid / width) ** 2
    density = np.exp(log_density - log_density.max())
    return float(np.sqrt(density @ grid**2 / density.sum()))


def _posterior(
    prior: SitePrior, quadratic: Floats, linear: Floats, covariance: Floats
) -> tuple[Floats, Floats]:
    precision = np.linalg.inv(covariance)
    found = np.linalg.inv(quadratic + precision)
    return found @ (linear + precision @ prior.mean), found


def _common(
    prior: SitePrior, quadratic: Floats, linear: Floats, covariance: Floats
) -> tuple[Floats, Floats]:
    """Posterior mean and sd of the common parameters."""
    mean, spread = _posterior(prior, quadratic, linear, covariance)
    loading, variances = prior.slots.loading, prior.common.scale**2
    # c given θ is linear in θ: its mean follows θ's, its variance adds up.
    gain = (loading * variances).T @ np.linalg.inv(covariance)
    common = prior.common.mean + gain @ (mean - prior.mean)
    own = np.diag(variances) - gain @ (loading * variances)
    total = np.diag(own + gain @ spread @ gain.T)
    return common, np.sqrt(np.maximum(total, 1e-300))

"""How sites compare: a meta-analysis of them, and each one's influence.

The likelihood of θ of all sites, from rows or releases, is taken to be normal,
exp(r'θ − ½ θ'Qθ). With Λ the prior's precision the posterior is N(V (r + Λ μ₀), V),
V = (Q + Λ)⁻¹.

*Meta-analysis.* In a first stage each site's own parameters are estimated as if sites
said nothing about each other; in a second they are combined with random effects
(DerSimonian and Laird 1986). Parameters that all sites share are estimated from all.

*Influence.* The prior link between a site's parameters and those of the others is cut,
so that the site no longer says where sites lie; its records still inform the shared
parameters. The resulting shift of the common parameters, in posterior standard
deviations, is the site's influence.

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
"""Factor on a prior variance that makes the prior say nothing."""
GRID = 200
"""Number of values of τ at which its density is computed."""
MOST = 5.0
"""Largest of these values, as a multiple of the prior's scale."""


@dataclass(frozen=True)
class SiteComparison:
    """How sites compare, on the prepared scale.

    Attributes
    ----------
    common
        The parameters of one model, as a meta-analysis estimates them.
    standard_errors, between
        Standard errors of the parameters that differ between sites, and the moment
        estimate of their τ.
    likely
        Posterior root mean square of τ, given its prior and the sites' estimates. With
        few sites large values remain possible, and they make the common parameters'
        intervals wide.
    influence
        Shift of every common parameter when a site's link is cut, in posterior
        standard deviations, shape ``(K, d)``.
    """

    common: Floats
    standard_errors: Floats
    between: Floats
    influence: Floats
    likely: Floats


def compare_sites(
    prior: SitePrior, quadratic: Floats, linear: Floats, between: Floats
) -> SiteComparison:
    """Meta-analysis and influence of the sites, for a normal likelihood.

    Parameters
    ----------
    quadratic, linear
        Q and r of the likelihood.
    between
        A typical τ of every group.
    """
    slots, places = prior.slots, list(prior.slots.places)
    no_prior = np.diag(FREE * prior.covariance(prior.start).diagonal())
    estimate, covariance = _posterior(prior, quadratic, linear, no_prior)
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
        linked = prior.covariance(between)
        before, spread = _common(prior, quadratic, linear, linked)
        for k, site in enumerate(slots.sites):
            free = linked.copy()
            own = slots.of_site(site)[places]
            free[own, own] += FREE * linked[own, own]
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
    """Mean, its standard error and τ, by the method of DerSimonian and Laird."""
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
    """Posterior mean and covariance of θ, for this prior covariance."""
    precision = np.linalg.inv(covariance)
    found = np.linalg.inv(quadratic + precision)
    return found @ (linear + precision @ prior.mean), found


def _common(
    prior: SitePrior, quadratic: Floats, linear: Floats, covariance: Floats
) -> tuple[Floats, Floats]:
    """Posterior mean and sd of the common parameters."""
    mean, spread = _posterior(prior, quadratic, linear, covariance)
    # c given θ is linear in θ: its mean follows θ's, its variance adds up.
    mixed = prior.slots.loading @ prior.common_covariance
    gain = mixed.T @ np.linalg.inv(covariance)
    common = prior.common.mean + gain @ (mean - prior.mean)
    own = prior.common_covariance - gain @ mixed
    total = np.diag(own + gain @ spread @ gain.T)
    return common, np.sqrt(np.maximum(total, 1e-300))

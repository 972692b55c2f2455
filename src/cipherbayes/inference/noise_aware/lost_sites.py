"""A site that is lost on the way, where each site has parameters of its own.

Sums that were released before the loss hold the site's records, those after it do not,
and what all sites share cannot be told apart. So rounds count from the loss on, with
the sites that are left, and those before it say where to go on from only. The lost site
is in the posterior as one that took no part: b ~ N(0, τ²).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cipherbayes.inference.between_sites import Group, SiteDraws, SitePrior
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.method import SiteRecords
from cipherbayes.inference.noise_aware.flags import Flag
from cipherbayes.inference.noise_aware.recursion import NoiseAwareState
from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.models.packing import pack, unpack
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.typing import Floats, Integers

FORGOTTEN = 1e4
"""How many times as noisy a sum counts that was released before a site was lost."""


def remembered(
    memory: Floats, prior: ResolvedPrior
) -> tuple[Floats, tuple[str, ...], NoiseAwareState]:
    """Since when each site is lost, which ones are, and the state of the others.

    A server's memory of a study whose sites may differ begins with a number for each
    site: the round since which it is lost, counted from one, or zero.
    """
    sites = prior.slots.sites if isinstance(prior, SitePrior) else ()
    since = memory[: len(sites)]
    lost = tuple(site for site, when in zip(sites, since, strict=True) if when > 0.0)
    return since, lost, NoiseAwareState.from_vector(memory[len(sites) :])


def without(slots: SiteSlots, lost: tuple[str, ...]) -> SiteSlots:
    """The layout of the sites that are left."""
    left = tuple(site for site in slots.sites if site not in lost)
    return replace(slots, sites=left)


def places_left(slots: SiteSlots, lost: tuple[str, ...]) -> Integers:
    """Where the numbers of the sites that are left stand among those of all."""
    left = without(slots, lost)
    found = np.empty(left.dimension, dtype=np.int64)
    for site in left.sites:
        found[left.of_site(site)] = slots.of_site(site)
    return found


def prior_without(prior: SitePrior, lost: tuple[str, ...]) -> SitePrior:
    """The prior of the sites that are left."""
    kept = places_left(prior.slots, lost)
    groups = []
    for group in prior.groups:
        loading = group.loading[kept]
        groups.append(Group(group.name, loading[:, loading.any(axis=0)]))
    slots = without(prior.slots, lost)
    return SitePrior.of(prior.common, slots, tuple(groups), prior.width)


def records_without(
    records: SiteRecords | None, slots: SiteSlots, lost: tuple[str, ...]
) -> SiteRecords | None:
    """How many records each site that is left has."""
    if records is None:
        return None
    left = [k for k, site in enumerate(slots.sites) if site not in lost]
    return replace(records, counts=records.counts[left])


def state_without(
    state: NoiseAwareState, slots: SiteSlots, lost: tuple[str, ...], share: float
) -> NoiseAwareState:
    """A state of ``slots`` as one of the sites that are left, from this round on.

    Parameters
    ----------
    share
        Of the records, those that are left.
    """
    kept = places_left(slots, lost)
    fading = np.array([1.0, FORGOTTEN**-2.0])  # early rounds' lead the way only
    return replace(
        state,
        theta=state.theta[kept],
        visited=state.visited[:, kept],
        gradients=state.gradients[:, kept],
        gradient_sd=FORGOTTEN * state.gradient_sd,
        information=fading[:, None]
        * np.stack([pack(unpack(e)[np.ix_(kept, kept)]) for e in state.information]),
        information_precision=fading * state.information_precision,
        first_trace=np.array([share, 1.0]) * state.first_trace,
    )


def with_lost(
    draws: Draws, prior: SitePrior, lost: tuple[str, ...], rng: np.random.Generator
) -> Draws:
    """The posterior of the sites that are left, with the lost ones as new sites."""
    sites, comparison = draws.sites, draws.comparison
    assert sites is not None
    assert comparison is not None
    effects = np.concatenate(
        [_site(draws, sites, prior, site, rng) for site in prior.slots.sites], axis=-2
    )
    influence = np.zeros((len(prior.slots.sites), comparison.influence.shape[1]))
    for k, site in enumerate(sites.sites):
        influence[prior.slots.sites.index(site)] = comparison.influence[k]
    return replace(
        draws,
        sites=replace(sites, sites=prior.slots.sites, effects=effects),
        comparison=replace(comparison, influence=influence),
    )


def _site(
    draws: Draws,
    sites: SiteDraws,
    prior: SitePrior,
    site: str,
    rng: np.random.Generator,
) -> Floats:
    """One site's deviations, shape ``(chains, draws, 1, q)``."""
    if site in sites.sites:
        return sites.effects[..., [sites.sites.index(site)], :]
    places, common = list(sites.places), draws.theta
    flat = common.reshape(-1, common.shape[-1])
    if sites.groups:
        between = sites.between.reshape(len(flat), -1)
        away = prior.at_new_site(rng, flat, between) - flat
    else:
        own = prior.common
        away = own.mean + own.scale * rng.standard_normal(flat.shape) - flat
    return away[:, places].reshape(*common.shape[:2], 1, len(places))


def flag_of(lost: tuple[str, ...], counted: int, rounds: int) -> Flag:
    """That sites were lost, and what that cost."""
    names, one = ", ".join(lost), len(lost) == 1
    return Flag(
        "site-lost",
        f"{'site' if one else 'sites'} {names} {'was' if one else 'were'} lost: "
        f"{counted} of {rounds} rounds count, those since then, and "
        f"{'its parameters are' if one else 'their parameters are'} those of a site "
        "that took no part",
        unusable=False,
    )

"""What becomes of a study whose sites may differ when it loses a site between rounds.

Sums released before the loss contain the site's records, sums after it do not, and in
the parameters that all sites share the two cannot be separated. So only rounds after
the loss count in the posterior, with the sites that are left; those before it only say
where θ goes on from. In the posterior the lost site is like one that took no part: its
deviation is b ~ N(0, τ²).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cipherbayes.inference.between_sites import SiteDraws, SitePrior
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.flags import Flag
from cipherbayes.inference.method import SiteRecords
from cipherbayes.inference.noise_aware.recursion import NoiseAwareState
from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.models.packing import pack, unpack
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.typing import Floats, Integers

FORGOTTEN = 1e4
"""Factor on the noise sd of sums that were released before a site was lost: large
enough that they have no weight."""


def read_memory(
    memory: Floats, prior: ResolvedPrior
) -> tuple[Floats, tuple[str, ...], NoiseAwareState]:
    """Since when each site is lost, the names of lost sites, and the rounds' state.

    A server's memory of a study whose sites may differ begins with a number for each
    site: the round since which it is lost, counted from one, or zero.
    """
    sites = prior.slots.sites if isinstance(prior, SitePrior) else ()
    since = memory[: len(sites)]
    lost = tuple(site for site, when in zip(sites, since, strict=True) if when > 0.0)
    return since, lost, NoiseAwareState.from_vector(memory[len(sites) :])


def slots_without(slots: SiteSlots, lost: tuple[str, ...]) -> SiteSlots:
    """The layout of the parameters of the sites that are left."""
    left = tuple(site for site in slots.sites if site not in lost)
    return replace(slots, sites=left)


def places_left(slots: SiteSlots, lost: tuple[str, ...]) -> Integers:
    """Indices, among all sites' parameters, of those of the sites that are left."""
    left = slots_without(slots, lost)
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
        groups.append(replace(group, loading=loading[:, loading.any(axis=0)]))
    slots = slots_without(prior.slots, lost)
    return SitePrior.of(
        prior.common, slots, tuple(groups), prior.width, prior.intervals
    )


def records_without(
    records: SiteRecords | None, slots: SiteSlots, lost: tuple[str, ...]
) -> SiteRecords | None:
    """The numbers of records of the sites that are left."""
    if records is None:
        return None
    left = [k for k, site in enumerate(slots.sites) if site not in lost]
    return replace(records, counts=records.counts[left])


def state_without(
    state: NoiseAwareState, slots: SiteSlots, lost: tuple[str, ...], share: float
) -> NoiseAwareState:
    """The rounds' state for the sites that are left, when sites are lost.

    Parameters
    ----------
    slots
        The layout of ``state``.
    share
        Share of the records that the sites that are left have.
    """
    kept = places_left(slots, lost)
    # The early rounds' information only guides the steps, so it keeps its weight.
    fading = np.array([1.0, FORGOTTEN**-2.0])

    def of_kept(packed: Floats) -> Floats:
        return pack(unpack(packed)[np.ix_(kept, kept)])

    return replace(
        state,
        theta=state.theta[kept],
        visited=state.visited[:, kept],
        gradients=state.gradients[:, kept],
        gradient_sd=FORGOTTEN * state.gradient_sd,
        information=fading[:, None]
        * np.stack([of_kept(each) for each in state.information]),
        information_precision=fading * state.information_precision,
        first_trace=np.array([share, 1.0]) * state.first_trace,
        first_information=of_kept(state.first_information),
        first_information_sd=FORGOTTEN * state.first_information_sd,
    )


def with_lost_sites(draws: Draws, prior: SitePrior, rng: np.random.Generator) -> Draws:
    """The posterior of the sites that are left, with the lost ones as new sites.

    ``prior`` is that of all sites; those that ``draws`` does not have were lost.
    """
    sites, comparison = draws.sites, draws.comparison
    if sites is None or comparison is None:
        raise ValueError("these draws have no sites")
    effects = np.concatenate(
        [_deviations(draws, sites, prior, site, rng) for site in prior.slots.sites],
        axis=-2,
    )
    influence = np.zeros((len(prior.slots.sites), comparison.influence.shape[1]))
    for k, site in enumerate(sites.sites):
        influence[prior.slots.sites.index(site)] = comparison.influence[k]
    return replace(
        draws,
        sites=replace(sites, sites=prior.slots.sites, effects=effects),
        comparison=replace(comparison, influence=influence),
    )


def _deviations(
    draws: Draws,
    sites: SiteDraws,
    prior: SitePrior,
    site: str,
    rng: np.random.Generator,
) -> Floats:
    """Draws of one site's deviations, shape ``(chains, draws, 1, q)``.

    Those of a lost site are drawn from the law of a new site.
    """
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
    """The flag that says which sites were lost and how many rounds still count."""
    names, one = ", ".join(lost), len(lost) == 1
    return Flag(
        "site-lost",
        f"{'site' if one else 'sites'} {names} {'was' if one else 'were'} lost: "
        f"{counted} of {rounds} rounds count, those since then, and "
        f"{'its parameters are' if one else 'their parameters are'} those of a site "
        "that took no part",
        unusable=False,
    )

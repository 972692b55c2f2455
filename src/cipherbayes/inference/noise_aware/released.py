"""The noise-aware method as a server runs it, one release after the other.

:class:`NoiseAwareRounds` keeps all that was released in the server's state, lets
:mod:`~.recursion` choose the next θ, and after the last round draws the posterior of
:mod:`~.posterior`. It also takes account of sites that are lost between rounds
(:mod:`~.lost_sites`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cipherbayes.inference.between_sites import SitePrior
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.method import PublicFacts
from cipherbayes.inference.noise_aware import lost_sites
from cipherbayes.inference.noise_aware.posterior import sample_posterior
from cipherbayes.inference.noise_aware.recursion import NoiseAware, NoiseAwareState
from cipherbayes.inference.noise_aware.schedule import ROUNDS
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.inference.released import Recursion, Release, ServerState
from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.models.packing import pack
from cipherbayes.typing import Floats


class NoiseAwareRounds(Recursion):
    """The rounds of a noise-aware study, and the posterior of what they released.

    ``memory`` of a state is everything released so far, as one vector
    (:func:`~.lost_sites.read_memory`).
    """

    def __init__(self, facts: PublicFacts) -> None:
        super().__init__(facts.settings, facts.prior)
        self._facts, self._site_records = facts, facts.site_records
        self._site_prior = facts.prior if isinstance(facts.prior, SitePrior) else None

    def start(self) -> ServerState:
        sites = 0 if self._site_prior is None else len(self._site_prior.slots.sites)
        return self._state(np.zeros(sites), (), self._without(()).init())

    def advance(self, state: ServerState, release: Release) -> ServerState:
        since, before, inner = lost_sites.read_memory(state.memory, self.prior)
        if self._site_prior is None:
            return self._state(since, (), self._without(()).advance(inner, release))
        slots = self._site_prior.slots
        lost = tuple(site for site in slots.sites if site in {*before, *release.lost})
        if lost != before:
            inner = lost_sites.state_without(
                inner,
                lost_sites.slots_without(slots, before),
                lost,
                self._share_left(slots, before, lost),
            )
            gone = [site in lost and site not in before for site in slots.sites]
            since = np.where(gone, inner.rounds + 1.0, since)
        kept = lost_sites.places_left(slots, lost)
        matrix = release.information
        if matrix is not None:
            matrix = pack(slots.unpack(matrix)[np.ix_(kept, kept)])
        release = replace(
            release, gradient_sum=release.gradient_sum[kept], information=matrix
        )
        return self._state(since, lost, self._without(lost).advance(inner, release))

    def draws(self, trajectory: Sequence[Floats], last: ServerState) -> Draws | None:
        """The posterior; None before the last round, when there is none yet."""
        if last.rounds < ROUNDS:
            return None
        since, lost, inner = lost_sites.read_memory(last.memory, self.prior)
        seed = self.settings.seed
        posterior = sample_posterior(self._without(lost), inner, seed=seed)
        draws = replace(
            posterior.draws, flags=posterior.flags, leeways=posterior.leeways
        )
        if self._site_records is not None:
            draws = replace(draws, site_records=self._site_records.counts)
        if self._site_prior is None or not lost:
            return draws
        rng = np.random.default_rng([seed, ROUNDS, len(lost)])
        draws = lost_sites.with_lost_sites(draws, self._site_prior, rng)
        counted = ROUNDS + 1 - int(since.max())
        flag = lost_sites.flag_of(lost, counted, ROUNDS)
        return replace(draws, flags=(*draws.flags, flag))

    def _without(self, lost: tuple[str, ...]) -> NoiseAware:
        """The recursion for the sites that are left."""
        prior, facts = self._site_prior, self._facts
        left, slots, records = self.prior, None, None
        if prior is not None:
            records = lost_sites.records_without(self._site_records, prior.slots, lost)
            left = lost_sites.prior_without(prior, lost) if lost else prior
            slots = left.slots
        shape = ScoreShape.of(facts.model, facts.design, slots, records, facts.bound)
        return NoiseAware(left, shape)

    def _share_left(
        self, slots: SiteSlots, before: tuple[str, ...], lost: tuple[str, ...]
    ) -> float:
        """Share of the records that is left when sites beyond ``before`` are lost."""
        known = self._site_records
        counts = np.ones(len(slots.sites)) if known is None else known.counts
        by_site = dict(zip(slots.sites, counts, strict=True))
        first = sum(by_site[site] for site in slots.sites if site not in before)
        return float(sum(by_site[s] for s in slots.sites if s not in lost) / first)

    def _state(
        self, since: Floats, lost: tuple[str, ...], inner: NoiseAwareState
    ) -> ServerState:
        """The server's state; a lost site's own parameters are at the prior mean."""
        position = self._without(lost).position(inner)
        if self._site_prior is not None:
            everyone = self.prior.mean.copy()
            everyone[lost_sites.places_left(self._site_prior.slots, lost)] = position
            position = everyone
        return ServerState(
            position, np.concatenate([since, inner.to_vector()]), inner.rounds
        )

"""How much information each site is expected to have about its own parameters.

Where sites may differ, H has a constant column for each site, or one for each site and
interval of a baseline. Its mass is expected to be the site's share of the records times
what a record tells, which depends on the site's level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, expit

from cipherbayes.inference.method import SiteRecords
from cipherbayes.inference.noise_aware.layout import ExpectedMasses, SiteLayout
from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.typing import Floats, Integers

OWN_CURVATURE = 0.4
"""Prior sd of the log of a site's information over its share of the records, where the
site's level is not known yet."""
AT_LEVEL = 0.2
"""Prior sd of that log once the site's level is taken into account, which changes the
information of a record."""
UNKNOWN_SIZE = 2.0
"""Prior sd of that log where it is not known how many records the site has."""
LEAST_EVENTS, MOST_EVENTS = 1e-3, 0.95
"""Range within which the estimated number of events per record is kept before sites are
compared by it: noise may put it outside of 0 to 1."""
LEAST_TOTAL = 0.1
"""Smallest information of all sites about one kind of constant (such as one interval of
a baseline), in standard deviations of its noise."""
LARGEST_LEVEL = 6.0
"""Largest distance of a site's level from zero, on the logit scale: one event in 400
records."""


@dataclass(frozen=True)
class SiteMasses:
    """What is public of the constants of sites, from which their masses follow.

    Attributes
    ----------
    constants, unit, slots, site_records, once, level_values
        As :class:`~.shape.ScoreShape` has them.
    """

    constants: tuple[int, ...]
    unit: Floats | None
    slots: SiteSlots
    site_records: SiteRecords | None
    once: bool
    level_values: Floats | None

    def layout(
        self, noisy: Floats, noise_sd: float, theta: Floats | None
    ) -> SiteLayout:
        """The sites' layout: a site's mass is expected to be its share of the records.

        θ says how much a record of each site tells; None where it still moves. What is
        shared out is the total of each kind of constant that is to be expected
        given its noised one: what is seen of it may be negative.
        """
        slots = self.slots
        count, place = len(slots.sites), np.arange(slots.dimension)
        owner = np.where(place < slots.slots, place % count, -1)
        constants = np.array(self.constants, dtype=np.int64)
        share, spread = np.full(count, 1.0 / count), np.full(count, UNKNOWN_SIZE)
        counts = None
        if (known := self.site_records) is not None:
            counts = np.maximum(known.counts, 0.5 * known.noise_sd)
            share = counts / counts.sum()
            doubt = OWN_CURVATURE if theta is None else AT_LEVEL
            spread = np.hypot(doubt, known.noise_sd / counts)
        own = owner[constants]
        if own.min(initial=0) < 0:  # a constant that all sites share
            return SiteLayout(own, _others(owner, constants), None)
        # Constants of one kind, the same of every site, stand next to each other.
        totals = np.diag(noisy)[constants].reshape(-1, count).sum(axis=1)
        totals = _known_to_be_positive(totals, noise_sd * np.sqrt(count))
        parts = share[own].reshape(-1, count)
        if theta is not None:
            parts = parts * self._curvatures(theta, parts, totals, counts)
            parts = parts / parts.sum(axis=1, keepdims=True)
        expected = ExpectedMasses((totals[:, None] * parts).ravel(), spread[own])
        return SiteLayout(own, _others(owner, constants), expected)

    def _curvatures(
        self, theta: Floats, shares: Floats, totals: Floats, counts: Floats | None
    ) -> Floats:
        """A record's information about each constant at θ, up to a common factor.

        For a binary outcome it is the variance p (1 − p). For counts it is the expected
        number of events, which grows as exp(level); where a record has one event at
        most, as 1 − exp(−exp(level + c)), with c such that all sites together have as
        many events as was released. In later intervals of a baseline those count who
        had none before: fewer where the level is high.
        """
        constants = list(self.constants)
        levels = theta[constants]
        if self.level_values is not None:
            chance = expit(self.level_values * levels)
            return np.asarray(chance * (1.0 - chance)).reshape(shares.shape)
        if self.unit is None:
            return np.ones_like(shares)
        levels = (levels / self.unit[constants]).reshape(shares.shape)
        if not self.once or counts is None:
            return np.asarray(np.exp(levels))
        units = self.unit[constants].reshape(shares.shape)[:, 0] ** 2
        events = np.clip(totals * units / counts.sum(), LEAST_EVENTS, MOST_EVENTS)
        found, left = np.empty_like(shares), np.ones(shares.shape[1])
        for j, (level, share) in enumerate(zip(levels, shares, strict=True)):
            most = MOST_EVENTS * float(share @ left)
            chance = _at_most_one(level, share * left, min(float(events[j]), most))
            found[j], left = left * chance, left * (1.0 - chance)
        return found

    def leaning(self, theta: Floats, information: Floats) -> Floats:
        """Derivative of the log of a record's information by η, at every site.

        For a binary outcome it is that of p (1 − p). For counts it is one; where a
        record has one event at most, that of the chance q of one.
        """
        constants, count = list(self.constants), len(self.slots.sites)
        if not constants or max(constants) >= self.slots.slots:
            return np.zeros(count)
        masses = np.diag(information)[constants]
        if self.level_values is not None:
            levels = information[constants] @ theta / masses
            levels = np.clip(self.level_values * levels, -LARGEST_LEVEL, LARGEST_LEVEL)
            return np.asarray(1.0 - 2.0 * expit(levels))
        if self.unit is None or not self.once or self.site_records is None:
            return np.ones(count)
        known = self.site_records
        records = np.maximum(known.counts, 0.5 * known.noise_sd)
        events = masses * self.unit[constants] ** 2
        share = events.reshape(-1, count).sum(axis=0) / np.maximum(records, 1.0)
        share = np.clip(share, LEAST_EVENTS, MOST_EVENTS)
        return np.asarray(-(1.0 - share) * np.log1p(-share) / share)


def _known_to_be_positive(seen: Floats, noise_sd: float) -> Floats:
    """The expected value of something positive that is seen with normal noise."""
    # n φ(z) / Φ(z), z = seen / n, added to what is seen; erfcx keeps it from underflow.
    z = np.asarray(seen / (np.sqrt(2.0) * noise_sd))
    more = np.sqrt(2.0 / np.pi) * noise_sd / erfcx(-z)
    return np.asarray(np.maximum(seen + more, LEAST_TOTAL * noise_sd))


def _at_most_one(levels: Floats, shares: Floats, events: float) -> Floats:
    """1 − exp(−exp(level + c)) of each site, c such that their sum is ``events``."""
    from scipy.optimize import brentq  # takes half a second to load

    def chances(c: float) -> Floats:
        return np.asarray(-np.expm1(-np.exp(levels + c)))

    most = float(np.abs(levels).max()) + 20.0
    return chances(brentq(lambda c: shares @ chances(c) - events, -most, most))


def _others(owner: Integers, constants: Integers) -> Integers:
    """The site of each column that is not constant; -1 for a column of all sites."""
    return np.delete(owner, constants)

"""The layout of θ of all sites: which entries are one site's, which are shared.

Some parameters of a model differ between sites (the intercept, a slope); a slot is one
of them at one site. θ of all sites begins with the slots, parameter by parameter and
within each site by site, and ends with the parameters that all sites share:

    θ = (a_1 … a_K, [slope_1 … slope_K, …] β).

A record of site k depends on θ_k = θ[of_site(k)] only. Its score is zero in the slots
of other sites, and so are the rows and columns of its information matrix: over all
sites the matrix has the shape of an arrow. Only entries that can differ from zero are
released. With q slots at each of K sites and c shared parameters these are K q (q + 1)
/ 2 + K q c + c (c + 1) / 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cipherbayes.typing import Floats, Integers


@dataclass(frozen=True)
class SiteSlots:
    """The layout of θ of all sites.

    Attributes
    ----------
    sites
        All sites, in order.
    width
        Number of parameters of one site's model.
    places
        Which of them differ between sites.
    members
        (site, name) for each site that shares its own parameters with other sites;
        ``name`` stands for these sites together and is one of ``sites``.

    Formal guarantees
    -----------------
    :meth:`spread` and :meth:`spread_packed` put every number of one site's sums in a
    place of its own and add nothing: they are isometries, so a record moves the sums
    over all sites exactly as far as those of its own site.
    """

    sites: tuple[str, ...]
    width: int
    places: tuple[int, ...]
    members: tuple[tuple[str, str], ...] = ()

    def owner(self, site: str) -> str:
        """The entry of ``sites`` whose parameters a site has."""
        return dict(self.members).get(site, site)

    @property
    def shared(self) -> tuple[int, ...]:
        """Numbers of the model's parameters that all sites share."""
        return tuple(j for j in range(self.width) if j not in self.places)

    @property
    def slots(self) -> int:
        """How many entries of θ belong to one site each."""
        return len(self.sites) * len(self.places)

    @property
    def dimension(self) -> int:
        """How many entries θ has."""
        return self.slots + len(self.shared)

    def of_site(self, site: str) -> Integers:
        """Indices in θ of one site's parameters, in the order of its model."""
        return self._by_site[self.owner(site)]

    @cached_property
    def _by_site(self) -> dict[str, Integers]:
        count, shared = len(self.sites), list(self.shared)
        found = {}
        for number, site in enumerate(self.sites):
            own = np.empty(self.width, dtype=np.int64)
            for k, place in enumerate(self.places):
                own[place] = k * count + number
            own[shared] = self.slots + np.arange(len(shared))
            found[site] = own
        return found

    def copies(self, place: int) -> Integers:
        """Indices in θ of one parameter of the model: one for each site, or one."""
        return np.unique([self.of_site(site)[place] for site in self.sites])

    def names(self, parameters: Sequence[str]) -> tuple[str, ...]:
        """Names of all entries of θ, from those of one site's parameters."""
        own = [f"{parameters[p]}[{site}]" for p in self.places for site in self.sites]
        return (*own, *(parameters[p] for p in self.shared))

    def expanded(self, values: Floats) -> Floats:
        """One number for each entry of θ, from one for each model parameter."""
        return np.asarray(values @ self.loading.T)

    @cached_property
    def loading(self) -> Floats:
        """E with E c = θ where all sites have the parameters c, shape ``(D, d)``."""
        found = np.zeros((self.dimension, self.width))
        for site in self.sites:
            found[self.of_site(site), np.arange(self.width)] = 1.0
        return found

    @cached_property
    def _entries(self) -> tuple[Integers, Integers]:
        """Rows and columns of the entries that are released, in their order."""
        owner = np.full(self.dimension, -1)
        owner[: self.slots] = np.arange(self.slots) % len(self.sites)
        above, right = np.triu_indices(self.dimension)
        one, other = owner[above], owner[right]
        kept = (one == other) | (one < 0) | (other < 0)
        return above[kept], right[kept]

    @property
    def packed_length(self) -> int:
        """How many entries of the information matrix are released."""
        return self._entries[0].size

    def spread(self, site: str, vector: Floats) -> Floats:
        """One site's score sum as one of θ, zero in the slots of other sites."""
        found = np.zeros(self.dimension)
        found[self.of_site(site)] = vector
        return found

    def spread_packed(self, site: str, packed: Floats) -> Floats:
        """One site's packed information sum as one of θ, zero for other sites."""
        found = np.zeros(self.packed_length)
        found[self._packed_places[self.owner(site)]] = packed
        return found

    @cached_property
    def _packed_places(self) -> dict[str, Integers]:
        number = np.zeros((self.dimension, self.dimension), dtype=np.int64)
        number[self._entries] = np.arange(self.packed_length)
        above, right = np.triu_indices(self.width)
        places = {}
        for site in self.sites:
            one, other = self.of_site(site)[above], self.of_site(site)[right]
            low, high = np.minimum(one, other), np.maximum(one, other)
            places[site] = number[low, high]
        return places

    def unpack(self, vector: Floats) -> Floats:
        """The symmetric information matrix of packed entries."""
        above, right = self._entries
        matrix = np.zeros((self.dimension, self.dimension))
        values = vector / np.where(above == right, 1.0, np.sqrt(2.0))
        matrix[above, right] = matrix[right, above] = values
        return matrix

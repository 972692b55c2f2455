"""How many colluders part the masks of the others: ``python colluders.py``.

Masks of a large roster run along a circle (``peers_of``) whose degree k exceeds the
number of colluders that the study names. For 1,000 sites and each of some degrees:

* *worst placed*: the fewest colluders that part the honest sites when they may choose
  their places last. Found by search: k/2 neighbours go in two places;
* *placed by chance*: how often a share of all sites, drawn at random, parts the others,
  in the circle and in a random graph of the same degree (Bell et al. 2020).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

SITES, DEGREES, SHARES = 1000, (10, 20, 40), (0.1, 0.2, 1 / 3, 0.5)
Edges = NDArray[np.int64]


def circle(sites: int, degree: int) -> Edges:
    """Each site and the ``degree`` / 2 that follow it."""
    places = np.arange(sites)
    steps = range(1, degree // 2 + 1)
    return np.array([(places, (places + s) % sites) for s in steps]).transpose(0, 2, 1)


def random_graph(sites: int, degree: int, rng: np.random.Generator) -> Edges:
    """A union of ``degree`` / 2 random circles: a few edges may be double."""
    orders = [rng.permutation(sites) for _ in range(degree // 2)]
    return np.array([(each, np.roll(each, -1)) for each in orders]).transpose(0, 2, 1)


def parts(edges: Edges, sites: int, gone: Sequence[int] | Edges) -> int:
    """Pieces that the other sites fall into."""
    honest = np.ones(sites, dtype=bool)
    honest[gone] = False
    flat = edges.reshape(-1, 2)
    flat = flat[honest[flat].all(axis=1)]
    graph = csr_matrix((np.ones(len(flat)), flat.T), shape=(sites, sites))
    _, labels = connected_components(graph, directed=False)
    return len(set(labels[honest].tolist()))


def fewest_that_part(edges: Edges, sites: int, degree: int) -> int:
    """The smallest attack by two gaps of neighbours around an arc of honest sites."""
    for count in range(1, degree + 2):
        for left in range(count + 1):
            # An arc of one site, `left` colluders before it and the others behind it.
            gone = [*range(1, count - left + 1), *(-1 - i for i in range(left))]
            if parts(edges, sites, gone) > 1:
                return count
    return degree + 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    for degree in DEGREES:
        ring = circle(SITES, degree)
        fewest = fewest_that_part(ring, SITES, degree)
        for share in SHARES:
            count = round(share * SITES)
            parted = [0, 0]
            for _ in range(options.draws):
                gone = rng.choice(SITES, count, replace=False)
                graphs = (ring, random_graph(SITES, degree, rng))
                for index, edges in enumerate(graphs):
                    parted[index] += parts(edges, SITES, gone) > 1
            line = {
                "degree": degree,
                "fewest_worst_placed": fewest,
                "colluders_by_chance": count,
                "circle_parted": parted[0] / options.draws,
                "random_graph_parted": parted[1] / options.draws,
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

"""What a site's masks cost in a round as the roster grows: ``python many_sites.py``.

Every size is measured in turn, again and again, so that a busy machine slows all alike.
"""

from __future__ import annotations

import json
import statistics
import time

from cipherbayes_research.benchmarks.rosters import QUESTION, FirstSite

SIZES = (2, 16, 64, 256, 1000)
DIMENSION, ROUNDS = 184, 200


def main() -> None:
    sites = {count: FirstSite(count) for count in SIZES}
    taken: dict[int, list[float]] = {count: [] for count in SIZES}
    for number in range(ROUNDS):
        for count, site in sites.items():
            exchange = site.exchange(number)
            start = time.perf_counter()
            site.masks.total(exchange, site.roster, QUESTION, DIMENSION)
            taken[count].append(time.perf_counter() - start)
    middle = {count: statistics.median(each) for count, each in taken.items()}
    for count, site in sites.items():
        line = {
            "sites": count,
            "joining_ms": round(1e3 * site.joining_s, 2),
            "round_ms": round(1e3 * middle[count], 3),
            "over_16_sites": round(middle[count] / middle[16], 2),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()

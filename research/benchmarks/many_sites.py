"""What a round costs one site as the roster grows: ``python many_sites.py``.

Its masks alone, and all of its work: question, gradient over 50 rows, noise, ledger,
masks, encryption, signature. CPU time; every size is measured in turn, again and again,
so that a busy machine slows all alike.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.protocols.messages import RoundRequest, decode, encode
from cipherbayes.storage.custody import VARIABLE
from cipherbayes_research.benchmarks.iteration import bench_study, random_table
from cipherbayes_research.benchmarks.rosters import QUESTION, FirstSite

SIZES = (16, 64, 256, 1000)
DIMENSION, ROWS, ROUNDS, WARM_UP = 184, 50, 60, 5


class WholeSite:
    """The first of several sites, after all of them joined a run."""

    def __init__(self, sites: int, folder: Path) -> None:
        study = bench_study(DIMENSION, sites, ROUNDS, ROWS)
        table = random_table(study, ROWS)
        run = RunFolder.create(folder, study, dict.fromkeys(study.sites))
        server, _ = run.server()
        offer = run.csp().offer()
        first, *others = study.sites
        self._site = run.site(first, table)
        entries = [self._site.enrol()]
        entries += [run.site(name, table).enrol() for name in others]
        start = time.process_time()
        self._site.join(server.convene(entries, offer), offer)
        self.joining_s = time.process_time() - start
        _, request = server.request()
        self._request = decode(request, RoundRequest)

    def round(self, number: int) -> float:
        """CPU seconds of the site's work in a round."""
        exchange = replace(self._request.round_id, round=number)
        request = encode(replace(self._request, round_id=exchange))
        start = time.process_time()
        self._site.handle(request)
        return time.process_time() - start


def main() -> None:
    masked = {count: FirstSite(count) for count in SIZES}
    taken: dict[int, list[float]] = {count: [] for count in SIZES}
    whole: dict[int, list[float]] = {count: [] for count in SIZES}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ[VARIABLE] = str(Path(scratch) / "state")
        sites = {n: WholeSite(n, Path(scratch) / str(n)) for n in SIZES}
        for number in range(ROUNDS):
            for count, site in masked.items():
                exchange = site.exchange(number)
                start = time.process_time()
                site.masks.total(exchange, site.roster, QUESTION, DIMENSION)
                taken[count].append(time.process_time() - start)
                whole[count].append(sites[count].round(number))
    masks, rounds = (
        {count: statistics.median(each[WARM_UP:]) for count, each in times.items()}
        for times in (taken, whole)
    )
    for count, joined in sites.items():
        line = {
            "sites": count,
            "joining_ms": round(1e3 * joined.joining_s, 1),
            "masks_ms": round(1e3 * masks[count], 3),
            "masks_over_16_sites": round(masks[count] / masks[16], 2),
            "round_ms": round(1e3 * rounds[count], 2),
            "round_over_16_sites": round(rounds[count] / rounds[16], 2),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()

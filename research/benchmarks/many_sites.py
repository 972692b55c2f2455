"""What a site's masks cost in a round as the roster grows: ``python many_sites.py``.

Every size is measured in turn, again and again, so that a busy machine slows all alike.
"""

from __future__ import annotations

import json
import statistics
import time

from cipherbayes.crypto.identity.roster import Member, Roster
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.crypto.masks import ExchangeKey, PairwiseMasks
from cipherbayes.crypto.wire.transcript import RoundId

SIZES = (2, 16, 64, 256, 1000)
DIMENSION, ROUNDS = 184, 200
RUN, STUDY, QUESTION = bytes(16), bytes(32), bytes(32)


class Site:
    """The first site of a roster of so many."""

    def __init__(self, count: int) -> None:
        keys = {f"s{k:04d}": ExchangeKey.generate() for k in range(count)}
        self.roster = Roster.of(
            Member.enrol(
                SigningKey.generate(),
                run=RUN,
                study=STUDY,
                site=name,
                exchange=key.public,
            )
            for name, key in keys.items()
        )
        start = time.perf_counter()
        self.masks = PairwiseMasks(
            "s0000", keys["s0000"], self.roster, run=RUN, study=STUDY, colluders=1
        )
        self.joining = time.perf_counter() - start
        self.rounds: list[float] = []

    def round(self, number: int) -> None:
        exchange = RoundId(RUN, STUDY, number, 0, "gradient", self.roster.digest)
        start = time.perf_counter()
        self.masks.total(exchange, self.roster, QUESTION, DIMENSION)
        self.rounds.append(time.perf_counter() - start)


def main() -> None:
    sites = {count: Site(count) for count in SIZES}
    for number in range(ROUNDS):
        for site in sites.values():
            site.round(number)
    middle = {count: statistics.median(site.rounds) for count, site in sites.items()}
    for count, site in sites.items():
        line = {
            "sites": count,
            "joining_ms": round(1e3 * site.joining, 2),
            "round_ms": round(1e3 * middle[count], 3),
            "over_16_sites": round(middle[count] / middle[16], 2),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()

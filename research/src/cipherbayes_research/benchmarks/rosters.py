"""A site that has enrolled with others, for measurements of its masks."""

from __future__ import annotations

import time

from cipherbayes.crypto.identity.roster import Member, Roster
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.crypto.masks import ExchangeKey, PairwiseMasks
from cipherbayes.crypto.wire.transcript import RoundId

RUN, STUDY, QUESTION = bytes(16), bytes(32), bytes(32)


class FirstSite:
    """The first of several sites: its roster and its masks.

    Attributes
    ----------
    joining_s
        Seconds that making the masks' keys took.
    """

    def __init__(self, sites: int) -> None:
        keys = {f"s{k:04d}": ExchangeKey.generate() for k in range(sites)}
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
        self.joining_s = time.perf_counter() - start

    def exchange(self, number: int) -> RoundId:
        """A round of the whole roster."""
        return RoundId(RUN, STUDY, number, 0, "gradient", self.roster.digest)

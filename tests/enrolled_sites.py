"""Sites that enrolled in one run, with the masks that each shares with the others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cipherbayes.crypto.ckks.masking import RingMask, ring_mask
from cipherbayes.crypto.ckks.parameters import CkksParameters
from cipherbayes.crypto.identity.roster import Member, Roster
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.crypto.masks import ExchangeKey, PairwiseMasks
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.typing import Integers

RUN, STUDY, QUESTION = b"r" * 16, b"s" * 32, b"q" * 32


class EnrolledSites:
    def __init__(self, names: Iterable[str]) -> None:
        self.keys = {name: ExchangeKey.generate() for name in names}
        self.roster = Roster.of(
            Member.enrol(
                SigningKey.generate(),
                run=RUN,
                study=STUDY,
                site=name,
                exchange=key.public,
            )
            for name, key in self.keys.items()
        )
        self.masks = {name: self.masks_of(name) for name in self.keys}

    def masks_of(self, name: str) -> PairwiseMasks:
        key = self.keys[name]
        return PairwiseMasks(name, key, self.roster, run=RUN, study=STUDY, colluders=1)

    def ring_mask(
        self,
        name: str,
        parameters: CkksParameters,
        dimension: int,
        *,
        round: int = 0,
        question: bytes = QUESTION,
    ) -> RingMask:
        """What a site adds to its CKKS message of a round."""
        exchange = round_id(self.roster, round)
        masks = self.masks[name]
        return ring_mask(masks, exchange, self.roster, question, parameters, dimension)


def round_id(roster: Roster, round: int = 0, attempt: int = 0) -> RoundId:
    return RoundId(RUN, STUDY, round, attempt, "gradient", roster.digest)


def slot_order(ring: int) -> Integers:
    """Where in a transform SEAL's slot j is: at the root 3^j."""
    return np.array([pow(3, j, 2 * ring) // 2 for j in range(ring // 2)])

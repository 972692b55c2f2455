"""The server of a secure sum: passes the sites' ciphertexts on to the CSP."""

from __future__ import annotations

from collections.abc import Mapping

from cipherbayes.protocols.messages import (
    DecryptRequest,
    KeyOffer,
    decode,
    encode,
)
from cipherbayes.protocols.secure_sum.plan import SecureSumPlan
from cipherbayes.protocols.server import Server


class SecureSumServer(Server[SecureSumPlan]):
    """The party that drives a secure sum."""

    def take_offer(self, offer: bytes) -> bytes:
        key = decode(offer, KeyOffer)
        key.verify(self._pinned["csp"])
        return key.key_id

    def collect(self, answers: Mapping[str, bytes | None]) -> bytes | None:
        roster = self.roster()
        exchange = self.exchange(roster)
        replies, lost = [], []
        for site in roster.sites:
            reply = self.read_reply(site, answers.get(site), exchange)
            if reply is None:
                lost.append(site)
            else:
                replies.append(reply)
        if self.stopped is not None:
            return None
        if lost:
            self.lose(lost, len(roster))
            return None
        return encode(DecryptRequest(exchange, tuple(replies)))

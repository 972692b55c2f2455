"""Questions to a CSP, honest and not, and what its key was used on."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from parties import Consortium, refusal

from cipherbayes.crypto.bfv.ciphertext import Ciphertext
from cipherbayes.crypto.bfv.keys import SecretKey
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.protocols.messages import (
    DecryptReply,
    DecryptRequest,
    SiteReply,
    decode,
    encode,
)


@pytest.fixture
def decrypted(monkeypatch: pytest.MonkeyPatch) -> list[Ciphertext]:
    """What the secret key was used on."""
    seen: list[Ciphertext] = []
    honest = SecretKey.decrypt

    def spy(self: Any, ciphertext: Any) -> Any:
        seen.append(ciphertext)
        return honest(self, ciphertext)

    monkeypatch.setattr(SecretKey, "decrypt", spy)
    return seen


def signed(
    consortium: Consortium, site: str, exchange: RoundId, ciphertext: bytes
) -> Any:
    """What a dishonest site could sign."""
    return SiteReply.signed(
        consortium.keys[site], round_id=exchange, site=site, ciphertext=ciphertext
    )


def total_of(consortium: Consortium, question: DecryptRequest) -> np.ndarray:
    return sum(consortium.unmasked(reply) for reply in question.replies)  # type: ignore[no-any-return]


def refused(
    three: Consortium,
    question: Any,
    reason: Any,
    decrypted: list[Ciphertext],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Refused with a logged reason, nothing decrypted, the round still open."""
    data = question if isinstance(question, bytes) else encode(question)
    with caplog.at_level(logging.WARNING, logger="cipherbayes.csp"):
        answer = refusal(three.csp.handle(data))
    assert (answer.party, answer.reason) == ("csp", reason)
    assert reason.value in caplog.text
    assert answer.text in caplog.text
    assert decrypted == []
    decode(three.csp.handle(encode(three.question())), DecryptReply)


def theta_of(consortium: Consortium, number: int) -> np.ndarray:
    """θ that a round asked at."""
    return consortium.checkpoint.trajectory()[number - 1]

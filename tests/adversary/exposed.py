"""The defences, each with the switch that removes it, and what an attack then sees.

A test runs an attack twice: inside ``without(...)`` it must succeed, outside it must
fail. So an attack that is merely broken cannot pass for a defence that works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tenseal.sealapi as sealapi
from parties import Consortium

from cipherbayes.crypto.bfv import SecretKey
from cipherbayes.crypto.ciphertext import Ciphertext
from cipherbayes.crypto.masks import PairwiseMasks
from cipherbayes.crypto.seal import scheme
from cipherbayes.planning import Phase, StudyPlan
from cipherbayes.protocol.contributions import Question
from cipherbayes.protocol.messages import DecryptRequest, KeyOffer, SiteReply
from cipherbayes.protocol.stores import AnswerStore


def _nothing(*_: Any, **__: Any) -> None:
    """A check that lets everything pass."""


def _no_mask(self: PairwiseMasks, exchange: Any, roster: Any, size: int) -> Any:
    return np.zeros(size, dtype=np.int64)


def _all_slots(self: SecretKey, ciphertext: Ciphertext) -> Any:
    """SEAL's own decryption: every slot of the first chunk, nothing checked."""
    parts = scheme(self.parameters)
    plain, cipher = sealapi.Plaintext(), sealapi.Ciphertext()
    parts.ciphertext.write(cipher, ciphertext.polynomials[0], parts.context)
    self._decryptor.decrypt(cipher, plain)
    return np.array(parts.encoder.decode_uint64(plain), dtype=np.int64)


SWITCHES: dict[str, list[tuple[type, str, Any]]] = {
    "signatures": [(SiteReply, "verify", _nothing)],
    "offer": [(KeyOffer, "verify", _nothing)],
    "masks": [(PairwiseMasks, "total", _no_mask)],
    "minimum": [(StudyPlan, "minimum_roster", 1)],
    "one answer": [
        (AnswerStore, "answer", _nothing),
        (AnswerStore, "keep", lambda self, number, reply: reply),
        (AnswerStore, "rounds", lambda self: 0),
    ],
    "distinct sites": [(DecryptRequest, "__post_init__", _nothing)],
    "well-formed ciphertexts": [(Ciphertext, "__post_init__", _nothing)],
    "slots": [(SecretKey, "decrypt", _all_slots)],
    "range": [(Phase, "in_range", lambda self, total: True)],
}


@contextmanager
def without(*defences: str) -> Iterator[None]:
    """The same code with some of its defences taken out."""
    with pytest.MonkeyPatch.context() as patch:
        for defence in defences:
            for owner, name, harmless in SWITCHES[defence]:
                patch.setattr(owner, name, harmless)
        yield


class Silent:
    """A site that leaves out its noise."""

    insecure = True

    def share(self, dimension: int, scale: float, label: str = "") -> Any:
        return np.zeros(dimension, dtype=np.int64)


def exact(consortium: Consortium, name: str, theta: Any, number: int = 0) -> Any:
    """A site's sum on the grid without noise: what nobody else may learn."""
    phase = consortium.plan.phase_of(number)
    assert phase is not None
    total = consortium.contributions(name).total(phase, Question(np.asarray(theta)))
    return phase.privacy.to_grid(total)


def certified(consortium: Consortium) -> float:
    """σΔ: the noise, in grid units, that must stand between a coalition and a sum."""
    release = consortium.plan.gradient.privacy
    return release.noise_multiplier * release.sensitivity


def centred(words: Any, bits: int) -> Any:
    """Representatives of words modulo 2^bits around zero."""
    return (words + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def totals(
    consortium: Consortium, rounds: int, at: Callable[[int], Any] | None = None
) -> list[Any]:
    """What the server learns in honest rounds; θ may be set round by round."""
    from cipherbayes.protocol.messages import DecryptReply, decode, encode

    found = []
    for number in range(rounds):
        theta = np.zeros(3) if at is None else at(number)
        question = consortium.question(consortium.request(round=number, theta=theta))
        found.append(decode(consortium.csp.handle(encode(question)), DecryptReply))
    return [reply.values for reply in found]

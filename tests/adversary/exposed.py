"""The defences, each with the switch that removes it, and what an attack then sees.

A test runs an attack twice: inside ``without(...)`` it must succeed, outside it must
fail. So an attack that is merely broken cannot pass for a defence that works.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tenseal.sealapi as sealapi
from parties import Consortium

from cipherbayes.crypto.bfv.ciphertext import Ciphertext
from cipherbayes.crypto.bfv.keys import SecretKey
from cipherbayes.crypto.bfv.scheme import bfv_scheme
from cipherbayes.crypto.ckks.masking import RingMask
from cipherbayes.crypto.masks import PairwiseMasks
from cipherbayes.crypto.wire.transcript import transcript
from cipherbayes.engine import local_settings, new_run
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.models import kernels
from cipherbayes.privacy import ledger_file
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.ledger_records import LedgerRecords
from cipherbayes.protocols.encrypted_update import site as encrypted_site
from cipherbayes.protocols.messages import (
    DecryptReply,
    DecryptRequest,
    KeyOffer,
    SiteReply,
)
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.stores import AnswerStore, Checkpoint, Heads
from cipherbayes.protocols.study_plan import StudyPlan
from cipherbayes.results import run as running
from cipherbayes.study import tables
from cipherbayes.study.tables import preparation_of


def _nothing(*_: Any, **__: Any) -> None:
    """A check that lets everything pass."""


def _no_mask(
    self: PairwiseMasks, exchange: Any, roster: Any, question: bytes, size: int
) -> Any:
    return np.zeros(size, dtype=np.int64)


def _all_coefficients(self: SecretKey, ciphertext: Ciphertext) -> Any:
    """SEAL's own decryption: all of the first chunk, nothing checked."""
    parts = bfv_scheme(self.parameters)
    plain, cipher = sealapi.Plaintext(), sealapi.Ciphertext()
    parts.ciphertext.write(cipher, ciphertext.polynomials[0], parts.context)
    self._decryptor.decrypt(cipher, plain)
    plain.resize(self.parameters.ring)
    return parts.plaintext.read(plain).astype(np.int64)


_release = Ledger.release


def _computed_first(self: Ledger, *, compute: Callable[[], bytes], **rest: Any) -> Any:
    """An answer that fails is not charged."""
    answer = compute()
    return _release(self, compute=lambda: answer, **rest)


def _of_no_site(self: Ledger, *, site: str, **rest: Any) -> Any:
    """One answer for all sites of a run."""
    return _release(self, site="one for all", **rest)


def _beside_its_name(data: Path, given: Path, **budget: float) -> Ledger:
    """A ledger for every name that a table goes by."""
    return Ledger.open(Path(f"{data}.ledger"), dataset=data.name, **budget)  # type: ignore[arg-type]


def _sum_of_bytes(facts: Mapping[str, str], link: bytes, custody: Any) -> str:
    """A seal that needs no key."""
    text = "|".join(f"{k}={v}" for k, v in sorted(facts.items()) if k != "seal")
    return hashlib.sha256(link + text.encode()).hexdigest()


def unkeyed_checksum(self: Any, *values: bytes | str | int) -> bytes:
    """A checksum that anyone can make."""
    return hashlib.sha256(transcript("cipherbayes/checkpoint/2", *values)).digest()


unkeyed_seal = _sum_of_bytes


def _no_ring_mask(
    masks: Any, exchange: Any, roster: Any, question: Any, parameters: Any, size: int
) -> RingMask:
    chunks, ring = parameters.chunks(size), parameters.ring
    residues = np.zeros((chunks, parameters.levels, ring), dtype=np.uint64)
    return RingMask(residues, np.zeros((chunks, ring), dtype=np.int64))


_STREAMS = PairwiseMasks.streams


def _streams_for_any_question(
    self: PairwiseMasks, exchange: Any, roster: Any, question: bytes, kind: str
) -> Any:
    return _STREAMS(self, exchange, roster, bytes(32), kind)


def _far_out(self: StudyPlan) -> Any:
    design = preparation_of(self.study).design
    return np.full(len(self.study.model.parameters(design)), 1e17)


def _any_scales(self: StudyPlan, phase: Phase, total: Any, facts: Any) -> Any:
    """Moments as they are asked for: |mean| up to 1, any positive sd."""
    moments = np.repeat([0.0, 1.0], phase.dimension // 2)
    if total[0] < 0.0:
        moments[0] = -1.0
        moments[phase.dimension // 2] = 1.95 / np.finfo(np.float64).max
    return moments


SWITCHES: dict[str, list[tuple[Any, str, Any]]] = {
    "theta bound": [(StudyPlan, "farthest_theta", property(_far_out))],
    "one arithmetic for every place": [
        (kernels, "linear_predictor", lambda theta, x, out=None: np.matmul(theta, x)),
    ],
    "signed scales": [(DecryptReply, "verify", _nothing)],
    "limits of scales": [(StudyPlan, "summarise_release", _any_scales)],
    "charge first": [(Ledger, "release", _computed_first)],
    "sites apart": [(Ledger, "release", _of_no_site)],
    "distinct tables": [
        (running, "refuse_equal_files", _nothing),
        (running, "refuse_equal_rows", _nothing),
        (tables, "refuse_equal_rows", _nothing),
    ],
    "one ledger a table": [
        (local_settings, "open_table_ledger", _beside_its_name),
        (new_run, "ledger_path", lambda local: Path(f"{local['data']}.ledger")),
    ],
    "marks": [(LedgerRecords, "_check_mark", _nothing)],
    "keyed seals": [(ledger_file, "seal", _sum_of_bytes)],
    "keyed checksums": [(Checkpoint, "_checksum", unkeyed_checksum)],
    "remembered ledgers": [(Heads, "check", _nothing)],
    "the end": [(RunFolder, "end", _nothing)],
    "order": [(Ledger, "rounds", lambda self, run, site: 10**6)],
    "signatures": [(SiteReply, "verify", _nothing)],
    "offer": [(KeyOffer, "verify", _nothing)],
    "masks": [(PairwiseMasks, "total", _no_mask)],
    "ring masks": [(encrypted_site, "ring_mask", _no_ring_mask)],
    "masks of a question": [(PairwiseMasks, "streams", _streams_for_any_question)],
    "minimum": [(StudyPlan, "minimum_roster", 1)],
    "one answer": [
        (AnswerStore, "answer", _nothing),
        (AnswerStore, "keep", lambda self, number, reply: reply),
        (AnswerStore, "rounds", lambda self: 0),
    ],
    "distinct sites": [(DecryptRequest, "__post_init__", _nothing)],
    "well-formed ciphertexts": [(Ciphertext, "__post_init__", _nothing)],
    "coefficients": [(SecretKey, "decrypt", _all_coefficients)],
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
    phase = consortium.plan.phase_at(number)
    total = consortium.contributions(name).total(phase, Question(np.asarray(theta)))
    return phase.sums.to_grid(total)


def certified(consortium: Consortium) -> float:
    """σΔ: the noise, in grid units, that must stand between a coalition and a sum."""
    release = consortium.plan.last_phase.sums
    return release.noise_multiplier * release.sensitivity


def centred(words: Any, bits: int) -> Any:
    """Representatives of words modulo 2^bits around zero."""
    return (words + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def totals(
    consortium: Consortium, rounds: int, at: Callable[[int], Any] | None = None
) -> list[Any]:
    """What the server learns in honest rounds; θ may be set round by round."""
    from cipherbayes.protocols.messages import DecryptReply, decode, encode

    found = []
    for number in range(rounds):
        theta = np.zeros(3) if at is None else at(number)
        question = consortium.question(consortium.request(round=number, theta=theta))
        found.append(decode(consortium.csp.handle(encode(question)), DecryptReply))
    return [reply.values for reply in found]

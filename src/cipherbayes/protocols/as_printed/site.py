"""A site of the paper's own method: gradients without noise, encrypted. Not private."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np

from cipherbayes.crypto.ckks.circuit import SiteEncryptor
from cipherbayes.crypto.ckks.keys import CkksPublicKey
from cipherbayes.crypto.ckks.precomputation import encrypt_values
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.rescaled import RescaledTable
from cipherbayes.errors import ProtocolError
from cipherbayes.inference.gradient import gradient_sum
from cipherbayes.models import Rows
from cipherbayes.protocols.as_printed.plan import UNIT, PrintedPlan
from cipherbayes.protocols.encrypted_update.offers import opened_public
from cipherbayes.protocols.messages import (
    Reason,
    RoundRequest,
    RunManifest,
    SiteReply,
    decode,
)
from cipherbayes.protocols.paper_claim import SMALLEST_GRADIENT
from cipherbayes.protocols.refusals import RefusalError, joined
from cipherbayes.protocols.site import Site
from cipherbayes.typing import Floats, Integers


class PrintedSite(Site[PrintedPlan]):
    """The party that has records, in the paper's own method.

    Parameters
    ----------
    table
        The records.

    Formal guarantees
    -----------------
    None. The whole run is charged to the ledger with the honest ε before the first
    answer; that ε bounds an algorithm that is better than this one.
    """

    def __init__(self, *, table: PreparedTable, **common: Any) -> None:
        super().__init__(**common)
        self._table = table
        self._encryptor: SiteEncryptor | None = None
        self._public_key: CkksPublicKey | None = None

    def take_keys(self, manifest: RunManifest, offer: bytes) -> None:
        public = opened_public(
            offer, self._pinned["csp"], manifest.key_id, f"site {self._name}"
        )
        self._public_key = public
        self._encryptor = self._plan.circuit.encryptor(public)

    def forget(self) -> None:
        super().forget()
        self._encryptor = self._public_key = None

    def respond(self, data: bytes) -> SiteReply:
        """Answer a :class:`RoundRequest`, or refuse."""
        request = decode(data, RoundRequest)
        exchange = request.round_id
        self.check_run(exchange)
        number = exchange.round
        if exchange.purpose != self._plan.purpose(number):
            raise RefusalError(Reason.WRONG_ROUND, "the study has no such round")
        self.agreed_roster(request)
        seed = self._charge()
        question = np.asarray(request.theta)
        if exchange.purpose == "gradient":
            body = self._gradient(question, number, seed)
        else:
            body = self._prepared(exchange.purpose, question)
        return SiteReply.signed(
            self._key, round_id=exchange, site=self._name, ciphertext=body
        )

    def _charge(self) -> bytes:
        """Charge the run once; the entry holds the seed of the minibatches."""

        def compute() -> bytes:
            if self._noise.insecure:
                return hashlib.sha256(self._name.encode()).digest()
            return os.urandom(32)

        return self._ledger.release(
            run=self._run,
            site=self._name,
            round=0,
            purpose="as-printed",
            study=self._plan.study_hash,
            question=hashlib.sha256(b"as-printed").digest(),
            event=self._plan.charge,
            compute=compute,
        )

    def _rounds_answered(self) -> None:
        """The run is charged as a whole: the ledger does not count its rounds."""

    # -- Algorithms 4 and 5 ------------------------------------------------

    def _prepared(self, purpose: str, question: Floats) -> bytes:
        public, width, first = joined(self._public_key), self._plan.columns, self._first
        if purpose == "means":
            count = float(self._table.count)
            sums = np.zeros(width)
            for part in self._table.map(lambda b: b.x[first:].sum(axis=1)):
                sums += part
            counts = encrypt_values(public, np.full(width, count))
            means = encrypt_values(public, sums / count)
            return counts.to_bytes() + means.to_bytes()
        if purpose == "variances":
            _check_size(question, 1 + width)
            records, mean = float(question[0]), question[1:]

            def squares(block: Rows) -> Floats:
                return np.asarray(((block.x[first:] - mean[:, None]) ** 2).sum(axis=1))

            total = sum(self._table.map(squares), start=np.zeros(width))
            return encrypt_values(public, total / records).to_bytes()
        _check_size(question, 2 * width)
        table = RescaledTable(self._table, question[:width], question[width:])
        norms = table.map(
            lambda b: float(np.sqrt((b.x[first:] ** 2).sum(axis=0).max()))
        )
        return encrypt_values(public, np.array([max(norms)])).to_bytes()

    @property
    def _first(self) -> int:
        return 0 if self._table.design.intercept is None else 1

    # -- Algorithm 3 -------------------------------------------------------

    def _gradient(self, question: Floats, number: int, seed: bytes) -> bytes:
        """A minibatch's mean gradient, adjusted, as encrypted fixed-point numbers."""
        plan, table, width = self._plan, self._table, self._plan.columns
        extra = 2 * width if plan.prepared else 0
        _check_size(question, extra + plan.dimension)
        if extra:
            table = RescaledTable(table, question[:width], question[width:extra])
        t = number - plan.prepared + 1
        rows = self._minibatch(seed, t)
        total = gradient_sum(self._study_model, question[extra:], table, rows=rows)
        scale, lipschitz = plan.setting.scale, plan.setting.lipschitz
        gradient = adjusted(total / rows.size, scale, lipschitz)
        fixed = np.rint(gradient / (UNIT * len(plan.study.sites)))
        return joined(self._encryptor).encrypt(fixed.astype(np.int64), t).to_bytes()

    @property
    def _study_model(self) -> Any:
        return self._plan.study.model

    def _minibatch(self, seed: bytes, t: int) -> Integers:
        """τ/K records, the same whenever a round is asked again."""
        size = max(1, self._plan.setting.batch // len(self._plan.study.sites))
        digest = hashlib.sha256(seed + t.to_bytes(8, "little")).digest()
        rng = np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))
        count = self._table.count
        chosen = rng.choice(count, size=min(size, count), replace=False)
        return np.sort(chosen).astype(np.int64)


def adjusted(gradient: Floats, scale: float, lipschitz: float) -> Floats:
    """c·ḡ with magnitudes from 10⁻³ to L.

    As printed, max(g, 10⁻³) turns negative gradients positive, and nothing keeps to
    the L that Theorem 4 takes for granted: V then leaves the interval of the
    polynomial, which throws θ away.
    """
    scaled = scale * gradient
    sizes = np.clip(np.abs(scaled), SMALLEST_GRADIENT, lipschitz)
    return np.asarray(np.copysign(sizes, scaled))


def _check_size(question: Floats, size: int) -> None:
    if question.size != size:
        raise ProtocolError("the question does not have the study's length")

"""The server's side of ``fast`` and ``hardened``: block sums, then the circuit."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from cipherbayes.crypto.ckks.arithmetic import (
    Rehearsal,
    ScaledCiphertext,
    SealArithmetic,
    fill_slots,
)
from cipherbayes.crypto.ckks.blocks import check_round
from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.crypto.ckks.factored import FactoredCircuit, preconditioned
from cipherbayes.crypto.ckks.keys import EvaluationKeys
from cipherbayes.crypto.ckks.round_order import InOrderEvaluator
from cipherbayes.crypto.coefficients import are_reduced
from cipherbayes.crypto.rlwe import set_name
from cipherbayes.crypto.wire.framing import Kind, decode_frame, encode_frame
from cipherbayes.errors import CryptoError
from cipherbayes.typing import Floats

_STATE = struct.Struct("<24s32s32sIIII")


class FactoredEvaluator(InOrderEvaluator):
    """Accumulators of the blocks that count, and the circuit on them."""

    _circuit: FactoredCircuit

    def __init__(
        self, circuit: FactoredCircuit, keys: EvaluationKeys, seal_evaluator: Any = None
    ) -> None:
        super().__init__(circuit, keys)
        self._arithmetic = SealArithmetic(self._scheme, keys.relin, seal_evaluator)
        # Newest block first; every block has one accumulator for each chunk.
        self._sums: list[list[ScaledCiphertext]] = []
        # The same as bytes, of blocks that do not change any more; None where unknown.
        self._stored: list[bytes | None] = []
        # What finished blocks add to R: by block, and multiplied for one round.
        self._past: tuple[int, list[ScaledCiphertext]] | None = None
        self._boosted: tuple[int, list[ScaledCiphertext]] | None = None
        self._expected: tuple[int, bytes, list[Any]] | None = None

    def expect(self, round: int, drift: Floats) -> None:
        if drift.any():
            self._encoded(round, drift)
        if round == self._round + 1:
            self._boosted_past(round)
        circuit, rehearsal = self._circuit, Rehearsal(self._scheme)
        levels = circuit.parameters.levels
        mean = rehearsal.node(circuit.message_scale(round), levels)
        newest = rehearsal.node(1.0, levels)
        present = self._multiplied_sum(rehearsal, newest, round)
        self._directed(rehearsal, mean, present, round, None)
        self._arithmetic.constants = rehearsal.constants

    def _encoded(self, round: int, drift: Floats) -> list[Any]:
        """The drift of a round as SEAL's plaintexts, one for each chunk."""
        asked = drift.tobytes()
        if self._expected is None or self._expected[:2] != (round, asked):
            circuit, slots = self._circuit, self._circuit.parameters.slots
            scale = circuit.message_scale(round) * circuit.multiple(round)
            encoded = [
                self._arithmetic.encoded(
                    fill_slots(drift[start : start + slots], slots),
                    scale,
                    circuit.variance_level,
                )
                for start in range(0, len(drift), slots)
            ]
            self._expected = round, asked, encoded
        return self._expected[2]

    def absorb(self, round: int, messages: Sequence[CkksCiphertext]) -> None:
        circuit, a = self._circuit, self._arithmetic
        self._means = self._admit(round, messages, circuit.message_scale(round))
        squares = [a.square(a.copy(mean)) for mean in self._means]
        if circuit.place(round) == 0:
            self._sums.insert(0, squares)
            self._stored.insert(0, None)
            del self._sums[circuit.blocks.past + 1 :]
            del self._stored[circuit.blocks.past + 1 :]
        else:
            self._sums[0] = [
                a.add(total, square)
                for total, square in zip(self._sums[0], squares, strict=True)
            ]
        self._round = round

    def output(self, drift: Floats | None = None) -> CkksCiphertext:
        circuit, round, a = self._circuit, self._round, self._arithmetic
        self._check_output(drift)
        plain = None
        if drift is not None and drift.any():
            plain = self._encoded(round, drift)
        outputs, past = [], self._boosted_past(round)
        for chunk, mean in enumerate(self._means):
            squares = self._multiplied_sum(a, self._sums[0][chunk], round)
            if past:
                a.add(squares, past[chunk])
            added = None if plain is None else plain[chunk]
            out = self._directed(a, mean, squares, round, added)
            outputs.append(self._scheme.coefficients(out.cipher, out.level))
        a.constants = {}
        return CkksCiphertext(
            circuit.parameters,
            self._keys.key_id,
            circuit.update.dimension,
            np.stack(outputs),
        )

    def _directed(
        self,
        a: SealArithmetic,
        mean: ScaledCiphertext,
        squares: ScaledCiphertext,
        round: int,
        drift: Any,
    ) -> ScaledCiphertext:
        """P(V) (ν h + drift) / lead; ``squares`` is R."""
        circuit, update = self._circuit, self._circuit.update
        u = a.times(a.drop(mean, circuit.variance_level), circuit.multiple(round))
        if drift is not None:
            u = a.add_encoded(u, drift)
        return preconditioned(
            a,
            circuit.form,
            squares,
            u,
            tuning=circuit.tuning,
            boost=circuit.boosts(round)[1],
            start=update.initial * update.alpha**round,
        )

    def _multiplied_sum(
        self, a: SealArithmetic, newest: ScaledCiphertext, round: int
    ) -> ScaledCiphertext:
        """W A of R = W A + Past, times what R is multiplied with, at R's scale."""
        circuit, blocks = self._circuit, self._circuit.blocks
        boost, _ = circuit.boosts(round)
        total = a.drop(newest, newest.level - 1 if blocks.divided else newest.level)
        total = a.times(total, blocks.present * boost)
        scale = blocks.sum_scale(round) * boost
        return ScaledCiphertext(total.cipher, scale, total.level)

    def _boosted_past(self, round: int) -> list[ScaledCiphertext]:
        """Past of R = W A + Past, times what R is multiplied with."""
        boost, _ = self._circuit.boosts(round)
        if boost == 1:
            return self._past_of(round)
        if self._boosted is None or self._boosted[0] != round:
            a, past = self._arithmetic, self._past_of(round)
            self._boosted = round, [a.times(a.copy(each), boost) for each in past]
        return self._boosted[1]

    def _past_of(self, round: int) -> list[ScaledCiphertext]:
        """Past for the block of a round, this one or the next: made once for each."""
        blocks = self._circuit.blocks
        block = blocks.block(round)
        if self._past is None or self._past[0] != block:
            begun = self._round > 0 and blocks.block(self._round) == block
            self._past = block, self._build_past(self._sums[1 if begun else 0 :])
        return self._past[1]

    def _build_past(
        self, finished: Sequence[list[ScaledCiphertext]]
    ) -> list[ScaledCiphertext]:
        a, blocks, totals = self._arithmetic, self._circuit.blocks, []
        weighted = list(zip(blocks.past_weights(), finished, strict=False))
        for chunk in range(self._circuit.chunks if weighted else 0):
            terms = [a.times(a.copy(block[chunk]), w) for w, block in weighted if w]
            total = terms[0]
            for term in terms[1:]:
                total = a.add(total, term)
            totals.append(a.rescale(total) if blocks.divided else total)
        return totals

    def state(self) -> bytes:
        circuit = self._circuit
        for place in range(1, len(self._sums)):
            if self._stored[place] is None:
                self._stored[place] = self._bytes(self._sums[place])
        finished = [stored for stored in self._stored if stored is not None]
        header = _STATE.pack(
            circuit.parameters.id.encode(),
            self._keys.key_id,
            self._keys.digest,
            self._round,
            self._since,
            len(self._sums),
            circuit.chunks,
        )
        newest = [self._bytes(block) for block in self._sums[:1]]
        parts = (*newest, *finished, self._bytes(self._means))
        return encode_frame(Kind.CIRCUIT_STATE, header, *parts)

    def _bytes(self, nodes: Sequence[ScaledCiphertext]) -> bytes:
        """The coefficients of ciphertexts that have all primes."""
        levels = self._circuit.parameters.levels
        read = (self._scheme.coefficients(node.cipher, levels) for node in nodes)
        return b"".join(words.tobytes() for words in read)

    def restore(self, data: bytes) -> None:
        circuit, parameters = self._circuit, self._circuit.parameters
        polynomial = 8 * parameters.ring * parameters.levels
        most = circuit.chunks * (3 * (circuit.blocks.past + 1) + 2) * polynomial
        body = decode_frame(data, Kind.CIRCUIT_STATE, limit=_STATE.size + most)
        if len(body) < _STATE.size:
            raise CryptoError("the circuit's state is too short")
        name, key, digest, round, since, count, chunks = _STATE.unpack_from(body)
        expected = chunks * (3 * count + 2) * polynomial
        if (
            name != set_name(parameters)
            or key != self._keys.key_id
            or digest != self._keys.digest
            or chunks != circuit.chunks
            or count < 1
            or len(body) != _STATE.size + expected
        ):
            raise CryptoError(
                "the state belongs to another circuit or run",
                remedy="rebuild it from the sites' ciphertexts of the window",
            )
        check_round(round)
        words = np.frombuffer(body, "<u8", offset=_STATE.size).astype(np.uint64)
        split = chunks * count * 3
        flat = words.reshape(-1, parameters.levels, parameters.ring)
        if not are_reduced(flat, parameters.primes):
            raise CryptoError("the circuit's state is not reduced")
        sums = [
            ScaledCiphertext(self._scheme.load(flat[i : i + 3]), 1.0, parameters.levels)
            for i in range(0, split, 3)
        ]
        self._sums = [sums[i : i + chunks] for i in range(0, len(sums), chunks)]
        self._stored = [None] * len(self._sums)
        scale = circuit.message_scale(round)
        self._means = [
            ScaledCiphertext(
                self._scheme.load(flat[i : i + 2]), scale, parameters.levels
            )
            for i in range(split, len(flat), 2)
        ]
        self._round, self._since = round, since
        self._past = self._boosted = None

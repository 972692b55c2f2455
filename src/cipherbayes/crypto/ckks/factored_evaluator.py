"""The server's side of ``fast`` and ``hardened``: block sums, then the circuit."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from cipherbayes.crypto.ckks.arithmetic import (
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
        self._past: list[ScaledCiphertext] | None = None
        self._expected: tuple[int, bytes, list[Any]] | None = None

    def expect(self, round: int, drift: Floats) -> None:
        if drift.any():
            self._encoded(round, drift)

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
            self._past = None
        else:
            self._sums[0] = [
                a.add(total, square)
                for total, square in zip(self._sums[0], squares, strict=True)
            ]
        self._round = round

    def output(self, drift: Floats | None = None) -> CkksCiphertext:
        circuit, round = self._circuit, self._round
        update = circuit.update
        self._check_output(drift)
        a, level = self._arithmetic, circuit.variance_level
        outputs = []
        for chunk, mean in enumerate(self._means):
            u = a.times(a.drop(mean, level), circuit.multiple(round))
            if drift is not None and drift.any():
                u = a.add_encoded(u, self._encoded(round, drift)[chunk])
            out = preconditioned(
                a,
                circuit.form,
                self._weighted_sum(chunk),
                u,
                tuning=circuit.tuning,
                boost=circuit.boost(round),
                start=update.initial * update.alpha**round,
            )
            outputs.append(self._scheme.coefficients(out.cipher, out.level))
        return CkksCiphertext(
            circuit.parameters, self._keys.key_id, update.dimension, np.stack(outputs)
        )

    def _weighted_sum(self, chunk: int) -> ScaledCiphertext:
        """R = W A + Past; Past is put together once for each block."""
        a, blocks = self._arithmetic, self._circuit.blocks
        if self._past is None:
            self._past = self._build_past()
        total = self._sums[0][chunk]
        total = a.drop(total, total.level - 1 if blocks.divided else total.level)
        total = a.times(total, blocks.present)
        if self._past:
            past = self._past[chunk]
            total = a.add(
                total, ScaledCiphertext(past.cipher, total.scale, total.level)
            )
        return ScaledCiphertext(
            total.cipher, blocks.sum_scale(self._round), total.level
        )

    def _build_past(self) -> list[ScaledCiphertext]:
        a, blocks, totals = self._arithmetic, self._circuit.blocks, []
        weights = blocks.past_weights()
        finished = list(zip(weights, self._sums[1:], strict=False))
        for chunk in range(len(self._means) if finished else 0):
            terms = [a.times(a.copy(block[chunk]), w) for w, block in finished if w]
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
        self._round, self._since, self._past = round, since, None

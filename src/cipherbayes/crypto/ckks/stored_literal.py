"""The paper's circuit with evaluators that can be stored, and Algorithm 3's steps."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from cipherbayes.crypto.ckks.arithmetic import ScaledCiphertext
from cipherbayes.crypto.ckks.blocks import check_round
from cipherbayes.crypto.ckks.circuit import Evaluator, Update
from cipherbayes.crypto.ckks.keys import EvaluationKeys
from cipherbayes.crypto.ckks.literal import (
    SCALE,
    LiteralCircuit,
    LiteralEvaluator,
)
from cipherbayes.crypto.coefficients import Coefficients, are_reduced
from cipherbayes.crypto.wire.framing import Kind, decode_frame, encode_frame
from cipherbayes.errors import CryptoError

_STATE = struct.Struct("<32s32sIII")


class StoredLiteral(LiteralCircuit):
    """``literal`` whose evaluators can be stored and restored.

    Parameters
    ----------
    factor
        What h is multiplied with before the last product, for each round t; the
        output is then P(V_t) (factor(t) h_t + drift_t). At most one, so the
        circuit's bounds hold.
    """

    def __init__(
        self, update: Update, factor: Callable[[int], float] | None = None
    ) -> None:
        super().__init__(update)
        self._factor = factor

    def factor(self, round: int) -> float:
        """The factor of a round."""
        value = 1.0 if self._factor is None else self._factor(round)
        if not 0.0 < value <= 1.0:
            raise CryptoError(
                "a step is too large for the circuit",
                remedy="lower paper.gamma or privacy.epsilon, or raise paper.lipschitz",
            )
        return value

    def evaluator(self, keys: EvaluationKeys, seal_evaluator: Any = None) -> Evaluator:
        return StoredLiteralEvaluator(self, keys, seal_evaluator)


class StoredLiteralEvaluator(LiteralEvaluator):
    """The packs of the window, stored as coefficients."""

    _circuit: StoredLiteral

    def step_factor(self) -> float:
        return self._circuit.factor(max(self._round, 1))

    def state(self) -> bytes:
        levels = self._circuit.parameters.levels
        words = [
            self._scheme.coefficients(node.cipher, levels - 1)
            for pack in self._packs
            for node in pack
        ]
        words += [self._scheme.coefficients(n.cipher, levels) for n in self._means]
        header = _STATE.pack(
            self._keys.key_id,
            self._keys.digest,
            self._round,
            self._since,
            len(self._packs),
        )
        return encode_frame(
            Kind.CIRCUIT_STATE, header, *(each.tobytes() for each in words)
        )

    def restore(self, data: bytes) -> None:
        circuit, parameters = self._circuit, self._circuit.parameters
        chunks, levels = circuit.chunks, parameters.levels
        low, high = (
            2 * 8 * parameters.ring * (levels - 1),
            16 * parameters.ring * levels,
        )
        most = _STATE.size + chunks * (circuit.packs * low + high)
        body = decode_frame(data, Kind.CIRCUIT_STATE, limit=most)
        if len(body) < _STATE.size:
            raise CryptoError("the circuit's state is too short")
        key, digest, round, since, packs = _STATE.unpack_from(body)
        if (
            key != self._keys.key_id
            or digest != self._keys.digest
            or len(body) != _STATE.size + chunks * (packs * low + high)
        ):
            raise CryptoError("the state belongs to another circuit or run")
        self._round, self._since = check_round(round), since
        position = _STATE.size
        nodes = []
        for index in range(chunks * (packs + 1)):
            level = levels - 1 if index < chunks * packs else levels
            count = 2 * level * parameters.ring
            words = np.frombuffer(body, "<u8", count, position).astype(np.uint64)
            position += 8 * count
            nodes.append(self._loaded(words.reshape(2, level, parameters.ring)))
        self._means = nodes[chunks * packs :]
        self._packs = [nodes[i * chunks : (i + 1) * chunks] for i in range(packs)]

    def _loaded(self, words: Coefficients) -> ScaledCiphertext:
        circuit = self._circuit
        level = words.shape[1]
        if not are_reduced(words, circuit.parameters.primes[:level]):
            raise CryptoError("the circuit's state is not reduced")
        scale = SCALE * circuit.update.sites
        if level < circuit.parameters.levels:
            scale = scale * scale / circuit.parameters.primes[-1]
        return ScaledCiphertext(self._scheme.load(words), scale, level)

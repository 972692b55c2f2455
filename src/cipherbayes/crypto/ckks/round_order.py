"""What all evaluators check: every round once, in order, from this circuit's sites."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cipherbayes.crypto.ckks.arithmetic import ScaledCiphertext
from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext, add_coefficients
from cipherbayes.crypto.ckks.circuit import Circuit, Evaluator
from cipherbayes.crypto.ckks.keys import EvaluationKeys
from cipherbayes.crypto.ckks.scheme import ckks_scheme
from cipherbayes.errors import CryptoError
from cipherbayes.typing import Floats


class InOrderEvaluator(Evaluator):
    """An evaluator that knows which round is next and refuses any other."""

    def __init__(self, circuit: Circuit, keys: EvaluationKeys) -> None:
        if keys.parameters != circuit.parameters:
            raise CryptoError("the evaluation keys belong to another circuit")
        self._circuit = circuit
        self._keys = keys
        self._scheme = ckks_scheme(circuit.parameters)
        self._round = 0
        self._since = 1
        self._means: list[ScaledCiphertext] = []

    def _admit(
        self, round: int, messages: Sequence[CkksCiphertext], scale: float
    ) -> list[ScaledCiphertext]:
        """The sum of a round's messages, chunk by chunk, if the round is next."""
        circuit = self._circuit
        starts = self._round == 0
        if starts and circuit.place(round) != 0:
            raise CryptoError(
                "a circuit starts with the first round of a block",
                remedy="begin with the first round of the window",
            )
        if not starts and round != self._round + 1:
            raise CryptoError(
                f"round {round} does not follow round {self._round}",
                remedy="give a circuit every round once, in order",
            )
        if len(messages) != circuit.update.sites:
            raise CryptoError(
                f"{len(messages)} ciphertexts for {circuit.update.sites} sites"
            )
        for message in messages:
            self._require_own(message)
        if starts:
            self._since = round
        levels = circuit.parameters.levels
        return [
            ScaledCiphertext(self._scheme.load(chunk), scale, levels)
            for chunk in add_coefficients(messages)
        ]

    def _require_own(self, message: CkksCiphertext) -> None:
        """Refuse a ciphertext that is no site's message of this circuit and key."""
        circuit = self._circuit
        if (
            message.parameters != circuit.parameters
            or message.key_id != self._keys.key_id
            or message.dimension != circuit.update.dimension
            or (message.size, message.level) != (2, circuit.parameters.levels)
        ):
            raise CryptoError(
                "a site's ciphertext does not belong to this circuit and key",
                remedy="every site must use the key and the study of this run",
            )

    def _check_output(self, drift: Floats | None) -> None:
        """Refuse an incomplete window, and a drift that could wrap."""
        circuit, round = self._circuit, self._round
        if round == 0 or self._since > circuit.window(round).start:
            raise CryptoError(
                "the window of the round is not complete",
                remedy="give the circuit every round of its window first",
            )
        if drift is None:
            return
        # Written so that a drift that is no number is refused too.
        if not float(np.abs(drift).max()) <= circuit.update.drift:
            raise CryptoError(
                "the prior pulls harder than the circuit was made for",
                where=f"round {round}",
                remedy="a wider prior, or a larger drift bound in the plan",
            )

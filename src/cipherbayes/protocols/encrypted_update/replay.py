"""The evaluation of a run, round by round, by whoever has the evaluation keys.

The server computes each round's output; every site computes it again from the same
signed ciphertexts and compares. Both use this class: evaluation is deterministic, so
the same inputs give the same coefficients, in any process.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.crypto.ckks.circuit import Circuit, Evaluator
from cipherbayes.crypto.ckks.keys import EvaluationKeys
from cipherbayes.protocols.messages import Reason
from cipherbayes.protocols.refusals import RefusalError
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.typing import Floats

_ROUND = struct.Struct("<Q")


class Replay:
    """A party's evaluator, durable after every round.

    Parameters
    ----------
    circuit
        What is computed.
    keys
        The CSP's evaluation keys.
    memory
        Where the states after the last two rounds are kept: a round that was cut
        is computed again from the state before it.

    Formal guarantees
    -----------------
    The output of round t is a function of the ciphertexts given for rounds 0..t, of
    public numbers and of the evaluation keys. Round t follows round t − 1 or repeats
    the last one; no other is computed.
    """

    def __init__(
        self, circuit: Circuit, keys: EvaluationKeys, memory: Checkpoint
    ) -> None:
        self._circuit = circuit
        self._keys = keys
        self._memory = memory
        self._evaluator: Evaluator | None = None
        self._done = -1

    def expect(self, number: int, drift: Floats) -> None:
        """Do now what round ``number`` needs of its drift alone, if it is next."""
        if self._evaluator is not None and self._done == number - 1:
            self._evaluator.expect(number + 1, drift)

    def output(
        self, number: int, messages: Sequence[CkksCiphertext], drift: Floats
    ) -> CkksCiphertext:
        """Compute round ``number`` (from 0) and remember the state after it."""
        evaluator = self._before(number)
        # Whatever happens in between, this object is not at a known round.
        self._evaluator = None
        output = evaluator.step(number + 1, messages, drift)
        self._memory.keep_fact(_name(number), _ROUND.pack(number) + evaluator.state())
        self._evaluator, self._done = evaluator, number
        return output

    def _before(self, number: int) -> Evaluator:
        """An evaluator that has computed the rounds before ``number``."""
        if self._evaluator is not None and self._done == number - 1:
            return self._evaluator
        evaluator = self._circuit.evaluator(self._keys)
        if number == 0 and self._memory.fact(_name(1)) is None:
            return evaluator
        state = None if number == 0 else self._state(number - 1)
        if state is None:
            raise RefusalError(
                Reason.WRONG_ROUND,
                "rounds are computed in order, and only the last one again",
            )
        evaluator.restore(state)
        return evaluator

    def _state(self, number: int) -> bytes | None:
        """The state after a round, if it is one of the last two."""
        known = self._memory.fact(_name(number))
        if known is None or _ROUND.unpack_from(known)[0] != number:
            return None
        return known[_ROUND.size :]


def _name(number: int) -> str:
    return f"state-{number % 2}"

"""The CSP of the paper's own method: decrypts what the server sends, as printed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.crypto.ckks.precomputation import (
    PARAMETERS,
    PRODUCT_SCALE,
    SCALE,
    UNMASKED_SCALE,
    decrypt_values,
    largest_masked,
)
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.protocols.as_printed.plan import UNIT, PrintedPlan
from cipherbayes.protocols.encrypted_update.key_holder import CkksCsp
from cipherbayes.protocols.encrypted_update.messages import (
    CiphertextReply,
    OutputRequest,
)
from cipherbayes.protocols.messages import (
    Reason,
    decode,
)
from cipherbayes.protocols.refusals import RefusalError
from cipherbayes.typing import Floats, Integers

LARGEST = 2.0**22
"""Values beyond this mean that V has left the interval of the polynomial."""


class PrintedCsp(CkksCsp[PrintedPlan]):
    """The party with the secret key, as printed: nothing is attested or flooded.

    Formal guarantees
    -----------------
    None: a CKKS decryption that the server sees tells it about the secret key. It
    still answers each round once and in order.
    """

    def respond(self, data: bytes) -> object:
        """Answer an :class:`OutputRequest` with whatever it holds."""
        request = decode(data, OutputRequest)
        exchange = request.round_id
        if exchange.purpose == "maximum" and request.stage == 0:
            known = self.known_answer(exchange)
            return self._largest(exchange, request) if known is None else known
        return self.answer_once(exchange, lambda: self._checked(exchange, request))

    def _checked(
        self, exchange: RoundId, request: OutputRequest
    ) -> Callable[[], Integers]:
        """What decrypts a request; malformed ones are refused, and end no round."""
        opened = self._opening(exchange, request)

        def released() -> Integers:
            values = opened()
            if not np.abs(values).max() < LARGEST:
                raise RefusalError(
                    Reason.RANGE,
                    "the update left the range of the polynomial: paper.scale is too "
                    "large for this preparation",
                )
            return np.rint(values / UNIT).astype(np.int64)

        return released

    def _opening(
        self, exchange: RoundId, request: OutputRequest
    ) -> Callable[[], Floats]:
        """What opens the server's ciphertexts, which are read here."""
        purpose, outputs = exchange.purpose, request.outputs
        if len(outputs) != (2 if purpose == "means" else 1):
            raise RefusalError(Reason.MALFORMED, "not as many ciphertexts as asked for")
        secret, width = self._keys.secret, self._plan.columns
        below = PARAMETERS.levels - 1
        if purpose == "gradient":
            circuit = self._plan.circuit
            output = circuit.read_output(outputs[0], self._keys.public.key_id)
            t = exchange.round - self._plan.prepared + 1
            return lambda: circuit.decrypt_exactly(secret, output, t)
        if purpose == "means":
            count = self._read(outputs[0], width)
            sums = self._read(outputs[1], width, below)
            return lambda: np.concatenate(
                [
                    np.rint(decrypt_values(secret, count, SCALE)[:1]),
                    decrypt_values(secret, sums, PRODUCT_SCALE),
                ]
            )
        if purpose == "variances":
            squares = self._read(outputs[0], width)
            return lambda: decrypt_values(secret, squares, SCALE)
        largest = self._read(outputs[0], 1, below)
        return lambda: decrypt_values(secret, largest, UNMASKED_SCALE)

    def _largest(self, exchange: RoundId, request: OutputRequest) -> CiphertextReply:
        """Algorithm 5: the largest masked value, encrypted anew."""
        if len(request.outputs) != len(self._plan.study.sites):
            raise RefusalError(Reason.MALFORMED, "not one masked value of every site")
        masked = [self._read(output, 1) for output in request.outputs]
        found = largest_masked(self._keys.secret, self._keys.public, masked)
        return CiphertextReply.signed(
            self._key, round_id=exchange, ciphertext=found.to_bytes()
        )

    def _read(
        self, data: bytes, dimension: int, level: int | None = None
    ) -> CkksCiphertext:
        return CkksCiphertext.from_bytes(
            data,
            parameters=PARAMETERS,
            key_id=self._keys.public.key_id,
            dimension=dimension,
            level=level,
        )

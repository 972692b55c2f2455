"""What a round asks, as every party derives it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cipherbayes.crypto.wire.transcript import transcript
from cipherbayes.typing import Floats


@dataclass(frozen=True)
class Question:
    """What a round asks of every table.

    Attributes
    ----------
    theta
        Where gradients are taken; one zero where nothing depends on it.
    moments
        Released means and standard deviations of the columns, by which they are
        standardised first; None leaves them as they are.
    """

    theta: Floats
    moments: Floats | None = None

    @property
    def digest(self) -> bytes:
        """SHA-256 of the whole question."""
        scales = b"" if self.moments is None else self.moments.tobytes()
        fields = (self.theta.tobytes(), scales)
        return hashlib.sha256(transcript("cipherbayes/question/1", *fields)).digest()

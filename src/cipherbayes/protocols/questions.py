"""What a round asks, as every party derives it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from cipherbayes.crypto.wire.transcript import transcript
from cipherbayes.typing import Floats


@dataclass(frozen=True)
class Question:
    """What a round asks of every table.

    Attributes
    ----------
    theta
        Where gradients are taken; one zero where nothing depends on it.
    scales
        How columns are seen first, from what earlier rounds released: windows of the
        numbers in a preparatory round (centres, then half widths), means and standard
        deviations of all columns afterwards; None leaves them as they are.
    """

    theta: Floats
    scales: Floats | None = None

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the whole question."""
        scales = b"" if self.scales is None else self.scales.tobytes()
        fields = (self.theta.tobytes(), scales)
        return hashlib.sha256(transcript("cipherbayes/question/1", *fields)).digest()

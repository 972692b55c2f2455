"""The encrypted update in float64, which circuits are compared with."""

from __future__ import annotations

import numpy as np

from cipherbayes.crypto.ckks.circuit import Update
from cipherbayes.typing import Floats, Integers


class ReferenceUpdate:
    """V_t = α V_{t−1} + (1 − α) h_t² and out_t = P(V_t)(h_t + drift_t)."""

    def __init__(self, update: Update) -> None:
        self.update = update
        self.variance: Floats = np.full(update.dimension, update.initial)

    def step(self, totals: Integers, drift: Floats | None = None) -> Floats:
        """One round, from the sum of the sites' integers."""
        update = self.update
        mean = update.values(totals)
        self.variance = update.alpha * self.variance + (1.0 - update.alpha) * mean**2
        pull = mean if drift is None else mean + drift
        return np.asarray(update.polynomial(self.variance) * pull)

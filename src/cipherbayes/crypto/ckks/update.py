"""The function that every circuit computes.

With z_{k,t} the integers of site k in round t = 1, 2, …,

    h_t = unit · Σ_k z_{k,t},
    V_t = α^t V₀ + (1 − α) Σ_{i≤t} α^(t−i) h_i²,
    out_t = P(V_t) · (h_t + drift_t),

all coordinatewise; drift_t is public (the scaled gradient of the log prior).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cipherbayes.crypto.ckks.polynomial import PreconditionerPolynomial
from cipherbayes.errors import CryptoError
from cipherbayes.typing import Floats, Integers

MAX_SITES = 64


@dataclass(frozen=True)
class Update:
    """The function that is computed, from public numbers only.

    Parameters
    ----------
    dimension
        d.
    sites
        K: how many ciphertexts a round adds up.
    unit
        What one grid unit of the sites' integers is worth in h.
    polynomial
        P, of degree 7.
    alpha
        α of the running mean.
    initial
        V₀.
    drift
        Bound on |drift_t| in every coordinate and round.
    """

    dimension: int
    sites: int
    unit: float
    polynomial: PreconditionerPolynomial
    alpha: float = 0.9
    initial: float = 0.01
    drift: float = 1.0

    def __post_init__(self) -> None:
        if self.dimension < 1 or not 1 <= self.sites <= MAX_SITES:
            raise CryptoError(
                f"cannot update {self.dimension} values of {self.sites} sites",
                remedy=f"give one value or more and 1 to {MAX_SITES} sites",
            )
        if not 0.0 < self.unit < math.inf or not 0.0 <= self.drift < math.inf:
            raise CryptoError("the unit or the drift's bound is not a usable number")
        if not 0.0 <= self.alpha <= 0.999 or not 0.0 <= self.initial <= 1.0:
            raise CryptoError(
                "the running mean has an impossible weight or start",
                remedy="give 0 <= alpha <= 0.999 and V0 from 0 to 1",
            )

    @property
    def largest_mean(self) -> float:
        """|h_t| ≤ 1/√(1 − α) wherever V_t ≤ 1."""
        return 1.0 / math.sqrt(1.0 - self.alpha)

    def values(self, totals: Integers) -> Floats:
        """h of a sum of the sites' integers."""
        return np.asarray(totals * self.unit)

"""Running sums of squares without rotations or a long window.

Rounds come in blocks of L. In place j = 0..L−1 of its block a site encodes at scale
D α^(−j/2), so that adding h² to the block's accumulator A (three polynomials, not
relinearised) already weights it. Finished blocks enter with integer weights, put
together once for each block:

    R = W A + Σ_k round(W α^(L k)) A_{−k},     V_t − α^t V₀ = (1 − α) R / scale,

with scale D² α^(−j) W: no level is spent, but W takes bits that D could have. Where
there is a prime q to spend, the past is divided by it and the block of now costs
nothing but to leave q out:

    R = A + (Σ_k round(q α^(L k)) A_{−k}) / q,     scale D² α^(−j).

Older blocks weigh less than ``forgotten`` and are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from cipherbayes.errors import CryptoError

GROWTH = 1.7
"""A block ends before scales grow by more than e^1.7: sixteen rounds at α = 0.9."""
_CANDIDATES = 2**17


@dataclass(frozen=True)
class BlockPlan:
    """Block length, weights and scales.

    Parameters
    ----------
    alpha
        α.
    base
        D: scale of h in the first round of a block.
    weight
        W, or q.
    forgotten
        What all blocks that are left out may weigh together.
    divided
        Whether the past is divided by ``weight``.
    """

    alpha: float
    base: float
    weight: int
    forgotten: float
    divided: bool = False

    @property
    def length(self) -> int:
        """L: rounds in a block."""
        return block_length(self.alpha)

    @property
    def past(self) -> int:
        """Finished blocks that still count."""
        if self.alpha == 0.0:
            return 0
        return math.ceil(
            math.log(self.forgotten) / (self.length * math.log(self.alpha))
        )

    def place(self, round: int) -> int:
        """j of a round t = 1, 2, …"""
        return (check_round(round) - 1) % self.length

    def block(self, round: int) -> int:
        """Number of the block a round lies in, from 0."""
        return (check_round(round) - 1) // self.length

    def window(self, round: int) -> range:
        """Rounds that V_t is computed from."""
        first = max(0, self.block(round) - self.past) * self.length + 1
        return range(first, round + 1)

    def scale(self, round: int) -> float:
        """Scale of h in a round."""
        return self.base * math.sqrt(self._growth(self.place(round)))

    def sum_scale(self, round: int) -> float:
        """Scale of V_t − α^t V₀ in R."""
        growth = self._growth(self.place(round))
        return self.base**2 * growth * self.present / (1.0 - self.alpha)

    @property
    def present(self) -> int:
        """What A is multiplied with."""
        return 1 if self.divided else self.weight

    def past_weights(self) -> list[int]:
        """round(W α^(L k)) or round(q α^(L k)), k = 1, 2, …: newest block first."""
        return [
            round(self.weight * self.alpha ** (self.length * k))
            for k in range(1, self.past + 1)
        ]

    def _growth(self, place: int) -> float:
        return self.alpha**-place if place else 1.0


def block_length(alpha: float) -> int:
    """L for a given α."""
    if alpha == 0.0:
        return 1
    return max(1, math.floor(GROWTH / -math.log(alpha)))


@cache
def good_weight(alpha: float, about: int) -> int:
    """W near ``about`` for which all W α^(L k) are close to integers.

    The error of V from rounding them is at most max-norm Σ_k |round(W α^(L k)) −
    W α^(L k)| / W; a good W makes it several times smaller than a power of two does.
    """
    if alpha == 0.0:
        return about
    lowest = max(about // 2, about - _CANDIDATES)
    candidates = np.arange(lowest, about + 1, dtype=np.float64)
    misses = np.zeros_like(candidates)
    k = 1
    while about * alpha ** (block_length(alpha) * k) > 1e-3:
        exact = candidates * alpha ** (block_length(alpha) * k)
        misses += np.abs(np.rint(exact) - exact)
        k += 1
    return int(candidates[(misses / candidates).argmin()])


def check_round(round: int) -> int:
    """``round``, if it counts from 1."""
    if round < 1:
        raise CryptoError("rounds of a circuit count from 1")
    return round

"""Which sums are released when, of records followed how far, for what share of ε.

Twenty-four rounds: twenty that bring θ to its place, then a window of four that takes
most of the budget. All of them are data of the posterior. Every round releases the
weighted score sum; rounds 0, 4, 8, 12, 16 and the window release the weighted
information sum too. A release with share f of μ² has noise Δ / (μ √f); the shares add
to one, so all releases together are exactly μ-GDP (Dong, Roth and Su 2022, Corollary
3.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cipherbayes.models.base import Model
from cipherbayes.models.influence import InfluenceBound, require_bounded_influence

BURN_IN, WINDOW = 20, 4
ROUNDS = BURN_IN + WINDOW
EARLY_INFORMATION = (0, 4, 8, 12, 16)

GRADIENTS, GRADIENTS_IN_WINDOW = 0.75, 0.7
"""Share of all score sums; share of theirs that the window takes."""
INFORMATION_IN_WINDOW, FIRST_INFORMATION = 0.7, 0.1
"""Shares of the information sums' budget that the window takes, and round 0: its
information sum is what the curvature's fall on the way is measured against."""
GROWTH = 1.15
"""A burn-in round's share over that of the round before: the nearer θ is to its
place, the more accurate a step must be. Many cheap rounds, because a score sum taken
far from where θ ends says little: Newton's method must reach its noise floor before
the window starts."""

QUIET = 0.003
"""Times N: a variance of all score sums together below that is small."""


@dataclass(frozen=True)
class Round:
    """Shares of μ² of one round's releases; no information sum where its share is 0."""

    number: int
    gradient_share: float
    information_share: float

    @property
    def in_window(self) -> bool:
        return self.number >= BURN_IN


def rounds() -> tuple[Round, ...]:
    """All rounds, in order.

    Formal guarantees
    -----------------
    All shares add to one (to within 2⁻⁵⁰). The composition that is promised is the
    accountant's, of the noise multipliers themselves.
    """
    growth = [GROWTH**t for t in range(BURN_IN)]
    early = GRADIENTS * (1.0 - GRADIENTS_IN_WINDOW) / sum(growth)
    late = GRADIENTS * GRADIENTS_IN_WINDOW / WINDOW
    information_budget = 1.0 - GRADIENTS
    first = information_budget * FIRST_INFORMATION
    between = information_budget * (1.0 - INFORMATION_IN_WINDOW - FIRST_INFORMATION)
    matrices = {t: between / (len(EARLY_INFORMATION) - 1) for t in EARLY_INFORMATION}
    matrices[0] = first
    last = information_budget * INFORMATION_IN_WINDOW / WINDOW
    burn_in = tuple(
        Round(t, early * growth[t], matrices.get(t, 0.0)) for t in range(BURN_IN)
    )
    return burn_in + tuple(Round(t, late, last) for t in range(BURN_IN, ROUNDS))


LOOSER, MOST_LOOSE = 0.14, 3.0
"""How C grows as noise falls, and the most that it grows by: a rule of thumb. The less
noise there is, the more it costs to count unusual rows for less."""
NOISY = 1.0 / 16.0
"""ρ of :func:`loosened` above which C stays what it is."""
MOST_BLUR = 0.02
"""Most noise of the information matrix over a column's information that a larger C may
lead to: it grows with C², and columns that are alike are soon hidden in it."""


def loosened(
    model: Model,
    clip: float,
    *,
    curvature: float,
    records: int,
    mu: float,
    excess: float = 1.0,
) -> float:
    """A larger C where noise is small: weights then cost more than noise does.

    With ρ = excess C² / (¾ μ² N v), the variance of all score sums' noise over the
    information of a standardised column, C grows by (16 ρ)^(−0.14), at most threefold.

    Parameters
    ----------
    clip
        C for much noise: the norm of a typical row.
    curvature
        v, a record's information about its linear predictor.
    """
    column = records * curvature
    ratio = excess * (clip / mu) ** 2 / (GRADIENTS * column)
    growth = min(max(math.pow(ratio / NOISY, -LOOSER), 1.0), MOST_LOOSE)
    window = (1.0 - GRADIENTS) * INFORMATION_IN_WINDOW
    matrix = require_bounded_influence(model).sensitivities(InfluenceBound(clip))[1]
    blur = matrix * math.sqrt(excess / window) / (mu * column)
    return clip * max(min(growth, math.sqrt(MOST_BLUR / blur)), 1.0)


def influence_bound(
    model: Model, clip: float, *, records: int | None, mu: float, excess: float = 1.0
) -> InfluenceBound:
    """C, and how far a record is followed, from public numbers alone.

    Parameters
    ----------
    records
        N where it is public: where it is not, noise is not taken to be small.
    mu
        μ of the whole budget.
    excess
        Variance really present over the certified one, K / (K − c − r).
    """
    bounded, usual = require_bounded_influence(model), InfluenceBound(clip)
    if records is None:
        return usual
    noise = excess * (bounded.sensitivities(usual)[0] / mu) ** 2
    if noise < QUIET * records:
        return InfluenceBound(clip, bounded.quiet_stop)
    return usual


def noise_multiplier(mu: float, share: float) -> float:
    """σ of a release that may spend ``share`` of μ²."""
    return 1.0 / (mu * math.sqrt(share))

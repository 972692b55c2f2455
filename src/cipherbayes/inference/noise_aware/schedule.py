"""Which sums each round releases, and which share of the privacy budget they take.

There are twenty-four rounds: twenty that move θ towards the posterior's mode, then a
window of four around it that takes most of the budget. The posterior uses the releases
of all rounds. Every round releases the weighted score sum; rounds 0, 4, 8, 12, 16 and
the window also release the weighted information sum. A release with the share f of μ²
has noise of standard deviation Δ / (μ √f); the shares add up to one, so that all
releases together are exactly μ-GDP (Dong, Roth and Su 2022, Corollary 3.3).

:func:`influence_bound` and :func:`loosened` choose from public numbers how much one
record may contribute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cipherbayes.models.base import Model
from cipherbayes.models.influence import InfluenceBound, require_bounded_influence

BURN_IN = 20
"""Rounds before the window. Many cheap ones, because a score sum taken far from where
θ ends says little: Newton's method must reach its noise floor before the window."""
WINDOW = 4
"""Rounds of the window."""
ROUNDS = BURN_IN + WINDOW
"""Number of rounds in all, those of the window included."""
EARLY_INFORMATION = (0, 4, 8, 12, 16)
"""Rounds before the window that release an information sum."""

GRADIENTS = 0.75
"""Share of the budget that all score sums take; the information sums take the rest."""
GRADIENTS_IN_WINDOW = 0.7
"""Share of the score sums' budget that the window takes."""
INFORMATION_IN_WINDOW = 0.7
"""Share of the information sums' budget that the window takes."""
FIRST_INFORMATION = 0.1
"""Share of the information sums' budget that round 0 takes. Its information sum is
what the later ones are compared with, to see how much the curvature has fallen."""
GROWTH = 1.15
"""A burn-in round's share over that of the round before: the nearer θ is to the mode,
the more accurate a step must be."""

QUIET = 0.003
"""Noise variance of all score sums together, over N, below which noise counts as small
and records are followed farther (:func:`influence_bound`)."""


@dataclass(frozen=True)
class Round:
    """Shares of μ² that one round's score sum and information sum take.

    A share of zero is that of a round without an information sum.
    """

    number: int
    gradient_share: float
    information_share: float

    @property
    def in_window(self) -> bool:
        return self.number >= BURN_IN


def rounds() -> tuple[Round, ...]:
    """The rounds of a study in order, each with its shares of the budget.

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


LOOSER = 0.14
"""Power of the noise with which C of :func:`loosened` grows as noise falls: a rule of
thumb. The less noise there is, the more of an interval's width is due to weighting
unusual rows down."""
MOST_LOOSE = 3.0
"""Largest factor by which C grows."""
NOISY = 1.0 / 16.0
"""ρ of :func:`loosened`, noise variance over information, above which C stays as it
is."""
MOST_BLUR = 0.02
"""Largest noise of the information matrix, over a column's information, that a larger C
may lead to. That noise grows with C² and soon hides how columns are correlated."""


def loosened(
    model: Model,
    clip: float,
    *,
    curvature: float,
    records: int,
    mu: float,
    excess: float = 1.0,
) -> float:
    """The norm C at which rows are weighted down, larger where there is little noise.

    Weighting then costs more than noise does. With ρ = excess C² / (¾ μ² N v), the
    variance of all score sums' noise over the information of a standardised column, C
    grows by (16 ρ)^(−0.14), at most threefold.

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
    """How much a record may contribute, and how far its hazard is followed.

    Both follow from public numbers alone.

    Parameters
    ----------
    records
        N where it is public; None where it is not, and noise is then taken to be large.
    mu
        μ of the whole budget.
    excess
        Variance really present over the certified one, K / (K − c − r).
    """
    bounded, default = require_bounded_influence(model), InfluenceBound(clip)
    if records is None:
        return default
    noise = excess * (bounded.sensitivities(default)[0] / mu) ** 2
    if noise < QUIET * records:
        return InfluenceBound(clip, bounded.quiet_stop)
    return default


def noise_multiplier(mu: float, share: float) -> float:
    """Noise sd over sensitivity of a release that takes ``share`` of μ²."""
    return 1.0 / (mu * math.sqrt(share))

"""How wide private intervals will be, from public numbers alone.

With v the information of a typical record about a typical column, I = N v, q the part
of it that other columns do not hold too, and s the noise of the averaged score sum of
all rounds, an interval without privacy has the precision Λ + q I. Noise takes of q I

    q I / (1 + a s² / I) (1 + b d s_H² / I²) (1 + F):

the noise of the scores counts a times, because it is the same in directions of which
little is known; so does that of the information matrix, s_H in each of its entries,
which hides how columns are correlated. Counting unusual records for less takes 1 / B²
of it whatever the noise. However much noise takes, the prior Λ is left: no interval is
wider than the prior's. Where b constants belong to sites (to intervals
of each), a column's means there are what noise hides most. What it varies by within
sites is its information less that of its means, whose noise adds up to
F = b² s_H² / 2 (N m)² of it, m a record's information about a constant; where that is
much, sites are taken to be more alike: F / (1 + F / 3). Intervals of one baseline cost
likewise, and more, because means are not much the same in all of them.

How wide intervals become depends on more than public numbers: on how columns are
correlated, and on the noise itself, which may or may not happen to hide it. So there
is a range, too. It ends where the prior's own width is, over that of a column which is
correlated with none, √(1 + I / Λ).
"""

from __future__ import annotations

import math

from cipherbayes.inference.method import WidthRatio
from cipherbayes.inference.noise_aware.schedule import rounds

BOUNDED = 1.1
"""B: width that counting unusual records for less costs, noise apart."""
OWN_SHARE = 0.5
"""q."""
SCORES, SCORES_GROWING = 3.0, 7.5
"""a; of scores that grow with the linear predictor, whose information few records
hold."""
MATRIX = 1.1
"""b of the information matrix."""
SITES, INTERVALS, MOST_HIDDEN = 0.5, 2.5, 3.0
"""Of F: of sites, of intervals of a baseline, and the most of it."""
LEAST, MOST = 0.4, 2.5
"""How many times what is expected noise costs at least and at most, in nine of ten
studies on the columns of public tables, to which all of these are fitted."""


def expected_width_ratio(
    *,
    records: int,
    dimension: int,
    mu: float,
    sensitivities: tuple[float, float],
    information: float,
    prior_sd: float = 1.0,
    excess: float = 1.0,
    levels: int = 0,
    mass: float = 1.0,
    intervals: int = 1,
    grows: bool = False,
) -> WidthRatio:
    """Ratio of a private interval's width to the non-private one's.

    Parameters
    ----------
    records, dimension
        N and d.
    mu
        μ of the whole budget.
    sensitivities
        (Δ_g, Δ_H).
    information
        v: a public guess of a record's mean information in a typical coordinate,
        e.g. ``model.curvature(design)`` times the mean square of a column.
    prior_sd
        Prior standard deviation of a typical coordinate.
    excess
        Variance really present over the certified one, K / (K − c − r).
    levels, mass
        Constants of sites, and m; none where sites are alike.
    intervals
        Of a baseline that all sites share.
    grows
        Whether scores grow with the exponential of the linear predictor.
    """
    score_share = sum(each.gradient_share for each in rounds())
    information_share = sum(
        each.information_share for each in rounds() if each.in_window
    )
    score_noise = excess * (sensitivities[0] / mu) ** 2 / score_share
    matrix_noise = excess * (sensitivities[1] / mu) ** 2 / information_share
    total = records * information
    scores = SCORES_GROWING if grows else SCORES
    blur = 1.0 + scores * score_noise / total
    blur *= 1.0 + MATRIX * dimension * matrix_noise / total**2
    constants, weight = (levels, SITES) if levels else (intervals, INTERVALS)
    if constants > 1:
        hidden = weight * matrix_noise * (constants / (records * mass)) ** 2
        blur *= 1.0 + hidden / (1.0 + hidden / MOST_HIDDEN)
    own, prior = OWN_SHARE * total, prior_sd**-2.0
    expected = math.sqrt((prior + own) / (prior + own / BOUNDED**2 / blur))
    least = 1.0 + LEAST * max(expected - BOUNDED, 0.0)
    most = min(1.0 + MOST * (expected - 1.0), math.sqrt(1.0 + total / prior))
    return WidthRatio(expected, least, most)

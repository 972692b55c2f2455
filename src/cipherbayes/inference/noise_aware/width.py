"""How wide private intervals will be, from public numbers alone.

Let v be the information of one record about a typical coefficient, I = N v that of all
records, and q the share of I that is left once the other columns are accounted for.
Without privacy the posterior precision is Λ + q I, with Λ the prior's. With privacy it
is about

    Λ + q I / (B² (1 + a s² / I) (1 + k d n²) (1 + F / (1 + F / 3))),

and the ratio of widths is the square root of the ratio of precisions. The factors are

- B²: records with unusual rows count for less, whatever the noise;
- 1 + a s² / I: noise of standard deviation s in the averaged score sum. It is the same
  in every direction, so it costs most in directions with little information: a > 1;
- 1 + k d n²: noise hides how the d columns are correlated. n² is the variance of what
  is known of one correlation. By the window alone it is s_H² / I², with s_H the noise
  in each entry of its information matrix, and by the first round (:mod:`~.first_round`)
  s₀² / I₀² + κ², with I₀ what all records tell there; their precisions are added;
- F = f c² s_H² / (N m)²: only where c > 1 constant columns (of sites, or of intervals
  of a baseline hazard) each have a mean of every other column to be learnt. What a
  column varies by within sites is its information less that of these means, and their
  noise adds up to F; m is a record's information about its constant.

However large the noise, Λ is left: no interval is wider than the prior's. How wide it
becomes also depends on what is not public, the correlations of the columns and the
noise that happens to be drawn, so a range is returned too. It ends at √(1 + I / Λ), the
prior's width over that of a column that is correlated with none.

All constants here were fitted to simulated studies on the columns of public tables.
"""

from __future__ import annotations

import math

from cipherbayes.inference.method import WidthRatio, WidthSetting
from cipherbayes.inference.noise_aware.first_round import CHANGE
from cipherbayes.inference.noise_aware.schedule import rounds

WEIGHTING_COST = 1.05
"""B, factor by which intervals widen because unusual records are weighted down, even
without noise."""
OWN_SHARE = 0.6
"""q, share of a column's information that the other columns do not explain."""
SCORE_NOISE = 3.0
"""a, weight of the noise of the score sums relative to the information."""
SCORE_NOISE_GROWING = 7.5
"""a of models whose score grows with the exponential of the linear predictor: few
records hold most of their information, so noise hides more of it."""
MATRIX_NOISE = 1.8
"""k, weight of the noise of the information matrix."""
SITE_MEANS_NOISE = 0.5
"""f, weight of the noise of the column means where the constants are sites'."""
INTERVAL_MEANS_NOISE = 2.5
"""f where the constants are intervals of a baseline: larger, because the means of a
column are not taken to be alike in all intervals."""
MOST_HIDDEN = 3.0
"""Largest value of F / (1 + F / 3): with much noise, the posterior takes sites to be
alike and loses no more."""
LEAST, MOST = 0.4, 2.5
"""Lower and upper end of the range, as multiples of the expected widening: nine of ten
studies were between them."""


def expected_width_ratio(setting: WidthSetting) -> WidthRatio:
    """How many times as wide an interval is as it would be without privacy."""
    sensitivities, mu, excess = setting.sensitivities, setting.mu, setting.excess
    score_share = sum(each.gradient_share for each in rounds())
    information_share = sum(
        each.information_share for each in rounds() if each.in_window
    )
    score_noise = excess * (sensitivities[0] / mu) ** 2 / score_share
    matrix_noise = excess * (sensitivities[1] / mu) ** 2 / information_share
    first_noise = matrix_noise * information_share / rounds()[0].information_share
    total = setting.records * setting.information
    first = setting.records * setting.first_information
    blurred = matrix_noise / total**2
    if not setting.levels:
        blurred = 1.0 / (1.0 / blurred + 1.0 / (first_noise / first**2 + CHANGE**2))
    score_weight = SCORE_NOISE_GROWING if setting.grows else SCORE_NOISE
    blur = 1.0 + score_weight * score_noise / total
    blur *= 1.0 + MATRIX_NOISE * setting.dimension * blurred
    if setting.levels:
        constants, weight = setting.levels, SITE_MEANS_NOISE
    else:
        constants, weight = setting.intervals, INTERVAL_MEANS_NOISE
    if constants > 1:
        each = setting.records * setting.mass
        hidden = weight * matrix_noise * (constants / each) ** 2
        blur *= 1.0 + hidden / (1.0 + hidden / MOST_HIDDEN)
    own, prior = OWN_SHARE * total, setting.prior_sd**-2.0
    expected = math.sqrt((prior + own) / (prior + own / WEIGHTING_COST**2 / blur))
    least = 1.0 + LEAST * max(expected - WEIGHTING_COST, 0.0)
    most = min(1.0 + MOST * (expected - 1.0), math.sqrt(1.0 + total / prior))
    return WidthRatio(expected, least, most)

"""How wide private intervals will be, from public numbers alone.

With v the information of a typical record in the direction of a typical column,
I = N v, and s the noise of the averaged score sum of all rounds, the posterior
precision given H is Λ + I² / (I + s²) against Λ + I without privacy. H is not known
but estimated with noise s_H; as a rule of thumb that enters as
I² → I² / (1 + d s_H² / 4 I²): of the noise's d / 2 directions the prior of H, under
which most columns are unrelated, leaves half.

Where b constants belong to sites (to intervals of each), a column's means there are
what noise hides most. What it varies by within sites is its information less that of
its means, whose noise adds up to F = b² s_H² / 2 (N m)² of it, m a record's information
about a constant; where that is much, sites are taken to be more alike. As a rule of
thumb intervals grow by √(1 + F / (1 + F / 3)).
"""

from __future__ import annotations

import math

from cipherbayes.inference.noise_aware.schedule import rounds

BOUNDED = 1.1
"""Width that counting unusual records for less costs, noise apart."""
LEFT = 0.5
"""Both fitted to simulated studies and to the columns of three public tables."""
MOST_BY_SITE = 3.0
"""Of F / (1 + F / 3)."""


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
) -> float:
    """Expected ratio of a private interval's width to the non-private one's.

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
        b and m; b = 0 where sites are alike.
    """
    score_share = sum(each.gradient_share for each in rounds())
    information_share = sum(
        each.information_share for each in rounds() if each.in_window
    )
    score_noise = excess * (sensitivities[0] / mu) ** 2 / score_share
    information_noise = excess * (sensitivities[1] / mu) ** 2 / information_share
    total = records * information
    # Half of the Frobenius noise's variance off the diagonal, in d directions.
    blur = 1.0 + LEFT * 0.5 * dimension * information_noise / total**2
    hidden = 0.5 * information_noise * (levels / (records * mass)) ** 2
    hidden = hidden / (1.0 + hidden / MOST_BY_SITE)
    learnt = total**2 / (total + score_noise) / blur / (1.0 + hidden)
    prior = prior_sd**-2.0
    return BOUNDED * math.sqrt((prior + total) / (prior + learnt))

"""How wide private intervals will be, from public numbers alone.

With v the information of a typical record in the direction of a typical column,
I = N v, and s the noise of the averaged score sum of all rounds, the posterior
precision given H is Λ + I² / (I + s²) against Λ + I without privacy. H is not known
but estimated with noise s_H; as a rule of thumb that enters as
I² → I² / (1 + d s_H² / 4 I²): of the noise's d / 2 directions the prior of H, under
which most columns are unrelated, leaves half.
"""

from __future__ import annotations

import math

from cipherbayes.inference.noise_aware.schedule import rounds

BOUNDED = 1.1
"""Width that counting unusual records for less costs, noise apart."""
LEFT = 0.5
"""Both fitted to simulated studies and to the columns of three public tables."""


def expected_width_ratio(
    *,
    records: int,
    dimension: int,
    mu: float,
    sensitivities: tuple[float, float],
    information: float,
    prior_sd: float = 1.0,
    excess: float = 1.0,
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
    learnt = total**2 / (total + score_noise) / blur
    prior = prior_sd**-2.0
    return BOUNDED * math.sqrt((prior + total) / (prior + learnt))

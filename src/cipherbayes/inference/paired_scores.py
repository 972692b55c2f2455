"""The mean difference of two fits' log scores, from noised sums over the same rows."""

from __future__ import annotations

import numpy as np

from cipherbayes.models.score_difference import CLIP, SQUARE
from cipherbayes.typing import Floats

DRAWS = 4000
"""Number of draws of the mean difference."""


def mean_difference(sums: Floats, noise: float, rows: Floats) -> Floats:
    """Draws of the mean score difference in the population that the rows are from.

    With U and Q the noised sums of u and of its squares over n rows, the mean of u is
    normal around U / n with variance (s² + n v) / n². Here s is the sd of the noise and
    v = Q / n − (U / n)², kept between 0 and 1, the variance of u, drawn with the noise
    of Q.

    Parameters
    ----------
    sums, noise
        As released, and the standard deviation of the noise of each.
    rows
        Draws of how many rows there are.
    """
    rng = np.random.default_rng(1)
    count = np.maximum(rng.choice(rows, DRAWS), 1.0)
    first, second = sums[0], sums[1] + noise * rng.standard_normal(DRAWS)
    varies = np.clip(second / (SQUARE * count) - (first / count) ** 2, 0.0, 1.0)
    spread = np.sqrt(noise**2 + count * varies) / count
    mean: Floats = first / count + spread * rng.standard_normal(DRAWS)
    return CLIP * np.clip(mean, -1.0, 1.0)

"""Have the chains mixed? R-hat and effective sample size, by ArviZ."""

from __future__ import annotations

from typing import Any

import numpy as np
from arviz_stats.base.array import array_stats

from cipherbayes.typing import Floats

_arviz: Any = array_stats  # has no types


def rhat(draws: Floats) -> Floats:
    """Rank-normalised split R-hat of each parameter.

    ``draws`` has shape ``(chains, draws, d)``. What cannot be estimated (one chain,
    fewer than four draws) is NaN.

    References
    ----------
    Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Rank-normalization,
    folding, and localization: an improved R-hat.
    """
    chains, count, width = draws.shape
    if chains < 2 or count < 4:
        return np.full(width, np.nan)
    return np.asarray(_arviz.rhat(draws, chain_axis=0, draw_axis=1))


def rhat_and_ess(draws: Floats) -> tuple[Floats, Floats]:
    """:func:`rhat` and the bulk effective sample size, NaN for fewer than four draws.

    The second takes most of the time.
    """
    _, count, width = draws.shape
    if count < 4:
        return rhat(draws), np.full(width, np.nan)
    return rhat(draws), np.asarray(_arviz.ess(draws, chain_axis=0, draw_axis=1))

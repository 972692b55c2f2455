"""Have the chains mixed? R-hat and effective sample size, by ArviZ."""

from __future__ import annotations

from typing import Any

import numpy as np

from cipherbayes.typing import Floats


def rhat_and_ess(draws: Floats) -> tuple[Floats, Floats]:
    """Rank-normalised split R-hat and bulk ESS of each parameter.

    ``draws`` has shape ``(chains, draws, d)``. What cannot be estimated (one
    chain for R-hat, fewer than four draws) is NaN.

    References
    ----------
    Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Rank-normalization,
    folding, and localization: an improved R-hat.
    """
    chains, count, width = draws.shape
    unknown = np.full(width, np.nan)
    if count < 4:
        return unknown, unknown
    # Takes as long to import as all the rest of a run.
    from arviz_stats.base.array import array_stats

    arviz: Any = array_stats  # has no types
    ess = np.asarray(arviz.ess(draws, chain_axis=0, draw_axis=1))
    if chains < 2:
        return unknown, ess
    return np.asarray(arviz.rhat(draws, chain_axis=0, draw_axis=1)), ess

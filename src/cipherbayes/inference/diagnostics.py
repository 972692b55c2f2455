"""Have the chains mixed? R-hat and effective sample size, by ArviZ."""

from __future__ import annotations

from typing import Any

import numpy as np

from cipherbayes.typing import Floats


def rhat(draws: Floats) -> Floats:
    """The first of :func:`rhat_and_ess`, which takes a fraction of the time."""
    chains, count, width = draws.shape
    if chains < 2 or count < 4:
        return np.full(width, np.nan)
    return np.asarray(_arviz().rhat(draws, chain_axis=0, draw_axis=1))


def rhat_and_ess(draws: Floats) -> tuple[Floats, Floats]:
    """Rank-normalised split R-hat and bulk ESS of each parameter.

    ``draws`` has shape ``(chains, draws, d)``. What cannot be estimated (one
    chain for R-hat, fewer than four draws) is NaN.

    References
    ----------
    Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Rank-normalization,
    folding, and localization: an improved R-hat.
    """
    _, count, width = draws.shape
    if count < 4:
        return rhat(draws), np.full(width, np.nan)
    return rhat(draws), np.asarray(_arviz().ess(draws, chain_axis=0, draw_axis=1))


def _arviz() -> Any:
    """ArviZ's functions, which have no types."""
    # Takes as long to import as all the rest of a run.
    from arviz_stats.base.array import array_stats

    return array_stats

"""The two inner loops of every gradient pass."""

from __future__ import annotations

from cipherbayes.typing import Floats


def linear_predictor(theta: Floats, x: Floats) -> Floats:
    """eta_i = sum_j theta_j x_ji for a block ``x`` of shape ``(p, m)``."""
    eta: Floats = theta @ x
    return eta


def weighted_sum(x: Floats, weights: Floats) -> Floats:
    """g_j = sum_i x_ji weights_i for a block ``x`` of shape ``(p, m)``."""
    total: Floats = x @ weights
    return total

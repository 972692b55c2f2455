"""How much better one fit predicts a record than another: log scores, subtracted.

A fit's log score of a record is ln of the mean likelihood over draws of its posterior.
The difference of two, held within ±½, is what a record adds, and half its square: the
sums tell the mean and how far it varies.

Formal guarantees
-----------------
With u the difference over ½, a record adds (u, u² / 2), |u| ≤ 1: norm √(1 + ¼) or less,
whatever the draws are; a score that is not a number counts as no difference. Both are
multiples of 2⁻²⁰, so that sums are exact, and a record's scores have the same bits
wherever it stands.
"""

from __future__ import annotations

import numpy as np

from cipherbayes.models import kernels
from cipherbayes.models.base import Model
from cipherbayes.models.held_out import GRID
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Floats

CLIP = 0.5
"""Differences count as far as this, in nats."""
SQUARE = 0.5
"""Weight of the squares."""
BOUND = float(np.sqrt(1.0 + SQUARE**2))
DIMENSION = 2


def log_scores(model: Model, draws: Floats, rows: Rows) -> Floats:
    """ln of the mean likelihood of each record over ``draws`` (s, d)."""
    with np.errstate(all="ignore"):
        logs = np.stack([model.log_likelihood(theta, rows) for theta in draws])
        most = logs.max(axis=0)
        total = kernels.add_rows(np.exp(logs - most))
        scores: Floats = most + np.log(total / len(draws))
    return scores


def difference_sums(first: Floats, second: Floats, shares: Floats | None) -> Floats:
    """Sums over the records of the difference, first less second, and of its square."""
    with np.errstate(all="ignore"):
        away = np.clip(np.nan_to_num((first - second) / CLIP, nan=0.0), -1.0, 1.0)
    away = np.rint(away * GRID) / GRID
    square = np.rint(SQUARE * away**2 * GRID) / GRID
    parts = np.stack([away, square])
    if shares is not None:
        parts = parts * shares
    return np.asarray(parts.sum(axis=1))

"""Splits into training and test rows, and of training rows into sites."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cipherbayes.typing import Integers

SPLITS = 10
"""The paper's number of 80/20 splits."""


def split_rows(count: int, split: int) -> tuple[Integers, Integers]:
    """Training and test rows of a split, 80 % and 20 %.

    Splits are independent random ones as in the paper; the number is the seed.
    """
    order = np.random.default_rng(split).permutation(count)
    train, test = np.split(order, [round(0.8 * count)])
    return np.sort(train), np.sort(test)


def split_over_sites(
    rows: Integers, sites: int, split: int, ratios: Sequence[float] | None = None
) -> list[Integers]:
    """Training rows divided at random over sites, evenly or in given proportions."""
    shares = np.ones(sites) if ratios is None else np.asarray(ratios, dtype=float)
    ends = np.round(np.cumsum(shares) / shares.sum() * rows.size).astype(int)
    order = np.random.default_rng([split, sites]).permutation(rows)
    return [np.sort(part) for part in np.split(order, ends[:-1])]

"""Prepared values in the user's own units, and the names of ranges."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from cipherbayes.data.column_bins import ColumnBins
from cipherbayes.data.features import Feature
from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats


def user_values(feature: Feature, z: Floats) -> Floats:
    """What a number was before it was prepared; the transform is turned back by
    bisection."""
    centre, half = feature.affine()
    wanted = np.clip(centre + half * np.asarray(z), centre - half, centre + half)
    if feature.transform is None:
        return wanted
    assert feature.low is not None
    assert feature.high is not None
    low, high = (np.full(wanted.shape, end) for end in (feature.low, feature.high))
    for _ in range(60):
        middle = 0.5 * (low + high)
        above = feature.transformed(middle) >= wanted
        high, low = np.where(above, middle, high), np.where(above, low, middle)
    values: Floats = 0.5 * (low + high)
    return values


def range_names(study: Study, column: ColumnBins, moments: Floats | None) -> list[str]:
    """The names of a feature's bins: its levels, or ranges in the user's units."""
    missing = ["missing"] if column.tells_missing else []
    if column.levels is not None:
        return [*column.levels, *missing]
    edges = user_values(study.features[column.column], column.edges(moments))
    texts = [f"{edge:.4g}" for edge in edges]
    between = [f"{a} to {b}" for a, b in pairwise(texts)]
    return [f"below {texts[0]}", *between, f"above {texts[-1]}", *missing]

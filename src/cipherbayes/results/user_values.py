"""Prepared numbers in the user's own units, and the names of ranges."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from cipherbayes.data.column_bins import ColumnBins
from cipherbayes.models.transforms import transform_named
from cipherbayes.typing import Floats


def user_values(column: ColumnBins, z: Floats) -> Floats:
    """What a number was before it was prepared, within its public range."""
    feature = column.number
    inverse = transform_named(feature.transform).undo_number
    values = [inverse(column.centre + column.half_width * each) for each in z.tolist()]
    return np.clip(values, *feature.ends)


def range_names(column: ColumnBins, moments: Floats | None) -> list[str]:
    """The names of a feature's bins: its levels, or ranges in the user's units."""
    if column.levels is not None:
        return list(column.level_names)
    missing = ["missing"] if column.tells_missing else []
    texts = [f"{edge:.4g}" for edge in user_values(column, column.edges(moments))]
    between = [f"{a} to {b}" for a, b in pairwise(texts)]
    return [f"below {texts[0]}", *between, f"above {texts[-1]}", *missing]

"""What an outcome column may hold, as far as it is public: audits make up rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cipherbayes.typing import Floats


@dataclass(frozen=True)
class OutcomeRange:
    """Values of one outcome column, in the user's units.

    Attributes
    ----------
    ordinary
        Ends between which ordinary values are made up.
    extremes
        Two values at which a record may count for much. The first ones of all outcome
        columns are one record's, and so are the second ones: with a short time comes
        an event, with a long one none.
    whole
        Whether all values are whole numbers.
    """

    ordinary: tuple[float, float]
    extremes: tuple[float, float]
    whole: bool = False

    def made_up(self, rows: int, rng: np.random.Generator) -> Floats:
        """Ordinary values, all between the ends equally likely."""
        low, high = self.ordinary
        if self.whole:
            return rng.integers(int(low), int(high) + 1, size=rows).astype(np.float64)
        return rng.uniform(low, high, rows)


def between(low: float, high: float, *, whole: bool = False) -> OutcomeRange:
    """Any value between two ends, which are the extremes."""
    return OutcomeRange((low, high), (low, high), whole=whole)


FAMILY_RANGES: Mapping[str, OutcomeRange] = {
    "binary": between(0, 1, whole=True),
    "count": OutcomeRange((0, 4), (0.0, 1e6), whole=True),
    "number": between(0.0, 1.0),
}
"""Family -> the range of an outcome of which a model says no more."""

"""What an outcome column may hold: its public range, and what is refused."""

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


def require_finite(values: Floats, column: str) -> None:
    """Refuse an outcome column with missing or infinite values."""
    if np.isnan(values).any():
        raise ValueError(
            f"outcome column '{column}' has missing values: "
            "remove the rows without an outcome"
        )
    if np.isinf(values).any():
        raise ValueError(
            f"outcome column '{column}' has infinite values: "
            "correct or remove those rows"
        )


def require_binary(values: Floats, column: str) -> None:
    """Refuse an outcome column with anything but zeros and ones."""
    require_finite(values, column)
    if not np.all((values == 0.0) | (values == 1.0)):
        raise ValueError(
            f"outcome column '{column}' is not binary: recode it to 0 and 1"
        )

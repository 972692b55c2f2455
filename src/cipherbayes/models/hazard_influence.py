"""Bounded influence of hazards with one parameter beside those of the columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cipherbayes.models.influence import (
    BoundedInfluence,
    Influence,
    InfluenceBound,
    Weighting,
    mallows_weights,
)
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Floats


@dataclass(frozen=True)
class StoppedHazard:
    """What m records lived through until they are left, the cumulative hazard at c.

    With L the cumulative hazard and u, |u| ≤ 1, the column of the parameter that
    multiplies none of the table's.

    Attributes
    ----------
    event
        1 where the event counts.
    followed, first, second
        ∫ dL, ∫ u dL and ∫ u² dL.
    column
        u when the record is left.
    """

    event: Floats
    followed: Floats
    first: Floats
    second: Floats
    column: Floats


class HazardInfluence(BoundedInfluence):
    """w ∫ z dM and w ∫ z z' dL, z = (x, u), w = min(1, (C² + 1) / (‖x‖² + 1))."""

    multiplicative: ClassVar[bool] = True

    def weighting(self, bound: InfluenceBound) -> Weighting:
        return Weighting(bound.clip**2 + 1.0, 1.0)

    def weighted(
        self, rows: Rows, stopped: StoppedHazard, bound: InfluenceBound
    ) -> Influence:
        """The integrals of each record, times its weight."""
        weights = mallows_weights(
            rows.squared_norms + 1.0, float(np.sqrt(bound.clip**2 + 1.0))
        )
        return Influence(
            rows,
            score=weights * (stopped.event - stopped.followed),
            information=weights * stopped.followed,
            extra=(weights * (stopped.event * stopped.column - stopped.first))[None],
            cross=(weights * stopped.first)[None],
            corner=(weights * stopped.second)[None, None],
        )

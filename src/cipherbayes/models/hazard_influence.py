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
    normal_predictors,
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


LOG_HAZARDS = (-20.0, 10.0)
"""Log cumulative hazards among which that of a whole follow-up is looked for."""


def followed_share(told: float, variance: float, stop: float) -> float:
    """The share of all events that come before a cumulative hazard of c.

    ``told`` is the mean hazard that records are followed through. If all are under
    observation equally long, with log hazards about normal, it is
    E[1 - exp(-min(s e^u, c))], u ~ N(0, ``variance``), which says what s is; without
    the stop it would be E[1 - exp(-s e^u)]. Follow-ups of different lengths lose less.
    """
    predictors, weights = normal_predictors(0.0, variance)
    risks = np.exp(predictors)

    def events(log_hazard: float, most: float) -> float:
        hazards = np.minimum(np.exp(log_hazard) * risks, most)
        return float(weights @ -np.expm1(-hazards))

    low, high = LOG_HAZARDS
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if events(middle, stop) < told else (low, middle)
    return events(low, stop) / events(low, np.inf)


class HazardInfluence(BoundedInfluence):
    """w ∫ z dM and w ∫ z z' dL, z = (x, u), w = min(1, (C² + 1) / (‖x‖² + 1))."""

    multiplicative: ClassVar[bool] = True

    def kept_shares(
        self, bound: InfluenceBound, told: float, mean: float, variance: float
    ) -> tuple[float, float]:
        share = followed_share(told, variance, bound.stop)
        return share, share

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

"""What the mean of a model's score sum looks like, away from where it was taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cipherbayes.models.base import Design, Model
from cipherbayes.typing import Floats


def _straight(fall: Floats) -> Floats:
    return np.zeros_like(fall)


@dataclass(frozen=True)
class ScoreShape:
    """Public facts about a model's scores, in internal units.

    Attributes
    ----------
    scale
        ``model.influence_scale(design)``: θ_j = scale_j · (internal θ_j).
    bend
        ``model.score_bend``: zero where the score does not saturate.
    constants
        Parameters whose columns are constant, or exclude each other.
    unit
        The direction along which the linear predictor of every record grows by one:
        only where the score grows with the exponential of the linear predictor, else
        None.
    straightened, frame
        ``model.straightened`` and ``model.frame`` in internal units.
    width
        How many of the parameters are coefficients of columns; all where None.
    """

    scale: Floats
    bend: Callable[[Floats], Floats] = _straight
    constants: tuple[int, ...] = ()
    unit: Floats | None = None
    straightened: Callable[[Floats], tuple[Floats, Floats | None]] = lambda away: (
        away,
        None,
    )
    frame: Callable[[Floats], Floats | None] = lambda theta: None
    width: int | None = None

    @classmethod
    def of(cls, model: Model, design: Design) -> ScoreShape:
        """Of a model's influences on prepared columns."""
        scale = model.influence_scale(design)
        constants = model.constants(design)
        unit = None
        if model.multiplicative and constants:
            value = 1.0 if design.intercept is None else design.intercept
            unit = np.zeros(scale.size)
            unit[list(constants)] = 1.0 / (value * scale[list(constants)])

        def straightened(away: Floats) -> tuple[Floats, Floats | None]:
            straight, jacobian = model.straightened(away * scale, design)
            if jacobian is not None:
                jacobian = jacobian * scale / scale[:, None]
            return straight / scale, jacobian

        def frame(theta: Floats) -> Floats | None:
            found = model.frame(theta * scale, design)
            return None if found is None else found * scale[:, None] / scale

        return cls(
            scale,
            model.score_bend,
            constants,
            unit,
            straightened,
            frame,
            design.width,
        )

    def predictor(self, theta: Floats) -> Floats:
        """θ without what is no coefficient of a column."""
        return np.asarray(
            np.where(np.arange(theta.size) < (self.width or theta.size), theta, 0.0)
        )

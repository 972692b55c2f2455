"""Density estimation: the mean of a Gaussian with known variance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from cipherbayes.models.base import Model
from cipherbayes.models.design import Design
from cipherbayes.models.registry import register
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.typing import Floats


@register
class GaussianMean(Model):
    """Vectors x_i ~ N(theta, v I): the study's features are the coordinates of x.

    log p(x | theta) = -|x - theta|² / 2v - (d/2) log(2 pi v); gradient
    (x - theta) / v. On prepared columns z = (x - c) / h, theta = c + h theta_z:
    gradient h² (z - theta_z) / v, second derivative -h² / v.

    Where the study transforms a feature, x is the transformed value.

    Parameters
    ----------
    variance
        The known variance v of every coordinate, in the user's units squared.
    """

    family: ClassVar[str] = "vector"
    needs_intercept: ClassVar[bool] = False
    response: ClassVar[tuple[str, ...]] = ()
    kind: Literal["gaussian"] = "gaussian"
    variance: float = Field(gt=0.0, allow_inf_nan=False)

    def prepare_outcome(self, raw: Mapping[str, Floats]) -> dict[str, Floats]:
        return {}

    def parameters(self, design: Design) -> tuple[str, ...]:
        if design.intercept is not None:
            raise ValueError(
                "a model of kind 'gaussian' has no intercept: "
                "prepare its columns without the constant one"
            )
        return design.names

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        deviation = rows.design.half_width[:, None] * (rows.x - theta[:, None])
        constant = 0.5 * rows.design.width * np.log(2.0 * np.pi * self.variance)
        result: Floats = (
            -np.einsum("jm,jm->m", deviation, deviation) / (2.0 * self.variance)
            - constant
        )
        return result

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        curvature = rows.design.half_width**2 / self.variance
        extra = curvature[:, None] * (rows.x - theta[:, None])
        return RecordGradients(rows, score=None, extra=extra)

    def information_diagonal(self, theta: Floats, rows: Rows) -> Floats:
        result: Floats = rows.count * rows.design.half_width**2 / self.variance
        return result

    def curvature(self, design: Design) -> float:
        return float(np.max(design.half_width**2) / self.variance)

    def largest_curvature(self, design: Design) -> float:
        return self.curvature(design)  # the coordinates do not interact

    def to_user_scale(self, draws: Floats, design: Design) -> Floats:
        return design.centre + design.half_width * draws

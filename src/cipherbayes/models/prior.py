"""The prior of a study: independent, one location and scale per parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from scipy.special import gammaln

from cipherbayes.typing import Floats

PriorKind = Literal["normal", "laplace", "student-t"]

UNIT = 1.0
"""Scale of a prior that states none."""
EFFECTS, WIDE = 0.5, 5.0
"""The same of effects and of constants where columns are standardised.

Clinical effects are of this size. For a standard deviation of a column, N(0, 0.5²) is
an odds or hazard ratio between 0.38 and 2.7 in 95 of 100; for a level that half of the
records have, one between 1/7 and 7, where Greenland (2006) takes 1/4 to 4.
"""


class ParameterPrior(BaseModel):
    """What ``[prior.parameters]`` says of one parameter; None keeps the default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: float | None = Field(default=None, allow_inf_nan=False)
    scale: float | None = Field(default=None, ge=1e-9, le=1e9)


class Prior(BaseModel):
    """The study's ``[prior]`` table: u_j = (theta_j - mean_j) / scale_j, independent.

    normal: log density -u² / 2, gradient -u / scale;
    laplace: -abs(u), gradient -sign(u) / scale (zero at the mean);
    student-t: -(df + 1) / 2 log(1 + u² / df), gradient
    -(df + 1) u / (df + u²) / scale; each up to its constant.

    Theta is on the *prepared* scale: theta_j multiplies a column that the study's
    public range maps to [-1, 1] (a 0/1 column for a level or a missing-value
    indicator, the constant column for the intercept). With scale 1, crossing the
    whole public range of a feature moves the linear predictor by N(0, 2²). Where
    scales are released, a column has about mean 0 and standard deviation 1, and with
    scale 1/2, the default there, one standard deviation more moves the linear
    predictor by N(0, 1/4): odds or hazard ratios between 0.38 and 2.7 in 95 of 100. A
    linear model's predictor counts in half widths of the outcome's public range: one
    standard deviation more moves the outcome by less than half of its range in 95 of
    100, and no column can do more to values that are within it. For
    the Gaussian mean, theta_j is the position of the mean in the public range,
    -1 at its low end and 1 at its high end.

    Parameters
    ----------
    kind
        Family of every parameter.
    mean, scale
        Defaults for every parameter; the scale is the standard deviation of a
        normal, otherwise the usual scale of the family. Left out, it is 1, and 1/2
        where scales are released.
    intercept
        Scale of the constants (the intercept, or the baselines of intervals). Left
        out, it is ``scale``; where that is left out too, and scales are released, 5:
        how common an outcome is says nothing of how strong effects are.
    shape
        Scale of what is neither an effect nor a constant: the logarithm of a shape
        or of a residual standard deviation, say. Left out, it is ``scale``; where
        that is left out too, 1.
    df
        Degrees of freedom, ``student-t`` only: 4 unless stated, 1 is a Cauchy.
    parameters
        Overrides by the name of the parameter, e.g. ``age = { scale = 0.5 }``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: PriorKind = "normal"
    mean: float = Field(default=0.0, allow_inf_nan=False)
    scale: float | None = Field(default=None, ge=1e-9, le=1e9)
    intercept: float | None = Field(default=None, ge=1e-9, le=1e9)
    shape: float | None = Field(default=None, ge=1e-9, le=1e9)
    df: float | None = Field(default=None, ge=1.0, le=1e6)
    parameters: Mapping[str, ParameterPrior] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _df_is_for_student_t(self) -> Self:
        if self.df is not None and self.kind != "student-t":
            raise ValueError(
                f"df means nothing for a {self.kind} prior: remove it or say "
                "kind = 'student-t'"
            )
        return self

    @property
    def usual_scale(self) -> float:
        """The scale of parameters of which nothing else is said."""
        return UNIT if self.scale is None else self.scale

    def filled_in(self, *, standardised: bool) -> Prior:
        """With the scales that are left out, for columns standardised or not."""
        if self.scale is not None or not standardised:
            return self.model_copy(update={"scale": self.usual_scale})
        default = {"scale": EFFECTS, "intercept": WIDE, "shape": UNIT}
        stated = {name: getattr(self, name) for name in default}
        left_out = {name: default[name] for name in default if stated[name] is None}
        return self.model_copy(update=left_out)

    def resolve(
        self,
        names: Sequence[str],
        constants: Sequence[int] = (),
        shapes: Sequence[int] = (),
    ) -> ResolvedPrior:
        """The prior of the parameters ``names``, in that order.

        ``constants`` are the places of those that multiply a constant, ``shapes`` of
        those that are no effect either.
        """
        known = set(names)
        unknown = [name for name in self.parameters if name not in known]
        if unknown:
            raise ValueError(
                f"prior for unknown parameter '{unknown[0]}': "
                f"the parameters are {', '.join(names)}"
            )
        mean = np.full(len(names), self.mean)
        usual = self.usual_scale
        scale = np.full(len(names), usual)
        scale[list(constants)] = usual if self.intercept is None else self.intercept
        scale[list(shapes)] = usual if self.shape is None else self.shape
        for index, name in enumerate(names):
            override = self.parameters.get(name, ParameterPrior())
            if override.mean is not None:
                mean[index] = override.mean
            if override.scale is not None:
                scale[index] = override.scale
        return ResolvedPrior(self.kind, mean, scale, self.df or 4.0)


@dataclass(frozen=True)
class ResolvedPrior:
    """A prior with one entry per parameter; theta on the last axis throughout."""

    kind: PriorKind
    mean: Floats
    scale: Floats
    df: float

    def log_density(self, theta: Floats) -> Floats:
        """Normalised log density, summed over the parameters."""
        u = (theta - self.mean) / self.scale
        if self.kind == "normal":
            each = -0.5 * (u**2 + np.log(2.0 * np.pi))
        elif self.kind == "laplace":
            each = -np.abs(u) - np.log(2.0)
        else:
            # log(1 + u²/df) without squaring u, which may be huge.
            tail = 2.0 * np.log(np.hypot(1.0, u / np.sqrt(self.df)))
            constant = (
                gammaln(0.5 * (self.df + 1.0))
                - gammaln(0.5 * self.df)
                - 0.5 * np.log(np.pi * self.df)
            )
            each = constant - 0.5 * (self.df + 1.0) * tail
        total: Floats = (each - np.log(self.scale)).sum(axis=-1)
        return total

    def gradient(self, theta: Floats) -> Floats:
        """d log density / d theta."""
        u = (theta - self.mean) / self.scale
        slope: Floats
        if self.kind == "normal":
            slope = -u
        elif self.kind == "laplace":
            slope = -np.sign(u)
        else:
            radius = np.hypot(np.sqrt(self.df), u)
            slope = -(self.df + 1.0) * (u / radius) / radius
        return slope / self.scale

    @property
    def precision(self) -> Floats:
        """1 / scale² of a normal prior; the others have no constant curvature."""
        if self.kind != "normal":
            raise ValueError(
                f"a {self.kind} prior has no precision: use a normal prior here"
            )
        result: Floats = 1.0 / self.scale**2
        return result

"""How numbers may be transformed: the function, its inverse, and what a step means."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cipherbayes.typing import Floats

TransformName = Literal["log", "log1p", "sqrt"]
"""What study files and formulas call them."""


@dataclass(frozen=True)
class Transform:
    """One f, applied to a number before it is scaled.

    Attributes
    ----------
    apply, undo
        f and its inverse, of arrays.
    undo_number
        The inverse, of one number.
    needs
        What a public range must keep to, in words.
    step
        What one step of the transformed number is called; ``{}`` is the column.
    step_size
        Its size on f(x).
    """

    apply: Callable[[Floats], Floats]
    undo: Callable[[Floats], Floats]
    undo_number: Callable[[float], float]
    needs: str
    step: str
    step_size: float


DOUBLING = math.log(2.0)
TRANSFORMS: dict[TransformName, Transform] = {
    "log": Transform(np.log, np.exp, math.exp, "low > 0", "doubling of {}", DOUBLING),
    "log1p": Transform(
        np.log1p, np.expm1, math.expm1, "low > -1", "doubling of 1 + {}", DOUBLING
    ),
    "sqrt": Transform(
        np.sqrt,
        np.square,
        lambda root: root * root,
        "low >= 0",
        "1 unit of sqrt({})",
        1.0,
    ),
}
_NONE = Transform(np.asarray, np.asarray, float, "", "1 unit of {}", 1.0)


def transform_called(name: str) -> TransformName | None:
    """The name itself, where there is such a transform."""
    return next((each for each in TRANSFORMS if each == name), None)


def transform_named(name: TransformName | None) -> Transform:
    """A transform by its name; None leaves a number as it is."""
    return _NONE if name is None else TRANSFORMS[name]

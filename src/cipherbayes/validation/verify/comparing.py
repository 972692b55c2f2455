"""What a server wrote beside what the totals imply, number by number."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np

from cipherbayes.typing import Floats, JsonObject

ROUNDING = 1e-6
"""Relative difference that another processor or library version may make."""
ELSEWHERE = 1e-3
"""Share of a number, or of its interval's width, by which it may differ where draws
show that another kind of machine made it: ranks of nearly equal draws change places,
and noisy sums are solved for with other roundings."""
ROUNDED = "but for rounding"


def difference(
    said: Any,
    implied: Any,
    name: str,
    *,
    within: float = ROUNDING,
    apart: float = 0.0,
) -> str | None:
    """Where two JSON values differ, in words; None where they do not.

    Numbers may differ by rounding, counts and everything else must be the same.

    Parameters
    ----------
    within
        Relative difference that is no difference. Where it is more than
        :data:`ROUNDING` it is a share of the interval's width as well: a mean near
        zero has no digits of its own.
    apart
        Difference of numbers that is no difference whatever they are.
    """
    if isinstance(said, dict) and isinstance(implied, dict):
        apart = within * _unit(implied) if within > ROUNDING else 0.0
        for key in sorted({*said, *implied}):
            if key not in said or key not in implied:
                has = "is missing" if key not in said else "does not belong there"
                return f"{name}.{key[:80]} {has}"
            found = difference(
                said[key], implied[key], f"{name}.{key}", within=within, apart=apart
            )
            if found is not None:
                return found
        return None
    if isinstance(said, list) and isinstance(implied, list):
        if len(said) != len(implied):
            return f"{name} has {len(said)} entries, the totals give {len(implied)}"
        for index, (one, other) in enumerate(zip(said, implied, strict=True)):
            label = other.get("name", index) if isinstance(other, dict) else index
            found = difference(one, other, f"{name}[{label}]", within=within)
            if found is not None:
                return found
        return None
    if _number(said) and _number(implied) and not isinstance(implied, int):
        with suppress(OverflowError):  # a whole number beyond every float
            if math.isclose(said, implied, rel_tol=within, abs_tol=apart):
                return None
        return _differs(name, said, implied)
    same = type(said) is type(implied) and said == implied
    return None if same else _differs(name, said, implied)


def _unit(row: JsonObject) -> float:
    """What a difference in a row of numbers is compared with, besides the number."""
    if "p" in row or "shift" in row:
        return 1.0  # a probability, or posterior standard deviations
    lower, upper = row.get("lower"), row.get("upper")
    if isinstance(lower, float) and isinstance(upper, float):
        return abs(upper - lower)
    return 0.0


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _differs(name: str, said: Any, implied: Any) -> str:
    def text(value: Any) -> str:
        return f"{value:.6g}" if isinstance(value, float) else str(value)[:80]

    return f"{name} is {text(said)}, the totals give {text(implied)}"


def paths_differ(said: list[Floats], implied: list[Floats]) -> tuple[str | None, str]:
    """Whether two courses of θ differ, and else how alike they are."""
    if len(said) != len(implied):
        return f"{len(said)} rounds are there, the totals give {len(implied)}", ""
    exact = True
    for number, (one, other) in enumerate(zip(said, implied, strict=True)):
        if one.shape != other.shape or not alike(one, other):
            return f"after round {number + 1} of the fit θ is another", ""
        exact = exact and np.array_equal(one, other)
    return None, "bit for bit" if exact else ROUNDED


def alike(one: Floats, other: Floats) -> bool:
    """Whether arrays of one shape are the same but for rounding."""
    scale = float(np.abs(np.nan_to_num(other)).max(initial=0.0))
    near = ROUNDING * scale * 1e-3
    return bool(np.allclose(one, other, rtol=ROUNDING, atol=near, equal_nan=True))

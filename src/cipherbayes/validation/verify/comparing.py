"""What a server wrote beside what the totals imply."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np

from cipherbayes.inference.diagnostics import rhat_and_ess
from cipherbayes.typing import Floats

ROUNDING = 1e-6
"""Relative difference that another processor or library version may make."""
ERRORS = 5.0
"""Monte Carlo errors by which two samplings of one posterior may differ: among a
thousand parameters fewer than one in a hundred pairs of them exceeds it by chance."""


def difference(said: Any, implied: Any, name: str) -> str | None:
    """Where two JSON values differ, in words; None where they do not.

    Numbers may differ by :data:`ROUNDING`; everything else must be the same.
    """
    if isinstance(said, dict) and isinstance(implied, dict):
        for key in sorted({*said, *implied}):
            if key not in said or key not in implied:
                has = "is missing" if key not in said else "does not belong there"
                return f"{name}.{key} {has}"
            found = difference(said[key], implied[key], f"{name}.{key}")
            if found is not None:
                return found
        return None
    if isinstance(said, list) and isinstance(implied, list):
        if len(said) != len(implied):
            return f"{name} has {len(said)} entries, the totals give {len(implied)}"
        for index, (one, other) in enumerate(zip(said, implied, strict=True)):
            label = one.get("name", index) if isinstance(one, dict) else index
            found = difference(one, other, f"{name}[{label}]")
            if found is not None:
                return found
        return None
    if _number(said) and _number(implied):
        with suppress(OverflowError):  # a whole number beyond every float
            if math.isclose(said, implied, rel_tol=ROUNDING, abs_tol=0.0):
                return None
        return _differs(name, said, implied)
    same = type(said) is type(implied) and said == implied
    return None if same else _differs(name, said, implied)


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
        if one.shape != other.shape or not _alike(one, other):
            return f"after round {number + 1} of the fit θ is another", ""
        exact = exact and np.array_equal(one, other)
    return None, "bit for bit" if exact else "but for rounding"


def draws_differ(
    said: Floats, implied: Floats, *, sampled: bool, tail: float
) -> tuple[str | None, bool, str]:
    """Whether two sets of draws are of another posterior.

    Parameters
    ----------
    said, implied
        Draws of shape ``(chains, draws, d)``.
    sampled
        Whether a sampler drew them after the rounds: then rounding may send its
        chains other ways, and only their distribution can be compared.
    tail
        Probability beyond each end of the interval.

    Returns
    -------
    tuple
        What differs or None; whether every bit is the same; how alike they are.
    """
    if said.shape != implied.shape:
        return "there are more or fewer draws than the totals give", False, ""
    if np.array_equal(said, implied):
        return None, True, "bit for bit"
    if _alike(said, implied):
        return None, False, "but for rounding"
    if not sampled or said.shape[1] < 4:
        return "the draws are not those that the totals give", False, ""
    worst = float(np.max(_errors_between(said, implied, tail)))
    if not worst <= ERRORS:
        return (
            f"the draws are {worst:.3g} Monte Carlo errors from those that the totals "
            "give",
            False,
            "",
        )
    return (
        None,
        False,
        f"within {worst:.2g} Monte Carlo errors (up to {ERRORS:g} are allowed), not "
        "bit for bit: another machine or release, or a change too small to tell",
    )


def _errors_between(one: Floats, other: Floats, tail: float) -> Floats:
    """Differences of means, spreads and quantiles, each in its standard errors."""
    flat, against = (x.reshape(-1, x.shape[-1]) for x in (one, other))
    with np.errstate(divide="ignore", invalid="ignore"):
        return _in_errors(other, flat, against, tail)


def _in_errors(other: Floats, flat: Floats, against: Floats, tail: float) -> Floats:
    # Both by the draws made here: those that are judged do not set their own margin.
    per = 2.0 / rhat_and_ess(other)[1]
    sd = against.std(axis=0)
    found = [np.abs(flat.mean(axis=0) - against.mean(axis=0)) / (sd * np.sqrt(per))]
    found.append(np.abs(np.log(flat.std(axis=0) / sd)) / np.sqrt(per))
    for share in (tail, 0.5, 1.0 - tail):
        ends = np.quantile(flat, share, axis=0)
        below = (against < ends).mean(axis=0)
        found.append(np.abs(below - share) / np.sqrt(share * (1.0 - share) * per))
    return np.asarray(found)


def _alike(one: Floats, other: Floats) -> bool:
    scale = float(np.abs(other).max(initial=0.0))
    return bool(np.allclose(one, other, rtol=ROUNDING, atol=ROUNDING * scale * 1e-3))

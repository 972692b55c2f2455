"""What a server wrote beside what the totals imply."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np

from cipherbayes.inference.diagnostics import normal_scores, rhat_and_ess
from cipherbayes.typing import Floats, JsonObject

ROUNDING = 1e-6
"""Relative difference that another processor or library version may make."""
ELSEWHERE = 1e-3
"""Share of a number, or of its interval's width, by which it may differ where draws
show that another kind of machine made it: ranks of nearly equal draws change places,
and noisy sums are solved for with other roundings."""
ROUNDED = "but for rounding"
ERRORS = 5.0
"""Monte Carlo errors by which two samplings of one posterior may differ: among a
thousand parameters fewer than one in a hundred pairs of them exceeds it by chance."""


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
    if alike(said, implied):
        return None, False, ROUNDED
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


def correlations_differ(said: Floats, implied: Floats) -> str | None:
    """Whether parameters go together otherwise in two samplings of one posterior.

    Each by itself may be as it should be while predictions, which are made of several,
    are not. Compared are correlations of normal scores, on Fisher's scale.

    Parameters
    ----------
    said, implied
        Draws of shape ``(chains, draws, d)``.
    """
    moving = np.ptp(implied, axis=(0, 1)) > 0.0
    if moving.sum() < 2:
        return None
    one, other = (normal_scores(each[..., moving]) for each in (said, implied))
    r, ours = _correlations(one), _correlations(other)
    sizes = np.minimum(rhat_and_ess(other)[1], rhat_and_ess(other**2)[1])
    squares = other.reshape(-1, other.shape[-1]) ** 2
    # Sites' effects are all wide where τ is large: then r is less sure than of normals.
    together = (squares.T @ squares) / len(squares) / (1.0 + 2.0 * ours**2)
    errors = np.sqrt(
        2.0 / np.minimum(sizes[:, None], sizes) * np.maximum(together, 1.0)
    )
    apart = np.abs(np.arctanh(r) - np.arctanh(ours)) / errors
    worst = float(apart.max())
    if worst <= ERRORS:
        return None
    return (
        f"how parameters go together in the draws is {worst:.3g} Monte Carlo errors "
        "from what the totals give"
    )


def _correlations(scores: Floats) -> Floats:
    """Correlations between all columns, over all chains."""
    found = np.corrcoef(scores.reshape(-1, scores.shape[-1]), rowvar=False)
    # Intervals of one baseline move together: their correlation is 1 but for rounding.
    return np.clip(np.nan_to_num(found), -1.0 + 1e-9, 1.0 - 1e-9)


def _errors_between(one: Floats, other: Floats, tail: float) -> Floats:
    """Differences of means, spreads and quantiles, each in its standard errors."""
    flat, against = (x.reshape(-1, x.shape[-1]) for x in (one, other))
    still = np.ptp(against, axis=0) == 0.0
    if still.any():  # has no error: it is the same, or it is not
        if not alike(flat[:, still], against[:, still]):
            return np.array([np.inf])
        if still.all():
            return np.zeros(1)
        flat, against, other = flat[:, ~still], against[:, ~still], other[..., ~still]
    with np.errstate(divide="ignore", invalid="ignore"):
        return _in_errors(other, flat, against, tail)


def _in_errors(other: Floats, flat: Floats, against: Floats, tail: float) -> Floats:
    # Both by the draws made here: those that are judged do not set their own margin.
    per = 2.0 / rhat_and_ess(other)[1]
    sd = against.std(axis=0)
    found = [np.abs(flat.mean(axis=0) - against.mean(axis=0)) / (sd * np.sqrt(per))]
    # A spread is less sure where tails are heavy, as those of sites' effects are, and
    # where τ, which decides how wide they are, mixes more slowly than they do.
    squares = ((other - against.mean(axis=0)) / sd) ** 2
    heavy = np.maximum((squares**2).mean(axis=(0, 1)) - 1.0, 2.0) / 2.0
    of_spread = np.maximum(per, 2.0 / rhat_and_ess(squares)[1])
    found.append(np.abs(np.log(flat.std(axis=0) / sd)) / np.sqrt(heavy * of_spread))
    for share in (tail, 0.5, 1.0 - tail):
        ends = np.quantile(flat, share, axis=0)
        below = (against < ends).mean(axis=0)
        found.append(np.abs(below - share) / np.sqrt(share * (1.0 - share) * per))
    return np.asarray(found)


def alike(one: Floats, other: Floats) -> bool:
    """Whether arrays of one shape are the same but for rounding."""
    scale = float(np.abs(np.nan_to_num(other)).max(initial=0.0))
    near = ROUNDING * scale * 1e-3
    return bool(np.allclose(one, other, rtol=ROUNDING, atol=near, equal_nan=True))

"""Two sets of draws: of one posterior, as two kinds of machine give, or not.

After a rounding chains go other ways, so that another machine gives other draws of the
same posterior. What that can explain is little: the means, spreads, quantiles and
correlations are the same but for Monte Carlo errors, chains mix as well, and not one
draw is there again in another place.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2, norm

from cipherbayes.inference.diagnostics import (
    ESS_LIMIT,
    normal_scores,
    rhat_and_ess,
)
from cipherbayes.typing import Floats
from cipherbayes.validation.verify.comparing import ROUNDED, alike

ERRORS = 5.0
"""Monte Carlo errors by which two samplings of one posterior may differ: among a
thousand parameters fewer than one in a hundred pairs of them exceeds it by chance."""
LARGEST = 0.25
"""Posterior standard deviations by which means may differ, whatever their errors."""
OTHER_BITS = (
    "not bit for bit: another machine or release, or a change too small to tell"
)
ENOUGH = 2.0 * (ERRORS / LARGEST) ** 2
"""Effective draws whose errors, five of them, are that large. Runs with fewer are
compared as if they had so many."""
TOO_FEW = (
    "with so few effective draws that cannot be told from another posterior; verify "
    "with the server's release on its kind of machine, where the bits are the same"
)
ELSEWHERE_BY = 0.1
"""Posterior standard deviations from which on a draw is another one."""
FEWEST_MOVED = 40
"""Draws that are others, from which on it is asked whether they are only moved."""
MOVED = 0.25
"""Typical distance of sorted draws that are only moved, over that of new ones."""
NEVER_APART = 1e-6
"""Share of the largest variance below which a combination does not vary."""
MIXING = 4.0
"""Factor by which effective draws, or what R-hat is above one, may differ."""
TYPICAL_MIXING = 2.0
"""The same of the median over parameters."""
UNSURE_RHAT = 0.05
"""What R-hat may be above one by chance."""


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
    worst, capped = _errors_between(said, implied, tail)
    if not worst <= ERRORS:
        return (
            f"the draws are {worst:.3g} Monte Carlo errors from those that the totals "
            "give",
            False,
            "",
        )
    if not capped <= ERRORS:
        return f"{_too_far(capped)}: {TOO_FEW}", False, ""
    return (
        None,
        False,
        f"within {worst:.2g} Monte Carlo errors (up to {ERRORS:g} are allowed, and of "
        f"means {LARGEST:g} posterior standard deviations)",
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
    apart = np.abs(np.arctanh(r) - np.arctanh(ours))
    errors = np.sqrt(
        2.0 * np.maximum(together, 1.0) / np.minimum(sizes[:, None], sizes)
    )
    worst = float((apart / errors).max())
    if not worst <= ERRORS:
        return (
            f"how parameters go together in the draws is {worst:.3g} Monte Carlo "
            "errors from what the totals give"
        )
    sizes = np.maximum(sizes, ENOUGH)
    errors = np.sqrt(
        2.0 * np.maximum(together, 1.0) / np.minimum(sizes[:, None], sizes)
    )
    if not float((apart / errors).max()) <= ERRORS:
        return f"parameters go together otherwise in the draws: {TOO_FEW}"
    return None


def combinations_differ(said: Floats, implied: Floats) -> tuple[str | None, str]:
    """Whether some linear combination of parameters has another mean or spread.

    A prediction is one: each parameter may be nearly as it should be, and all of them
    off in the same direction. With z the draws made here, uncorrelated and of unit
    variance, the sum of n_j Δ_j² / 2 over the moves Δ of their k means is about χ² with
    k degrees of freedom, and spreads in the worst direction are by factors up to
    (1 + g) / (1 - g), g = √(k / n) / 2, off. Draws are compared as normal scores by
    those made here: tails may be heavy.

    Parameters
    ----------
    said, implied
        Draws of shape ``(chains, draws, d)``.

    Returns
    -------
    tuple
        What differs or None; how alike they are.
    """
    moving = np.ptp(implied, axis=(0, 1)) > 0.0
    if not moving.any():
        return None, ""
    theirs, ours = _scores_by(said[..., moving], implied[..., moving])
    flat, against = (x.reshape(-1, x.shape[-1]) for x in (theirs, ours))
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(against, rowvar=False)))
    # Parameters that always move together have no direction in which they differ.
    ridge = NEVER_APART * values.max()
    root = vectors / np.sqrt(np.maximum(values, 0.0) + ridge)
    mixed = (ours - against.mean(axis=0)) @ root
    width = values.size
    reach = float(chi2.isf(2.0 * norm.sf(ERRORS), width))
    # As many draws as tell a mean that is off by one, and a spread by a factor of two.
    fewest = max(2.0 * reach, (1.5 * (np.sqrt(width) + ERRORS)) ** 2)
    sizes, of_squares = rhat_and_ess(mixed)[1], np.min(rhat_and_ess(mixed**2)[1])
    moves = (flat.mean(axis=0) - against.mean(axis=0)) @ root
    heavy = max(float((mixed**4).mean(axis=(0, 1)).max()) - 1.0, 2.0) / 2.0
    spread = root.T @ np.atleast_2d(np.cov(flat, rowvar=False)) @ root
    spread += ridge * root.T @ root
    widened = 0.5 * float(np.abs(np.log(np.linalg.eigvalsh(spread))).max())

    def excess(sizes: Floats, of_squares: float) -> float:
        share = 0.5 * (np.sqrt(width) + ERRORS) * np.sqrt(heavy / of_squares)
        may_widen = 2.0 * np.arctanh(min(share, 0.99))
        moved = float(np.sqrt(moves**2 @ sizes / (2.0 * reach)))
        return float(max(moved, widened / may_widen))

    own = excess(sizes, of_squares)
    enough = min(float(np.min(sizes)), of_squares) >= fewest
    if not enough and not excess(np.maximum(sizes, fewest), fewest) <= 1.0:
        return f"together, parameters are elsewhere in the draws: {TOO_FEW}", ""
    if enough and not own <= 1.0:
        return (
            f"together, the draws' means or spreads are {own:.3g} times as far from "
            "those that the totals give as chance explains",
            "",
        )
    most = np.sqrt(2.0 * reach / max(float(np.min(sizes)), fewest))
    return None, (
        "no combination of parameters off by more than "
        f"{float(np.sqrt(moves @ moves)):.2g} of its standard deviations (up to "
        f"{most:.2g} would pass)"
    )


def _scores_by(said: Floats, implied: Floats) -> tuple[Floats, Floats]:
    """Both as normal scores, by the quantiles of the draws made here."""
    ours = normal_scores(implied)
    theirs = np.empty_like(said)
    for j in range(said.shape[-1]):
        order = np.argsort(implied[..., j], axis=None)
        values, scores = implied[..., j].ravel()[order], ours[..., j].ravel()[order]
        theirs[..., j] = np.interp(said[..., j], values, scores)
    return theirs, ours


def _correlations(scores: Floats) -> Floats:
    """Correlations between all columns, over all chains."""
    found = np.corrcoef(scores.reshape(-1, scores.shape[-1]), rowvar=False)
    # Intervals of one baseline move together: their correlation is 1 but for rounding.
    return np.clip(np.nan_to_num(found), -1.0 + 1e-9, 1.0 - 1e-9)


def _too_far(capped: float) -> str:
    return (
        f"the draws are {capped / ERRORS:.3g} times as far from those that the totals "
        f"give as may pass ({LARGEST:g} posterior standard deviations for a mean)"
    )


def _errors_between(one: Floats, other: Floats, tail: float) -> tuple[float, float]:
    """The largest difference of means, spreads and quantiles, in standard errors.

    First in those that the draws have, then in those of at least :data:`ENOUGH`.
    """
    flat, against = (x.reshape(-1, x.shape[-1]) for x in (one, other))
    still = np.ptp(against, axis=0) == 0.0
    if still.any():  # has no error: it is the same, or it is not
        if not alike(flat[:, still], against[:, still]):
            return np.inf, np.inf
        if still.all():
            return 0.0, 0.0
        flat, against, other = flat[:, ~still], against[:, ~still], other[..., ~still]
    with np.errstate(divide="ignore", invalid="ignore"):
        return (
            float(np.max(_in_errors(other, flat, against, tail, fewest=0.0))),
            float(np.max(_in_errors(other, flat, against, tail, fewest=ENOUGH))),
        )


def _in_errors(
    other: Floats, flat: Floats, against: Floats, tail: float, *, fewest: float
) -> Floats:
    # Both by the draws made here: those that are judged do not set their own margin.
    per = 2.0 / np.maximum(rhat_and_ess(other)[1], fewest)
    sd = against.std(axis=0)
    found = [np.abs(flat.mean(axis=0) - against.mean(axis=0)) / (sd * np.sqrt(per))]
    # A spread is less sure where tails are heavy, as those of sites' effects are, and
    # where τ, which decides how wide they are, mixes more slowly than they do.
    squares = ((other - against.mean(axis=0)) / sd) ** 2
    heavy = np.maximum((squares**2).mean(axis=(0, 1)) - 1.0, 2.0) / 2.0
    of_squares = np.maximum(rhat_and_ess(squares)[1], fewest)
    of_spread = np.maximum(per, 2.0 / of_squares)
    found.append(np.abs(np.log(flat.std(axis=0) / sd)) / np.sqrt(heavy * of_spread))
    for share in (tail, 0.5, 1.0 - tail):
        ends = np.quantile(flat, share, axis=0)
        below = (against < ends).mean(axis=0)
        found.append(np.abs(below - share) / np.sqrt(share * (1.0 - share) * per))
    return np.asarray(found)


def only_moved(said: Floats, implied: Floats) -> bool:
    """Whether draws of some parameter are those implied, in another order.

    No machine gives such draws. Draws that are nearly the same in their own place, as
    before chains part, are left out. Sorted draws of two samplings are about √(2 / n)
    standard deviations apart, far more than moved ones.

    Parameters
    ----------
    said, implied
        Draws of shape ``(chains, draws, d)``.
    """
    one, other = (draws.reshape(-1, draws.shape[-1]) for draws in (said, implied))
    sd = other.std(axis=0)
    for j in np.flatnonzero(sd > 0.0):
        apart = np.abs(one[:, j] - other[:, j]) > ELSEWHERE_BY * sd[j]
        count = int(apart.sum())
        if count < FEWEST_MOVED:
            continue
        between = np.sort(one[apart, j]) - np.sort(other[apart, j])
        if np.median(np.abs(between)) < MOVED * sd[j] / np.sqrt(count):
            return True
    return False


def mixing_differs(said: Floats, implied: Floats) -> str | None:
    """Whether chains mix clearly otherwise, which the same sampler does not.

    Parameters
    ----------
    said, implied
        Draws of shape ``(chains, draws, d)``.
    """
    moving = np.ptp(implied, axis=(0, 1)) > 0.0
    if not moving.any():
        return None
    (rhat, size), (ours, size_here) = (
        rhat_and_ess(draws[..., moving]) for draws in (said, implied)
    )
    ratio = np.abs(np.log(size / size_here))
    sure = "the sampler of this run does not mix so"
    if float(np.min(size_here)) < ESS_LIMIT:
        sure = TOO_FEW
    if not (
        np.max(ratio) <= np.log(MIXING) and np.median(ratio) <= np.log(TYPICAL_MIXING)
    ):
        worst = int(np.argmax(ratio))
        return (
            f"the draws are worth {size[worst]:.0f} effective ones, those that the "
            f"totals give {size_here[worst]:.0f}: {sure}"
        )
    with np.errstate(invalid="ignore"):
        above, here = (np.maximum(r - 1.0, 0.0) + UNSURE_RHAT for r in (rhat, ours))
        ratio = np.abs(np.log(above / here))
    if np.nanmax(ratio, initial=0.0) > np.log(MIXING):
        worst = int(np.nanargmax(ratio))
        return (
            f"R-hat of the draws is {rhat[worst]:.2f}, of those that the totals give "
            f"{ours[worst]:.2f}: {sure}"
        )
    return None

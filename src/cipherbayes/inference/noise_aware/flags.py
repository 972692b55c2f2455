"""What must be said about a noise-aware posterior before it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cipherbayes.inference.chains import Draws
from cipherbayes.inference.diagnostics import rhat_and_ess
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.schedule import BURN_IN

if TYPE_CHECKING:
    from cipherbayes.inference.noise_aware.recursion import NoiseAware, State

HELD_BACK = 3
"""Window rounds in which the trust region was active, from which on θ never settled."""
FAR = 4.0
"""Prior standard deviations beyond which a posterior mean is not to be believed."""
MOSTLY_PRIOR = 0.5
LARGEST_RHAT = 1.05


@dataclass(frozen=True)
class Flag:
    """One warning.

    Attributes
    ----------
    code
        Stable, for programs.
    message
        In words.
    unusable
        Whether the intervals must not be used.
    """

    code: str
    message: str
    unusable: bool


def raised(
    recursion: NoiseAware, state: State, evidence: Evidence, draws: Draws
) -> tuple[Flag, ...]:
    """The flags of a finished run."""
    theta = draws.theta / recursion.scale
    flat = theta.reshape(-1, theta.shape[-1])
    flags = []
    if state.held_back[BURN_IN:].sum() >= HELD_BACK:
        flags.append(
            Flag(
                "not-converged",
                "do not use these intervals: the parameters were still moving in the "
                "last rounds (separable outcomes, or noise larger than the signal)",
                unusable=True,
            )
        )
    away = np.abs(flat.mean(axis=0) - recursion.prior_mean) / recursion.prior_sd
    if away.max() > FAR:
        flags.append(
            Flag(
                "beyond-the-prior",
                "do not use these intervals: a parameter lies more than 4 prior "
                "standard deviations out (separable outcomes, or a prior too narrow)",
                unusable=True,
            )
        )
    share = flat.std(axis=0) / recursion.prior_sd
    count = int((share > MOSTLY_PRIOR).sum())
    if count:
        flags.append(
            Flag(
                "mostly-prior",
                f"{count} of {share.size} parameters are mostly prior: more records "
                "or a larger ε would be needed to learn them",
                unusable=False,
            )
        )
    if np.diag(evidence.fisher).mean() < evidence.fisher_sd:
        flags.append(
            Flag(
                "correlation-not-learnt",
                "the correlation of the columns was not learnt: raise ε or drop "
                "columns",
                unusable=False,
            )
        )
    rhat, _ = rhat_and_ess(draws.theta)
    if np.isfinite(rhat).any() and np.nanmax(rhat) > LARGEST_RHAT:
        flags.append(
            Flag(
                "not-mixed",
                f"the sampler's chains disagree (R-hat {np.nanmax(rhat):.2f})",
                unusable=True,
            )
        )
    return tuple(flags)

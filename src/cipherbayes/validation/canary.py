"""What a mechanism really leaks, measured: a canary's lower bound on ε.

A mechanism is run many times on a table with a canary record and as often on the
same table without it. For any set S of outcomes (ε, δ)-DP demands

    P(S | one table) <= e^ε P(S | the other) + δ,

so ε >= log((P − δ)/Q) for the S that an attacker chooses. S is a threshold on the
attacker's score; threshold and direction are chosen on a quarter of the runs, and
P and Q are bounded on the other three quarters, by Clopper and Pearson's exact
intervals at half the error each. A bound above the claim refutes the claim; one
below it proves nothing, but should be near it for a tight mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, ndtri

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy.gaussian import epsilon_of, require_delta
from cipherbayes.typing import Floats

CHOOSING = 0.25
"""Share of the runs on which the threshold is chosen."""

CHOOSING_ERROR = 1e-3
"""Error at which candidates are compared. The best of many candidates is partly
luck, most of all in the far tails; a stricter comparison prefers those that are
well supported."""

THRESHOLDS = 40
"""Candidate thresholds in each tail."""


@dataclass(frozen=True)
class AuditResult:
    """A claim and the lower bound found.

    Attributes
    ----------
    mechanism
        Its name.
    claimed_epsilon, delta
        The claim.
    lower_bound
        ε is at least this, with ``confidence``.
    runs
        How often the mechanism was run, both tables together.
    noise
        Where the mechanism's noise came from.
    """

    mechanism: str
    claimed_epsilon: float
    delta: float
    lower_bound: float
    confidence: float
    runs: int
    noise: str

    @property
    def refuted(self) -> bool:
        """Whether the claim is false (with ``confidence``)."""
        return self.lower_bound > self.claimed_epsilon

    def to_dict(self) -> dict[str, str | float | int]:
        """The six keys of ``cipherbayes audit --json``."""
        return {
            "mechanism": self.mechanism,
            "claimed_epsilon": self.claimed_epsilon,
            "delta": self.delta,
            "lower_bound": self.lower_bound,
            "confidence": self.confidence,
            "runs": self.runs,
        }


def epsilon_lower_bound(
    present: Floats, absent: Floats, delta: float, confidence: float = 0.95
) -> float:
    """Lower confidence bound on ε from attacker's scores with and without a canary.

    Formal guarantees
    -----------------
    If the scores are independent draws of an (ε, δ)-DP mechanism's outcome, scored,
    the result exceeds ε with probability at most 1 − ``confidence``: the set S is
    fixed by runs that are not counted, and each of the two intervals fails with
    probability at most (1 − confidence)/2. The two tables' runs need not be
    independent of each other.

    Edge cases
    ----------
    Scores that say nothing give 0. NaN scores are refused.
    """
    require_delta(delta)

    def bounds(likelier: Floats, other: Floats) -> Floats:
        usable = likelier > delta
        ratio = np.where(usable, likelier - delta, 1.0) / other
        return np.where(usable, np.log(ratio), -np.inf)

    return max(0.0, _best_bound(present, absent, confidence, bounds))


def gaussian_epsilon_lower_bound(
    present: Floats, absent: Floats, delta: float, confidence: float = 0.95
) -> float:
    """A lower bound on ε of a mechanism that claims to be Gaussian: far tighter.

    A Gaussian mechanism with parameter μ has P(S) ≤ Φ(Φ⁻¹(Q(S)) + μ) for every S, so
    μ ≥ Φ⁻¹(P) − Φ⁻¹(Q) for the S chosen, and ε is what the exact Gaussian curve says
    of that μ at δ (Dong, Roth and Su 2022; Nasr et al. 2023 audit this way).

    Formal guarantees
    -----------------
    As for :func:`epsilon_lower_bound`, if the claim to be tested is that the mechanism
    is Gaussian with the μ of (ε, δ): that claim is stronger than (ε, δ) alone.
    """
    require_delta(delta)
    mu = _best_bound(present, absent, confidence, lambda p, q: ndtri(p) - ndtri(q))
    return epsilon_of(mu, delta) if mu > 0.0 else 0.0


def _best_bound(
    present: Floats,
    absent: Floats,
    confidence: float,
    bounds: Callable[[Floats, Floats], Floats],
) -> float:
    """The bound from P and Q of the best set S.

    Parameters
    ----------
    bounds
        Lower bounds from lower limits of P and upper limits of Q.
    """
    if not 0.0 < confidence < 1.0:
        raise PrivacyError("the confidence is outside (0, 1)", remedy="give 0.95")
    if min(present.size, absent.size) < 8:
        raise PrivacyError("too few runs for a bound", remedy="run at least 8 of each")
    if np.isnan(present).any() or np.isnan(absent).any():
        raise PrivacyError("an attacker's score is not a number")
    error = (1.0 - confidence) / 2.0
    cut_present, cut_absent = int(CHOOSING * present.size), int(CHOOSING * absent.size)
    choosing = present[:cut_present], absent[:cut_absent]
    counting = present[cut_present:], absent[cut_absent:]
    pooled = np.concatenate(choosing)
    # Both tails matter far more than the middle.
    tail = np.geomspace(1.0 / pooled.size, 0.5, THRESHOLDS)
    thresholds = np.unique(np.quantile(pooled, np.concatenate([tail, 1.0 - tail])))
    best, chosen = -math.inf, (1, 1.0, 0.0)
    # S may be likelier with or without the canary, and lie above or below.
    for order in (1, -1):
        for sign in (1.0, -1.0):
            limits = _limits(choosing[::order], sign, thresholds, CHOOSING_ERROR)
            found = bounds(*limits)
            top = int(found.argmax())
            if found[top] > best:
                best, chosen = float(found[top]), (order, sign, thresholds[top])
    order, sign, threshold = chosen
    limits = _limits(counting[::order], sign, np.array([threshold]), error)
    return float(bounds(*limits)[0])


def _limits(
    scores: tuple[Floats, ...], sign: float, thresholds: Floats, error: float
) -> tuple[Floats, Floats]:
    """Lower limits of P(S) and upper ones of Q(S), S = {sign · score > sign · t}."""
    likelier, other = scores
    hits = _exceeding(sign * likelier, sign * thresholds)
    false = _exceeding(sign * other, sign * thresholds)
    return (
        _lowest(hits, likelier.size, error),
        _highest(false, other.size, error),
    )


def _exceeding(scores: Floats, thresholds: Floats) -> Floats:
    ordered = np.sort(scores)
    below = np.searchsorted(ordered, thresholds, side="right")
    return np.asarray(ordered.size - below, dtype=np.float64)


def _lowest(hits: Floats, trials: int, error: float) -> Floats:
    """Clopper–Pearson lower limit of a probability."""
    limit: Floats = betaincinv(np.maximum(hits, 1.0), trials - hits + 1.0, error)
    return np.where(hits > 0.0, limit, 0.0)


def _highest(hits: Floats, trials: int, error: float) -> Floats:
    """Clopper–Pearson upper limit of a probability."""
    left = np.maximum(trials - hits, 1.0)
    limit: Floats = betaincinv(hits + 1.0, left, 1.0 - error)
    return np.where(hits < trials, limit, 1.0)

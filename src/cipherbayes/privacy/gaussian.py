"""The exact trade-off of Gaussian noise: mu-GDP and (epsilon, delta).

A release of a sum with sensitivity 1 and noise sigma is mu-GDP with mu = 1/sigma;
releases compose as mu² = sum mu_t², exactly and adaptively (Dong, Roth, Su 2022,
Gaussian differential privacy, Corollary 3.3). mu-GDP is (epsilon, delta)-DP iff

    delta >= Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2)

(Balle, Wang 2018, Theorem 8). With u = epsilon/mu - mu/2, v = u + mu and
v² - u² = 2 epsilon this is e^{-u²/2}/2 (erfcx(u/√2) - erfcx(v/√2)), which neither
overflows nor cancels where delta is small.
"""

from __future__ import annotations

import math

from scipy.special import erfcx, ndtr

from cipherbayes.errors import PrivacyError

ROUNDING = 2.0**-50
"""Bound on the relative rounding error of erfcx; every curve is raised by it."""


def delta_of(epsilon: float, mu: float) -> float:
    """Smallest delta for which mu-GDP is (epsilon, delta)-DP, rounded up.

    Formal guarantees
    -----------------
    Below the exact value by at most 1e-14 relative (ε/μ − μ/2 is itself rounded;
    the accountant raises μ by far more), above it by less than 1e-13 wherever
    mu > 1e-2.

    Edge cases
    ----------
    mu = 0 (no release) gives 0, mu = inf gives 1, a delta below the smallest
    float gives 0.
    """
    require_epsilon(epsilon)
    if mu == 0.0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    return min(1.0, math.exp(_log_delta(epsilon / mu - mu / 2.0, mu)))


def epsilon_of(mu: float, delta: float) -> float:
    """Smallest epsilon >= 0 for which mu-GDP is (epsilon, delta)-DP, rounded up.

    Formal guarantees
    -----------------
    ``delta_of(epsilon_of(mu, delta), mu) <= delta``, and epsilon is the smallest
    such up to 1e-12 relative (1e-7 where mu < 1e-6).

    Solved in u = epsilon/mu - mu/2, in which log delta is smooth and of order one
    for every mu, so that mu from 1e-12 to 1e12 are equally well conditioned.

    Edge cases
    ----------
    mu = 0 gives 0, mu = inf gives inf.
    """
    require_delta(delta)
    if mu == 0.0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    target = math.log(delta)
    low, high = -mu / 2.0, math.sqrt(-2.0 * target) + 1.0
    if _log_delta(low, mu) <= target:
        return 0.0
    from scipy.optimize import brentq

    u = brentq(lambda x: _log_delta(x, mu) - target, max(low, -40.0), high, xtol=1e-13)
    epsilon = max(mu * (u + mu / 2.0), math.ulp(0.0))
    step = ROUNDING
    while delta_of(epsilon, mu) > delta:
        epsilon *= 1.0 + step
        step *= 2.0
    return float(epsilon)


def mu_for(epsilon: float, delta: float) -> float:
    """Largest mu for which mu-GDP is (epsilon, delta)-DP, rounded down.

    Formal guarantees
    -----------------
    ``delta_of(epsilon, mu_for(epsilon, delta)) <= delta``, and mu is the largest
    such up to 1e-12 relative.
    """
    require_epsilon(epsilon)
    require_delta(delta)
    target = math.log(delta)

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        return _log_delta(epsilon / mu - mu / 2.0, mu) - target

    low = high = 0.0
    while excess(low) > 0.0:
        low -= 2.0
    while excess(high) <= 0.0:
        high += 2.0
    from scipy.optimize import brentq

    log_mu = float(brentq(excess, low, high, xtol=1e-14))
    mu, step = math.exp(log_mu), ROUNDING
    while delta_of(epsilon, mu) > delta:
        mu *= 1.0 - step
        step *= 2.0
    return mu


def require_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that is not positive and finite (zero is allowed here)."""
    if not 0.0 <= epsilon < math.inf:
        raise PrivacyError(
            "epsilon is negative, infinite or not a number",
            remedy="give a positive number, e.g. 1.0",
        )


def require_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    if not 0.0 < delta < 1.0:
        raise PrivacyError(
            "delta is outside (0, 1)",
            remedy="give a number well below 1 / (number of records), e.g. 1e-5",
        )


def _log_delta(u: float, mu: float) -> float:
    """log of delta at epsilon = mu (u + mu/2), raised by the rounding bound."""
    second = float(erfcx((u + mu) / math.sqrt(2.0)))
    if u > 0.0:
        first = float(erfcx(u / math.sqrt(2.0)))
        return -0.5 * u * u + math.log(0.5 * (first - second + ROUNDING * first))
    first = float(ndtr(-u))
    value = first - 0.5 * math.exp(-0.5 * u * u) * second + ROUNDING * first
    return math.log(min(1.0, value))

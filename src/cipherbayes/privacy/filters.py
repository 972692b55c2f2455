"""ε of a table's ledger: several studies, each chosen after the ones before.

Inside one run the noise and the sampling of every round are fixed by its study before
the first round, and only questions depend on answers: ordinary adaptive composition,
which :func:`~cipherbayes.privacy.accountant.epsilon` computes. A ledger goes further:
whoever plans the next study has seen the results of the last, so the releases
themselves are chosen adaptively, up to a budget. That is a *privacy filter*, and not
every accounting is one. docs/privacy.md has the proof.

References
----------
Rogers, Roth, Ullman and Vadhan (2016), Privacy odometers and filters: pay-as-you-go
composition. Feldman and Zrnic (2021), Individual privacy accounting via a Rényi
filter. Smith and Thakurta (2022), Fully adaptive composition for Gaussian
differential privacy. Whitehouse, Ramdas, Rogers and Wu (2023), Fully-adaptive
composition in differential privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from cipherbayes.privacy.accountant import (
    LEAST_RENYI,
    Counts,
    compose,
    epsilon,
    renyi,
)
from cipherbayes.privacy.events import Event, tally
from cipherbayes.privacy.gaussian import mu_for, require_delta

LATER_SHARE = 1.0 / 64.0
"""Part of δ that runs beside a sampled one may cost on top of it."""
ORDERS = (2.0, 1.0, 0.5, 0.25)
"""Orders of the Rényi filter, as multiples of the best one for a Gaussian budget."""


def filter_epsilon(runs: Sequence[Event], delta: float, budget: float) -> float:
    """ε that a ledger compares with its budget.

    Parameters
    ----------
    runs
        What each run has released so far, the next release included: one event a
        run, whatever its study.
    delta, budget
        The ledger's δ and ε.

    Formal guarantees
    -----------------
    A ledger that admits a release only if this is at most ``budget`` is (budget, δ)-
    differentially private for runs chosen adaptively in every way, as long as each
    run's noise and sampling are fixed before its first round: exactly so if no
    release is sampled or there is one run only. If runs are added to one that samples,
    or one that samples to others, it is (budget, (1 + :data:`LATER_SHARE`) δ).

    Edge cases
    ----------
    The budget counts as fixed. If it is raised because of results, the promise is
    that of the larger budget for somebody who would have raised it anyway; nothing is
    proved of a budget that depends on results.
    """
    require_delta(delta)
    if not runs:
        return 0.0
    event = compose(*runs)
    sampled = any(rate < 1.0 for _, rate in tally(event))
    if len(runs) == 1 or not sampled:
        return epsilon(event, delta)
    return _renyi_epsilon(tuple(sorted(tally(event).items())), delta, budget)


@lru_cache(maxsize=4096)
def _renyi_epsilon(counts: Counts, delta: float, budget: float) -> float:
    """ε by a Rényi filter of a few orders that are fixed by the budget alone.

    Each order is a filter by itself; whichever admits a release, the union over all
    of them costs the sum of their δ.
    """
    orders = filter_orders(delta, budget)
    part = delta * LATER_SHARE / len(orders)
    return max(float(renyi(counts, orders).get_epsilon(part)), LEAST_RENYI)


def filter_orders(delta: float, budget: float) -> tuple[int, ...]:
    """Whole orders around α* = 1 + √(2 ln(1/δ'))/μ.

    α* is the best order of a Gaussian release that spends the whole budget; sampled
    releases may want a smaller one.
    """
    mu = mu_for(budget, delta)
    best = 1.0 + math.sqrt(2.0 * math.log(1.0 / (delta * LATER_SHARE))) / mu
    return tuple(sorted({max(2, round(best * factor)) for factor in ORDERS}))

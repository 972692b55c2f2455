"""From events to (ε, δ), and back to the noise that a budget affords.

Full batches have an exact curve (:mod:`cipherbayes.privacy.gaussian`); sampled
batches go through the privacy loss distribution of ``dp_accounting``, rounded
pessimistically. What is not understood is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy.events import (
    Composed,
    Event,
    GaussianSum,
    PoissonSampled,
    Relation,
    Repeated,
    tally,
)
from cipherbayes.privacy.gaussian import delta_of, epsilon_of, mu_for, require_delta

RELATION = Relation.ADD_OR_REMOVE_ONE_RECORD

Counts = tuple[tuple[tuple[float, float], int], ...]


def epsilon(event: Event, delta: float) -> float:
    """Smallest certified ε of an event at a δ.

    Formal guarantees
    -----------------
    The event is (ε, δ)-differentially private under adding or removing one record.
    Exact (rounded up) where every release uses all records; an upper bound where
    some are sampled.

    Edge cases
    ----------
    No noise gives infinity; nothing but noise gives 0.
    """
    require_delta(delta)
    counts = tally(event)
    if all(rate == 1.0 for _, rate in counts):
        return epsilon_of(total_mu(event), delta)
    return _sampled_epsilon(tuple(sorted(counts.items())), delta)


def delta(event: Event, epsilon: float) -> float:
    """Smallest certified δ of an event at an ε (see :func:`epsilon`)."""
    counts = tally(event)
    if all(rate == 1.0 for _, rate in counts):
        return delta_of(epsilon, total_mu(event))
    return float(_compose(tuple(sorted(counts.items()))).get_delta(epsilon))


def total_mu(event: Event) -> float:
    """μ of a composition of full-batch releases: √(Σ 1/σ²)."""
    total = 0.0
    for (sigma, rate), count in tally(event).items():
        if rate != 1.0:
            raise PrivacyError("a sampled release has no μ", remedy="use epsilon()")
        total += math.inf if sigma == 0.0 else count / sigma**2
    # Rounded up: every term and sum may have been rounded down.
    return math.sqrt(total) * (1.0 + 2.0**-40)


def calibrate(
    make_event: Callable[[float], Event], epsilon_target: float, delta_target: float
) -> float:
    """Smallest σ, up to a ten-thousandth, for which an event keeps a budget.

    Parameters
    ----------
    make_event
        The whole event for a noise multiplier; more noise must not cost more.

    Formal guarantees
    -----------------
    ``epsilon(make_event(sigma), delta_target) <= epsilon_target`` for the σ that is
    returned.
    """
    if not 0.0 < epsilon_target < math.inf:
        raise PrivacyError(
            "the budget's epsilon is not a positive number", remedy="raise it above 0"
        )
    require_delta(delta_target)

    def fits(sigma: float) -> bool:
        return epsilon(make_event(sigma), delta_target) <= epsilon_target

    high = 1.0
    while not fits(high):
        high *= 2.0
        if high > 2.0**60:
            raise PrivacyError(
                "no amount of noise keeps this budget",
                remedy="raise privacy.epsilon, or release less before the gradients",
            )
    low = high / 2.0
    while low > 2.0**-60 and fits(low):
        low, high = low / 2.0, low
    while high > low * (1.0 + 1e-4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def calibrate_noise(
    epsilon_target: float, delta_target: float, rounds: int, rate: float = 1.0
) -> float:
    """σ of ``rounds`` releases, each record taking part with probability ``rate``.

    The inverse of :func:`epsilon`: closed form for full batches, else by search.
    """
    if rounds < 1:
        raise PrivacyError("there must be at least one round", remedy="raise rounds")
    if rate == 1.0:
        mu = mu_for(epsilon_target, delta_target)
        return math.sqrt(rounds) / mu * (1.0 + 2.0**-38)

    def event(sigma: float) -> Event:
        return Repeated(PoissonSampled(rate, GaussianSum(sigma)), rounds)

    return calibrate(event, epsilon_target, delta_target)


def compose(*events: Event) -> Event:
    """One event after the other."""
    return events[0] if len(events) == 1 else Composed(events)


@lru_cache(maxsize=4096)
def _sampled_epsilon(counts: Counts, delta: float) -> float:
    return float(_compose(counts).get_epsilon(delta))


def _compose(counts: Counts):  # type: ignore[no-untyped-def]  # dp_accounting has no types
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    account = PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval=_interval(counts),
    )
    for (sigma, rate), count in counts:
        if not 0.0 < sigma < math.inf:
            raise PrivacyError(
                "a sampled release needs positive, finite noise",
                remedy="give a positive noise multiplier",
            )
        release = dp_accounting.GaussianDpEvent(sigma)
        if rate < 1.0:
            release = dp_accounting.PoissonSampledDpEvent(rate, release)
        account.compose(release, count)
    return account


def _interval(counts: Counts) -> float:
    """A grid ten times finer than the spread of the smallest loss.

    Coarser is still an upper bound, only looser: rounding up costs up to one
    interval a release.
    """
    spreads = []
    for (sigma, rate), _ in counts:
        inverse = min(1.0 / max(sigma, 1e-3) ** 2, 50.0)
        spreads.append(rate * math.sqrt(math.expm1(inverse)))
    return min(max(0.1 * min(spreads), 2e-6), 1e-3)

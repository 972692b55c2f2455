"""From events to (ε, δ), and back to the noise that a budget affords.

Full batches have an exact curve (:mod:`cipherbayes.privacy.gaussian`); sampled
batches go through the privacy loss distribution of ``dp_accounting``, rounded
pessimistically, and where δ is so small that its FFT's rounding could hide it,
through Rényi divergences. What is not understood is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

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

LEAST_NOISE = 2.0**-4
"""Least noise that a calibration returns, even where δ alone would allow none."""
MOST_LOG_NOISE = 60.0 * math.log(2.0)

TRUSTED = 10.0
"""δ must exceed the FFT's rounding error so many times."""

RENYI_ORDERS = (*range(2, 64), *(round(2.0 ** (k / 4)) for k in range(24, 49)))
LEAST_RENYI = 1e-3

LARGEST_GRID = 2**18
"""Points that a distribution of losses may have, about."""

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
    return _sampled_delta(tuple(sorted(counts.items())), epsilon)


def total_mu(event: Event) -> float:
    """μ of a composition of full-batch releases: √(Σ 1/σ²)."""
    total = 0.0
    for (sigma, rate), count in tally(event).items():
        if rate != 1.0:
            raise PrivacyError("a sampled release has no μ", remedy="use epsilon()")
        total += math.inf if sigma == 0.0 else count / sigma**2
    # Rounded up: every term and sum may have been rounded down.
    return math.sqrt(total) * (1.0 + 2.0**-40)


def calibrate_multiplier(
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
    _require_budget(epsilon_target, delta_target)

    def spent(log_sigma: float) -> float:
        return epsilon(make_event(math.exp(log_sigma)), delta_target)

    @lru_cache(maxsize=64)
    def excess(log_sigma: float) -> float:
        return math.log(min(max(spent(log_sigma), 1e-12), 1e12) / epsilon_target)

    low = high = 0.0
    while excess(high) > 0.0:
        low, high = high, high + math.log(4.0)
        if high > MOST_LOG_NOISE:
            raise PrivacyError(
                "no amount of noise keeps this budget",
                remedy="raise privacy.epsilon, or release less before the gradients",
            )
    while excess(low) <= 0.0:
        if low <= math.log(LEAST_NOISE):
            return LEAST_NOISE
        low, high = low - math.log(2.0), low
    # ε is close to a power of σ, so a root in logarithms takes few steps.
    from scipy.optimize import brentq

    root = float(brentq(excess, low, high, xtol=2e-5, rtol=1e-12))
    while spent(root) > epsilon_target:
        root = root + 2e-5
    return math.exp(root)


def calibrate_noise(
    epsilon_target: float, delta_target: float, rounds: int, rate: float = 1.0
) -> float:
    """σ of ``rounds`` releases, each record taking part with probability ``rate``.

    The inverse of :func:`epsilon`: closed form for full batches, else by search.
    """
    _require_budget(epsilon_target, delta_target)
    if rounds < 1:
        raise PrivacyError("there must be at least one round", remedy="raise rounds")
    if rate == 1.0:
        mu = mu_for(epsilon_target, delta_target)
        return math.sqrt(rounds) / mu * (1.0 + 2.0**-38)

    def event(sigma: float) -> Event:
        return Repeated(PoissonSampled(rate, GaussianSum(sigma)), rounds)

    return calibrate_multiplier(event, epsilon_target, delta_target)


def compose(*events: Event) -> Event:
    """One event after the other."""
    return events[0] if len(events) == 1 else Composed(events)


def _require_budget(epsilon: float, delta: float) -> None:
    if not 0.0 < epsilon < math.inf:
        raise PrivacyError(
            "the budget's epsilon is not a positive number", remedy="raise it above 0"
        )
    require_delta(delta)


@lru_cache(maxsize=4096)
def _sampled_epsilon(counts: Counts, delta: float) -> float:
    return min(_sampled_bound(counts, delta), epsilon_of(_unsampled_mu(counts), delta))


def _sampled_bound(counts: Counts, delta: float) -> float:
    lost = _fft_error(counts)
    if delta >= TRUSTED * lost:
        # The library overflows where total losses reach hundreds.
        with suppress(OverflowError):
            return float(_composed(counts).get_epsilon(delta - lost))
    # Below LEAST_RENYI the rounding of the moments may exceed the moments.
    return max(float(renyi(counts).get_epsilon(delta)), LEAST_RENYI)


def _sampled_delta(counts: Counts, epsilon: float) -> float:
    bound = float(_composed(counts).get_delta(epsilon)) + _fft_error(counts)
    return min(bound, delta_of(epsilon, _unsampled_mu(counts)))


def _fft_error(counts: Counts) -> float:
    """What the rounding of dp_accounting's FFT can hide of δ.

    It convolves untilted masses in float64, so δ comes with an absolute error that
    grows with the number of releases. Against the same convolution in extended
    precision it was at most 7e-17 a release and 2e-14 in all; ten times that.
    """
    releases = sum(count for (_, rate), count in counts if rate < 1.0)
    return 1e-15 * releases + 1e-13


def _unsampled_mu(counts: Counts) -> float:
    """μ if no release were sampled: sampling never costs (joint convexity)."""
    events = tuple(Repeated(GaussianSum(sigma), count) for (sigma, _), count in counts)
    return total_mu(Composed(events))


def _composed(counts: Counts) -> Any:
    """Privacy loss distribution of a composition."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    account = PLDAccountant(relation, _interval(counts))
    for event, count in _library_events(counts):
        account.compose(event, count)
    return account


def renyi(counts: Counts, orders: tuple[int, ...] = RENYI_ORDERS) -> Any:
    """Rényi divergences of a composition: looser, but sound at any δ.

    Whole orders only: the series of the others need not converge.
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    account = RdpAccountant(orders, NeighboringRelation.ADD_OR_REMOVE_ONE)
    for event, count in _library_events(counts):
        account.compose(event, count)
    return account


def _library_events(counts: Counts) -> Iterator[tuple[Any, int]]:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

    for (sigma, rate), count in counts:
        if not 0.0 < sigma < math.inf:
            raise PrivacyError(
                "a sampled release needs positive, finite noise",
                remedy="give a positive noise multiplier",
            )
        release = GaussianDpEvent(sigma)
        yield (PoissonSampledDpEvent(rate, release) if rate < 1.0 else release), count


def _interval(counts: Counts) -> float:
    """Grid of the losses: a tenth of their root mean square, if that many fit.

    Coarser is still an upper bound, only looser.
    """
    squares = widest = 0.0
    for (sigma, rate), count in counts:
        inverse = 1.0 / max(sigma, 1e-3)
        # E L² is below rate² (e^{1/σ²} − 1) and below that of the whole release.
        whole = inverse**2 + 0.25 * inverse**4
        square = min(rate**2 * math.expm1(min(inverse**2, 50.0)), whole)
        squares += count * square
        widest = max(widest, inverse * (20.0 + inverse))
    releases = sum(count for _, count in counts)
    finest = max(
        widest / LARGEST_GRID, 8.0 * (math.sqrt(squares) + squares) / LARGEST_GRID
    )
    return max(min(0.1 * math.sqrt(squares / releases), 1e-3), finest)

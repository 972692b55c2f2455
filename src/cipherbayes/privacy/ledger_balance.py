"""ε of all that a table has released, and of one release more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from cipherbayes.privacy.events import (
    Event,
    Repeated,
    from_json,
    of_one_run,
    tally,
    to_json,
)
from cipherbayes.privacy.filters import filter_epsilon

# A table that spends its budget exactly must not fail over the last digit.
SLACK = 1.0 + 1e-9

_NEXT_RUN = b"the next run"  # no id: those have 16 bytes

# Every round of a phase costs the same event: it is written and read once.
event_text = lru_cache(maxsize=64)(to_json)
_event = lru_cache(maxsize=64)(from_json)
_filter_epsilon = lru_cache(maxsize=8)(filter_epsilon)


class Budget(NamedTuple):
    """What a table may release at most."""

    epsilon: float
    delta: float

    def allows(self, epsilon: float) -> bool:
        return epsilon <= self.epsilon * SLACK


class ChargedEvent(NamedTuple):
    """What a release cost: its run, and its event as the ledger writes it."""

    run: bytes
    event: str


def epsilon_of_charges(charges: Mapping[ChargedEvent, int], budget: Budget) -> float:
    """ε of releases in runs that were chosen one after the other.

    Parameters
    ----------
    charges
        How often each run was charged for each event.
    """
    runs: dict[bytes, list[Event]] = {}
    for (run, text), count in sorted(charges.items()):
        runs.setdefault(run, []).append(Repeated(_event(text), count))
    composed = tuple(of_one_run(events) for events in runs.values())
    return _filter_epsilon(composed, budget.delta, budget.epsilon)


def epsilon_with(
    charges: Counter[ChargedEvent], events: Mapping[Event, int], budget: Budget
) -> float:
    """ε of releases with those of one run more, which is yet to begin."""
    new = {ChargedEvent(_NEXT_RUN, event_text(e)): n for e, n in events.items()}
    return epsilon_of_charges(charges + Counter(new), budget)


class UpperBounds:
    """Upper bounds of ε that are quick in every round of a run.

    Formal guarantees
    -----------------
    :meth:`epsilon` is never below :func:`epsilon_of_charges` of the same charges: it is
    the figure of these charges and up to 5 % more of each sampled event, and ε grows
    with every release.

    Edge cases
    ----------
    Without sampled events, whose composition is slow to compute, it is exact.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Budget, tuple[tuple[ChargedEvent, int], ...]], float]
        self._known = {}

    def epsilon(self, charges: Mapping[ChargedEvent, int], budget: Budget) -> float:
        if all(_is_quick(charged.event) for charged in charges):
            return epsilon_of_charges(charges, budget)
        # Few different counts, so that few different compositions are ever computed.
        coarse = Counter(
            {
                charged: count if _is_quick(charged.event) else _round_up(count)
                for charged, count in charges.items()
            }
        )
        key = budget, tuple(sorted(coarse.items()))
        if key not in self._known:
            self._known[key] = epsilon_of_charges(coarse, budget)
        return self._known[key]


@lru_cache(maxsize=64)
def _is_quick(event: str) -> bool:
    """Whether all that an event releases is of whole tables, not of a sample."""
    return all(rate == 1.0 for _, rate in tally(_event(event)))


def _round_up(count: int) -> int:
    """A count that is up to 5 % higher."""
    step = max(1, count // 20)
    return -(-count // step) * step

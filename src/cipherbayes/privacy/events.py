"""What is released, as frozen values: describe first, account afterwards.

An event says everything the accountant needs to know about a release and
nothing about the data. The same value is calibrated, enacted, written into the
ledger (as JSON) and composed, so the four cannot disagree.
"""

from __future__ import annotations

import enum
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypedDict

from cipherbayes.errors import PrivacyError


class Relation(enum.Enum):
    """Which pairs of tables count as neighbours.

    ``ADD_OR_REMOVE_ONE_RECORD``: one table is the other with one record more.
    It is the only relation that this package certifies.
    """

    ADD_OR_REMOVE_ONE_RECORD = "add-or-remove-one-record"


@dataclass(frozen=True)
class GaussianSum:
    """A sum of records, each bounded to norm C, released with Gaussian noise.

    release = sum_i g_i + N(0, (sigma C)² I),  ||g_i||₂ <= C.

    Parameters
    ----------
    noise_multiplier
        sigma: standard deviation of the noise as a multiple of the sensitivity.

    Edge cases
    ----------
    ``0`` (no noise: epsilon is infinite) and ``inf`` (nothing but noise: epsilon
    is 0) are values that the accountant understands; neither has a JSON form.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _require_number(self.noise_multiplier, "noise multiplier")
        if not self.noise_multiplier >= 0.0:
            raise PrivacyError(
                "the noise multiplier is negative or not a number",
                remedy="give a positive number",
            )


@dataclass(frozen=True)
class PoissonSampled:
    """``event`` on a random part of the table: each record with probability q.

    Parameters
    ----------
    rate
        q in (0, 1]; every record is taken or left independently of all others,
        and nobody outside the site learns which were taken.
    event
        What is done with the records taken.
    """

    rate: float
    event: GaussianSum

    def __post_init__(self) -> None:
        _require_number(self.rate, "sampling rate")
        if not 0.0 < self.rate <= 1.0:
            raise PrivacyError(
                "the sampling rate is outside (0, 1]",
                remedy="give the probability with which a record takes part",
            )
        if not isinstance(self.event, GaussianSum):
            raise PrivacyError(
                f"sampling of {type(self.event).__name__} is not understood",
                remedy="sample a GaussianSum and repeat or compose the result",
            )


@dataclass(frozen=True)
class Repeated:
    """``event`` released ``count`` times, adaptively (count >= 1)."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        _require_event(self.event)
        if type(self.count) is not int or self.count < 1:
            raise PrivacyError(
                "an event is repeated a whole number of times, at least once",
                remedy="give a positive number of rounds",
            )


@dataclass(frozen=True)
class Composed:
    """Several events, one after the other, adaptively."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.events, tuple) or not self.events:
            raise PrivacyError(
                "a composition needs a tuple with at least one event",
                remedy="leave the composition out where nothing is released",
            )
        for event in self.events:
            _require_event(event)


@dataclass(frozen=True)
class OfRows:
    """``event`` on one named part of a table's records; parts share no record.

    Which part a record is in depends on the record and on the run's study alone, so
    adding or removing it changes one part and no other. By itself it costs what
    ``event`` costs; :func:`of_one_run` sets the parts of a run beside each other.

    Parameters
    ----------
    part
        The part's name, e.g. ``"held-out"``.
    """

    part: str
    event: Event

    def __post_init__(self) -> None:
        if not isinstance(self.part, str) or not self.part:
            raise PrivacyError("a part of a table needs a name")
        _require_event(self.event)


@dataclass(frozen=True)
class Parallel:
    """Events on parts of a table that have no record in common.

    Formal guarantees
    -----------------
    Costs what the most expensive of them costs (docs/proofs.md). Where that cannot
    be told from their numbers, because some are sampled, it costs all of them.
    """

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.events, tuple) or not self.events:
            raise PrivacyError("events on parts of a table need a tuple of them")
        for event in self.events:
            _require_event(event)


Event = GaussianSum | PoissonSampled | Repeated | Composed | OfRows | Parallel


def tally(event: Event) -> Counter[tuple[float, float]]:
    """Count the single releases that ``event`` consists of.

    Composition of Gaussian releases does not depend on their order, so the
    counts are all that accounting needs.
    """
    counts: Counter[tuple[float, float]] = Counter()
    _count(event, 1, counts)
    return counts


def of_one_run(events: Iterable[Event]) -> Event:
    """All releases of one run, those on parts of its tables beside each other.

    Two runs may part a table differently, so no more than one run belongs here.
    """
    whole: list[Event] = []
    parts: dict[str, list[Event]] = {}
    for event in events:
        part, inner = _part_of(event)
        (whole if part is None else parts.setdefault(part, [])).append(inner)
    if parts:
        beside = tuple(Composed(tuple(each)) for each in parts.values())
        whole.append(Parallel(beside))
    return whole[0] if len(whole) == 1 else Composed(tuple(whole))


def _part_of(event: Event) -> tuple[str | None, Event]:
    """The part that an event is on, None for the whole table, and what is released."""
    match event:
        case OfRows(part=part, event=inner):
            return part, inner
        case Repeated(event=OfRows(part=part, event=inner), count=count):
            return part, Repeated(inner, count)
    return None, event


def to_json(event: Event) -> str:
    """One canonical line of JSON: equal events give equal text."""
    document = {
        "event": _document(event),
        "relation": Relation.ADD_OR_REMOVE_ONE_RECORD.value,
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(text: str) -> Event:
    """Read what :func:`to_json` wrote; refuse everything else.

    Edge cases
    ----------
    Unknown or missing keys, duplicate keys, other types, numbers that are not
    finite, unknown kinds and unknown relations raise :class:`PrivacyError`.
    """
    try:
        document = json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
        _require_keys(document, {"event", "relation"})
        if document["relation"] != Relation.ADD_OR_REMOVE_ONE_RECORD.value:
            raise _unreadable("an unknown neighbouring relation")
        return _event(document["event"])
    except (json.JSONDecodeError, TypeError, RecursionError):
        raise _unreadable("text that is not an event") from None


class GaussianSumDocument(TypedDict):
    """A :class:`GaussianSum` as JSON."""

    kind: Literal["gaussian-sum"]
    noise_multiplier: float


class PoissonSampledDocument(TypedDict):
    """A :class:`PoissonSampled` as JSON."""

    kind: Literal["poisson-sampled"]
    rate: float
    event: EventDocument


class RepeatedDocument(TypedDict):
    """A :class:`Repeated` as JSON."""

    kind: Literal["repeated"]
    count: int
    event: EventDocument


class ComposedDocument(TypedDict):
    """A :class:`Composed` as JSON."""

    kind: Literal["composed"]
    events: list[EventDocument]


class OfRowsDocument(TypedDict):
    """An :class:`OfRows` as JSON."""

    kind: Literal["of-rows"]
    part: str
    event: EventDocument


class ParallelDocument(TypedDict):
    """A :class:`Parallel` as JSON."""

    kind: Literal["parallel"]
    events: list[EventDocument]


EventDocument = (
    GaussianSumDocument
    | PoissonSampledDocument
    | RepeatedDocument
    | ComposedDocument
    | OfRowsDocument
    | ParallelDocument
)


def _document(event: Event) -> EventDocument:
    match event:
        case GaussianSum(noise_multiplier=sigma):
            if not 0.0 < sigma < math.inf:
                raise PrivacyError(
                    "a release with zero or infinite noise cannot be recorded",
                    remedy="give a positive, finite noise multiplier",
                )
            return {"kind": "gaussian-sum", "noise_multiplier": float(sigma)}
        case PoissonSampled(rate=rate, event=inner):
            return {
                "kind": "poisson-sampled",
                "rate": float(rate),
                "event": _document(inner),
            }
        case Repeated(event=inner, count=count):
            return {"kind": "repeated", "count": count, "event": _document(inner)}
        case Composed(events=events):
            return {"kind": "composed", "events": [_document(e) for e in events]}
        case OfRows(part=part, event=inner):
            return {"kind": "of-rows", "part": part, "event": _document(inner)}
        case Parallel(events=events):
            return {"kind": "parallel", "events": [_document(e) for e in events]}
    raise _not_understood(event)


def _event(document: object) -> Event:
    if not isinstance(document, dict) or "kind" not in document:
        raise _unreadable("an event without a kind")
    match document["kind"]:
        case "gaussian-sum":
            _require_keys(document, {"kind", "noise_multiplier"})
            sigma = _json_float(document["noise_multiplier"])
            if not sigma > 0.0:
                raise _unreadable("a noise multiplier that is not positive")
            return GaussianSum(sigma)
        case "poisson-sampled":
            _require_keys(document, {"kind", "rate", "event"})
            inner = _event(document["event"])
            if not isinstance(inner, GaussianSum):
                raise _unreadable("sampling of something that is not a sum")
            return PoissonSampled(_json_float(document["rate"]), inner)
        case "repeated":
            _require_keys(document, {"kind", "count", "event"})
            return Repeated(_event(document["event"]), document["count"])
        case "composed":
            return Composed(_events(document))
        case "parallel":
            return Parallel(_events(document))
        case "of-rows":
            _require_keys(document, {"kind", "part", "event"})
            return OfRows(document["part"], _event(document["event"]))
    raise _unreadable("an unknown kind of event")


def _events(document: dict[str, object]) -> tuple[Event, ...]:
    _require_keys(document, {"kind", "events"})
    events = document["events"]
    if not isinstance(events, list):
        raise _unreadable("a composition without a list of events")
    return tuple(_event(e) for e in events)


def _count(event: Event, times: int, counts: Counter[tuple[float, float]]) -> None:
    match event:
        case GaussianSum(noise_multiplier=sigma):
            counts[(float(sigma), 1.0)] += times
        case PoissonSampled(rate=rate, event=GaussianSum(noise_multiplier=sigma)):
            counts[(float(sigma), float(rate))] += times
        case Repeated(event=inner, count=count):
            _count(inner, times * count, counts)
        case Composed(events=events):
            for inner in events:
                _count(inner, times, counts)
        case OfRows(event=inner):
            _count(inner, times, counts)
        case Parallel(events=events):
            for dear in _dearest([tally(inner) for inner in events]):
                for release, count in dear.items():
                    counts[release] += times * count
        case _:
            raise _not_understood(event)


def _dearest(
    parts: list[Counter[tuple[float, float]]],
) -> list[Counter[tuple[float, float]]]:
    """The part that costs most; all of them where sampling hides which it is."""
    parts = [part for part in parts if part]
    if len(parts) < 2 or any(rate < 1.0 for part in parts for _, rate in part):
        return parts

    def mu_squared(part: Counter[tuple[float, float]]) -> float:
        return sum(
            math.inf if sigma == 0.0 else count / sigma**2
            for (sigma, _), count in part.items()
        )

    return [max(parts, key=mu_squared)]


def _require_event(value: object) -> None:
    if not isinstance(
        value, GaussianSum | PoissonSampled | Repeated | Composed | OfRows | Parallel
    ):
        raise _not_understood(value)


def _require_number(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PrivacyError(f"the {name} is not a number", remedy="give a number")


def _require_keys(document: object, keys: set[str]) -> None:
    if not isinstance(document, dict) or set(document) != keys:
        raise _unreadable("missing or unknown keys")


def _json_float(value: object) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise _unreadable("a number that is not a finite decimal")
    return value


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise _unreadable("a key that is given twice")
    return document


def _refuse_constant(_: str) -> float:
    raise _unreadable("a number that is not finite")


def _unreadable(what: str) -> PrivacyError:
    return PrivacyError(
        f"the description of a release holds {what}",
        remedy="it was not written by this package, or was changed since",
    )


def _not_understood(value: object) -> PrivacyError:
    return PrivacyError(
        f"{type(value).__name__} is not a release that can be accounted for",
        remedy="use GaussianSum, PoissonSampled, Repeated, Composed, OfRows or "
        "Parallel",
    )

"""What a column may be, guessed from its name alone; the reader is asked to check.

A name counts by its words: ``Died?`` and ``death_30d`` speak of an event,
``Follow-up (years)`` and ``time2event`` of a time, ``Patient No.`` of a person.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

EVENTS = (
    "event", "death", "died", "status", "dead", "outcome", "mortality", "cens", "fstat",
    "target", "label", "diagnosis", "vitalstatus", "deceased", "y",
)  # fmt: skip
"""Names of outcomes, the likelier first; further words may not stand beside them."""
EVENT_WORDS = {
    "event", "death", "died", "dead", "deceased", "mortality", "relapse", "relapsed",
    "recurrence", "readmitted", "readmission", "outcome",
}  # fmt: skip
"""Words that make a longer name one of an outcome."""
TIMES = (
    "time", "futime", "survivaltime", "followup", "days", "duration", "lenfol",
    "survtime", "osdays", "osmonths", "years", "months", "weeks", "tte", "fu", "fup",
)  # fmt: skip
TIME_PHRASES = (
    ("follow", "up"), ("followup",), ("futime",), ("fu",), ("fup",), ("survival",),
    ("time", "to"), ("days", "to"), ("months", "to"), ("years", "to"), ("tte",),
    ("os",), ("pfs",), ("dfs",), ("rfs",),
)  # fmt: skip
"""Words in a row that make a longer name one of a time of follow-up."""
PERSONS = {
    "id", "mrn", "name", "surname", "patient", "subject", "patid", "pid", "nhs",
}  # fmt: skip
NUMBERED = {
    "patient", "pat", "person", "subject", "case", "record", "study", "hospital", "nhs",
}  # fmt: skip
"""Words that name a person where id, no or nr follows: ``Patient No.``."""


def words_of(column: str) -> list[str]:
    """A name's words in small letters: ``time2Event`` is time, to, event."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", column)
    parted = re.sub(r"(?<=[a-z])2(?=[a-zA-Z])", " to ", parted)
    return [word for word in re.split(r"[\W_]+", parted.lower()) if word]


def names_a_person(column: str) -> bool:
    """Whether a name is a record's own: ``PatID``, ``patient_id``, ``Patient No.``"""
    words = words_of(column)
    if not words:
        return False
    if "".join(words) in PERSONS or words[-1] == "id":
        return True
    joined = "".join(words)
    return any(
        joined == first + last
        for first in NUMBERED
        for last in ("id", "no", "nr", "num", "number", "code")
    )


def likely_time(columns: Iterable[str]) -> str | None:
    """The column of a time of follow-up, if a name says so."""
    columns = list(columns)
    known = _listed(columns, TIMES)
    if known is not None:
        return known
    return next((column for column in columns if _has_phrase(column)), None)


def likely_event(columns: Iterable[str]) -> str | None:
    """The column of the outcome, if a name says so; a time to an event is none."""
    columns = [column for column in columns if not _has_phrase(column)]
    known = _listed(columns, EVENTS)
    if known is not None:
        return known
    return next((c for c in columns if EVENT_WORDS & set(words_of(c))), None)


def _listed(columns: Iterable[str], names: Iterable[str]) -> str | None:
    joined = {"".join(words_of(column)): column for column in columns}
    return next((joined[name] for name in names if name in joined), None)


def _has_phrase(column: str) -> bool:
    words = words_of(column)
    return any(
        tuple(words[i : i + len(phrase)]) == phrase
        for phrase in TIME_PHRASES
        for i in range(len(words))
    )

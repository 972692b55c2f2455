"""Errors that a person can act on.

Every error a user can cause says what is wrong, where, and what to do next, in
one line. No message ever contains a data value, a key or a noise value.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class CipherbayesError(Exception):
    """Base class: ``what`` is wrong, ``where`` it is, the ``remedy``.

    Parameters
    ----------
    what
        The problem, without a data value.
    where
        File, column, key, party or round the problem was found at.
    remedy
        What the reader can do about it.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        place = f"{where}: " if where else ""
        advice = f"; {remedy}" if remedy else ""
        # One line, also where a name in a study or a table holds a line's end.
        super().__init__(" ".join(f"{place}{what}{advice}".splitlines()))


class StudyError(CipherbayesError):
    """The study file says something impossible, unknown or contradictory."""


class StudyValueError(StudyError, ValueError):
    """A study made in Python says something impossible; also a ValueError."""


class DataError(CipherbayesError):
    """A table does not hold what the study says it holds."""


class MissingValuesError(DataError):
    """A feature has missing values, and the study states nothing in their place."""

    def __init__(self, column: str, where: str) -> None:
        self.column = column
        super().__init__(
            f"column '{column}' has missing values",
            where=where,
            remedy=f"state what stands in for them: features.{column}.missing",
        )


class PrivacyError(CipherbayesError):
    """A release would break, or cannot be shown to keep, the privacy promise."""


class BeyondRangeWarning(UserWarning):
    """Rows to predict for lie beyond a public range, and were held at its ends."""


class RecordsWarning(UserWarning):
    """The tables of a run do not have the number of records that the study declares."""


class BeyondHorizonWarning(UserWarning):
    """Survival is predicted at times beyond the public horizon: an extrapolation."""


class BudgetError(PrivacyError):
    """A release would spend more than the budget that is left."""


class CryptoError(CipherbayesError):
    """Bytes, keys or parameters that the encryption layer refuses."""


class ProtocolError(CipherbayesError):
    """A party refuses a message: wrong round, roster, signature, study or range."""


class RunError(CipherbayesError):
    """A run cannot start, continue or be read back."""


class LostPartyError(RunError):
    """A party of a run is gone, or cannot be reached."""


NAMED = 6
"""Other problems of a study that a message names."""


def problem_to_name(
    problems: Sequence[Any],
    keys_of: Callable[[Sequence[str]], Sequence[str]],
    tables_with: Callable[[str], Sequence[str]] = lambda _: (),
) -> Any:
    """The problem to name first of those that pydantic found: an unknown key that is
    another one misspelt, which may be why that one is missing; else an unknown key.

    Parameters
    ----------
    keys_of
        The keys of a table, by its place.
    tables_with
        Names of the tables that have a key.
    """
    unknown = [each for each in problems if each["type"] == "extra_forbidden"]
    if not unknown:
        return problems[0]
    missing = {each["loc"] for each in problems if each["type"] == "missing"}
    meant = []
    for problem in unknown:
        *table, key = problem["loc"]
        wanted = [str(place[-1]) for place in missing if [*place[:-1]] == table]
        # A key that the study cannot do without comes first.
        for needed, keys in (
            (True, wanted),
            (False, keys_of([str(part) for part in table])),
        ):
            if near := difflib.get_close_matches(str(key), keys, n=1):
                meant.append((needed, {**problem, "meant": near[0]}))
                break
    if meant:
        return next((found for needed, found in meant if needed), meant[0][1])
    *table, key = (str(part) for part in unknown[0]["loc"])
    return {**unknown[0], "known": keys_of(table), "belongs": tables_with(key)}


def invalid_field(
    first: Mapping[str, Any], key: str, more: Sequence[tuple[str, str]]
) -> tuple[str, str]:
    """What is wrong with a field, and the remedy, of the first problem that pydantic
    found; the others, each its type and key, are named."""
    others = _others(more)
    match first["type"]:
        case "extra_forbidden":
            what = f"unknown key '{key}'"
            if "meant" in first:
                return what, f"did you mean '{first['meant']}'? {others}".strip()
            remedy = f"known here: {', '.join(first['known'])}"
            if first["belongs"]:
                tables = " or ".join(f"[{table}]" for table in first["belongs"])
                remedy = f"it belongs in {tables}"
        case "missing":
            what, remedy = f"missing key '{key}'", "add it"
        case "value_error":
            what, remedy = str(first["ctx"]["error"]), ""
            what = f"'{key}': {what}" if key else what
        case "tuple_type" | "list_type":
            what, remedy = f"'{key}': must be a list", 'write it as ["a", "b"]'
        case "greater_than_equal" | "less_than_equal":
            least = first["type"] == "greater_than_equal"
            bound = first["ctx"]["ge" if least else "le"]
            limit = f"at {'least' if least else 'most'} {bound:g}"
            what, remedy = f"'{key}': must be {limit}", ""
            if least and 0.0 < bound < 1e-6:
                what = f"'{key}': must be above 0"
        case _:
            message = first["msg"][0].lower() + first["msg"][1:]
            what, remedy = f"'{key}': {message}", ""
    return what, f"{remedy} {others}".strip()


def _others(more: Sequence[tuple[str, str]]) -> str:
    """E.g. ``(also: unknown key 'a', missing key 'b')``; unknown keys first."""
    if not more:
        return ""
    words = {"extra_forbidden": "unknown key", "missing": "missing key"}
    ordered = sorted(more, key=lambda problem: problem[0] != "extra_forbidden")
    named = [f"{words.get(kind, 'wrong')} '{key}'" for kind, key in ordered[:NAMED]]
    if left := len(more) - len(named):
        named.append(f"and {left} more")
    return f"(also: {', '.join(named)})"

"""Reading a study file, and saying where it is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cipherbayes.errors import StudyError, StudyValueError, invalid_field


def read_text(path: Path) -> str:
    """The text of a study file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StudyError(
            "no such file", where=str(path), remedy="check the path of the study"
        ) from None
    except IsADirectoryError:
        raise StudyError(
            "is a folder", where=str(path), remedy="name the TOML file in it"
        ) from None
    except UnicodeDecodeError:
        raise StudyError(
            "is not UTF-8 text", where=str(path), remedy="save the study as UTF-8"
        ) from None
    except OSError as error:
        raise StudyError(
            f"cannot be read ({error.strerror})", where=str(path)
        ) from None


def require_filled_in(text: str, path: Path) -> None:
    """Refuse what `cipherbayes init` left for a person to write."""
    for number, line in enumerate(text.splitlines(), start=1):
        if re.search(r"^[^#\"']*\bFILL_IN\b", line):
            raise StudyError(
                f"line {number} still says FILL_IN",
                where=str(path),
                remedy="write what the code book says, never what the rows say",
            )


COX = (
    'Cox regression is "piecewise": proportional hazards, a public grid of intervals '
    "(intervals = 8, say)"
)
NEGATIVE_BINOMIAL = 'counts that vary more than Poisson\'s are "negative-binomial"'
ORDINAL = 'proportional odds are "ordinal"'
OTHER_NAMES = {
    **dict.fromkeys(("cox", "coxph", "cox-ph", "phreg"), COX),
    **dict.fromkeys(("negbin", "nb", "nbinom", "nbreg", "glm.nb"), NEGATIVE_BINOMIAL),
    **dict.fromkeys(("polr", "clm", "ologit", "ordered"), ORDINAL),
}
"""What other programs call a model -> what it is here."""


def explained(
    error: ValidationError, path: Path | None = None, text: str = ""
) -> StudyError:
    """The first problem of a study, with its line and a remedy.

    Parameters
    ----------
    path, text
        The study file; left out for a study that was made in Python.
    """
    problems = error.errors(include_url=False)
    first = _first_of(problems)
    location = _location(first)
    key = ".".join(location)
    line = _line_of(text, location)
    where = f"{path}, line {line}" if line else str(path or "Study")
    match first["type"]:
        case "union_tag_invalid":
            allowed = first["ctx"]["expected_tags"].replace("'", '"')
            what, remedy = "unknown model.kind", f"choose one of {allowed}"
            known = OTHER_NAMES.get(str(first["ctx"]["tag"]).lower())
            if known is not None:
                remedy = f"{known}; or {remedy}"
        case "union_tag_not_found":
            what, remedy = "missing key 'model.kind'", 'e.g. kind = "logistic"'
        case _:
            what, remedy = invalid_field(
                first,
                key,
                [
                    (each["type"], ".".join(_location(each)))
                    for each in problems
                    if each["loc"] != first["loc"] and not _is_meant(each, first)
                ],
            )
    kind = StudyValueError if path is None else StudyError
    return kind(what, where=where, remedy=remedy)


def _location(problem: Any) -> list[str]:
    """The tables and the key of a problem, as the file has them."""
    location = [str(part) for part in problem["loc"]]
    # Pydantic puts the union's tag into the location; it is no key of the file.
    if len(location) > 1 and location[0] == "model":
        location = [location[0], *location[2:]]
    if problem["type"].startswith("union_tag"):
        location = [*location, "kind"]
    return location


def _is_meant(problem: Any, first: Any) -> bool:
    """Whether a key is missing because the first one is it, misspelt."""
    return "meant" in first and problem["loc"] == (*first["loc"][:-1], first["meant"])


def _first_of(problems: Sequence[Any]) -> Any:
    """The problem to name: of a key that is missing and one that is misspelt the
    second, which is why the first is missing; else an unknown key, if there is one."""
    missing = {p["loc"] for p in problems if p["type"] == "missing"}
    for problem in problems:
        *table, key = problem["loc"] or ("",)
        near = [
            str(place[-1])
            for place in missing
            if list(place[:-1]) == table
            and difflib.get_close_matches(str(key), [str(place[-1])])
        ]
        if problem["type"] == "extra_forbidden" and near:
            return {**problem, "meant": near[0]}
    unknown = [each for each in problems if each["type"] == "extra_forbidden"]
    return (unknown or problems)[0]


def _line_of(text: str, location: Sequence[str]) -> int | None:
    """Line on which a key stands, or its table where the key is absent."""
    best: tuple[int, int] | None = None
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if heading := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            table = [part.strip(" \"'") for part in heading[1].split(".")]
            here = table
        elif assignment := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            keys = [part.strip("\"'") for part in assignment[1].split(".")]
            here = [*table, *keys]
        else:
            continue
        if here == list(location[: len(here)]) and (not best or len(here) > best[0]):
            best = (len(here), number)
    return best[1] if best else None

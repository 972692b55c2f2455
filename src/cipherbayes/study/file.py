"""Reading a study file, and saying where it is wrong."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from cipherbayes.errors import (
    StudyError,
    StudyValueError,
    invalid_field,
    problem_to_name,
)
from cipherbayes.models.registry import GROUP, registered
from cipherbayes.typing import JsonObject

LONGEST = 8_000_000
"""Characters of a study file; one with many columns and sites has some thousands."""


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


def document_of(text: str, path: Path) -> JsonObject:
    """The tables and keys of a study file."""
    if len(text) > LONGEST:
        raise StudyError(
            f"has more than {LONGEST:,} characters",
            where=str(path),
            remedy="a study names columns and sites; rows stay in tables",
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what = f"not valid TOML: {error}"
    except (ValueError, RecursionError):
        what = "not valid TOML: it has a number, or brackets in brackets, without end"
    raise StudyError(
        what,
        where=str(path),
        remedy="one `key = value` per line under a [table] heading",
    )


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
LOGISTIC = 'logistic regression is "logistic"'
ORDINAL = 'proportional odds are "ordinal"'
OTHER_NAMES = {
    **dict.fromkeys(("cox", "coxph", "cox-ph", "phreg"), COX),
    **dict.fromkeys(("negbin", "nb", "nbinom", "nbreg", "glm.nb"), NEGATIVE_BINOMIAL),
    **dict.fromkeys(("logit", "binomial", "binary"), LOGISTIC),
    **dict.fromkeys(("polr", "clm", "ologit", "ordered"), ORDINAL),
}
"""What other programs call a model -> what it is here."""


def explained(
    error: ValidationError,
    schema: type[BaseModel],
    path: Path | None = None,
    text: str = "",
) -> StudyError:
    """The first problem of a study, with its line and a remedy.

    Parameters
    ----------
    schema
        The study's class, which knows all keys.
    path, text
        The study file; left out for a study that was made in Python.
    """
    problems = error.errors(include_url=False)
    first = problem_to_name(
        problems,
        lambda table: _keys_of(schema, table),
        lambda key: _tables_with(key, schema),
    )
    location = _location(first)
    key = ".".join(location)
    line = _line_of(text, location or _named_in(first["msg"], schema))
    where = f"{path}, line {line}" if line else str(path or "Study")
    match first["type"]:
        case "union_tag_invalid":
            allowed = first["ctx"]["expected_tags"].replace("'", '"')
            what = "unknown model.kind"
            remedy = (
                f"choose one of {allowed}; or, for a kind of your own, import it in "
                "every process that reads the study, or install it with an entry "
                f"point of the group {GROUP}"
            )
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


def _named_in(message: str, schema: type[BaseModel]) -> list[str]:
    """The first key that a rule about several tables names; empty where it has none."""
    for found in re.finditer(r"\b([a-z_]+)\.([a-z_]+)|\[([a-z_]+)\]", message):
        named = [part for part in found.groups() if part is not None]
        if named[0] in schema.model_fields:
            return named
    return []


def _is_meant(problem: Any, first: Any) -> bool:
    """Whether a key seems missing only because the first problem is its misspelling."""
    return "meant" in first and problem["loc"] == (*first["loc"][:-1], first["meant"])


def _keys_of(schema: type[BaseModel], table: Sequence[str]) -> list[str]:
    """Keys that a table of a study may have; parts of its name that are no keys
    (a column, a site) have the same keys inside as beside them."""
    found: list[type[BaseModel]] = [schema]
    for part in table:
        inner = [
            model
            for each in found
            if part in each.model_fields
            for model in _models_in(each.model_fields[part].annotation)
        ]
        # Pydantic puts the model's kind into the place of a problem.
        found = [registered[part]] if part in registered else inner or found
    return [key for each in found for key in each.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Tables that a field may hold: of ``dict[str, Feature]`` the features."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _tables_with(key: str, schema: type[BaseModel]) -> list[str]:
    """Other tables of a study that have a key of this name."""
    return [
        name
        for name, field in schema.model_fields.items()
        if name not in ("model", "features", "sites")
        and any(key in model.model_fields for model in _models_in(field.annotation))
    ]


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

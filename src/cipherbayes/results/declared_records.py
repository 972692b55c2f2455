"""Whether the tables have about as many rows as the study declares.

For whoever holds all tables of a run on one machine: what is said here depends on the
rows, goes to that person alone, and is in no result.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cipherbayes.errors import RecordsWarning
from cipherbayes.study.schema import Study
from cipherbayes.study.template import suggested_records

FAR_OFF = 2.0
"""How many times too large or too small a declared number of records is far off."""


def declared_and_found(
    study: Study, tables: Mapping[str, Any] | None = None
) -> tuple[int, int] | None:
    """The declared number of records and that of the tables, where they disagree.

    Parameters
    ----------
    tables
        Site name -> path or frame. Left out: the study's own files.
    """
    if study.privacy is None or study.privacy.person is not None:
        return None
    declared = study.privacy.records
    if tables is None:
        tables = {name: site.data for name, site in study.sites.items()}
    if not declared or not tables:
        return None
    found = 0
    for table in tables.values():
        rows = _rows_of(table)
        if rows is None:
            return None
        found += rows
    return None if found <= declared <= 1.5 * found else (declared, found)


def in_words(declared: int, found: int) -> str:
    """What is wrong."""
    return f"privacy.records = {declared} and the tables have {found} rows in all"


def advice(declared: int, found: int) -> str:
    """What it does to the result, and what to do."""
    return (
        f"{in_words(declared, found)}: effects and intervals are computed for the "
        "declared number; correct it"
    )


def warn_of_records(study: Study, tables: Mapping[str, Any] | None) -> None:
    """Warn whoever called :func:`cipherbayes.run` where the numbers disagree."""
    if (differs := declared_and_found(study, tables)) is not None:
        warnings.warn(advice(*differs), RecordsWarning, stacklevel=3)


def is_far_off(declared: int, found: int) -> bool:
    """Whether effects would be those of records that are not there."""
    return max(declared, found) > FAR_OFF * max(min(declared, found), 1)


def _rows_of(table: object) -> int | None:
    """Rows of a file or frame; None where it is neither, or cannot be counted."""
    if isinstance(table, str | Path):
        rows = suggested_records([Path(table)])
        return None if rows is None else rows[0]
    try:
        return len(table)  # type: ignore[arg-type]
    except TypeError:
        return None

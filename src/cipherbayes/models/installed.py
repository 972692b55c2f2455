"""What other installed distributions add, found by their entry points."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from cipherbayes.errors import StudyError


def load_installed(group: str, name: str, what: str) -> Iterator[tuple[str, Any]]:
    """Import whatever has a name in a group: each with its distribution.

    Nothing else of the group is imported.

    Parameters
    ----------
    what
        What it is, in the words of a refusal.
    """
    for entry in entry_points(group=group, name=name):
        try:
            found = entry.load()
        except Exception as error:
            raise StudyError(
                f"the {what} '{name}' of {_distribution(entry)} cannot be loaded: "
                f"{type(error).__name__}",
                where=f"{group}: {entry.value}",
                remedy="import it in Python to see why, or install a release that "
                "fits this one",
            ) from error
        yield _distribution(entry), found


def _distribution(entry: EntryPoint) -> str:
    return "a package" if entry.dist is None else f"'{entry.dist.name}'"

"""Folders that commands write into: new ones, so that nothing is ever mixed up."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from cipherbayes.errors import RunError


def require_new_folder(
    path: Path, *, remedy: str, allowed: Container[str] = ()
) -> None:
    """Raise RunError unless nothing is there yet, or an empty folder.

    Parameters
    ----------
    remedy
        What the reader can do about it.
    allowed
        Names that may be in it all the same.
    """
    if not path.exists():
        return
    if not path.is_dir() or any(entry.name not in allowed for entry in path.iterdir()):
        raise RunError("exists and is not empty", where=str(path), remedy=remedy)

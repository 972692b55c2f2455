"""Folders that commands write into: new ones, so that nothing is ever mixed up."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cipherbayes.errors import RunError

LOG = "run.log"
"""What the parties of a run report, and what went wrong."""
PARTIAL_POSTERIOR = ".posterior.partial"
"""A posterior until it is whole."""


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
        raise not_empty(path, remedy=remedy)


def not_empty(path: Path, what_it_is: str = "", *, remedy: str) -> RunError:
    """The error of a folder that has something in it, which may be known."""
    known = f": {what_it_is}" if what_it_is else ""
    return RunError(f"exists and is not empty{known}", where=str(path), remedy=remedy)


def make_folder(path: Path) -> None:
    """Make a folder with those above it; raise RunError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot be made ({error.strerror})",
            where=str(path),
            remedy="choose another --out: a folder below a folder that you may write",
        ) from None


@contextmanager
def held_folder(path: Path) -> Iterator[None]:
    """Keep a folder to one run at a time; raise RunError where another run has it.

    The system lets go of it with the process, however that ends.
    """
    made = not path.exists()
    make_folder(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                "another run is at work in this folder",
                where=str(path),
                remedy="let it finish (`cipherbayes watch` shows it), or choose "
                "another --out",
            ) from None
        yield
    finally:
        if made:
            with suppress(OSError):  # something was written
                path.rmdir()
        os.close(descriptor)

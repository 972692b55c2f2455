"""Which process this is, so that what a fork copied is not taken for its own."""

from __future__ import annotations

import os

_forks = 0
"""Forks between the first process and this one."""


def _count() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)


def this_process() -> tuple[int, int]:
    """Another value in a process and in every one that is forked from it.

    Their numbers alone may be equal: numbers are used again, and every namespace of
    processes begins with 1.
    """
    return os.getpid(), _forks

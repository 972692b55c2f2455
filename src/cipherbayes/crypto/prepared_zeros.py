"""Encryptions of zero, made ahead of the messages that they will hide."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cipherbayes.processes import this_process


class PreparedZeros:
    """Fresh encryptions of zero, each handed out once.

    Parameters
    ----------
    encrypt_zero
        Makes one.

    Formal guarantees
    -----------------
    What :meth:`take` returns was never returned before, in this process or in one
    that it was forked from or into, and is nowhere but in this process's memory.

    Edge cases
    ----------
    Where none is held, one is made on demand. A fork holds none.
    """

    def __init__(self, encrypt_zero: Callable[[], Any]) -> None:
        self._fresh = encrypt_zero
        self._ready: deque[Any] = deque()
        self._process = this_process()

    def __len__(self) -> int:
        return len(self._held())

    def prepare(self, count: int) -> None:
        """Make ``count`` more."""
        held = self._held()
        for _ in range(count):
            held.append(self._fresh())

    def take(self) -> Any:
        """An encryption of zero that was never handed out before."""
        with suppress(IndexError):
            return self._held().popleft()
        return self._fresh()

    def _held(self) -> deque[Any]:
        if self._process != this_process():
            # A fork copied them, and the parent may use them too: two messages
            # under the same randomness show their difference.
            self._ready, self._process = deque(), this_process()
        return self._ready

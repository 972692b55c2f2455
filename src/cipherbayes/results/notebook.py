"""A progress bar in a notebook; silence elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from cipherbayes.typing import Progress

EVERY = 0.2
"""Seconds between two drawings of the bar."""


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def bar_html(done: int, total: int) -> str:
    """The bar after some rounds."""
    text = f"round {done} of {total}"
    if done >= total:
        text += ", then the posterior"
    return f'<progress max="{total}" value="{done}"></progress> {text}'


def notebook_progress() -> Progress:
    """Draws a bar where a notebook is there to show it."""
    if not in_notebook():
        return _silent
    return _Bar()


def _silent(done: int, total: int) -> None:
    """Report nothing."""


class _Bar:
    """One output of a cell, drawn again as rounds are done."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html: Callable[[str], Any] = HTML
        self._shown: Any = display(HTML(bar_html(0, 1)), display_id=True)
        self._last = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done < total and now - self._last < EVERY:
            return
        self._last = now
        if self._shown is not None:
            self._shown.update(self._html(bar_html(done, total)))

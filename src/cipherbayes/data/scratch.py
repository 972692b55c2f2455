"""Memory for prepared records while a function looks at them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import numpy as np

from cipherbayes.data.blocks import thread_count
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Floats


class Fresh:
    """New memory for every chunk, which whoever wants may keep."""

    @contextmanager
    def borrow(self, width: int, count: int) -> Iterator[Floats]:
        yield _matrix(np.empty(width * _stride(count)), width, count)

    def settled(self, piece: Rows) -> Rows:
        return piece


class Reused:
    """The same memory again and again, also from pass to pass and table to table:
    new pages cost as much as the decoding. Each purpose has its own."""

    _spare: ClassVar[dict[str, list[Floats]]] = {}

    def __init__(self, purpose: str) -> None:
        self._own = self._spare.setdefault(purpose, [])

    @contextmanager
    def borrow(self, width: int, count: int) -> Iterator[Floats]:
        try:
            flat = self._own.pop()
        except IndexError:
            flat = np.empty(0)
        if flat.size < width * _stride(count):
            flat = np.empty(width * _stride(count))
        yield _matrix(flat, width, count)
        if len(self._own) < thread_count():
            self._own.append(flat)

    def settled(self, piece: Rows) -> Rows:
        return replace(piece, x=piece.x.copy())


Space = Fresh | Reused


def _stride(count: int) -> int:
    """Distance of a chunk's rows: not a power of two, which a cache maps to one set."""
    return (count | 7) + 1 + 8 * 67


def _matrix(flat: Floats, width: int, count: int) -> Floats:
    stride = _stride(count)
    return flat[: width * stride].reshape(width, stride)[:, :count]

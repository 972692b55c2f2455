"""Prepared records in blocks of a fixed size, in memory.

Block k holds the records k B to (k + 1) B - 1 of a table or of a selection from it,
B = ``BLOCK_ROWS``, however the records were stored or read. What is computed block
by block and added in block order is therefore the same to the last bit whether a
table is streamed or held, and however many threads there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import numpy as np

from cipherbayes.models import kernels
from cipherbayes.models.design import Design
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Floats, Integers

BLOCK_ROWS = 16_384
"""Records of a block, the last one excepted."""

MOST_THREADS = 8
"""Reading memory gains nothing from more."""

T = TypeVar("T")


class Blocks(Protocol):
    """Records that can be passed over again and again, block by block."""

    @property
    def count(self) -> int:
        """Number of records."""
        ...

    @property
    def design(self) -> Design:
        """The columns' meaning."""
        ...

    def blocks(self, rows: Integers | None = None) -> Iterator[Rows]:
        """The blocks, one after the other."""
        ...

    def map(
        self, function: Callable[[Rows], T], rows: Integers | None = None
    ) -> Iterator[T]:
        """``function`` of every block, in block order, computed in threads.

        Parameters
        ----------
        rows
            The records to take, as sorted positions; all of them where None.
        """
        ...

    def select(self, rows: Integers) -> Blocks:
        """The given records (sorted positions) as blocks of their own."""
        ...


class BlocksInMemory:
    """Blocks that are held."""

    def __init__(self, design: Design, blocks: Sequence[Rows]) -> None:
        self.design = design
        self.count = sum(block.count for block in blocks)
        self._blocks = tuple(blocks)

    @classmethod
    def of_arrays(
        cls, design: Design, x: Floats, outcome: Mapping[str, Floats]
    ) -> BlocksInMemory:
        """Views of ``x`` (shape ``(p, n)``) and of the outcome columns."""
        blocks = []
        for start in range(0, x.shape[1], BLOCK_ROWS):
            piece = slice(start, start + BLOCK_ROWS)
            norms = kernels.squared_norms(x[:, piece])
            own = {role: values[piece] for role, values in outcome.items()}
            blocks.append(Rows(design, x[:, piece], own, norms))
        return cls(design, blocks)

    def blocks(self, rows: Integers | None = None) -> Iterator[Rows]:
        if rows is None:
            return iter(self._blocks)
        return (self._gather(rows, k) for k in range(block_count(rows.size)))

    def map(
        self, function: Callable[[Rows], T], rows: Integers | None = None
    ) -> Iterator[T]:
        if rows is None:
            blocks = self._blocks
            return ordered_map(lambda k: function(blocks[k]), len(blocks))
        count = block_count(rows.size)
        return ordered_map(lambda k: function(self._gather(rows, k)), count)

    def select(self, rows: Integers) -> BlocksInMemory:
        return BlocksInMemory(self.design, tuple(self.map(lambda block: block, rows)))

    def _gather(self, rows: Integers, k: int) -> Rows:
        return gather(self._blocks.__getitem__, rows, k)


def thread_count() -> int:
    """Threads of one pass: ``CIPHERBAYES_THREADS``, or the processors, up to eight."""
    stated = os.environ.get("CIPHERBAYES_THREADS", "")
    if stated.isdecimal() and int(stated) > 0:
        return int(stated)
    if hasattr(os, "sched_getaffinity"):
        return min(MOST_THREADS, len(os.sched_getaffinity(0)))
    return min(MOST_THREADS, os.cpu_count() or 1)


def block_count(rows: int) -> int:
    """Blocks that so many records make."""
    return -(-rows // BLOCK_ROWS)


def take(block: Rows, local: Integers) -> Rows:
    """The records of a block at the given positions."""
    return Rows(
        block.design,
        np.take(block.x, local, axis=1),
        {role: values[local] for role, values in block.outcome.items()},
        block.squared_norms[local],
    )


def gather(block: Callable[[int], Rows], rows: Integers, k: int) -> Rows:
    """Block k of a selection (sorted positions), from the blocks of the whole."""
    rows = rows[k * BLOCK_ROWS : (k + 1) * BLOCK_ROWS]
    source, local = np.divmod(rows, BLOCK_ROWS)
    first, last = int(source[0]), int(source[-1])
    ends = np.searchsorted(source, np.arange(first, last + 1), side="right")
    pieces = []
    start = 0
    for index, end in zip(range(first, last + 1), ends.tolist(), strict=True):
        if end > start:
            pieces.append(take(block(index), local[start:end]))
        start = end
    return join_blocks(pieces)


def join_blocks(pieces: Sequence[Rows]) -> Rows:
    """One block out of consecutive pieces."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    return Rows(
        first.design,
        np.concatenate([piece.x for piece in pieces], axis=1),
        {
            role: np.concatenate([piece.outcome[role] for piece in pieces])
            for role in first.outcome
        },
        np.concatenate([piece.squared_norms for piece in pieces]),
    )


def ordered_map(function: Callable[[int], T], count: int) -> Iterator[T]:
    """``function(0), ..., function(count - 1)`` in order, computed in threads.

    Threads get runs of indices, several for each: handing over single blocks would
    cost as much as computing them.
    """
    threads = thread_count() if count >= 4 else 1
    if threads == 1:
        yield from map(function, range(count))
        return
    runs = min(count, 8 * threads)
    edges = [count * k // runs for k in range(runs + 1)]

    def run(k: int) -> list[T]:
        return [function(index) for index in range(edges[k], edges[k + 1])]

    with ThreadPoolExecutor(threads) as pool:
        for results in pool.map(run, range(runs)):
            yield from results

"""Prepared records in blocks, read from their table again in every pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from cipherbayes.data.blocks import BLOCK_ROWS, THREADS, join
from cipherbayes.data.preparation import Preparation
from cipherbayes.data.tables import Kind, Table
from cipherbayes.errors import DataError
from cipherbayes.models.base import Design, Model, Rows
from cipherbayes.typing import Floats, Integers

T = TypeVar("T")


class StreamedBlocks:
    """Blocks that are read and prepared anew in every pass.

    Parameters
    ----------
    source
        Where the records come from.
    count
        How many records the table holds.
    selection
        The records that count here, as sorted positions; all of them where None.
    """

    def __init__(
        self, source: Source, count: int | None, selection: Integers | None = None
    ) -> None:
        self.design = source.design
        self._source = source
        self._total = count
        self._selection = selection

    @property
    def count(self) -> int:
        if self._selection is not None:
            return self._selection.size
        assert self._total is not None
        return self._total

    def blocks(self, rows: Integers | None = None) -> Iterator[Rows]:
        stitcher = _Stitcher()
        for job in self._jobs(rows):
            for piece in self._pieces(job):
                yield from stitcher.add(piece)
        yield from stitcher.rest()

    def map(
        self,
        function: Callable[[Rows], T],
        rows: Integers | None = None,
        *,
        keep: bool = False,
    ) -> Iterator[T]:
        """As :meth:`Blocks.map`; with ``keep`` a block outlives the call."""

        def work(job: _Job) -> list[Rows | _Done[T]]:
            space = None if keep else Space(self.design.width, BLOCK_ROWS)
            return [
                _Done(function(piece)) if piece.count == BLOCK_ROWS else piece
                for piece in self._pieces(job, space)
            ]

        jobs = self._jobs(rows)
        if len(jobs) == 1 or THREADS == 1:
            yield from map(function, self.blocks(rows))
            return

        stitcher = _Stitcher()
        for item in _chained(work, jobs):
            if isinstance(item, _Done):
                yield item.result
            else:
                yield from map(function, stitcher.add(item))
        yield from map(function, stitcher.rest())

    def select(self, rows: Integers) -> StreamedBlocks:
        return StreamedBlocks(self._source, self._total, self._positions(rows))

    def _positions(self, rows: Integers | None) -> Integers | None:
        if self._selection is None or rows is None:
            return self._selection if rows is None else rows
        positions: Integers = self._selection[rows]
        return positions

    def _jobs(self, rows: Integers | None) -> list[_Job]:
        """Parts of the table to read, each with what to take from it."""
        positions = self._positions(rows)
        counts = self._source.table.counts
        if counts is None:
            return [_Job(0, 0, positions)]
        jobs = []
        ends = np.cumsum(counts)
        for part, end in enumerate(ends.tolist()):
            start = end - counts[part]
            if positions is None:
                jobs.append(_Job(part, start, None))
                continue
            low, high = np.searchsorted(positions, [start, end]).tolist()
            if low < high:
                jobs.append(_Job(part, low, positions[low:high] - start))
        return jobs

    def _pieces(self, job: _Job, space: Space | None = None) -> Iterator[Rows]:
        """The job's records, prepared and cut where blocks end; whole blocks in
        ``space``, where each replaces the one before."""
        pending: list[Rows] = []
        room = BLOCK_ROWS - job.position % BLOCK_ROWS
        for batch in _taken(self._source.chunks(job.part), job.rows):
            start = 0
            while start < batch.num_rows:
                size = min(room, batch.num_rows - start)
                pending.append(self._source.prepare(batch.slice(start, size), space))
                start += size
                room -= size
                if room == 0:
                    yield join(pending)
                    pending, room = [], BLOCK_ROWS
        if pending:
            yield join(pending)


@dataclass(frozen=True)
class _Job:
    """One part of a table: records (positions within it, or all of them) of which
    the first comes at ``position`` of the pass."""

    part: int
    position: int
    rows: Integers | None


@dataclass(frozen=True)
class _Done(Generic[T]):
    """What a function made of a whole block."""

    result: T


class _Stitcher:
    """Puts blocks together again that were cut where a part ends."""

    def __init__(self) -> None:
        self._pieces: list[Rows] = []

    def add(self, piece: Rows) -> Iterator[Rows]:
        self._pieces.append(piece)
        if sum(piece.count for piece in self._pieces) == BLOCK_ROWS:
            yield from self.rest()

    def rest(self) -> Iterator[Rows]:
        if self._pieces:
            yield join(self._pieces)
            self._pieces = []


def _taken(
    batches: Iterator[pa.RecordBatch], rows: Integers | None
) -> Iterator[pa.RecordBatch]:
    """The given rows (positions in the part) of its batches; all where None."""
    if rows is None:
        yield from batches
        return
    start = 0
    for batch in batches:
        low, high = np.searchsorted(rows, [start, start + batch.num_rows])
        if low < high:
            yield batch.take(pa.array(rows[low:high] - start))
        start += batch.num_rows


def _chained(work: Callable[[_Job], list[T]], jobs: Iterable[_Job]) -> Iterator[T]:
    """The results of all jobs, in order; few jobs are under way or waiting at once."""
    under_way: deque[Future[list[T]]] = deque()
    remaining = iter(jobs)
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            while True:
                for job in islice(remaining, 2 * THREADS - len(under_way)):
                    under_way.append(pool.submit(work, job))
                if not under_way:
                    return
                yield from under_way.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class Space:
    """Memory for prepared records, asked for once a pass and not block by block."""

    def __init__(self, width: int, count: int) -> None:
        self.x: Floats = np.empty((width, count))
        self.norms: Floats = np.empty(count)


class Source:
    """A table, how its records are prepared, and how their outcomes are read.

    Without a model there are no outcomes: records to predict for.
    """

    def __init__(
        self, table: Table, preparation: Preparation, model: Model | None
    ) -> None:
        self.table = table
        self.preparation = preparation
        self.design: Design = preparation.design
        self._model = model
        self._roles = {} if model is None else model.outcome_columns()
        outcomes: dict[str, Kind] = dict.fromkeys(self._roles.values(), "number")
        self._columns = {**preparation.columns, **outcomes}

    @property
    def bytes_per_record(self) -> int:
        """Memory that a prepared record takes."""
        return 8 * (self.design.width + 1 + len(self._roles))

    def chunks(self, part: int) -> Iterator[pa.RecordBatch]:
        """Raw records of a part of the table."""
        return self.table.chunks(self._columns, part)

    def prepare(self, batch: pa.RecordBatch, space: Space | None = None) -> Rows:
        """Records of a chunk, checked; written into ``space`` if it fits exactly."""
        if space is None or space.norms.size != batch.num_rows:
            space = Space(self.design.width, batch.num_rows)
        self.preparation.apply(batch, space.x, space.norms, self.table.where)
        return Rows(self.design, space.x, self._outcome(batch), space.norms)

    def _outcome(self, batch: pa.RecordBatch) -> Mapping[str, Floats]:
        if self._model is None:
            return {}
        raw = {
            # Nulls become NaN, which the model refuses with the column's name.
            role: batch.column(column).to_numpy(zero_copy_only=False)
            for role, column in self._roles.items()
        }
        try:
            return self._model.prepare_outcome(raw)
        except ValueError as error:
            raise DataError(str(error), where=self.table.where) from None

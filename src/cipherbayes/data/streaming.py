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

from cipherbayes.data.blocks import BLOCK_ROWS, join_blocks, thread_count
from cipherbayes.data.persons import Persons
from cipherbayes.data.preparation import Preparation
from cipherbayes.data.scratch import Fresh, Reused, Space
from cipherbayes.data.spool import RAW
from cipherbayes.data.tables import Chunk, Kind, Table
from cipherbayes.errors import DataError
from cipherbayes.models.base import Model
from cipherbayes.models.design import Design
from cipherbayes.models.rows import BESIDE, PLACE, SHARE, Rows, absent_role
from cipherbayes.typing import Floats, Integers

CHUNK_BYTES = 512 << 20
"""Most memory for the prepared chunks of all threads of a pass together."""

T = TypeVar("T")


class Source:
    """A table, how its records are prepared, and how their outcomes are read.

    Without a model there are no outcomes: records to predict for. Outcomes beyond
    their public range are refused where ``strict``, else held at its ends without a
    word: a log may be shared. ``person`` is the column that names a person, whose
    rows are then one record together; with ``parted`` each row has its person's place.
    ``beside`` prepares the same records for another fit. Values that the study draws
    may be missing where ``gaps``.
    """

    def __init__(
        self,
        table: Table,
        preparation: Preparation,
        model: Model | None,
        *,
        strict: bool = True,
        person: str | None = None,
        parted: bool = False,
        beside: Preparation | None = None,
        gaps: bool = True,
    ) -> None:
        self.table = table
        self.preparation = preparation
        self.design: Design = preparation.design
        self._model = model
        self._strict = strict
        self._gaps = gaps
        self._roles = {} if model is None else model.outcome_columns()
        outcomes: dict[str, Kind] = dict.fromkeys(self._roles.values(), "number")
        self._columns = {**preparation.columns, **outcomes}
        self.persons = None if person is None else Persons(table, person)
        if person is not None:
            self._columns[person] = "text"
        self._parted = parted and person is not None
        self._beside = beside
        if beside is not None:
            self._columns = {**beside.columns, **self._columns}

    @property
    def roles(self) -> tuple[str, ...]:
        """Outcomes of a prepared record."""
        # Also those that a model fills in where the study names no column for them.
        own = () if self._model is None else tuple(self._model.roles)
        absent = map(absent_role, self.preparation.imputed)
        added = [SHARE] * (self.persons is not None) + [PLACE] * self._parted
        width = 0 if self._beside is None else self._beside.design.width
        return (*own, *absent, *added, *(f"{BESIDE} {j}" for j in range(width)))

    @property
    def bytes_per_record(self) -> int:
        """Memory that a prepared record takes."""
        return 8 * (self.design.width + 1 + len(self.roles))

    def chunks(self, part: int, *, small: bool = False) -> Iterator[Chunk]:
        """Raw records of a part of the table; in small chunks if they are kept too."""
        most = 0 if small else CHUNK_BYTES // self.bytes_per_record
        return self.table.chunks(self._columns, part, most)

    def fill(
        self, chunk: Chunk, x: Floats, *, raw: bool = False
    ) -> Mapping[str, Floats]:
        """Write the records of a chunk to ``x``; returns their outcomes, and the
        numbers that columns were made of if ``raw`` is set."""
        numbers = self.preparation.fill(chunk, x, self.table.where)
        absent = self.preparation.absent(chunk)
        if not self._gaps:
            self._require_values(absent)
        outcomes = self._outcomes(chunk) | absent
        if raw:
            outcomes.update({f"{RAW}{place}": own for place, own in numbers.items()})
        if self.persons is not None:
            outcomes[SHARE] = self.persons.shares(chunk)
            if self._parted:
                outcomes[PLACE] = self.persons.places(chunk)
        if self._beside is not None:
            other = np.empty((self._beside.design.width, chunk.num_rows))
            self._beside.fill(chunk, other, self.table.where)
            self._beside.finish(other)
            outcomes |= {f"{BESIDE} {j}": column for j, column in enumerate(other)}
        return outcomes

    def _require_values(self, absent: Mapping[str, Floats]) -> None:
        """Refuse records with gaps where nothing is drawn."""
        for name, gaps in zip(self.preparation.imputed, absent.values(), strict=True):
            if gaps.any():
                raise DataError(
                    f"column '{name}' has missing values",
                    where=self.table.where,
                    remedy="give a value for every record that is predicted for",
                )

    def _outcomes(self, chunk: Chunk) -> dict[str, Floats]:
        if self._model is None:
            return {}
        raw = {
            # Nulls become NaN, which the model refuses with the column's name.
            role: chunk.column(column).to_numpy(zero_copy_only=False)
            for role, column in self._roles.items()
        }
        try:
            prepared = self._model.prepare_outcome(raw)
            mistake = self._model.out_of_range(raw)
            if mistake is not None and self._strict:
                raise ValueError(mistake)
        except ValueError as error:
            raise DataError(str(error), where=self.table.where) from None
        return dict(prepared)


class StreamedBlocks:
    """Blocks that are read and prepared anew in every pass.

    Parameters
    ----------
    source
        Where the records come from.
    count
        How many records the table holds; None before that is known.
    selection
        The records that count here, as sorted positions; all of them where None.
    raw
        Whether blocks also have the raw numbers that their columns were made of.
    """

    def __init__(
        self,
        source: Source,
        count: int | None,
        selection: Integers | None = None,
        *,
        raw: bool = False,
    ) -> None:
        self.design = source.design
        self._raw = raw
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
        return self._map_in_turn(lambda block: block, self._jobs(rows), Fresh())

    def map(
        self,
        function: Callable[[Rows], T],
        rows: Integers | None = None,
        *,
        keep: bool = False,
    ) -> Iterator[T]:
        """As :meth:`Blocks.map`; only with ``keep`` does a block outlive the call."""
        jobs = self._jobs(rows)
        space = Fresh() if keep else Reused("prepared")
        threads = self._affordable(thread_count())
        if len(jobs) < 2 or threads < 2:
            return self._map_in_turn(function, jobs, space)
        return self._map_in_threads(function, jobs, space, threads)

    def select(self, rows: Integers) -> StreamedBlocks:
        return StreamedBlocks(self._source, self._total, self._positions(rows))

    def _map_in_turn(
        self, function: Callable[[Rows], T], jobs: Iterable[_Job], space: Space
    ) -> Iterator[T]:
        stitcher = _Stitcher()
        for job in jobs:
            for piece in self._pieces(job, space):
                yield from map(function, stitcher.add(piece))
        yield from map(function, stitcher.rest())

    def _map_in_threads(
        self,
        function: Callable[[Rows], T],
        jobs: Iterable[_Job],
        space: Space,
        threads: int,
    ) -> Iterator[T]:
        def work(job: _Job) -> list[Rows | _Done[T]]:
            return [
                _Done(function(piece)) if piece.count == BLOCK_ROWS else piece
                for piece in self._pieces(job, space)
            ]

        stitcher = _Stitcher()
        for item in _results_in_order(work, jobs, threads):
            if isinstance(item, _Done):
                yield item.result
            else:
                yield from map(function, stitcher.add(item))
        yield from map(function, stitcher.rest())

    def _affordable(self, threads: int) -> int:
        """Threads whose chunks fit ``CHUNK_BYTES`` together; larger parts come in
        small chunks, of which any number fits."""
        if self._raw:
            return threads
        counts = self._source.table.counts or (0,)
        chunk = max(1, max(counts)) * self._source.bytes_per_record
        return min(threads, CHUNK_BYTES // chunk) if chunk <= CHUNK_BYTES else threads

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
        for part, end in enumerate(np.cumsum(counts).tolist()):
            start = end - counts[part]
            if positions is None:
                jobs.append(_Job(part, start, None))
                continue
            low, high = np.searchsorted(positions, [start, end]).tolist()
            if low < high:
                jobs.append(_Job(part, low, positions[low:high] - start))
        return jobs

    def _pieces(self, job: _Job, space: Space) -> Iterator[Rows]:
        """The job's records, prepared, cut where blocks end and joined within them.

        A piece is a whole block, or it comes first or last.
        """
        pending: list[Rows] = []
        room = BLOCK_ROWS - job.position % BLOCK_ROWS
        for chunk in _taken(self._source.chunks(job.part, small=self._raw), job.rows):
            with space.borrow(self.design.width, chunk.num_rows) as x:
                outcome = self._source.fill(chunk, x, raw=self._raw)
                start = 0
                while start < chunk.num_rows:
                    stop = min(start + room, chunk.num_rows)
                    piece = self._piece(x, outcome, start, stop)
                    room -= piece.count
                    start = stop
                    if piece.count < BLOCK_ROWS:
                        pending.append(space.settled(piece))
                    if room == 0:
                        yield join_blocks(pending) if pending else piece
                        pending, room = [], BLOCK_ROWS
        if pending:
            yield join_blocks(pending)

    def _piece(
        self, x: Floats, outcome: Mapping[str, Floats], start: int, stop: int
    ) -> Rows:
        own = x[:, start:stop]
        norms = self._source.preparation.finish(own)
        parts = {role: values[start:stop] for role, values in outcome.items()}
        return Rows(self.design, own, parts, norms)


@dataclass(frozen=True)
class _Job:
    """Records of one part of a table (positions within it, or all of them), the
    first of which comes at ``position`` of the pass."""

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
            yield join_blocks(self._pieces)
            self._pieces = []


def _taken(chunks: Iterator[Chunk], rows: Integers | None) -> Iterator[Chunk]:
    """The given rows (positions in the part) of its chunks; all where None."""
    if rows is None:
        yield from chunks
        return
    start = 0
    for chunk in chunks:
        low, high = np.searchsorted(rows, [start, start + chunk.num_rows])
        if low < high:
            yield chunk.take(pa.array(rows[low:high] - start))
        start += chunk.num_rows


def _results_in_order(
    work: Callable[[_Job], list[T]], jobs: Iterable[_Job], threads: int
) -> Iterator[T]:
    """The results of all jobs, in order; few jobs are under way or waiting at once."""
    under_way: deque[Future[list[T]]] = deque()
    remaining = iter(jobs)
    with ThreadPoolExecutor(threads) as pool:
        try:
            while True:
                for job in islice(remaining, 2 * threads - len(under_way)):
                    under_way.append(pool.submit(work, job))
                if not under_way:
                    return
                yield from under_way.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

"""One site's records, checked, prepared and ready for passes over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np

from cipherbayes.data.blocks import Blocks, BlocksInMemory
from cipherbayes.data.preparation import Preparation
from cipherbayes.data.spool import Stored, open_spool, recipes_of
from cipherbayes.data.spooled import SpooledBlocks
from cipherbayes.data.streaming import Source, StreamedBlocks
from cipherbayes.data.tables import FileTable, Table
from cipherbayes.models.base import Model
from cipherbayes.models.design import Design
from cipherbayes.models.rows import PLACE, Rows
from cipherbayes.typing import Floats, Integers

MEMORY_LIMIT = 2 << 30
"""Bytes of prepared records that one table may hold in memory."""

T = TypeVar("T")


class PreparedTable:
    """Prepared records, held in memory where they fit and streamed where not.

    Opening one reads the whole table once and checks every record. Whether it is
    held or streamed changes no result, not even in the last bit.

    Parameters
    ----------
    table
        The raw table.
    preparation
        How raw columns become the design matrix.
    model
        Whose outcome columns are read; None to read none.
    memory_limit
        Most bytes of prepared records to hold; above, every pass reads the table.
    strict
        Whether outcomes beyond their public range are refused; else they are held
        at its ends.
    person
        The column that names a person, where all rows of one are one record.
    parted
        Whether such a table may be cut between persons.
    beside
        How another fit prepares the same records, where both are compared.
    gaps
        Whether values that the study draws may be missing.

    Raises
    ------
    DataError
        Where a record is not what the study says; never with a value in it.
    """

    def __init__(
        self,
        table: Table,
        preparation: Preparation,
        model: Model | None,
        memory_limit: int = MEMORY_LIMIT,
        *,
        strict: bool = True,
        person: str | None = None,
        parted: bool = False,
        beside: Preparation | None = None,
        gaps: bool = True,
    ) -> None:
        source = Source(
            table,
            preparation,
            model,
            strict=strict,
            person=person,
            parted=parted,
            beside=beside,
            gaps=gaps,
        )
        self._persons = None if source.persons is None else source.persons.count
        self._blocks: Blocks
        self._extent: _Extent | None
        self._blocks, self._extent = _read_once(source, memory_limit)
        self._roles = () if model is None else tuple(model.roles)
        self._file = table if isinstance(table, FileTable) else None

    @classmethod
    def from_arrays(
        cls, design: Design, x: Floats, outcome: Mapping[str, Floats]
    ) -> PreparedTable:
        """Records already prepared: ``x`` of shape ``(p, n)``, outcomes by role.

        ``x`` is used, not copied, where its rows are contiguous: leave it unchanged.
        """
        x = np.asarray(x, dtype=np.float64)
        if x.ndim != 2 or x.shape[0] != design.width:
            raise ValueError("x must have one row for each column of the design")
        if x.strides[1] != x.itemsize:
            x = np.ascontiguousarray(x)
        columns = {
            role: np.ascontiguousarray(values, dtype=np.float64)
            for role, values in outcome.items()
        }
        if any(values.shape != (x.shape[1],) for values in columns.values()):
            raise ValueError("every outcome must have one value for each record")
        blocks = BlocksInMemory.of_arrays(design, x, columns)
        if not all(np.isfinite(block.x).all() for block in blocks.blocks()):
            raise ValueError("x must be finite")
        return cls._of(blocks, tuple(columns))

    @classmethod
    def for_prediction(
        cls, table: Table, preparation: Preparation, *, gaps: bool = False
    ) -> PreparedTable:
        """Records whose outcomes are not read."""
        return cls(table, preparation, None, gaps=gaps)

    @classmethod
    def _of(cls, blocks: Blocks, roles: Sequence[str]) -> PreparedTable:
        prepared = cls.__new__(cls)
        prepared._blocks = blocks
        prepared._roles = tuple(roles)
        prepared._extent = None
        prepared._persons = None
        prepared._file = None
        return prepared

    @property
    def count(self) -> int:
        """Number of rows."""
        return self._blocks.count

    @property
    def records(self) -> int:
        """Number of records that are protected: rows, or persons."""
        return self.count if self._persons is None else self._persons

    @property
    def design(self) -> Design:
        """The columns of the design matrix."""
        return self._blocks.design

    @property
    def in_memory(self) -> bool:
        """Whether the records are held, not read again in every pass."""
        return isinstance(self._blocks, BlocksInMemory)

    def blocks(self, rows: Integers | None = None) -> Iterator[Rows]:
        """The records in blocks, one after the other; of ``rows`` (sorted) if given."""
        return self._blocks.blocks(self._checked(rows))

    def map(
        self, function: Callable[[Rows], T], rows: Integers | None = None
    ) -> Iterator[T]:
        """``function`` of every block, in block order, computed in threads.

        The blocks, hence the results, do not depend on the number of threads. A
        block is valid during the call only: a stream uses its memory again.
        """
        return self._blocks.map(function, self._checked(rows))

    def moved(
        self, design: Design, mean: Floats, scale: Floats
    ) -> PreparedTable | None:
        """The table with (x - mean) * scale in each column, where its blocks can be
        read so; None where whoever looks at them has to move them."""
        if not isinstance(self._blocks, SpooledBlocks):
            return None
        moved = self._of(self._blocks.moved(design, mean, scale), self._roles)
        moved._persons, moved._file = self._persons, self._file
        return moved

    def subset(self, rows: Integers) -> PreparedTable:
        """The given records (sorted positions) as a table of their own.

        Where a record is a person, all rows of one or none of them must be given.
        """
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        self._checked(rows)
        part = self._of(self._blocks.select(rows), self._roles)
        part._file = self._file
        if self._persons is not None:
            part._persons = part._count_persons()
        return part

    def _count_persons(self) -> int:
        """Persons by their places: one more or less changes it by one at most."""
        places = list(self.map(lambda block: block.outcome.get(PLACE)))
        if any(part is None for part in places):
            raise ValueError("rows of a person stay together")
        return int(np.unique(np.concatenate([np.empty(0), *places])).size)

    def outcome(self) -> dict[str, Floats]:
        """The outcome columns of all records, by role."""
        parts = list(
            self.map(lambda b: {role: own.copy() for role, own in b.outcome.items()})
        )
        if not parts:
            return {role: np.empty(0) for role in self._roles}
        return {
            role: np.concatenate([part[role] for part in parts]) for role in parts[0]
        }

    def check_unchanged(self) -> None:
        """Raise DataError where its file is no longer the one that was read."""
        if self._file is not None:
            self._file.check_unchanged()

    def constant_columns(self) -> tuple[str, ...]:
        """Design columns, the intercept aside, with one value in every record."""
        if self._extent is None:
            self._extent = _Extent()
            for low, high in self.map(_block_extent):
                self._extent.widen(low, high)
        names = self.design.names
        first = 0 if self.design.intercept is None else 1
        return tuple(names[j] for j in range(first, len(names)) if self._extent.flat(j))

    def _checked(self, rows: Integers | None) -> Integers | None:
        if rows is None or rows.size == 0:
            return rows
        if rows[0] < 0 or rows[-1] >= self.count or np.any(np.diff(rows) < 0):
            raise ValueError("rows must be sorted positions within the table")
        return rows


class _Extent:
    """Smallest and largest value of every design column."""

    def __init__(self) -> None:
        self._low: Floats | None = None
        self._high: Floats | None = None

    def widen(self, low: Floats, high: Floats) -> None:
        self._low = low if self._low is None else np.minimum(self._low, low)
        self._high = high if self._high is None else np.maximum(self._high, high)

    def flat(self, j: int) -> bool:
        return (
            self._low is not None
            and self._high is not None
            and bool(self._low[j] == self._high[j])
        )


def _block_extent(block: Rows) -> tuple[Floats, Floats]:
    return block.x.min(axis=1), block.x.max(axis=1)


def _read_once(source: Source, memory_limit: int) -> tuple[Blocks, _Extent]:
    """Check every record, and hold them if they fit ``memory_limit``."""
    expected = source.table.count
    most = memory_limit // source.bytes_per_record
    if expected is None or expected <= most:
        found = _held(source, most)
        if found is not None:
            return found
    return _streamed(source)


def _held(source: Source, most: int) -> tuple[Blocks, _Extent] | None:
    """All records in memory; None as soon as there are more than ``most``."""
    held: list[Rows] = []
    extent = _Extent()
    blocks = StreamedBlocks(source, source.table.count)
    for block, ends in blocks.map(lambda b: (b, _block_extent(b)), keep=True):
        held.append(block)
        extent.widen(*ends)
        if sum(each.count for each in held) > most:
            return None
    return BlocksInMemory(source.design, held), extent


def _streamed(source: Source) -> tuple[Blocks, _Extent]:
    """Records that are read in every pass: from a spool, or else from the table."""
    design = source.design
    constant = design.intercept is not None
    spool = open_spool(source.table.folder, design.width, constant=constant)
    extent, count = _Extent(), 0
    stored: list[Stored] | None = None if spool is None else []

    def look(block: Rows) -> tuple[int, tuple[Floats, Floats], Stored | None]:
        kept = None
        if spool is not None and stored is not None:
            with suppress(OSError):  # the disk is full
                kept = spool.write(block, source.roles)
        return block.count, _block_extent(block), kept

    blocks = StreamedBlocks(source, source.table.count, raw=spool is not None)
    for size, ends, kept in blocks.map(look):
        count += size
        extent.widen(*ends)
        if stored is not None and kept is not None:
            stored.append(kept)
        else:
            stored = None
    if spool is not None and stored is None:
        spool.close()  # not before: other threads may still write to it
    if spool is None or stored is None:
        return StreamedBlocks(source, count), extent
    columns = design.width + len(source.roles)
    recipes = recipes_of(columns, design.intercept, source.preparation.plain)
    return SpooledBlocks(spool, stored, design, source.roles, recipes), extent

"""Prepared records in a file without a name, stored exactly and in few bytes.

A table that is too large for memory is asked for the same records in every round. To
decode a Parquet or CSV file each time costs more than the round itself, so what was
read once is kept: a number as it stood in the table, everything else as a column of the
design, each in the narrowest type that gives the same bits back. The file has no name
and no other user can open it; it is gone when the process ends, however that ends.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from cipherbayes.errors import RunError
from cipherbayes.models import kernels
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Floats, Integers

VARIABLE = "CIPHERBAYES_SCRATCH"
"""Names the folder whose disk holds the file; else it is the table's own."""

ROOM = 1 << 30
"""Bytes of a disk that are left to others."""

RAW = "raw column "
"""Roles of raw numbers that are kept, before the place of their column."""

_LOOK = 1 << 26
_ALIGNED = 64


@dataclass(frozen=True)
class RecordLayout:
    """Where the columns of a record are, and in which types.

    Attributes
    ----------
    size
        Bytes of the record.
    rows
        Records in it.
    offsets, kinds
        Of each column: of the design first, then of the outcome.
    """

    size: int
    rows: int
    offsets: Integers
    kinds: Integers


@dataclass(frozen=True)
class Stored:
    """A block in the file."""

    place: int
    layout: RecordLayout


@cache
def layout_of(kinds: tuple[int, ...], rows: int) -> RecordLayout:
    """Columns one after the other, each where a register may begin."""
    sizes = [
        -(-kernels.STORED_TYPES[kind].itemsize * rows // _ALIGNED) * _ALIGNED
        if kind != kernels.CONSTANT
        else 0
        for kind in kinds
    ]
    ends = np.cumsum([0, *sizes])
    return RecordLayout(
        int(ends[-1]), rows, ends[:-1].astype(np.int64), np.array(kinds, np.int64)
    )


class Spool:
    """A file without a name that blocks are written to and read from, by any thread.

    Parameters
    ----------
    folder
        On whose disk it is.
    width
        Columns of the design.
    constant
        Whether the first of them is a constant, which is not written.

    ``close`` gives its room on the disk back, as whoever forgets it does.

    Raises
    ------
    OSError
        Where the folder cannot be written, or its disk has no room.
    """

    def __init__(self, folder: Path, width: int, *, constant: bool) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self.close = weakref.finalize(self, self._file.close)
        self._width = width
        self._constant = constant
        self._lock = threading.Lock()
        self._end = 0
        self._looked = -_LOOK
        self._kinds: dict[int, int] = {}

    def write(self, block: Rows, roles: Sequence[str]) -> Stored:
        """Keep a block: its columns, and its outcomes in the order of ``roles``."""
        outcome = block.outcome
        columns = [outcome.get(f"{RAW}{j}", block.x[j]) for j in range(self._width)]
        columns += [outcome[role] for role in roles]
        narrowed = [
            (kernels.CONSTANT, None)
            if j == 0 and self._constant
            else self._narrow(j, np.ascontiguousarray(values))
            for j, values in enumerate(columns)
        ]
        layout = layout_of(tuple(kind for kind, _ in narrowed), block.count)
        record = np.zeros(layout.size, dtype=np.uint8)
        for offset, (_, values) in zip(layout.offsets, narrowed, strict=True):
            if values is not None:
                bytes_ = values.view(np.uint8)
                record[offset : offset + bytes_.size] = bytes_
        with self._lock:
            place, self._end = self._end, self._end + layout.size
            self._require_room()
        _write_all(self._file.fileno(), record, place)
        return Stored(place, layout)

    def read(self, stored: Stored, buffer: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The bytes of a block, at the beginning of a buffer."""
        record = buffer[: stored.layout.size]
        view, place = memoryview(record.data), stored.place
        try:
            while view:
                got = os.preadv(self._file.fileno(), [view], place)
                if got == 0:
                    raise OSError
                view, place = view[got:], place + got
        except OSError:
            raise RunError(
                "prepared records cannot be read again",
                where="the disk of the table, or of CIPHERBAYES_SCRATCH",
                remedy="check the disk, then resume the run",
            ) from None
        return record

    def _narrow(self, column: int, values: Floats) -> tuple[int, NDArray[np.generic]]:
        """The narrowest type that gives the same bits back, from that of the blocks
        before on."""
        bits = values.view(np.uint64)
        with np.errstate(all="ignore"):
            for kind in range(self._kinds.get(column, 1), kernels.DOUBLE):
                narrow = values.astype(kernels.STORED_TYPES[kind])
                if np.array_equal(narrow.astype(np.float64).view(np.uint64), bits):
                    self._kinds[column] = kind
                    return kind, narrow
        self._kinds[column] = kernels.DOUBLE
        return kernels.DOUBLE, values

    def _require_room(self) -> None:
        """OSError where the disk is about to be full; asked now and then."""
        if self._end - self._looked < _LOOK:
            return
        self._looked = self._end
        status = os.fstatvfs(self._file.fileno())
        if status.f_bavail * status.f_frsize < ROOM + _LOOK:
            raise OSError("no room on the disk")


def spool_folder(beside: Path | None) -> Path | None:
    """Where a spool may be: the folder that the site names, or that of its table."""
    named = os.environ.get(VARIABLE, "")
    return Path(named) if named else beside


def open_spool(beside: Path | None, width: int, *, constant: bool) -> Spool | None:
    """A new spool; None where there is no folder for it, or it cannot be written."""
    folder = spool_folder(beside)
    if folder is None:
        return None
    try:
        return Spool(folder, width, constant=constant)
    except OSError:
        return None


def recipes_of(
    width: int, constant: float | None, plain: Mapping[int, tuple[float, float]]
) -> Floats:
    """How stored columns become those of the design, for ``kernels.restore_columns``.

    Parameters
    ----------
    constant
        Value of the first column, None where it is like the others.
    plain
        Centre and scale of the columns that are stored as they stood in the table.
    """
    recipes = np.tile([0.0, 1.0, -np.inf, np.inf, 0.0, 1.0], (width, 1))
    for place, (centre, scale) in plain.items():
        recipes[place, :4] = centre, scale, -1.0, 1.0
    if constant is not None:
        recipes[0, 0] = constant
    return recipes


def _write_all(file: int, record: NDArray[np.uint8], place: int) -> None:
    view = memoryview(record.data)
    while view:
        done = os.pwrite(file, view, place)
        view, place = view[done:], place + done

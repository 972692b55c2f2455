"""A digest of rows that does not depend on their order."""

from __future__ import annotations

import hashlib
import re
import struct

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
"""Seeds of the two halves of a digest of rows."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|-?inf", re.ASCII)

Words = NDArray[np.uint64]


class RowDigest:
    """A digest of rows in no order: 128 bits, the sum of a hash of each row.

    Two tables with the same rows have the same digest, whatever order a database
    returned rows and columns in, and whatever its types of numbers are. Names do not
    count: a row's hash is that of the sum of its cells' hashes.

    Edge cases
    ----------
    It finds tables that are the same by mistake or by habit. It is no commitment:
    whoever wants two tables with one digest can make them, and owns both.
    """

    def __init__(self) -> None:
        self._sums = [0, 0]
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """Count more rows."""
        for index, words in enumerate(row_words(table)):
            total = int(words.sum(dtype=np.uint64))
            self._sums[index] = (self._sums[index] + total) % 2**64
        self._rows += table.num_rows

    def hex(self) -> str:
        """The digest of all rows so far."""
        text = f"{self._rows}/{self._sums[0]}/{self._sums[1]}"
        return hashlib.sha256(text.encode()).hexdigest()


def row_words(table: pa.Table) -> list[Words]:
    """Two words for each row: hashes of its cells, in whatever order these are."""
    lanes = [np.zeros(table.num_rows, dtype=np.uint64) for _ in _SEEDS]
    for column in table.columns:
        cells = _cell_words(column)
        for lane, words, seed in zip(lanes, cells, _SEEDS, strict=True):
            cell = words ^ np.uint64(seed)
            _mix(cell)
            lane += cell
    for lane in lanes:
        _mix(lane)
    return lanes


def _cell_words(column: pa.ChunkedArray) -> tuple[Words, Words]:
    """Two words for each cell: of a number its bits, of another text its hash."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # none, or more than one array can hold
        array = pa.concat_arrays(array.chunks)
    if pa.types.is_string(array.type):
        encoded = array.dictionary_encode()
        digests = [_text_words(text) for text in encoded.dictionary.to_pylist()]
        table = np.frombuffer(b"".join(digests) + bytes(16), dtype="<u8").reshape(-1, 2)
        index = pc.fill_null(encoded.indices, len(digests)).to_numpy(
            zero_copy_only=False
        )
        return table[index, 0].astype(np.uint64), table[index, 1].astype(np.uint64)
    if pa.types.is_null(array.type) or array.null_count == len(array):
        words = np.zeros(len(array), dtype=np.uint64)
        return words, words
    numbers = pc.fill_null(pc.cast(array, pa.float64(), safe=False), float("nan"))
    values = numbers.to_numpy(zero_copy_only=False) + 0.0  # no negative zero
    words = values.view(np.uint64).copy()
    words[np.isnan(values)] = 0  # every spelling of a gap
    return words, words


def _text_words(text: str) -> bytes:
    """The words of a text; one that is a number has those of the number.

    SQLite and CSV files give numbers as text, other databases the same ones as numbers.
    """
    if _NUMBER.fullmatch(text):
        return struct.pack("<d", float(text) + 0.0) * 2
    return hashlib.sha256(text.encode()).digest()[:16]


def _mix(state: Words) -> None:
    """The splitmix64 finaliser, in place."""
    state += np.uint64(0x9E3779B97F4A7C15)
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)

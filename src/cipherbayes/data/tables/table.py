"""What every table is here: named columns, read in chunks of rows.

No message contains a value: what Arrow says of a failure is never passed on.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from cipherbayes.data.refusals import refuse

Kind = Literal["number", "text"]

CHUNK_ROWS = 16_384
"""Rows of a chunk where a part, or a frame, is too large to be one chunk."""

MISSING = frozenset({*pyarrow.csv.ConvertOptions().null_values, "None"})
"""Spellings of a missing value, the empty field among them."""

_TRUE = pyarrow.csv.ConvertOptions().true_values
_FALSE = pyarrow.csv.ConvertOptions().false_values

MOST_WHOLE = 2.0**53
"""From here on a float64 has neighbours that differ by more than one."""

TYPES: dict[Kind, pa.DataType] = {"number": pa.float64(), "text": pa.string()}

ReadColumn = Callable[[str], pa.Array]


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows; a column is read when it is asked for.

    Column by column is how Parquet is stored: decoding one at a time needs the
    least memory and, measured, the least time.
    """

    num_rows: int
    column: ReadColumn

    def take(self, rows: pa.Array) -> Chunk:
        """The rows at the given positions."""
        return Chunk(len(rows), lambda name: self.column(name).take(rows))


class Table(ABC):
    """Named columns of one site, read as often as needed and never held whole.

    Attributes
    ----------
    where
        How errors name the table: a path, or the site's name.
    names
        The columns.
    counts
        Rows of each part, in row order, where they are known without reading. Parts
        can be read independently and in parallel; a table of unknown length is one.
    """

    def __init__(
        self, where: str, names: Sequence[str], counts: Sequence[int] | None
    ) -> None:
        self.where = where
        self.names = tuple(names)
        self.counts = None if counts is None else tuple(counts)
        # Names are shown only where the study knows them: in a file without a header
        # line they would be the first record.
        self._known = refuse_same_names(where, self.names)
        if self.count == 0:
            refuse(where, "has no rows", "give a table with at least one record")

    @property
    def folder(self) -> Path | None:
        """Where it lies, if it is a file."""
        return None

    @property
    def count(self) -> int | None:
        """Number of rows, None where only reading can tell."""
        return None if self.counts is None else sum(self.counts)

    @property
    def parts(self) -> int:
        """Number of parts."""
        return 1 if self.counts is None else len(self.counts)

    def chunks(
        self,
        columns: Mapping[str, Kind],
        part: int | None = None,
        most_rows: int = CHUNK_ROWS,
    ) -> Iterator[Chunk]:
        """Chunks of rows, in order, of one part or of the whole table.

        Parameters
        ----------
        columns
            Name of each column wanted -> ``"number"`` (float64) or ``"text"``
            (string). Missing values stay null or NaN.
        most_rows
            A part of so many rows may come as one chunk.
        """
        self._require(columns)
        for piece in range(self.parts) if part is None else (part,):
            for count, column in self._read(columns, piece, most_rows):
                yield Chunk(count, self._converted(column, columns))

    @abstractmethod
    def _read(
        self, columns: Mapping[str, Kind], part: int, most_rows: int
    ) -> Iterator[tuple[int, ReadColumn]]:
        """Number of rows of each chunk, and how to read a column of it."""

    def _converted(self, column: ReadColumn, columns: Mapping[str, Kind]) -> ReadColumn:
        return lambda name: self._convert(column(name), name, columns[name])

    def _require(self, columns: Iterable[str]) -> None:
        """Refuse a table without one of these columns.

        Names of the table are shown only where it surely has a header line, which most
        of the columns are found in: else they would be the first record.
        """
        absent = [name for name in columns if name not in self._known]
        if not absent:
            return
        found = [name for name in columns if name in self._known]
        remedy = "check its header line, or the spelling in the study"
        if len(found) >= max(2, len(absent)):
            remedy = self._spelling_remedy(absent[0]) or remedy
        refuse(self.where, f"has no column '{absent[0]}'", remedy)

    def _spelling_remedy(self, name: str) -> str | None:
        """What to do about a name that the header line has in another spelling."""
        lower = {known.lower(): known for known in self.names}
        near = difflib.get_close_matches(name.lower(), lower, n=3)
        if name in {known.strip(" \"'") for known in self.names}:
            return "its header line has quotes or blanks around it: remove them"
        if same := lower.get(name.lower()):
            return f"it is written '{same}' there: capital letters count"
        if near:
            return "did you mean " + " or ".join(f"'{lower[n]}'" for n in near) + "?"
        return None

    def _convert(self, column: pa.Array, name: str, kind: Kind) -> pa.Array:
        """The column as float64 or string; what is neither is refused."""
        held, types = column.type, pa.types
        if held == TYPES[kind]:
            return column
        if types.is_dictionary(held):
            return self._convert(column.dictionary_decode(), name, kind)
        if types.is_float16(held):  # of which Arrow computes nothing
            return self._convert(pc.cast(column, pa.float32()), name, kind)
        if types.is_decimal(held):
            digits = 10.0**held.scale
            column = decimal_numbers(column)
            if kind == "text" and _loses_digits(column, digits):
                self._refuse_digits(name)
            return self._convert(column, name, kind)
        number = types.is_integer(held) or types.is_floating(held)
        number = number or types.is_boolean(held)
        text = types.is_string(held) or types.is_large_string(held)
        text = text or types.is_string_view(held)
        if text and kind == "number":
            return self._numbers(column, name)
        if not (number or text or types.is_null(held)):
            _refuse_kind(self.where, name, held)
        if kind == "text" and types.is_floating(held) and _loses_digits(column):
            self._refuse_digits(name)
        return pc.cast(column, TYPES[kind], safe=False)

    def _numbers(self, column: pa.Array, name: str) -> pa.Array:
        """A column of text as numbers, where a table has such columns."""
        refuse_text(self.where, name)

    def _refuse_digits(self, name: str) -> NoReturn:
        refuse(
            self.where,
            f"column '{name}' has numbers with more digits than a number keeps, so "
            "that different ones may look alike",
            "give it as text",
        )


class FileTable(Table):
    """A table in a file, which has to stay as it is while it is used."""

    def __init__(
        self,
        path: Path,
        where: str,
        names: Sequence[str],
        counts: Sequence[int] | None,
    ) -> None:
        super().__init__(where, names, counts)
        self._path = path
        self._stamp = _stamp(path, where)

    @property
    def folder(self) -> Path | None:
        return self._path.absolute().parent

    def check_unchanged(self) -> None:
        """Raise DataError where it is no longer what it was when it was opened."""
        if _stamp(self._path, self.where) != self._stamp:
            refuse(self.where, "changed while it was in use", "run the study again")


def _loses_digits(column: pa.Array, digits: float = 1.0) -> bool:
    """Whether a column of float64 has numbers whose neighbours were told apart in the
    last of so many ``digits`` behind the point, and are not here."""
    largest = pc.max(pc.abs(column)).as_py()
    return largest is not None and MOST_WHOLE <= largest * digits < float("inf")


def decimal_numbers(column: pa.Array) -> pa.Array:
    """Decimals as float64, each by its own digits.

    A decimal column has one scale for all its values, the longest of them, and Arrow's
    cast to float64 rounds by it: one record with more digits would change the last bit
    of all others. By way of a text every value is rounded alone, and correctly.
    """
    return pc.cast(pc.cast(column, pa.string()), pa.float64())


def text_numbers(column: pa.Array) -> pa.Array:
    """Texts as float64, each by itself and as a CSV's cell is; ArrowInvalid if not."""
    raw = pc.cast(column, pa.string())
    words = pc.if_else(_is_one_of(raw, sorted(MISSING)), None, pc.utf8_trim(raw, " \t"))
    for spellings, digit in ((_TRUE, "1"), (_FALSE, "0")):
        words = pc.if_else(_is_one_of(words, spellings), digit, words)
    return pc.cast(words, pa.float64())


def _is_one_of(column: pa.Array, words: Sequence[str]) -> pa.Array:
    return pc.is_in(column, pa.array(words, type=pa.string()))


def _refuse_kind(where: str, name: str, held: pa.DataType) -> NoReturn:
    """Refuse a column by what it holds instead of numbers or text."""
    what = "neither numbers nor text"
    remedy = "convert it to numbers or to text"
    if pa.types.is_temporal(held):
        what = "dates or times"
        remedy = "convert it, e.g. to days since a public date"
    elif pa.types.is_nested(held):
        what = "lists"
        remedy = "give one number or text for each record"
    refuse(where, f"column '{name}' holds {what}", remedy)


def refuse_same_names(where: str, names: Sequence[str]) -> dict[str, int]:
    """Where each column is; refused if two have one name, which is not shown."""
    known: dict[str, int] = {}
    for index, name in enumerate(names):
        if (first := known.setdefault(name, index)) < index:
            refuse(
                where,
                f"columns {first + 1} and {index + 1} have the same name",
                "rename one of them (is there a header line?)",
            )
    return known


def refuse_text(where: str, name: str, line: str = "") -> NoReturn:
    """Refuse a column that holds text instead of numbers."""
    place = f" in line {line}" if line else ""
    refuse(
        where,
        f"column '{name}' holds text where a number is expected{place}",
        "correct it (decimals need a point: 58.0, not 58,0); a feature in words needs "
        "levels = [...], an outcome in words (yes, no) is written as 1 and 0",
    )


def _stamp(path: Path, where: str) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        refuse(where, "cannot be found any more", "put the file back and run again")
    return status.st_ino, status.st_size, status.st_mtime_ns

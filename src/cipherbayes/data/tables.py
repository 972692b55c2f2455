"""Site tables, read in chunks: CSV, Parquet, and pandas, polars or Arrow frames.

A table is asked for columns *of a kind*, numbers or text, and answers with chunks of
rows whose columns are Arrow arrays of float64 or string, whatever the source held.
The kinds come from the study, so the types of a CSV cannot change from chunk to
chunk. No message contains a value: what Arrow says of a failure is never passed on.
"""

from __future__ import annotations

import difflib
import numbers
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NoReturn

import narwhals as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from cipherbayes.errors import DataError

Kind = Literal["number", "text"]

PART_ROWS = 131_072
"""Row groups of a Parquet file form one part until they hold so many rows."""

CHUNK_ROWS = 16_384
"""Rows of a chunk where a part, or a frame, is too large to be one chunk."""

MISSING = frozenset({*pyarrow.csv.ConvertOptions().null_values, "None"})
"""Spellings of a missing value, the empty field among them."""

MOST_WHOLE = 2.0**53
"""From here on a float64 has neighbours that differ by more than one."""

_TYPES: dict[Kind, pa.DataType] = {"number": pa.float64(), "text": pa.string()}


def open_table(source: Any, where: str = "") -> Table:
    """Open a table: a path to CSV or Parquet, or a pandas, polars or Arrow frame.

    Parameters
    ----------
    source
        A path ending in .csv, .csv.gz, .parquet or .pq, or any frame that narwhals
        understands.
    where
        How errors name the table; the path where left out.
    """
    if not isinstance(source, str | Path):
        return FrameTable(source, where or "table")
    path = Path(source)
    where = where or str(source)
    if path.is_dir():
        _refuse(where, "is a folder", "name one file in it")
    if not path.exists():
        _refuse(where, "no such file", "check the path")
    name = path.name.lower()
    if name.endswith((".csv", ".csv.gz")):
        return CsvTable(path, where)
    if name.endswith((".parquet", ".pq")):
        return ParquetTable(path, where)
    _refuse(
        where,
        "has an ending that is not known",
        "give a .csv, .csv.gz or .parquet file",
    )


_NO_COMMAS = (
    "is not separated by commas",
    "save it with commas between fields and points in numbers (1.5, not 1,5)",
)

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
        self._known: dict[str, int] = {}
        for index, name in enumerate(self.names):
            if (first := self._known.setdefault(name, index)) < index:
                _refuse(
                    where,
                    f"columns {first + 1} and {index + 1} have the same name",
                    "rename one of them (is there a header line?)",
                )
        if self.count == 0:
            _refuse(where, "has no rows", "give a table with at least one record")

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
        for name in columns:
            self._require(name)
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

    def _require(self, name: str) -> None:
        if name in self._known:
            return
        lower = {known.lower(): known for known in self.names}
        near = difflib.get_close_matches(name.lower(), lower, n=3)
        remedy = "check its header line, or the spelling in the study"
        if name in {known.strip(" \"'") for known in self.names}:
            remedy = "its header line has quotes or blanks around it: remove them"
        elif near:
            remedy = "did you mean " + " or ".join(f"'{lower[n]}'" for n in near) + "?"
        _refuse(self.where, f"has no column '{name}'", remedy)

    def _convert(self, column: pa.Array, name: str, kind: Kind) -> pa.Array:
        """The column as float64 or string; what is neither is refused."""
        held, types = column.type, pa.types
        if held == _TYPES[kind]:
            return column
        if types.is_dictionary(held):
            return self._convert(column.dictionary_decode(), name, kind)
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
            _refuse_text(self.where, name)
        if not (number or text or types.is_null(held)):
            _refuse_kind(self.where, name, held)
        if kind == "text" and types.is_floating(held) and _loses_digits(column):
            self._refuse_digits(name)
        return pc.cast(column, _TYPES[kind], safe=False)

    def _refuse_digits(self, name: str) -> NoReturn:
        _refuse(
            self.where,
            f"column '{name}' has numbers with more digits than a number keeps, so "
            "that different ones may look alike",
            "give it as text",
        )


class _File(Table):
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

    def _check_unchanged(self) -> None:
        if _stamp(self._path, self.where) != self._stamp:
            _refuse(self.where, "changed while it was in use", "run the study again")


class CsvTable(_File):
    """A comma-separated UTF-8 file with a header line, plain or gzipped."""

    def __init__(self, path: Path, where: str) -> None:
        names: tuple[str, ...] = ()
        with _csv_errors(where, names, {}) as ragged:
            reader = _open_csv(path, pyarrow.csv.ConvertOptions(), ragged)
            names = tuple(reader.schema.names)
            rows = any(batch.num_rows for batch in reader)
        super().__init__(path, where, names, None if rows else (0,))
        if len(names) == 1 and re.search(r"[;\t|]", names[0]):
            _refuse(where, *_NO_COMMAS)
        # "true" and "false" are numbers too, but Arrow must be told to expect them.
        self._logical = {f.name for f in reader.schema if pa.types.is_boolean(f.type)}

    def _read(
        self, columns: Mapping[str, Kind], part: int, most_rows: int
    ) -> Iterator[tuple[int, ReadColumn]]:
        self._check_unchanged()
        types = {
            name: pa.bool_()
            if kind == "number" and name in self._logical
            else _TYPES[kind]
            for name, kind in columns.items()
        }
        options = pyarrow.csv.ConvertOptions(
            include_columns=list(columns),
            column_types=types,
            null_values=sorted(MISSING),
            strings_can_be_null=False,  # "None" may be the name of a level
        )
        with _csv_errors(self.where, self.names, columns) as ragged:
            for batch in _open_csv(self._path, options, ragged):
                yield batch.num_rows, batch.column


class ParquetTable(_File):
    """A Parquet file; its parts are runs of row groups."""

    def __init__(self, path: Path, where: str) -> None:
        with _parquet_errors(where):
            metadata = pyarrow.parquet.read_metadata(path)
            names = metadata.schema.to_arrow_schema().names
        sizes = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
        self._metadata = metadata
        self._groups = _runs(sizes)
        counts = [sum(sizes[k] for k in run) for run in self._groups]
        super().__init__(path, where, names, counts)

    def _read(
        self, columns: Mapping[str, Kind], part: int, most_rows: int
    ) -> Iterator[tuple[int, ReadColumn]]:
        assert self.counts is not None
        self._check_unchanged()
        groups, rows = self._groups[part], self.counts[part]
        with _parquet_errors(self.where), self._open() as file:
            if rows <= most_rows:

                def column(name: str) -> pa.Array:
                    with _parquet_errors(self.where):
                        table = file.read_row_groups(groups, [name], use_threads=False)
                    (values,) = table.columns
                    # To combine a single chunk would copy it.
                    return (
                        values.chunk(0)
                        if values.num_chunks == 1
                        else values.combine_chunks()
                    )

                yield rows, column
                return
            for batch in file.iter_batches(
                CHUNK_ROWS, groups, list(columns), use_threads=self.parts == 1
            ):
                yield batch.num_rows, batch.column

    def _open(self) -> pyarrow.parquet.ParquetFile:
        # A read buffer instead of whole column chunks keeps memory flat; a quarter of a
        # megabyte stays in the cache between the system and the decoder.
        return pyarrow.parquet.ParquetFile(
            self._path, metadata=self._metadata, buffer_size=1 << 18, pre_buffer=False
        )


class FrameTable(Table):
    """A frame in memory, of any library that narwhals understands."""

    def __init__(self, frame: Any, where: str) -> None:
        try:
            eager = nw.from_native(frame)
        except nw.exceptions.DuplicateError:
            _refuse(where, "a column name appears twice", "rename one of them")
        except TypeError:
            _refuse(
                where,
                "is neither a path nor a frame",
                "give a path, or a pandas, polars or Arrow table",
            )
        if isinstance(eager, nw.LazyFrame):
            try:
                eager = eager.collect()
            except Exception:  # each library has its own, with values in their texts
                _refuse(where, "the lazy frame fails", "collect it to see why")
        self._frame, self._labels = eager, eager.columns
        super().__init__(where, [str(n) for n in eager.columns], [len(eager)])

    def _read(
        self, columns: Mapping[str, Kind], part: int, most_rows: int
    ) -> Iterator[tuple[int, ReadColumn]]:
        arrays = {name: self._arrow(name, kind) for name, kind in columns.items()}
        for batch in pa.table(arrays).to_batches(max_chunksize=CHUNK_ROWS):
            yield batch.num_rows, batch.column

    def _arrow(self, name: str, kind: Kind) -> pa.Array:
        column = self._frame.get_column(self._labels[self._known[name]])
        try:
            if column.dtype == nw.Object:
                # Cell by cell: one type for all would be chosen by looking at all, and
                # one record could then change how the others are read.
                cells = [_cell(value, kind) for value in column.to_list()]
                return pa.array(cells, type=_TYPES[kind])
            return column.to_arrow()
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            _refuse(
                self.where,
                f"column '{name}' mixes types",
                "convert it to numbers or to text throughout",
            )


def _cell(value: Any, kind: Kind) -> float | str | None:
    """A value of a column without a type, by itself; TypeError for neither."""
    if value is None or value != value:  # NaN and its kin
        return None
    if isinstance(value, str):
        if kind == "number":
            raise TypeError
        return value
    if isinstance(value, bool | np.bool_):
        return float(value) if kind == "number" else str(value).lower()
    if not isinstance(value, numbers.Number | np.number):
        raise TypeError
    number = float(value)  # type: ignore[arg-type]
    if kind == "number":
        return number
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, Decimal):
        text = format(value, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    if abs(number) >= MOST_WHOLE:
        raise TypeError
    return str(int(number)) if number.is_integer() else repr(number)


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


def _refuse(where: str, what: str, remedy: str) -> NoReturn:
    raise DataError(what, where=where, remedy=remedy) from None


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
    _refuse(where, f"column '{name}' holds {what}", remedy)


def _refuse_text(where: str, name: str, line: str = "") -> NoReturn:
    place = f" in line {line}" if line else ""
    _refuse(
        where,
        f"column '{name}' holds text where a number is expected{place}",
        "correct it; a feature in words needs levels = [...], an outcome in words "
        "(yes, no) is written as 1 and 0",
    )


def _stamp(path: Path, where: str) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        _refuse(where, "cannot be found any more", "put the file back and run again")
    return status.st_size, status.st_mtime_ns


def _runs(sizes: Sequence[int]) -> list[list[int]]:
    """Consecutive row groups, put together until a run has ``PART_ROWS`` rows."""
    runs: list[list[int]] = []
    rows = PART_ROWS
    for index, size in enumerate(sizes):
        if rows >= PART_ROWS:
            runs.append([])
            rows = 0
        runs[-1].append(index)
        rows += size
    return runs


def _open_csv(
    path: Path, options: pyarrow.csv.ConvertOptions, ragged: list[Any]
) -> pyarrow.csv.CSVStreamingReader:
    def note(row: Any) -> str:
        ragged.append(row)
        return "error"

    return pyarrow.csv.open_csv(
        path,
        # One thread: only then does Arrow number the lines it refuses.
        read_options=pyarrow.csv.ReadOptions(use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(
            newlines_in_values=True, invalid_row_handler=note
        ),
        convert_options=options,
    )


@contextmanager
def _csv_errors(
    where: str, names: Sequence[str], columns: Mapping[str, Kind]
) -> Iterator[list[Any]]:
    """Turn Arrow's failures into lines without values; yields a list for bad rows."""
    ragged: list[Any] = []
    try:
        yield ragged
    except UnicodeDecodeError:
        _refuse(where, "its header is not UTF-8 text", "save the file as UTF-8")
    except OSError:
        _refuse(where, "cannot be read", "check its permissions and that it is whole")
    except pa.ArrowInvalid as error:
        text = str(error)
        place = re.match(r"In CSV column #(\d+): Row #(\d+)", text)
        if ragged:
            row = ragged[0]
            if row.expected_columns == 1:
                # Fields between semicolons, and decimal commas in some of them.
                _refuse(where, *_NO_COMMAS)
            _refuse(
                where,
                f"line {row.number} has {row.actual_columns} fields instead of "
                f"{row.expected_columns}",
                "correct that line (is it CSV in UTF-8?)",
            )
        if place and int(place[1]) < len(names):
            name, line = names[int(place[1])], place[2]
            if columns.get(name) == "number":
                _refuse_text(where, name, line)
            what = f"column '{name}' is not UTF-8 text in line {line}"
            _refuse(where, what, "save the file as UTF-8")
        if "mpty CSV file" in text:
            _refuse(where, "has no rows", "give a table with at least one record")
        _refuse(where, "is not a readable CSV file", "save it again as CSV in UTF-8")


@contextmanager
def _parquet_errors(where: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        _refuse(
            where,
            "is not a readable Parquet file",
            "write it again, it is damaged, cut short or of another kind",
        )

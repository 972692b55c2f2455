"""A comma-separated file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv

from cipherbayes.data.refusals import refuse
from cipherbayes.data.tables.table import (
    MISSING,
    TYPES,
    FileTable,
    Kind,
    ReadColumn,
    refuse_same_names,
    refuse_text,
    text_numbers,
)

if TYPE_CHECKING:
    import pyarrow.dataset

_NO_COMMAS = (
    "is not separated by commas",
    "save it with commas between fields and points in numbers (1.5, not 1,5), e.g. in "
    'pandas: read_csv(OLD, sep=";", decimal=",").to_csv(NEW, index=False)',
)


_PLACE = re.compile(r"In CSV column #(\d+): Row #(\d+)")
"""How Arrow says which cell it could not convert."""

_PARSE = pyarrow.csv.ParseOptions(newlines_in_values=False)

_FIELD = rb'(?:"(?:[^"\r\n]|"")*+"[^,\r\n]*+|(?!")[^,\r\n]*+)'
_WHOLE_LINES = re.compile(rb"(?:" + _FIELD + rb"(?:," + _FIELD + rb")*+(?:\r\n?|\n))*+")
"""Lines each of which ends outside of quotes."""
_SCANNED, _LONGEST_LINE = 1 << 22, 1 << 21


class CsvTable(FileTable):
    """A comma-separated UTF-8 file with a header line, plain or gzipped."""

    def __init__(self, path: Path, where: str) -> None:
        refuse_open_quotes(path, where)
        names: tuple[str, ...] = ()
        with _csv_errors(where, names, {}):
            reader = _open_csv(path, pyarrow.csv.ConvertOptions())
            names = tuple(reader.schema.names)
            rows = any(batch.num_rows for batch in reader)
        super().__init__(path, where, names, None if rows else (0,))
        _refuse_separators(where, names)
        # "true" and "false" are numbers too, which Arrow does not read as such. Where
        # they are is found out while reading: it is faster to know, and no more.
        self._words = {f.name for f in reader.schema if pa.types.is_boolean(f.type)}

    def _read(
        self, columns: Mapping[str, Kind], part: int, most_rows: int
    ) -> Iterator[tuple[int, ReadColumn]]:
        """As :meth:`Table._read`, every cell by itself.

        Arrow parses a column of numbers much faster than :func:`text_numbers` does, to
        the same numbers, and fails on the words that only the latter knows: from there
        on the column is read as text. Blocks are cut by bytes, so those that were read
        already are the same in either way.
        """
        self.check_unchanged()
        done = rows = 0
        with _csv_errors(self.where, self.names, columns):
            while True:
                words = {n for n in self._words if columns.get(n) == "number"}
                try:
                    reader = _open_csv(self._path, _cells(columns, words))
                    for batch in islice(reader, done, None):
                        yield batch.num_rows, partial(self._cells, batch, words, rows)
                        done += 1
                        rows += batch.num_rows
                    return
                except pa.ArrowInvalid as error:
                    name = _unread(error, self.names)
                    if name in words or columns.get(name) != "number":
                        raise
                    self._words.add(name)

    def _cells(
        self, batch: pa.RecordBatch, words: set[str], rows: int, name: str
    ) -> pa.Array:
        """A column of a block before which there were so many rows."""
        column = batch.column(name)
        if name not in words:
            return column
        try:
            return text_numbers(column)
        except pa.ArrowInvalid:
            refuse_text(self.where, name, str(rows + 2 + _first_text(column)))


def _cells(
    columns: Mapping[str, Kind], words: Collection[str]
) -> pyarrow.csv.ConvertOptions:
    """Columns as the numbers and texts they are; ``words`` as text in any case."""
    return pyarrow.csv.ConvertOptions(
        include_columns=list(columns),
        column_types={
            name: TYPES["text" if name in words else kind]
            for name, kind in columns.items()
        },
        null_values=sorted(MISSING),
        strings_can_be_null=False,  # "None" may be the name of a level
    )


def _unread(error: pa.ArrowInvalid, names: Sequence[str]) -> str:
    """The column that could not be converted; nothing where it was something else."""
    place = _PLACE.match(str(error))
    return names[int(place[1])] if place and int(place[1]) < len(names) else ""


def _first_text(column: pa.Array) -> int:
    """Where the first cell is that is no number, of a column with such a cell."""
    start, stop = 0, len(column)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            text_numbers(column[start:middle])
            start = middle
        except pa.ArrowInvalid:
            stop = middle
    return start


def csv_texts(path: Path, where: str) -> pyarrow.dataset.Dataset:
    """A file's cells as text, read when they are asked for, as often as they are.

    Formal guarantees
    -----------------
    Names come from the header line; nothing is taken from the rows. A cell's text
    depends on that cell alone, an empty one is null. A row with a wrong number of cells
    is an error of whoever reads: :func:`check_csv` says which it is.
    """
    from pyarrow import dataset  # slow to load, and only folders of files need it

    refuse_open_quotes(path, where)
    names = _header(path, where)
    _refuse_separators(where, names)
    refuse_same_names(where, names)
    with _csv_errors(where, names, {}):
        return dataset.dataset(
            path,
            schema=pa.schema([(name, pa.string()) for name in names]),
            format=dataset.CsvFileFormat(
                parse_options=_PARSE, convert_options=_texts(names)
            ),
        )


def refuse_open_quotes(path: Path, where: str) -> None:
    """Refuse a file with a cell in quotes that does not end in its line.

    Formal guarantees
    -----------------
    In a file that is not refused every line is a record of its own, whatever the others
    are: one quote too many would make a cell of all lines up to the next one.
    """
    line, rest = 1, b""
    with _csv_errors(where, (), {}), pa.input_stream(str(path)) as file:
        while block := file.read(_SCANNED):
            lines = rest + block
            # A line's end may be cut in two.
            whole = max(lines.rfind(b"\n"), lines.rfind(b"\r", 0, -1)) + 1
            line += _read_lines(lines[:whole], where, line)
            rest = lines[whole:]
            if len(rest) > _LONGEST_LINE:
                return  # which Arrow refuses
        _read_lines(rest + b"\n", where, line)


def _read_lines(lines: bytes, where: str, first: int) -> int:
    """How many lines there are; refuse one that ends within quotes."""
    found = _WHOLE_LINES.match(lines) if b'"' in lines else None
    whole = len(lines) if found is None else found.end()
    if whole < len(lines):
        refuse(
            where,
            f"line {first + _line_ends(lines[:whole])} has a cell in quotes that does "
            "not end in this line",
            "take line breaks out of cells, and quotes that are part of a text in two "
            'signs each, e.g. in pandas: frame.replace(r"[\\r\\n]+", " ", regex=True)'
            ".to_csv(NEW, index=False)",
        )
    return _line_ends(lines)


def _line_ends(lines: bytes) -> int:
    return lines.count(b"\n") + lines.count(b"\r") - lines.count(b"\r\n")


def check_csv(path: Path, where: str) -> None:
    """Refuse a file of which not every row can be read, by the row's line."""
    names = _header(path, where)
    with _csv_errors(where, (), {}):  # no names: nobody knows yet that these are some
        for _ in _open_csv(path, _texts(names)):
            pass


def _header(path: Path, where: str) -> list[str]:
    with (
        _csv_errors(where, (), {}),
        _open_csv(path, pyarrow.csv.ConvertOptions()) as reader,
    ):
        return list(reader.schema.names)


def _texts(names: Sequence[str]) -> pyarrow.csv.ConvertOptions:
    return pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
    )


def _refuse_separators(where: str, names: Sequence[str]) -> None:
    """Refuse a header that other signs than commas separate."""
    if len(names) == 1 and re.search(r"[;\t|]", names[0]):
        refuse(where, *_NO_COMMAS)


def _open_csv(
    path: Path, options: pyarrow.csv.ConvertOptions
) -> pyarrow.csv.CSVStreamingReader:
    """A reader of a file in blocks.

    Nothing of Python goes along, such as a function for bad rows: the last to let go
    of it may be a thread of Arrow's, and after the interpreter has ended that aborts
    the process.
    """
    return pyarrow.csv.open_csv(
        path,
        # One thread: only then does Arrow number the lines it refuses.
        read_options=pyarrow.csv.ReadOptions(use_threads=False),
        parse_options=_PARSE,
        convert_options=options,
    )


@contextmanager
def _csv_errors(
    where: str, names: Sequence[str], columns: Mapping[str, Kind]
) -> Iterator[None]:
    """Turn Arrow's failures into lines without values."""
    try:
        yield
    except UnicodeDecodeError:
        refuse(where, "its header is not UTF-8 text", "save the file as UTF-8")
    except OSError:
        refuse(where, "cannot be read", "check its permissions and that it is whole")
    except pa.ArrowInvalid as error:
        text = str(error)
        place = _PLACE.match(text)
        ragged = re.match(
            r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+)", text
        )
        if ragged:
            line, wanted, found = ragged.groups()
            if wanted == "1":
                # Fields between semicolons, and decimal commas in some of them.
                refuse(where, *_NO_COMMAS)
            refuse(
                where,
                f"line {line} has {found} fields instead of {wanted}",
                "correct that line (is it CSV in UTF-8?)",
            )
        if place and int(place[1]) < len(names):
            name, line = names[int(place[1])], place[2]
            if columns.get(name) == "number":
                refuse_text(where, name, line)
            what = f"column '{name}' is not UTF-8 text in line {line}"
            refuse(where, what, "save the file as UTF-8")
        if "mpty CSV file" in text:
            refuse(where, "has no rows", "give a table with at least one record")
        refuse(where, "is not a readable CSV file", "save it again as CSV in UTF-8")

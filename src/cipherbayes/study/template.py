"""A first study file from the columns' names and types, without looking at a value.

Bounds, levels and the number of records are left as placeholders on purpose. A range
read off the rows is a release: whoever reads ``high = 97`` learns that the oldest
patient is 97, outside every budget.

Formal guarantees
-----------------
What is written depends on the tables only through the names and types of their
columns. Types of a CSV are inferred by Arrow from its first block, which reads values
and keeps none; a type is all that is kept of them.

Edge cases
----------
A column's type can itself depend on its values (a single word in a column of
numbers makes it text). Check the file before it is shared. In a CSV without a header
line the first record would pass for names, so names that look like numbers are
refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from cipherbayes.data.tables import open_table
from cipherbayes.errors import DataError, StudyError
from cipherbayes.models.registry import is_known, registered
from cipherbayes.study.column_guesses import (
    likely_event,
    likely_time,
    names_a_person,
)
from cipherbayes.study.file import OTHER_NAMES

Sort = Literal["number", "category", "commas", "date", "empty", "neither"]

# Days before months or months before days, with points or strokes; Arrow knows ISO's.
DATES = ["%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y"]
LEFT_OUT: dict[Sort, str] = {
    "commas": "decimal commas: write its numbers with points, 58.0, and init again",
    "date": "a date: give days or years since a public date instead",
    "empty": "empty",
    "neither": "neither numbers nor words",
}

HEAD = """\
# A first study file. Lines with FILL IN are yours: this file was written from the
# names and types of columns alone, and no value of any row is in it.
#
# Take ranges and levels from the code book, from physiology or from the literature,
# never from the rows. This file is public: whoever reads high = 97 must not learn
# that your oldest patient is 97. Wide is safe; values beyond a range are clipped.
"""


def sort_of(kind: pa.DataType) -> Sort:
    """What a column of a type can be in a study."""
    types = pa.types
    if types.is_dictionary(kind):
        return sort_of(kind.value_type)
    if types.is_boolean(kind) or types.is_string(kind) or types.is_large_string(kind):
        return "category"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_null(kind):
        return "empty"
    return "date" if types.is_temporal(kind) else "neither"


def schema_of(path: Path) -> dict[str, Sort]:
    """Names of a table's columns and what each can be."""
    names = open_table(path).names  # refuses what is no table, in one line
    for index, name in enumerate(names, start=1):
        if _is_number(name) or not name.strip():
            raise DataError(
                f"column {index} has no usable name",
                where=str(path),
                remedy="is there a header line? add one with the columns' names",
            )
    commas: set[str] = set()
    try:
        if path.name.lower().endswith((".parquet", ".pq")):
            schema = pyarrow.parquet.read_schema(path)
        else:
            formats = [pyarrow.csv.ISO8601, *DATES]
            options = pyarrow.csv.ConvertOptions(timestamp_parsers=formats)
            with pyarrow.csv.open_csv(path, convert_options=options) as reader:
                schema = reader.schema
                for batch in itertools.islice(reader, 1):
                    commas = _decimal_commas(batch)
    except (pa.ArrowInvalid, OSError):
        # Arrow's own words may quote a field.
        raise DataError(
            "cannot be read as a table",
            where=str(path),
            remedy="give a CSV with a header line, or a Parquet file",
        ) from None
    return {
        field.name: "commas" if field.name in commas else sort_of(field.type)
        for field in schema
    }


def _decimal_commas(batch: pa.RecordBatch) -> set[str]:
    """Columns of text whose every value is a number, some with a comma for a point."""
    found = set()
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not pa.types.is_string(column.type):
            continue
        text = pc.utf8_trim_whitespace(column).drop_null()
        text = text.filter(pc.not_equal(text, ""))
        numbers = pc.match_substring_regex(text, r"^[-+]?\d+(,\d+)?$")
        commas = pc.match_substring(text, ",")
        if pc.all(numbers).as_py() and pc.any(commas).as_py():
            found.add(name)
    return found


@dataclass(frozen=True)
class Wanted:
    """What whoever asks for a study file knows already; the rest is guessed or left.

    Attributes
    ----------
    kind
        The model.
    outcome, time
        Columns: what is modelled (a survival model's event), and its time.
    """

    kind: str | None = None
    outcome: str | None = None
    time: str | None = None


def first_study(
    tables: Sequence[Path],
    folder: Path,
    name: str = "my-study",
    wanted: Wanted | None = None,
) -> str:
    """The text of a study file over some tables, with placeholders.

    Parameters
    ----------
    tables
        One table a site.
    folder
        Where the study file will be: paths are written relative to it.
    wanted
        What is known of the model.
    """
    if not tables:
        raise DataError("no table was given", remedy="name one table a site")
    wanted = wanted or Wanted()
    if wanted.kind is not None and not is_known(wanted.kind):
        known = OTHER_NAMES.get(wanted.kind.lower())
        raise StudyError(
            "no model has this name",
            where=f"--kind {wanted.kind}",
            remedy=f"choose one of {', '.join(sorted(registered))}"
            + (f"; {known}" if known is not None else ""),
        )
    schemas = {path: schema_of(path) for path in tables}
    _refuse_other_case(schemas)
    first, *others = schemas.values()
    shared = {
        name: sort for name, sort in first.items() if all(name in o for o in others)
    }
    if not shared:
        raise DataError(
            "has no column in common with the other tables",
            where=str(tables[0]),
            remedy="give tables with the same columns",
        )
    for each in shared:
        if any(schema[each] == "empty" for schema in schemas.values()):
            shared[each] = "empty"
    for path, schema in schemas.items():
        clash = [n for n in shared if shared[n] not in (schema[n], "empty")]
        if clash:
            raise DataError(
                f"column '{clash[0]}' has another type than in {tables[0].name}",
                where=str(path),
                remedy="write it alike at every site",
            )
    for option, chosen in (("--outcome", wanted.outcome), ("--time", wanted.time)):
        if chosen is not None and chosen not in shared:
            raise DataError(
                "is no column of every table",
                where=f"{option} {chosen}",
                remedy="write it as the header lines do",
            )
    lost = sorted({n for schema in schemas.values() for n in schema} - set(shared))
    return "\n".join(_lines(shared, lost, tables, folder, name, wanted))


def _refuse_other_case(schemas: Mapping[Path, Mapping[str, Sort]]) -> None:
    """Names that differ in capital letters only are the same column, misspelt."""
    seen: dict[str, tuple[str, Path]] = {}
    for path, schema in schemas.items():
        for column in schema:
            known, first = seen.setdefault(column.lower(), (column, path))
            if known != column and first != path:
                raise DataError(
                    f"column '{column}' is called '{known}' in {first.name}",
                    where=str(path),
                    remedy="write it alike at every site, capital letters too",
                )


def suggested_records(tables: Sequence[Path]) -> tuple[int, int] | None:
    """Rows of all tables together, and a round number just above, for the owner only.

    Not for the file: how many rows there are is the owner's to make public.
    """
    total = 0
    try:
        for path in tables:
            if path.name.lower().endswith((".parquet", ".pq")):
                total += pyarrow.parquet.read_metadata(path).num_rows
            else:
                with pyarrow.csv.open_csv(path) as reader:
                    total += sum(batch.num_rows for batch in reader)
    except (pa.ArrowInvalid, OSError):
        return None
    step = 10 ** max(len(str(total)) - 2, 0)
    return total, -(-total // step) * step


def _lines(
    columns: dict[str, Sort],
    lost: Sequence[str],
    tables: Sequence[Path],
    folder: Path,
    name: str,
    wanted: Wanted,
) -> list[str]:
    usable = [name for name, sort in columns.items() if sort not in LEFT_OUT]
    time = wanted.time or likely_time(
        name for name in usable if columns[name] == "number" and name != wanted.outcome
    )
    event = wanted.outcome or likely_event(name for name in usable if name != time)
    kind = wanted.kind or ("exponential" if event and time else "logistic")
    fields = registered[kind].model_fields
    model = [f'kind = "{kind}"{_remark(wanted.kind, guess=_other_model(kind, time))}']
    words = ""
    if event is not None and columns[event] == "category":
        words = "words (yes, no) are written as 1 and 0 in the tables"
    elif event is None and registered[kind].family == "binary":
        words = "its values must be 0 and 1: words (yes, no) are no outcome"
    if "time" in fields:
        coded = words or "1: the event happened, 0: censored"
        model += [
            f"time = {_column(time, wanted.time)}",
            f"event = {_column(event, wanted.outcome, coded)}",
            "horizon = FILL_IN  # public length of follow-up, in the unit of `time`",
        ]
    elif "outcome" in fields:
        model.append(f"outcome = {_column(event, wanted.outcome, words)}")
    if "low" in fields:
        model.append("low = FILL_IN  # public range of the outcome, from the code book")
        model.append("high = FILL_IN")
    if "variance" in fields and fields["variance"].is_required():
        model.append("variance = FILL_IN")
    if "classes" in fields:
        model.append("classes = FILL_IN  # how many, coded 0, 1, 2 from the lowest")
    if "intervals" in fields:
        model.append("intervals = 8  # constant hazard in each; a guess")
    lines = [HEAD, "[study]", f'name = "{name}"', "", "[model]", *model]
    lines += ["", "[features]"]
    unknown = ("outcome" in fields or "time" in fields) and event is None
    if unknown:
        lines.append("# Remove the outcome from this list once it is named above.")
    for column, sort in columns.items():
        key = _key(column)
        if column == event or (column == time and "time" in fields):
            continue
        if column == time:
            # What happens after the outcome predicts it only too well.
            lines.append(f"# {key}: left out (a guess: a time of follow-up)")
        elif names_a_person(column):
            lines.append(
                f"# {key}: left out (a guess: it names a person; where one has several "
                "rows, see privacy.unit)"
            )
        elif sort in LEFT_OUT:
            lines.append(f"# {key}: left out ({LEFT_OUT[sort]})")
        elif sort == "number":
            lines.append(f"{key} = {{ low = FILL_IN, high = FILL_IN }}")
        else:
            lines.append(f"{key} = {{ levels = [FILL_IN, FILL_IN] }}")
    lines += [f"# {_key(column)}: left out (not in every table)" for column in lost]
    lines += [
        '# Where values are missing: add missing = "impute" (docs/missing-values.md);',
        "# a stand-in (missing = VALUE, indicator = true) can bias other effects.",
        "# The first level is the reference.",
        "# A number that is a code (1 = smoker): use levels instead of low and high.",
        "",
        "[privacy]",
        "epsilon = 1.0              # smaller protects more",
        "delta = 1e-6               # far below 1 / number of records",
        "records = FILL_IN          # public number of rows in all, rounded up;",
        "                           # without this line it is released with noise",
        "",
        "[sites]",
    ]
    names = _site_names(tables)
    for site, path in zip(names, tables, strict=True):
        lines.append(f"{site} = {{ data = {_quoted(_relative(path, folder))} }}")
    return [*lines, ""]


def _other_model(kind: str, time: str | None) -> str:
    """What a guessed model could be instead."""
    if time is None:
        return "see the models page"
    if registered[kind].family == "binary":
        return f"{_quoted(time)} may be a time of follow-up: then --kind exponential"
    return '"weibull", "piecewise" (Cox\'s model); "logistic" leaves the time aside'


def _remark(known: str | None, always: str = "", *, guess: str = "") -> str:
    """A comment behind a line: that its value is a guess, and what else to know."""
    parts = [always] if known is not None else ["a guess: check it", guess, always]
    said = "; ".join(part for part in parts if part)
    return said and f"  # {said}"


def _column(name: str | None, known: str | None, always: str = "") -> str:
    """A column in a line of ``[model]``: known, guessed, or left to be named."""
    if name is None:
        return "FILL_IN  # name the column" + (f"; {always}" if always else "")
    return _quoted(name) + _remark(known, always)


def _site_names(tables: Sequence[Path]) -> list[str]:
    """Stems of the files where they are names, else site1, site2, …"""
    stems = [path.name.split(".")[0] for path in tables]
    usable = all(
        s and s.replace("-", "").replace("_", "").isalnum() and s.isascii()
        for s in stems
    )
    if usable and len(set(stems)) == len(stems) and not {"csp", "server"} & set(stems):
        return stems
    return [f"site{k}" for k in range(1, len(tables) + 1)]


def _relative(path: Path, folder: Path) -> str:
    path = path.absolute()
    try:
        return path.relative_to(folder.absolute()).as_posix()
    except ValueError:
        return path.as_posix()


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else _quoted(name)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return (
        '"'
        + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped)
        + '"'
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

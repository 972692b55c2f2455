"""A table against a study, at the site: everything that is wrong, before anyone waits.

Runs stop at the first thing that is wrong with a table, and tell others nothing. Here
the owner of the table sees it all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cipherbayes.data.features import Feature, spellings
from cipherbayes.data.preparation import Preparation
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.tables import MISSING, CsvTable, Table, open_table
from cipherbayes.errors import CipherbayesError, DataError, MissingValuesError
from cipherbayes.models import AnyModel
from cipherbayes.protocols.plan import plan_study
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import open_site, split_site, table_name


@dataclass(frozen=True)
class TableProblems:
    """What is wrong with a table, in words without a value; and its rows.

    Attributes
    ----------
    rows
        Number of rows, None where the table cannot be read.
    problems
        One line each; empty if the table fits the study.
    """

    rows: int | None
    problems: tuple[str, ...]


def check_table(study: Study, site: str, source: Any) -> TableProblems:
    """Everything that is wrong with a site's table for a study.

    Columns, levels, missing values and outcomes, each on its own; then the number of
    rows against ``privacy.records``, and the table as a whole, as a run opens it.

    Edge cases
    ----------
    Outcomes out of range are said here although a private run does not refuse them:
    it holds them at the ends of the range, where a mistaken unit would go unnoticed.
    """
    problems: list[str] = []
    try:
        table = open_table(source, table_name(source))
    except DataError as error:
        return TableProblems(None, (str(error),))
    for column, feature in study.features.items():
        problems += _feature_problems(table, column, feature)
    problems += _outcome_problems(table, study.model)
    try:
        prepared = open_site(study, site, source)
    except CipherbayesError as error:
        # What only the whole shows is news; the rest was said above.
        return TableProblems(_rows(table), tuple(problems or [str(error)]))
    problems += _size_problems(study, site, prepared)
    return TableProblems(prepared.count, tuple(dict.fromkeys(problems)))


def _feature_problems(table: Table, column: str, feature: Feature) -> list[str]:
    """What is wrong with one column: values first, then gaps."""
    if feature.missing is not None:
        found = _problem(table, Preparation({column: feature}), None)
        return _with_place(found, table, column, feature)
    # With a stand-in the gaps do not hide what else is wrong.
    stand_in = feature.low if feature.levels is None else feature.levels[0]
    filled = feature.model_copy(update={"missing": stand_in})
    found = _problem(table, Preparation({column: filled}), None)
    found = _with_place(found, table, column, feature)
    if column in table.names:
        first = _first(table, column, feature, _gaps)
        if first is not None:
            error = str(MissingValuesError(column, table.where))
            found.append(f"{error} ({_place(table, first)})")
    return found


def _with_place(
    problems: list[str], table: Table, column: str, feature: Feature
) -> list[str]:
    """Where the first value is that is wrong, if it is one that a look can find."""
    if not problems or column not in table.names:
        return problems
    first = _first(table, column, feature, _wrong)
    return [
        each if first is None else f"{each} ({_place(table, first)})"
        for each in problems
    ]


def _place(table: Table, row: int) -> str:
    """A row as its owner finds it: the line of a CSV, whose first is the header."""
    if isinstance(table, CsvTable):
        return f"first in line {row + 2}"
    return f"first in row {row + 1}"


def _outcome_problems(table: Table, model: AnyModel) -> list[str]:
    """What is wrong with the columns that the model itself reads."""
    named = set(model.outcome_columns().values())
    absent = sorted(named - set(table.names))
    if not absent:
        return _problem(table, Preparation({}, intercept=1.0), model)
    found = []
    for name in absent:
        known = DataError(
            f"has no column '{name}'",
            where=table.where,
            remedy="check its header line, or the spelling in the study",
        )
        found.append(str(known))
    return found


def _problem(
    table: Table, preparation: Preparation, model: AnyModel | None
) -> list[str]:
    try:
        PreparedTable(table, preparation, model)
    except DataError as error:
        return [str(error)]
    return []


def _first(
    table: Table,
    column: str,
    feature: Feature,
    which: Callable[[pa.Array, Feature], pa.Array],
) -> int | None:
    """The first row whose value is one of those; None where there is none."""
    before = 0
    try:
        for chunk in table.chunks({column: feature.kind}):
            place = pc.index(which(chunk.column(column), feature), True).as_py()
            if place >= 0:
                return before + int(place)
            before += chunk.num_rows
    except DataError:  # said already
        pass
    return None


def _gaps(raw: pa.Array, feature: Feature) -> pa.Array:
    """Which values are missing."""
    if feature.levels is None:
        return pc.is_null(raw, nan_is_null=True)
    named = {text for level in feature.levels for text in spellings(level)}
    gaps = pa.array(sorted(MISSING - named), type=pa.string())
    text = pc.utf8_trim_whitespace(raw)
    return pc.or_(pc.is_null(text), pc.fill_null(pc.is_in(text, gaps), True))


def _wrong(raw: pa.Array, feature: Feature) -> pa.Array:
    """Which values are there and yet none that the study knows."""
    if feature.levels is None:
        return pc.fill_null(pc.is_inf(raw), False)
    named = [text for level in feature.levels for text in spellings(level)]
    known = pc.is_in(pc.utf8_trim_whitespace(raw), pa.array(named, type=pa.string()))
    return pc.invert(pc.or_(known, _gaps(raw, feature)))


def _size_problems(study: Study, site: str, prepared: PreparedTable) -> list[str]:
    found = []
    try:
        if study.evaluation is not None and not study.checks_privately:
            prepared = split_site(study, site, prepared)[0]
    except DataError as error:
        found.append(str(error))
    if not study.private:
        return found
    try:
        plan_study(study).check_site(site, prepared.records)
    except DataError as error:
        found.append(str(error))
    return found


def _rows(table: Table) -> int | None:
    """Rows of a table, if they can be counted although its values are wrong."""
    if table.count is not None:
        return table.count
    try:
        first = table.names[0]
        return sum(chunk.num_rows for chunk in table.chunks({first: "text"}))
    except (DataError, IndexError):
        return None

"""``cipherbayes predict``: what a finished study says of new rows."""

from __future__ import annotations

import csv
import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from cipherbayes.errors import BeyondHorizonWarning, BeyondRangeWarning, RunError

if TYPE_CHECKING:
    from cipherbayes.results.result import Result
    from cipherbayes.typing import Floats

SAID = (BeyondRangeWarning, BeyondHorizonWarning)
"""Warnings that standard error has."""


def predict(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    table: Annotated[Path, typer.Argument(help="CSV or Parquet with the features.")],
    times: Annotated[
        str | None,
        typer.Option(help="Survival models: times, comma-separated, in your unit."),
    ] = None,
    median: Annotated[
        bool, typer.Option("--median", help="Survival models: median survival time.")
    ] = False,
    site: Annotated[
        str | None,
        typer.Option(help="With \\[hierarchy]: the site whose rows these are."),
    ] = None,
    new_site: Annotated[
        bool,
        typer.Option(
            "--new-site",
            help="With \\[hierarchy]: a site that took no part (default).",
        ),
    ] = False,
    counts: Annotated[
        bool,
        typer.Option(
            "--counts",
            help="Count models: expected counts over each row's exposure, not rates.",
        ),
    ] = False,
    id_column: Annotated[
        str | None,
        typer.Option("--id", help="Column of the table to write beside each row."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="CSV to write.", show_default="standard output"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, not CSV.")] = False,
) -> None:
    """Predict probabilities or survival curves, with intervals, for each row.

    Values beyond a feature's public range count as its end; standard error says how
    many of which column, where times lie beyond the study's horizon, and which of the
    run's flags and cautions are about such predictions. Where the run has points only,
    the ends of intervals stay empty.
    """
    from cipherbayes.results.result import Result

    result = Result.load(folder)
    at = parse_times(times)
    with warnings.catch_warnings(record=True) as caught:
        for category in SAID:
            warnings.simplefilter("always", category)
        if median:
            rows = median_rows(result, table, times, site=site, new_site=new_site)
        else:
            predicted = predict_at(
                result, table, at, site=site, new_site=new_site, counts=counts
            )
            rows = list(prediction_rows(predicted, at, result.has_intervals))
    if id_column is not None:
        rows = with_ids(rows, table, id_column)
    if result.study.hierarchy is not None and site is None and not new_site:
        sites = ", ".join(result.study.sites)
        typer.echo(
            "site: one that took no part (--new-site, the default): intervals count "
            f"how much sites differ; for a known one give --site ({sites})",
            err=True,
        )
    cautions = result.record.get("cautions", [])
    for flag in result.flags_of_predictions(latest_time(rows, at)):
        said = f"{'caution' if flag in cautions else 'flag'} {flag['name']}"
        typer.echo(f"warning: {said} of the run: {flag['text']}", err=True)
    for warning in caught:
        if warning.category in SAID:
            typer.echo(f"warning: {warning.message}", err=True)
    write_rows(rows, out, as_json)


def latest_time(
    rows: Sequence[Mapping[str, object]], at: list[float] | None
) -> list[float] | None:
    """Times that predictions reach: those asked for, or the ends of medians.

    None where there are no times, or a median is not reached.
    """
    if at is not None or not rows or "not_reached" not in rows[0]:
        return at
    ends = [row["upper"] for row in rows]
    known = [float(end) for end in ends if isinstance(end, float)]
    return known if len(known) == len(ends) else None


def predict_at(
    result: Result,
    table: Path,
    at: list[float] | None,
    *,
    site: str | None,
    new_site: bool,
    counts: bool,
) -> dict[str, Floats]:
    """Predictions of a table at the times that a survival model needs."""
    if result.study.model.predicts_over_time and at is None:
        raise RunError(
            "a survival model predicts at times",
            where="--times",
            remedy="give some, e.g. --times 365,1825",
        )
    return result.predict(
        table,
        times=None if at is None else _array(at),
        site=site,
        new_site=new_site,
        counts=counts,
        where=str(table),
    )


def median_rows(
    result: Result,
    table: Path,
    times: str | None,
    *,
    site: str | None = None,
    new_site: bool = False,
) -> list[Mapping[str, object]]:
    """Median survival of each row; an end that is not reached stays empty."""
    if times is not None or not result.study.model.predicts_over_time:
        raise RunError(
            "is for survival models, without --times",
            where="--median",
            remedy="leave one of them out",
        )
    found = result.median_survival(
        table, site=site, new_site=new_site, where=str(table)
    )
    return [{"row": i, **row} for i, row in enumerate(found)]


def write_rows(
    rows: Sequence[Mapping[str, object]], out: Path | None, as_json: bool
) -> None:
    """CSV or JSON, to a file or to standard output."""
    if as_json:
        text = json.dumps(rows)
        typer.echo(text) if out is None else out.write_text(text, encoding="utf-8")
        return
    if out is None:
        _write_csv(sys.stdout, rows)
        return
    with out.open("w", newline="", encoding="utf-8") as file:
        _write_csv(file, rows)


def parse_times(text: str | None) -> list[float] | None:
    """Comma-separated positive numbers."""
    if text is None:
        return None
    try:
        times = [float(part) for part in text.split(",")]
    except ValueError:
        times = []
    if not times or not all(0.0 < t < float("inf") for t in times):
        raise RunError(
            "is not a list of positive numbers",
            where="--times",
            remedy="write them like --times 365,1825",
        )
    return times


def prediction_rows(
    predicted: Mapping[str, Floats], times: list[float] | None, has_intervals: bool
) -> Iterator[dict[str, float | None]]:
    """One dictionary per row (and time): mean, lower, upper.

    The ends are None where there are no intervals: the mean in their place would read
    as certainty.
    """
    ends: dict[str, None] = {} if has_intervals else {"lower": None, "upper": None}
    for i in range(len(predicted["mean"])):
        if times is None:
            yield {"row": i} | {k: float(v[i]) for k, v in predicted.items()} | ends
            continue
        for j, t in enumerate(times):
            values = {k: float(v[i, j]) for k, v in predicted.items()}
            yield {"row": i, "time": t} | values | ends


def with_ids(
    rows: Sequence[Mapping[str, object]], table: Path, column: str
) -> list[Mapping[str, object]]:
    """The rows, each with its text in a column of the table."""
    from cipherbayes.data.tables import open_table

    known = open_table(table, str(table))
    ids = [
        text
        for chunk in known.chunks({column: "text"})
        for text in chunk.column(column).to_pylist()
    ]
    return [
        {
            "row": row["row"],
            column: ids[int(str(row["row"]))],
            **{name: value for name, value in row.items() if name != "row"},
        }
        for row in rows
    ]


def _short(value: object) -> object:
    """A number as a person reads it, to six digits: an interval is known to fewer."""
    return f"{value:.6g}" if isinstance(value, float) else value


def _array(values: list[float]) -> Floats:
    import numpy as np

    return np.array(values, dtype=np.float64)


def _write_csv(file: IO[str], rows: Sequence[Mapping[str, object]]) -> None:
    writer = csv.DictWriter(file, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows({name: _short(v) for name, v in row.items()} for row in rows)

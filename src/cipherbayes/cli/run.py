"""``cipherbayes run`` and ``cipherbayes predict``."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from cipherbayes.cli.console import (
    console,
    logging_to,
    print_result,
    progress_bar,
)
from cipherbayes.errors import RunError

if TYPE_CHECKING:
    from cipherbayes.results.record import MedianSurvival, ResultRecord
    from cipherbayes.results.result import Result
    from cipherbayes.study.schema import Study


def run(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the result.", show_default="runs/NAME"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print result.json instead of a table.")
    ] = False,
    report: Annotated[
        bool, typer.Option(help="Write OUT/report.html at the end.")
    ] = True,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve a live page on this machine.")
    ] = False,
) -> None:
    """Run a whole study on this machine."""
    from cipherbayes.engine.new_run import require_free_folder
    from cipherbayes.results.run import run as run_study
    from cipherbayes.study.schema import Study

    loaded = Study.load(study)
    folder = out if out is not None else Path("runs") / loaded.name
    require_free_folder(folder)
    if not as_json:
        warn_before(loaded)
    with (
        logging_to(folder),
        live_page(folder, watch and loaded.private),
        progress_bar(spending(loaded)) as progress,
    ):
        result = run_study(loaded, out=folder, progress=progress)
    show(result.record, folder, as_json, report)


def resume(
    folder: Annotated[Path, typer.Argument(help="Folder of an interrupted run.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print result.json instead of a table.")
    ] = False,
    report: Annotated[
        bool, typer.Option(help="Write FOLDER/report.html at the end.")
    ] = True,
) -> None:
    """Continue an interrupted private run; nothing is released twice."""
    from cipherbayes.engine.run_folder import RunFolder
    from cipherbayes.results.run import resume as resume_run

    study = RunFolder.open(folder).study
    with logging_to(folder), progress_bar(spending(study)) as progress:
        result = resume_run(folder, progress=progress)
    show(result.record, folder, as_json, report)


def warn_before(study: Study) -> None:
    """What `cipherbayes plan` warns of, while nothing is spent yet.

    Also a number of records that the tables do not have: whoever runs a study on one
    machine holds them all, and this goes to the terminal only.
    """
    if not study.private:
        return
    from cipherbayes.protocols.plan import plan_study
    from cipherbayes.study.template import suggested_records

    planned = plan_study(study)
    known = set(planned.protocol.cautions(planned))
    known.update(study.inference_method.cautions(study.model))
    warnings = [
        w for w in planned.protocol.describe(planned).warnings if w not in known
    ]
    privacy = study.with_privacy().privacy
    declared, person = privacy.records, privacy.person
    files = [Path(site.data) for site in study.sites.values() if site.data]
    rows = (
        suggested_records(files)
        if declared and person is None and len(files) == len(study.sites)
        else None
    )
    if declared and rows and not rows[0] <= declared <= 1.5 * rows[0]:
        warnings.append(
            f"privacy.records = {declared} and the tables have {rows[0]} rows in all: "
            "effects and intervals are computed for the declared number; correct it"
        )
    for warning in warnings:
        said = f"[yellow]warning:[/yellow] {escape(warning)}"
        console.print(said, highlight=False, soft_wrap=True)


def spending(study: Study) -> Callable[[int], float] | None:
    """ε spent after a number of rounds, to the tenth of the rounds above it."""
    if not study.private:
        return None
    from cipherbayes.protocols.plan import plan_study
    from cipherbayes.protocols.plan_description import epsilon_by_tenths

    growth: list[tuple[int, float]] = []

    def spent(rounds: int) -> float:
        if not growth:
            growth.extend(epsilon_by_tenths(plan_study(study)))
        return next((e for n, e in growth if n >= rounds), growth[-1][1])

    return spent


@contextmanager
def live_page(folder: Path, wanted: bool) -> Iterator[None]:
    """A page that follows the run, for as long as it lasts."""
    if not wanted:
        yield
        return
    from cipherbayes.report.live import following

    with following(folder) as address:
        console.print(f"watching: {address}", soft_wrap=True)
        yield


def show(
    record: ResultRecord, folder: Path, as_json: bool, report: bool = False
) -> None:
    """Print a finished run, and write its page where one is wanted."""
    page = None
    if report:
        from cipherbayes.report.page import write_report

        page = write_report(folder)
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    print_result(record)
    print_effects(record)
    print_hierarchy(record)
    console.print(f"result: {folder / 'result.json'}", soft_wrap=True)
    if page is not None:
        console.print(f"report: {page}", soft_wrap=True)


def print_effects(record: ResultRecord) -> None:
    """Ratios or differences, and the baseline's median survival, where there are."""
    from cipherbayes.results.effects import step_words

    effects, baseline = record.get("effects"), record.get("baseline")
    if effects:
        table = Table(title=f"{effects[0]['measure']}s")
        for heading in ("per", effects[0]["measure"], "interval"):
            table.add_column(heading, justify="left" if heading == "per" else "right")
        for row in effects:
            spread = row["lower"] is not None and row["upper"] is not None
            table.add_row(
                escape(step_words(row)),
                "-" if row["estimate"] is None else f"{row['estimate']:.4g}",
                f"{row['lower']:.4g} to {row['upper']:.4g}" if spread else "-",
            )
        console.print(table)
    if baseline:
        at = ", ".join(f"{name} {_short(v)}" for name, v in baseline["at"].items())
        alone = ""
        if "cause" in baseline:
            alone = f" if cause {baseline['cause']} were the only one (hypothetical)"
        middle = _median_text(baseline["median"])
        console.print(
            f"median survival{alone} at {escape(at)}: {middle}", soft_wrap=True
        )


def print_hierarchy(record: ResultRecord) -> None:
    """How much sites differ, and each site, where they may."""
    hierarchy = record.get("hierarchy")
    if hierarchy is None:
        return
    table = Table(title="differences between sites")
    for heading in ("site", "what", "difference", "interval"):
        left = heading in ("site", "what")
        table.add_column(heading, justify="left" if left else "right")
    spreads = [("all: τ", row) for row in hierarchy["between"]]
    for who, row in [*spreads, *((row["site"], row) for row in hierarchy["sites"])]:
        table.add_row(
            escape(who),
            escape(row["name"]),
            f"{row['mean']:.3g}",
            f"{row['lower']:.3g} to {row['upper']:.3g}",
        )
    console.print(table)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _median_text(median: MedianSurvival) -> str:
    """E.g. ``12.3 (10.1 to not reached)``."""
    middle, lower, upper = (
        "not reached" if end is None else f"{end:.4g}"
        for end in (median["estimate"], median["lower"], median["upper"])
    )
    if median["lower"] is None and median["upper"] is None:
        return middle  # a point estimate, or nowhere reached
    return f"{middle} ({lower} to {upper})"


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
    out: Annotated[
        Path | None,
        typer.Option(help="CSV to write.", show_default="standard output"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, not CSV.")] = False,
) -> None:
    """Predict probabilities or survival curves, with intervals, for each row."""
    from cipherbayes.results.result import Result

    result = Result.load(folder)
    if median:
        medians = median_rows(result, table, times, site=site, new_site=new_site)
        write_rows(medians, out, as_json)
        return
    at = parse_times(times)
    if result.study.model.predicts_over_time and at is None:
        raise RunError(
            "a survival model predicts at times",
            where="--times",
            remedy="give some, e.g. --times 365,1825",
        )
    predicted = result.predict(
        table,
        times=None if at is None else _array(at),
        site=site,
        new_site=new_site,
        counts=counts,
        where=str(table),
    )
    write_rows(list(prediction_rows(predicted, at)), out, as_json)


def median_rows(
    result: Result,
    table: Path,
    times: str | None,
    *,
    site: str | None = None,
    new_site: bool = False,
) -> list[dict[str, Any]]:
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


def write_rows(rows: list[dict[str, Any]], out: Path | None, as_json: bool) -> None:
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


def prediction_rows(predicted: Any, times: list[float] | None) -> Any:
    """One dictionary per row (and time): mean, lower, upper."""
    for i in range(len(predicted["mean"])):
        if times is None:
            yield {"row": i} | {k: float(v[i]) for k, v in predicted.items()}
            continue
        for j, t in enumerate(times):
            values = {k: float(v[i, j]) for k, v in predicted.items()}
            yield {"row": i, "time": t} | values


def _array(values: list[float]) -> Any:
    import numpy as np

    return np.array(values, dtype=np.float64)


def _write_csv(file: Any, rows: list[dict[str, Any]]) -> None:
    writer = csv.DictWriter(file, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)

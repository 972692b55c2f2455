"""``cipherbayes run`` and ``cipherbayes resume``."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from cipherbayes.cli.check import all_problems
from cipherbayes.cli.console import (
    console,
    logging_to,
    print_result,
    progress_bar,
)
from cipherbayes.errors import DataError, RecordsWarning, StudyError

if TYPE_CHECKING:
    from cipherbayes.results.record import MedianSurvival, ResultRecord
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
    differs = check_records(loaded)
    if not as_json:
        warn_before(loaded, [*differs, *query_doubts(loaded)])
    with (
        logging_to(folder),
        live_page(folder, watch and loaded.private),
        progress_bar(spending(loaded)) as progress,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", RecordsWarning)  # said before
        try:
            result = run_study(loaded, out=folder, progress=progress)
        except DataError as error:
            raise all_problems(loaded, error) from None
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


def check_records(study: Study) -> list[str]:
    """A warning where the tables do not have the declared number of records; far off,
    a refusal, while nothing is spent yet."""
    from cipherbayes.results import declared_records

    differs = declared_records.declared_and_found(study)
    if differs is None:
        return []
    if declared_records.is_far_off(*differs):
        said = declared_records.in_words(*differs)
        raise StudyError(
            f"{said}: effects would be those of records that are not there",
            where=f"study '{study.name}'",
            remedy="correct it; nothing was released",
        )
    return [declared_records.advice(*differs)]


def query_doubts(study: Study) -> list[str]:
    """What to check in the queries of a study's tables."""
    from cipherbayes.data.snapshots import Query

    tables = [site.table for site in study.sites.values()]
    return [
        doubt
        for table in tables
        if isinstance(table, Query)
        for doubt in table.doubts()
    ]


def warn_before(study: Study, further: list[str]) -> None:
    """What `cipherbayes plan` warns of, while nothing is spent yet, and more."""
    if not study.private:
        return
    from cipherbayes.protocols.plan import plan_study

    planned = plan_study(study)
    known = set(planned.cautions())
    known.update(study.inference_method.cautions(study.model))
    planned_for = [
        w for w in planned.protocol.describe(planned).warnings if w not in known
    ]
    for warning in [*planned_for, *further]:
        said = f"[yellow]warning:[/yellow] {escape(warning)}"
        console.print(said, highlight=False, soft_wrap=True)


def spending(study: Study) -> Callable[[int], float] | None:
    """ε spent after a number of rounds, known at every tenth of them: in between it is
    that of the next."""
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
    print_effects(record)
    print_hierarchy(record)
    print_result(record)
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
    measures = {row["measure"] for row in record.get("effects") or []}
    scale = "".join(f" (log {measure})" for measure in measures)
    table = Table(title=f"differences between sites{scale}")
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

"""``cipherbayes reproduce``: a figure or table of the paper, and our own."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from cipherbayes.cli.console import console

if TYPE_CHECKING:
    from cipherbayes_research.paper.report import Report


class Name(StrEnum):
    """The figures and tables."""

    density = "density"
    logistic = "logistic"
    survival = "survival"
    sites = "sites"
    imbalance = "imbalance"
    priors = "priors"
    constants = "constants"
    timing = "timing"
    approximation = "approximation"
    peers = "peers"


def reproduce(
    name: Annotated[Name, typer.Argument(help="Which figure or table.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="The same shape in about a minute.")
    ] = False,
    finished: Annotated[
        bool,
        typer.Option(
            "--finished", help="Table and picture of finished cells; runs nothing."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    out: Annotated[
        Path, typer.Option(help="Folder for tables, pictures and finished cells.")
    ] = Path("reproduced"),
    data: Annotated[
        Path | None,
        typer.Option(
            help="PhysioNet 2012's set-a.tar.gz or folder; or a CSV of FLchain."
        ),
    ] = None,
) -> None:
    """Run an experiment of the paper again, and print its figure beside ours.

    An interrupted run goes on from the cells in its folder.
    """
    from cipherbayes_research.paper.experiment import reproduce as run_experiment

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = as_json or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden) as bar:
        task = bar.add_task(name.value, total=None)
        report = run_experiment(
            name.value,
            out=out,
            quick=quick,
            data=data,
            finished=finished,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        typer.echo(json.dumps(report.document(), indent=2))
        return
    _print(report, (out / "quick" if quick else out) / name.value)


def _print(report: Report, folder: Path) -> None:
    title = report.title + (" (quick)" if report.quick else "")
    headings = ("setting", "K", "ε", "certified", "metric", "ours", "sd", "paper")
    lines = [headings] + [
        (
            row.setting,
            str(row.sites),
            "-" if row.epsilon is None else f"{row.epsilon:,.4g}",
            "yes" if row.certified else "no",
            row.metric,
            "-" if row.mean is None else f"{row.mean:,.4g}",
            "-" if row.sd is None else f"{row.sd:.2g}",
            "-" if row.paper is None else f"{row.paper:,.4g}",
        )
        for row in report.rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    typer.echo(title)
    for line in lines:
        cells = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
        typer.echo("  ".join(cells).rstrip())
    for gap in report.differences:
        at = "" if gap.epsilon is None else f" at ε = {gap.epsilon:g}"
        console.print(
            f"{gap.first} less {gap.second}{at}: {gap.metric} {gap.mean:+.4f} "
            f"({gap.lower:+.4f} to {gap.upper:+.4f}, {gap.splits} splits)",
            soft_wrap=True,
        )
    for note in report.notes:
        console.print(note, soft_wrap=True)
    console.print(f"tables and picture: {folder}", soft_wrap=True)

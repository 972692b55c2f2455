"""``cipherbayes report``: a finished run as one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cipherbayes.cli.console import console


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write.", show_default="FOLDER/report.html"),
    ] = None,
    causes: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder of a competing cause's run; once for each other cause.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print where it is as JSON.")
    ] = False,
) -> None:
    """Write one self-contained HTML page: results, certainty, privacy, cost."""
    from cipherbayes.report.page import INCIDENCE, write_report

    path = write_report(folder, out, causes or [])
    if as_json:
        typer.echo(json.dumps({"report": str(path), "bytes": path.stat().st_size}))
        return
    console.print(f"report: {path}", soft_wrap=True, markup=False)
    if causes:
        table = path.with_name(INCIDENCE)
        console.print(f"incidences: {table}", soft_wrap=True, markup=False)

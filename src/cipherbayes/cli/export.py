"""``cipherbayes export``: a finished run as plain files."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cipherbayes.cli.console import console


class Form(StrEnum):
    """What is written."""

    CSV = "csv"
    R = "r"


def export(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    to: Annotated[Form, typer.Option(help="CSV files, or CSV with an R script.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write.", show_default="FOLDER/csv or FOLDER/r"),
    ] = None,
) -> None:
    """Write a result's tables as CSV, for R or any program.

    Summary, effects, draws, survival curve; scores, calibration and fit on held-out
    rows; characteristics; what differs between sites.
    """
    from cipherbayes.results.export import export as write
    from cipherbayes.results.result import Result

    target = out if out is not None else folder / to.value
    for path in write(Result.load(folder), target, for_r=to is Form.R):
        console.print(f"{path}", soft_wrap=True, markup=False, highlight=False)

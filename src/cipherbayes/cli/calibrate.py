"""``cipherbayes calibrate``: do the intervals hold?"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from cipherbayes.cli.console import console, progress_bar
from cipherbayes.errors import RunError


def calibrate(
    quick: Annotated[
        bool, typer.Option("--quick", help="One small cell a model.")
    ] = False,
    stress: Annotated[
        bool,
        typer.Option("--stress", help="What may go wrong, on purpose."),
    ] = False,
    wide: Annotated[
        bool, typer.Option("--wide", help="Studies of 184 parameters.")
    ] = False,
    others: Annotated[
        bool, typer.Option("--others", help="Linear, Poisson and piecewise models.")
    ] = False,
    sbc: Annotated[
        bool, typer.Option("--sbc", help="Ranks of the non-private samplers instead.")
    ] = False,
    replicates: Annotated[
        int | None,
        typer.Option(min=2, help="Studies a cell.", show_default="100, quick 8"),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="File of replicates; a second run goes on with it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Simulate studies with truths from the prior; count intervals that hold them."""
    # One thread a process: two processes share the cores better than two BLAS pools.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from cipherbayes.validation import calibration

    if quick + stress + wide + others + sbc > 1:
        raise RunError(
            "--quick, --stress, --wide, --others and --sbc exclude each other",
            remedy="give one of them",
        )
    count = replicates or (8 if quick else 100)
    if sbc:
        _show_ranks(count, as_json)
        return
    if quick:
        cells = calibration.quick_grid()
    elif stress:
        cells = calibration.stress_grid()
    elif wide:
        cells = calibration.wide_grid()
    elif others:
        cells = calibration.other_grid()
    else:
        cells = calibration.grid()
    with progress_bar() as report:
        rows = calibration.calibrate(
            cells,
            count,
            results=results,
            processes=min(os.cpu_count() or 1, 2),
            progress=report,
        )
    if as_json:
        document = {"interval": calibration.INTERVAL, "rows": rows}
        typer.echo(json.dumps(document, indent=2))
        return
    console.print(_table(rows))


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="coverage of 90 % intervals, truths from the prior")
    headings = ("model", "N", "d", "ε", "coverage", "± se", "width", "flagged")
    for heading in (*headings, "studies"):
        table.add_column(heading, justify="right")
    for row in rows:
        name = f"{row['model']} ({row['stress']})" if "stress" in row else row["model"]
        table.add_row(
            name,
            f"{row['n']:,}",
            str(row["d"]),
            f"{row['epsilon']:g}",
            f"{row['coverage']:.3f}",
            f"{row['se']:.3f}",
            f"{row['width_ratio']:.2f} ×",
            f"{row['flagged']:.0%}",
            str(row["replicates"]),
        )
    return table


def _show_ranks(studies: int, as_json: bool) -> None:
    from cipherbayes.validation.calibration import rank_histograms

    rows = rank_histograms(studies)
    if as_json:
        typer.echo(json.dumps({"rows": rows}, indent=2))
        return
    table = Table(title="ranks of the truth among non-private draws, ten bins")
    for heading in ("model", "sampler", "ranks", "p (uniform)"):
        table.add_column(heading)
    for row in rows:
        counts = " ".join(str(each) for each in row["histogram"])
        table.add_row(row["model"], row["sampler"], counts, f"{row['p_value']:.3f}")
    console.print(table)

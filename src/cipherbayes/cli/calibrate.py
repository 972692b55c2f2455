"""``cipherbayes calibrate``: do the intervals hold?"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cipherbayes.cli.console import console, progress_bar
from cipherbayes.errors import RunError

if TYPE_CHECKING:
    from cipherbayes.typing import JsonObject
    from cipherbayes.validation.calibration import CellRow


class Truth(StrEnum):
    """How large simulated effects are."""

    clinical = "clinical"
    prior = "prior"


class Events(StrEnum):
    """How many records have the event."""

    usual = "usual"
    rare = "rare"


FOR_TABLES = ("kind", "records", "epsilon", "wider", "truth", "events", "sites")
"""Options that say what --table simulates, and nothing of the other grids."""


def calibrate(
    context: typer.Context,
    quick: Annotated[
        bool, typer.Option("--quick", help="Nine small cells: each model and ε once.")
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
    table: Annotated[
        list[Path] | None,
        typer.Option(
            help="A public or made-up table whose columns are used as they are, with "
            "simulated outcomes, through whole studies with default settings."
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="--table: models.", show_default="logistic, exponential"),
    ] = None,
    records: Annotated[
        int, typer.Option(min=100, help="--table: records of a study.")
    ] = 4_000,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="--table: budgets.", show_default="1")
    ] = None,
    wider: Annotated[
        list[float] | None,
        typer.Option(
            min=1.0,
            help="--table: how many times public ranges are too wide.",
            show_default="1, 10",
        ),
    ] = None,
    truth: Annotated[
        Truth, typer.Option(help="--table: effects that are usual, or the prior's.")
    ] = Truth.clinical,
    events: Annotated[
        Events, typer.Option(help="--table: two records of five, or one of twenty.")
    ] = Events.usual,
    sites: Annotated[
        int, typer.Option(min=1, help="--table: 1 in one place, else encrypted sums.")
    ] = 1,
    replicates: Annotated[
        int | None,
        typer.Option(
            min=2, help="Studies a cell.", show_default="100; 8 with --quick, --table"
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="File of replicates; a second run goes on with it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Simulate studies whose truth is known; count the intervals that hold it."""
    # One thread a process: two processes share the cores better than two BLAS pools.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from cipherbayes.validation import calibration

    if quick + stress + wide + others + sbc + bool(table) > 1:
        raise RunError(
            "--quick, --stress, --wide, --others, --sbc and --table exclude each other",
            remedy="give one of them",
        )
    _refuse_unused(context, [*([] if table else FOR_TABLES), *(["results"] * sbc)])
    count = replicates or (8 if quick or table else 100)
    if table:
        grounds = [
            {
                "kind": each,
                "rows": records,
                "epsilon": budget,
                "wider": width,
                "truth": truth.value,
                "events": events.value,
                "sites": sites,
            }
            for each in kind or ("logistic", "exponential")
            for budget in epsilon or (1.0,)
            for width in wider or (1.0, 10.0)
        ]
        _show_trials(table, grounds, count, results, as_json)
        return
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


def _refuse_unused(context: typer.Context, unused: list[str]) -> None:
    """Refuse options that were typed and that what is asked for does not read."""
    for name in unused:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise RunError(
                "is not used by what is asked for",
                where=f"--{name}",
                remedy="leave it out"
                + (", or give a --table" if name in FOR_TABLES else ""),
            )


def _table(rows: list[CellRow]) -> Table:
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


def _show_trials(
    paths: list[Path],
    grounds: list[JsonObject],
    replicates: int,
    results: Path | None,
    as_json: bool,
) -> None:
    from cipherbayes.validation import trial_records, trials
    from cipherbayes.validation.outcome_draws import trial_draws
    from cipherbayes.validation.public_columns import Columns

    for ground in grounds:
        if ground["kind"] not in trial_draws():
            raise RunError(
                f"no outcomes of kind '{ground['kind']}' can be simulated",
                where="--kind",
                remedy=f"choose among {', '.join(trial_draws())}",
            )
    tables = [Columns.read(path) for path in paths]
    with progress_bar() as report:
        found = trials.trials(
            tables,
            [trial_records.Ground(**each) for each in grounds],
            replicates,
            results=results,
            processes=min(os.cpu_count() or 1, 2),
            progress=report,
        )
    rows = [
        {"table": name, **asdict(ground), **trials.summarised(each)}
        for name, ground, each in found
    ]
    flags = trials.by_flag([each for _, _, group in found for each in group])
    if as_json:
        left_out = {each.name: list(each.left_out) for each in tables}
        document = {
            "interval": 1.0 - 2.0 * trial_records.TAIL,
            "rows": rows,
            "flags": flags,
        }
        typer.echo(json.dumps({**document, "left_out": left_out}, indent=2))
        return
    for each in tables:
        if each.left_out:
            console.print(f"{each.name}: without {', '.join(each.left_out)}")
    console.print(_trial_table(rows))
    for flag in flags:
        others = "–" if flag["others"] is None else f"{flag['others']:.3f}"
        console.print(
            f"{flag['flag']}: {flag['coverage']:.3f} of {flag['parameters']} named "
            f"parameters held, {others} of the others"
        )


def _trial_table(rows: list[JsonObject]) -> Table:
    table = Table(
        title="90 % intervals that held, with and without privacy",
        caption="width: over that without privacy, as it was and as planned",
    )
    table.add_column("study", overflow="fold")
    for heading in ("private", "plain", "difference", "width", "plan", "studies"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row['table']}, {row['kind']}, ε = {row['epsilon']:g}, "
            f"{row['wider']:g} × ranges",
            f"{row['coverage']:.2f} ± {row['se']:.2f}",
            f"{row['plain_coverage']:.2f}",
            f"{row['difference']:+.2f} ± {row['difference_se']:.2f}",
            f"{row['width_ratio']:.2f}",
            f"{row['expected_over_actual'] * row['width_ratio']:.2f}",
            str(row["replicates"]),
        )
    return table

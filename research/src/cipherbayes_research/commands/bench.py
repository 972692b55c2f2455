"""``cipherbayes bench``: speed, as ratios within one run."""

from __future__ import annotations

import json
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table

from cipherbayes.cli.console import console

if TYPE_CHECKING:
    from cipherbayes_research.benchmarks.measurements import (
        Bench,
        Growth,
        Setting,
        Variant,
    )


_TIMES: Final = ("site_ms", "server_ms", "csp_ms", "study_cpu_s")
_SIZES: Final = ("megabytes", "site_bytes", "disk_bytes")


class Axis(StrEnum):
    """A quantity over which a secure sum's growth is measured."""

    D = "d"
    SITES = "sites"
    ROWS = "rows"
    ROUNDS = "rounds"


def bench(
    dimension: Annotated[int, typer.Option(min=2, help="Parameters.")] = 184,
    sites: Annotated[int, typer.Option(min=1, max=64, help="Sites.")] = 2,
    rows: Annotated[int, typer.Option(min=1, help="Rows at each site.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds measured.")] = 16,
    circuits: Annotated[bool, typer.Option(help="Run the CKKS circuits.")] = True,
    scaling: Annotated[
        bool, typer.Option(help="How cost grows with d, sites, rows and rounds.")
    ] = False,
    growth: Annotated[
        bool, typer.Option(help="How a site's passes and a study grow with its rows.")
    ] = False,
    most_rows: Annotated[
        int, typer.Option(min=100_000, help="With --growth: rows of the last table.")
    ] = 1_000_000,
    folder: Annotated[
        Path | None,
        typer.Option(help="With --growth: where tables go; 25 bytes a row."),
    ] = None,
    over: Annotated[
        list[Axis] | None,
        typer.Option(help="With --growth: a secure sum over this instead; repeat it."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="With --over: an SVG file to draw into.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Compare encrypted iterations with plaintext and with the paper's circuit."""
    if growth and over:
        _print_axes([axis.value for axis in over], folder, picture, as_json)
        return
    if growth:
        _print_growth(most_rows, folder, as_json)
        return
    if scaling:
        from cipherbayes_research.benchmarks.scaling import run_scaling

        costs = run_scaling()
        if as_json:
            typer.echo(json.dumps(costs, indent=2))
        else:
            console.print(_scaling(costs))
        return
    from cipherbayes_research.benchmarks.iteration import run_bench

    document = run_bench(dimension, sites, rows, rounds, circuits)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    table = Table(title=f"one iteration, {dimension} parameters, CPU ms (medians)")
    headings = ("sites", "rows", "variant", "site", "server", "CSP", "bytes")
    for heading in (*headings, "all", "ratio"):
        table.add_column(heading, justify="right")
    for setting in [document, *document["scaling"]]:
        for name, variant in setting["variants"].items():
            if "site_ms" in variant:
                _add(table, setting, name, variant)
    console.print(table)
    if circuits:
        console.print(_circuits(document))
    console.print(_steps(document))
    crypto = document["site_crypto"]
    console.print(
        f"a site's crypto {crypto['site_crypto_ms']:.2f} ms, "
        f"{crypto['site_crypto_over_bare']:.2f} × one bare SEAL encryption; "
        f"its noise {crypto['noise_ms']:.2f} ms"
    )


def _print_growth(most_rows: int, folder: Path | None, as_json: bool) -> None:
    """A table of growth, a line as soon as it is measured where nobody parses it."""
    from cipherbayes_research.benchmarks.growth import row_counts, run_growth

    place = Path(tempfile.gettempdir()) if folder is None else folder
    measured = run_growth(row_counts(most_rows), place)
    if as_json:
        typer.echo(json.dumps(list(measured), indent=2))
        return
    table = Table(
        title="how the work of a site grows with its rows: seconds, and speeds in scans"
    )
    for heading in (
        "rows", "scan", "pass", "speed", "CPU", "dearest", "open", "rounds", "of",
        "speed", "CPU", "ns/row", "MB",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for row in measured:
        table.add_row(
            f"{row['rows']:,}",
            f"{row['scan_s']:.3f}",
            f"{row['pass_s']:.3f}",
            f"{row['speed']:.2f}",
            f"{row['cpu_speed']:.2f}",
            f"{row['dearest_cpu_speed']:.2f}",
            f"{row['open_s']:.1f}",
            f"{row['rounds_s']:.1f}",
            str(row["study_rounds"]),
            f"{row['study_speed']:.2f}",
            f"{row['study_cpu_speed']:.2f}",
            f"{row['cpu_ns_per_row_and_round']:.0f}",
            f"{row['study_megabytes']:.0f}",
        )
    console.print(table)


def _print_axes(
    axes: list[str], folder: Path | None, picture: Path | None, as_json: bool
) -> None:
    """A line for each point, the exponents below them."""
    from cipherbayes_research.benchmarks.growth_axes import exponents, measure
    from cipherbayes_research.benchmarks.growth_picture import draw

    place = Path(tempfile.gettempdir()) if folder is None else folder
    points = list(measure(axes, place))
    fitted = exponents(points)
    if picture is not None:
        draw(points, picture)
    if as_json:
        typer.echo(json.dumps({"points": points, "exponents": fitted}, indent=2))
        return
    table = Table(title="how a secure sum grows; CPU time of one round, and of all")
    for heading in (
        "over", "value", "site ms", "server ms", "CSP ms", "all s", "MB",
        "site bytes", "disk bytes",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for axis in dict.fromkeys(axes):
        for point in points:
            if point["axis"] == axis:
                table.add_row(
                    axis,
                    f"{point['value']:,}",
                    *(f"{point[name]:.2f}" for name in _TIMES),
                    *(f"{point[name]:,.0f}" for name in _SIZES),
                )
        powers = fitted[axis]
        measures = [f"{powers[name]:.2f}" for name in (*_TIMES, *_SIZES)]
        table.add_row(axis, "exponent", *measures, end_section=True)
    console.print(table)


def _scaling(document: Growth) -> Table:
    """One quantity varied at a time."""
    base = document["base"]
    table = Table(
        title=f"CPU ms of an iteration; otherwise d = {base['d']}, "
        f"{base['sites']} sites, {base['rows']:,} rows each"
    )
    for heading in ("quantity", "value", "protocol", "site", "server", "CSP", "all"):
        table.add_column(heading, justify="right")
    table.add_column("bytes", justify="right")
    for row in document["rows"]:
        times = (
            row.get("site_ms"), row["server_ms"], row["csp_ms"], row.get("iteration_ms")
        )  # fmt: skip
        table.add_row(
            row["quantity"],
            f"{row['value']:,}",
            row["protocol"],
            *("" if each is None else f"{each:.1f}" for each in times),
            f"{row['message_bytes']:,}" if "message_bytes" in row else "",
        )
    return table


def _circuits(document: Bench) -> Table:
    """Every variant's cryptography against the paper's circuit."""
    table = Table(title=f"cryptography of a round, {document['sites']} sites, CPU ms")
    for heading in ("variant", "encrypt", "server", "CSP", "bytes", "server ratio"):
        table.add_column(heading, justify="right")
    table.add_column("round ratio", justify="right")
    table.add_column("with preparation", justify="right")
    table.add_column("error/noise", justify="right")
    for name, row in document["variants"].items():
        table.add_row(
            name,
            f"{row['encrypt_ms']:.2f}",
            f"{row['server_ms']:.2f}",
            f"{row['decrypt_ms']:.2f}",
            f"{row['message_bytes']:,}",
            f"{row['server_ratio']:.4f}",
            f"{row['iteration_ratio']:.4f}",
            f"{row['iteration_ratio_all_cpu']:.4f}",
            f"{row['max_error_over_noise']:.1e}",
        )
    return table


def _steps(document: Bench) -> Table:
    """Where the time of a secure-sum round goes."""
    table = Table(title=f"steps of a secure sum, {document['sites']} sites, CPU ms")
    parties = document["steps_ms"]
    for heading in ("step", *parties):
        table.add_column(heading, justify="right")
    taken = {
        name: [steps.get(name, 0.0) for steps in parties.values()]
        for name in dict.fromkeys(name for steps in parties.values() for name in steps)
    }
    for name, times in sorted(taken.items(), key=lambda item: -sum(item[1])):
        table.add_row(name, *(f"{each:.2f}" if each else "" for each in times))
    whole = [f"{sum(steps.values()):.2f}" for steps in parties.values()]
    table.add_section()
    table.add_row("all", *whole)
    return table


def _add(table: Table, setting: Setting, name: str, variant: Variant) -> None:
    server = variant["server_ms"] + variant.get("move_ms", 0.0)
    table.add_row(
        str(setting["sites"]),
        f"{setting['rows_per_site']:,}",
        name,
        f"{variant['site_ms']:.2f}",
        f"{server:.2f}",
        f"{variant['decrypt_ms']:.2f}",
        f"{variant['message_bytes']:,}",
        f"{variant['iteration_ms']:.1f}",
        f"{variant['iteration_over_plaintext']:.2f}",
    )

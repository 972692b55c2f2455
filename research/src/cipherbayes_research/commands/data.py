"""``cipherbayes data``: the example data sets."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cipherbayes.cli.console import console
from cipherbayes.errors import DataError


class Name(StrEnum):
    """The data sets of the paper."""

    flchain = "flchain"
    physionet2012 = "physionet2012"


class Missing(StrEnum):
    """What becomes of missing values."""

    mean = "mean"
    keep = "keep"


def data(
    name: Annotated[Name, typer.Argument(help="Which data set.")],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="physionet2012: the archive or folder; flchain: a CSV (optional).",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the tables.")] = Path("data"),
    sites: Annotated[
        int, typer.Option(min=1, help="Also split the rows evenly over sites.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of that split.")] = 1,
    missing: Annotated[
        Missing,
        typer.Option(
            help="physionet2012: fill with column means as in the paper, or keep "
            "missing values empty (for private studies: means are not private)."
        ),
    ] = Missing.mean,
) -> None:
    """Prepare PhysioNet 2012 (4,000 x 184) or FLchain (7,874 x 7) as CSV."""
    from cipherbayes_research.datasets.forgetting import forget_public_table
    from cipherbayes_research.datasets.splitting import split_sites, write_table

    if name is Name.flchain:
        from cipherbayes_research.datasets.flchain import load_flchain

        table = load_flchain(source)
    else:
        from cipherbayes_research.datasets.physionet2012 import load_physionet2012

        if source is None:
            raise DataError(
                "needs the downloaded challenge data",
                where="--from",
                remedy="give set-a.tar.gz, set-a.zip or the folder set-a",
            )
        table = load_physionet2012(source, missing=missing.value)
    out.mkdir(parents=True, exist_ok=True)
    whole = out / f"{name}.csv"
    write_table(table, whole)
    console.print(f"{whole}: {table.num_rows} rows, {table.num_columns} columns")
    written = [whole]
    if sites > 1:
        for k, part in enumerate(split_sites(table, sites, seed=seed), start=1):
            written.append(out / f"{name}-{k}.csv")
            write_table(part, written[-1])
            console.print(f"{written[-1]}: {part.num_rows} rows")
    if source is None:
        # The packaged rows are public: the same tables made again start anew.
        for path in written:
            forget_public_table(path)

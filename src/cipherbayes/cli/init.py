"""``cipherbayes init``: a first study file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cipherbayes.cli.console import console
from cipherbayes.errors import RunError


def init(
    tables: Annotated[
        list[Path], typer.Argument(help="One CSV or Parquet file a site.")
    ],
    out: Annotated[Path, typer.Option(help="Study file to write.")] = Path(
        "study.toml"
    ),
    name: Annotated[str, typer.Option(help="Name of the study.")] = "my-study",
    kind: Annotated[
        str | None,
        typer.Option(help="The model, e.g. logistic or weibull; else it is guessed."),
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Option(help="Column of the outcome (survival: of the event)."),
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="Survival models: column of the time.")
    ] = None,
) -> None:
    """Write a first study file from the columns' names and types.

    No value is written: ranges and levels are for you to fill in from the code book.
    A range read off the rows would tell everybody who the oldest patient is.
    """
    from cipherbayes.study.template import Wanted, first_study, suggested_records

    if out.exists():
        raise RunError(
            "exists already",
            where=str(out),
            remedy="choose another --out, or remove it first",
        )
    text = first_study(tables, out.parent, name, Wanted(kind, outcome, time))
    out.write_text(text, encoding="utf-8")
    left = sum(
        "FILL_IN" in line for line in text.splitlines() if not line.startswith("#")
    )
    console.print(
        f"study: {out}, with {left} lines to FILL IN", soft_wrap=True, markup=False
    )
    console.print(
        "Take ranges and levels from the code book, never from the rows: this file is "
        "public, and a range read off the rows is a release that no budget covers.",
        soft_wrap=True,
    )
    if commas := text.count("left out (decimal commas"):
        columns = "1 column has" if commas == 1 else f"{commas} columns have"
        verb = "is" if commas == 1 else "are"
        console.print(
            f"{columns} decimal commas (58,0) and {verb} left out: write numbers with "
            "points (58.0) and init again",
            soft_wrap=True,
            highlight=False,
        )
    if guesses := text.count("# a guess"):
        lines = "1 line is a guess" if guesses == 1 else f"{guesses} lines are guesses"
        console.print(
            f"{lines} from the columns' names, marked as such: check "
            f"{'it' if guesses == 1 else 'them'} (--kind, --outcome and --time say "
            "better)",
            soft_wrap=True,
            highlight=False,
        )
    if (rows := suggested_records(tables)) is not None:
        console.print(
            f"For you only: the tables have {rows[0]:,} rows together. If that may be "
            f"known, records = {rows[1]} will do; if not, remove the line.",
            soft_wrap=True,
            highlight=False,
        )
    console.print(f"then: cipherbayes plan {out}", soft_wrap=True, markup=False)

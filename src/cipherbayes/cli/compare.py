"""``cipherbayes compare``: which of two fits predicts better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cipherbayes.cli.console import console


def compare(
    first: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    second: Annotated[Path, typer.Argument(help="Folder of another.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Compare two private studies of one outcome by their held-out log scores.

    Nothing is released: each run scored its own held-out rows within its budget, and
    one that names the other (evaluation.against) compared them row by row.
    """
    from cipherbayes.results.comparing import compare as compared
    from cipherbayes.results.result import Result

    results = Result.load(first), Result.load(second)
    names = first.resolve().name, second.resolve().name
    if names[0] == names[1]:
        names = str(first), str(second)
    found = compared(*results, names=names)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    rows = ", row by row" if found["paired"] else ""
    console.print(
        f"held-out log score{rows}, {found['first']} less {found['second']}: "
        f"{found['mean']:.4g} ({100 * found['interval']:.3g} % interval "
        f"{found['lower']:.4g} to {found['upper']:.4g})",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
    if found["paired"]:
        console.print(
            "(a row whose scores differ by more than 0.5 either way counts as ±0.5)",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )
    said = "neither is clearly better"
    if found["better"] is not None:
        said = f"{found['better']} predicts better"
    if found["caution"] is not None:
        said = found["caution"]
    console.print(said, highlight=False, soft_wrap=True, markup=False)

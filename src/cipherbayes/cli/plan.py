"""``cipherbayes plan``: what a study will cost and whether it can work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from cipherbayes.cli.console import console


def plan(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what a study will cost, before any data is read.

    Rounds, noise, epsilon as it grows, noise against signal, encryption and bytes.
    """
    from cipherbayes.results.planning import plan as describe
    from cipherbayes.study.schema import Study

    loaded = Study.load(study)
    described = describe(loaded)
    if as_json:
        typer.echo(json.dumps(described.record(), indent=2))
        return
    first, *rest = (escape(line) for line in described.lines)
    name = escape(loaded.name)
    for line in (first.replace(name, f"[bold]{name}[/bold]", 1), *rest):
        said = line.replace("not certified", "[bold red]not certified[/bold red]")
        console.print(said, highlight=False, soft_wrap=True)
    for warning in described.warnings:
        said = f"[yellow]warning:[/yellow] {escape(warning)}"
        console.print(said, highlight=False, soft_wrap=True)

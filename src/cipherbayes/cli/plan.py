"""``cipherbayes plan``: what a study will cost and whether it can work."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from cipherbayes.cli.console import console

if TYPE_CHECKING:
    from cipherbayes.protocols.plan_description import PlanDescription
    from cipherbayes.study.schema import Study


def plan(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what a study will cost, before any data is read.

    Rounds, noise, epsilon as it grows, noise against signal, encryption and bytes.
    """
    from cipherbayes.study.schema import Study

    loaded = Study.load(study)
    described = _private(loaded) if loaded.private else _without_privacy(loaded)
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


def _private(study: Study) -> PlanDescription:
    from cipherbayes.engine.local_settings import local_settings
    from cipherbayes.engine.new_run import budget_warnings
    from cipherbayes.engine.table_identity import ledger_of
    from cipherbayes.protocols.plan import plan_study
    from cipherbayes.protocols.plan_description import PlanDescription

    planned = plan_study(study)
    described = planned.protocol.describe(planned)
    local = {
        name: local_settings(site, ledger_of(site, site.data))
        for name, site in study.sites.items()
    }
    return reduce(
        PlanDescription.with_warning, budget_warnings(planned, local), described
    )


def _without_privacy(study: Study) -> PlanDescription:
    from cipherbayes.protocols.plan_description import PlanDescription

    return PlanDescription(
        [
            f"{study.name}: {study.model.kind}, pooled, without privacy",
            "nothing is noised and nothing is charged",
        ],
        rounds=study.inference.rounds,
        warnings=["no [privacy] table: whoever reads the result learns about the rows"],
    )

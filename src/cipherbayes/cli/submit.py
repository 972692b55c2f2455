"""``cipherbayes submit``: run a study on the parties' machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cipherbayes.cli.console import logging_to, progress_bar
from cipherbayes.cli.run import show, spending


def submit(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).")],
    kit: Annotated[Path, typer.Option(help="The lead's kit.")] = Path("kits/admin"),
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the result.", show_default="runs/NAME"),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds to wait for parties that are not there."),
    ] = 0.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print result.json instead of a table.")
    ] = False,
) -> None:
    """Run a study on all parties' machines, or go on with a run that was cut."""
    from cipherbayes.cli.party import needs_flare
    from cipherbayes.results.result import Result
    from cipherbayes.study.schema import Study

    loaded = Study.load(study)
    folder = out if out is not None else Path("runs") / loaded.name
    with needs_flare():
        from cipherbayes.engine.flare.kits import Kit
        from cipherbayes.engine.flare.submitting import submit

        lead = Kit.open(kit)
        with logging_to(folder), progress_bar(spending(loaded)) as progress:
            submit(loaded, lead, folder, progress, wait=wait)
    show(Result.load(folder).record, folder, as_json)

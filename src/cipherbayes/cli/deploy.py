"""``cipherbayes deploy``: kits for several machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cipherbayes.cli.console import console


def deploy(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).")],
    out: Annotated[Path, typer.Option(help="Folder for the kits.")] = Path("kits"),
    host: Annotated[
        str, typer.Option(help="Name under which all parties reach the server.")
    ] = "localhost",
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the server.")
    ] = 8002,
) -> None:
    """Make one folder for each party: server, CSP, every site, and the lead."""
    from cipherbayes.cli.party import needs_flare
    from cipherbayes.study import Study

    with needs_flare():
        from cipherbayes.engine.flare.provisioning import Deployment, deploy

        made = deploy(Deployment(Study.load(study), host, port), out)
    for party, folder in made.items():
        console.print(f"{party}: {folder}", soft_wrap=True)
    console.print(
        f"hand each folder to its party; its README.md says what to do. Keep "
        f"{out / 'authority'} offline: it can make certificates.",
        soft_wrap=True,
    )

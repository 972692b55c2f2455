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
    requests: Annotated[
        Path | None,
        typer.Option(
            help="Folder with what `request` wrote at every party.",
            show_default="none: all keys are made here, for a trial on one machine",
        ),
    ] = None,
) -> None:
    """Make one folder for each party: server, CSP, every site, and the lead.

    Kits hold certificates for the keys that the parties made themselves, and no key.
    """
    from cipherbayes.cli.party import needs_flare
    from cipherbayes.study.schema import Study

    with needs_flare():
        from cipherbayes.engine.flare.certificates import read_requests
        from cipherbayes.engine.flare.provisioning import Deployment, deploy

        deployment = Deployment(Study.load(study), host, port)
        sent = None if requests is None else read_requests(requests)
        made = deploy(deployment, out, sent)
    for party, folder in made.items():
        console.print(f"{party}: {folder}", soft_wrap=True)
    if sent is None:
        console.print(
            "[bold red]WARNING: every party's connection key was made here, so whoever "
            "made these kits can stand in for every party's connection.[/bold red] For "
            "trying things out on one machine only; between machines use --requests.",
            soft_wrap=True,
        )
    console.print(
        f"hand each folder to its party; its README.md says what to do. Keep "
        f"{out / 'authority'} offline: it can make certificates.",
        soft_wrap=True,
    )

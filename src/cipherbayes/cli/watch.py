"""``cipherbayes watch``: a running study, live in a browser."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from cipherbayes.cli.console import console


def watch(
    folder: Annotated[Path, typer.Argument(help="Folder of a running study.")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on loopback; 0: any free one.")
    ] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print where the run stands, and end.")
    ] = False,
) -> None:
    """Follow a private study live: parameters, epsilon spent, parties, pace.

    Serves one page on this machine only, until the run has ended or you stop it.
    It shows what is released anyway, and reads no table, ledger or key.
    """
    from cipherbayes.report.live import Watcher, serving

    watcher = Watcher.open(folder)
    if as_json:
        typer.echo(json.dumps(watcher.look().document()))
        return
    with serving(watcher.look, port) as address:
        console.print(f"watching: {address} (Ctrl-C ends it)", soft_wrap=True)
        while not watcher.look().finished:
            time.sleep(1.0)
        console.print("the run has finished; the page stays for ten more seconds")
        time.sleep(10.0)

"""``cipherbayes site``, ``csp`` and ``server``: a party on its own machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cipherbayes.cli.console import console
from cipherbayes.errors import RunError

if TYPE_CHECKING:
    from cipherbayes.crypto.signatures import Identity

KitPath = Annotated[Path, typer.Argument(help="This party's kit.")]


@contextmanager
def needs_flare() -> Iterator[None]:
    """Say what to install where FLARE is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "nvflare":
            raise
        raise RunError(
            "several machines need NVIDIA FLARE",
            where="nvflare",
            remedy='pip install "cipherbayes[flare]"',
        ) from None


def party_commands(role: str, what: str) -> typer.Typer:
    """The commands of a kind of party."""
    app = typer.Typer(help=what, no_args_is_help=True)

    @app.command("start")
    def start(kit: KitPath = Path()) -> None:
        """Start this party and keep it running; stop it with Ctrl-C."""
        with needs_flare():
            from cipherbayes.engine.flare.handshake import check_server
            from cipherbayes.engine.flare.kits import Kit
            from cipherbayes.engine.flare.starting import check_ready
            from cipherbayes.engine.flare.starting import start as start_party

            mine = Kit.open(kit).require(role)
            check_ready(mine)
            if role != "server" and not check_server(mine):
                console.print(
                    f"server {mine.host} does not answer yet: trying on",
                    soft_wrap=True,
                )
            process = start_party(mine)
        # A service manager's TERM ends the party too, not only this program.
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            code = process.wait()
        raise typer.Exit(max(code, 0))

    @app.command("pin")
    def pin(
        kit: KitPath,
        files: Annotated[
            list[Path], typer.Argument(help="The identity.json of every party.")
        ],
    ) -> None:
        """Pin everyone's identity; compare the fingerprints by telephone."""
        from cipherbayes.engine.flare.kits import Kit

        _show(Kit.open(kit).require(role).pin(files))

    @app.command("approve")
    def approve(
        kit: KitPath,
        study: Annotated[Path, typer.Argument(help="A study to allow here.")],
    ) -> None:
        """Allow runs of a study at this party."""
        from cipherbayes.engine.flare.kits import Kit
        from cipherbayes.study import Study

        fingerprint = Kit.open(kit).require(role).approve(Study.load(study))
        console.print(f"approved: {fingerprint}", soft_wrap=True)

    if role != "server":

        @app.command("enrol")
        def enrol(kit: KitPath = Path()) -> None:
            """Make this party's signing key, here, and export its public half."""
            from cipherbayes.engine.flare.kits import Kit

            mine = Kit.open(kit).require(role)
            _show({mine.name: mine.enrol()})
            console.print(f"send {mine.path / 'identity.json'}", soft_wrap=True)

    return app


def _show(identities: dict[str, Identity]) -> None:
    table = Table(title="identities: compare by telephone")
    table.add_column("party", overflow="fold")
    # Never cut: what is not seen is not compared.
    table.add_column("fingerprint", no_wrap=False, overflow="fold")
    for name, identity in sorted(identities.items()):
        table.add_row(name, identity.fingerprint)
    console.print(table)

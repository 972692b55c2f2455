"""``cipherbayes site``, ``csp`` and ``server``: a party on its own machine."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cipherbayes.cli.check import check_query, print_problems
from cipherbayes.cli.console import console
from cipherbayes.errors import RunError

if TYPE_CHECKING:
    from cipherbayes.crypto.identity.signatures import Identity
    from cipherbayes.engine.local_settings import LocalSettings
    from cipherbayes.engine.table_check import TableProblems
    from cipherbayes.study.schema import Study

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
        from cipherbayes.data.snapshots import remove_short_snapshots

        with needs_flare():
            from cipherbayes.engine.flare.handshake import check_server
            from cipherbayes.engine.flare.kits import Kit
            from cipherbayes.engine.flare.starting import check_ready
            from cipherbayes.engine.flare.starting import start as start_party

            mine = Kit.open(kit).require(role)
            remove_short_snapshots(mine.path)
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

    @app.command("request")
    def request(
        name: Annotated[
            str, typer.Argument(help="This party's name in the study.")
        ] = "" if role == "site" else role,
        out: Annotated[
            Path | None,
            typer.Option(help="Folder for this party.", show_default="its name"),
        ] = None,
    ) -> None:
        """Make this party's keys, here, and a request for the lead to sign."""
        with needs_flare():
            from cipherbayes.engine.flare.installing import request as make_request

            folder = out if out is not None else Path(name)
            path = make_request(folder, role, name)
        console.print(f"keys: {folder}; they stay here", soft_wrap=True)
        console.print(f"send {path} to the lead", soft_wrap=True)

    @app.command("install")
    def install(
        folder: Annotated[Path, typer.Argument(help="The folder that `request` made.")],
        kit: Annotated[Path, typer.Argument(help="What the lead sent.")],
    ) -> None:
        """Take the lead's kit, check it, and pin everyone's identity.

        Compare the fingerprints by telephone.
        """
        with needs_flare():
            from cipherbayes.engine.flare.installing import install as install_kit
            from cipherbayes.engine.flare.kits import Kit
            from cipherbayes.study.schema import Study

            _show(install_kit(folder, kit))
            if role == "server":
                # It has no rows and no key that a study could ask for.
                study = Study.load(folder / "study.toml")
                Kit.open(folder).approve(study, insecure=True)

    @app.command("approve")
    def approve(
        kit: KitPath,
        study: Annotated[
            Path | None,
            typer.Argument(help="A study.", show_default="the kit's study.toml"),
        ] = None,
        yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
        insecure: Annotated[
            bool,
            typer.Option("--insecure", help="Also noise that protects nobody."),
        ] = False,
    ) -> None:
        """Show a study in words and, if you agree, allow its runs at this party."""
        from cipherbayes.engine.flare.approving import study_in_words
        from cipherbayes.engine.flare.kits import Kit
        from cipherbayes.study.schema import Study

        mine = Kit.open(kit).require(role)
        loaded = Study.load(kit / "study.toml" if study is None else study)
        for line in study_in_words(loaded):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        shown = _grouped(loaded.without_paths().fingerprint())
        console.print(f"fingerprint {shown}", highlight=False, soft_wrap=True)
        if not yes and not typer.confirm("May this run here?"):
            raise RunError("not approved", where=loaded.name)
        fingerprint = mine.approve(loaded, insecure=insecure)
        console.print(f"approved: {fingerprint}", soft_wrap=True)

    @app.command("health")
    def health(
        kit: KitPath = Path(),
        as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    ) -> None:
        """Say whether this party can take part; exit code 1 if it cannot."""
        with needs_flare():
            from cipherbayes.engine.flare.health import look_at_party
            from cipherbayes.engine.flare.kits import Kit

            found = look_at_party(Kit.open(kit).require(role))
        if as_json:
            typer.echo(json.dumps([asdict(each) for each in found], indent=2))
        else:
            for each in found:
                line = f"{each.state:8}{each.name:12}{each.words}"
                console.print(line, highlight=False, markup=False, soft_wrap=True)
        if any(each.state == "fault" for each in found):
            raise typer.Exit(1)

    @app.command("backup")
    def backup(
        kit: KitPath,
        out: Annotated[Path, typer.Argument(help="A new folder for the copy.")],
    ) -> None:
        """Copy keys, approvals and the ledger; no rows and no answers."""
        from cipherbayes.engine.flare.kit_backup import back_up
        from cipherbayes.engine.flare.kits import Kit

        back_up(Kit.open(kit).require(role), out)
        console.print(f"{out}: holds private keys, keep it so", soft_wrap=True)

    @app.command("restore")
    def restore(
        kit: Annotated[Path, typer.Argument(help="The folder that was lost.")],
        backup: Annotated[Path, typer.Argument(help="What `backup` wrote.")],
    ) -> None:
        """Make a kit again from its backup; no budget comes back with it."""
        from cipherbayes.cli.ledger import warn_of_budget
        from cipherbayes.engine.flare.kit_backup import LEDGER, put_back
        from cipherbayes.engine.flare.kits import Kit

        Kit.open(backup).require(role)
        kept = put_back(backup, kit)
        if not kept and (backup / LEDGER).exists():
            warn_of_budget()
        elif not kept:
            console.print(
                "[yellow]warning:[/yellow] the backup has no ledger, so what was spent "
                "is not known; its budget is now a remark in site.toml: find out what "
                "was released, then set one before you start",
                soft_wrap=True,
            )
        console.print(f"{kit}: restored", soft_wrap=True)

    if role != "server":

        @app.command("enrol")
        def enrol(kit: KitPath = Path()) -> None:
            """Make this party's signing key, here, and export its public half."""
            from cipherbayes.engine.flare.kits import Kit

            mine = Kit.open(kit).require(role)
            _show({mine.name: mine.enrol()})
            console.print(f"send {mine.path / 'identity.json'}", soft_wrap=True)

    if role == "site":
        app.command("check")(check)
    return app


def check(
    kit: KitPath = Path(),
    study: Annotated[
        Path | None,
        typer.Option(help="The study.", show_default="the kit's study.toml"),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(help="The table.", show_default="that of the kit's site.toml"),
    ] = None,
) -> None:
    """Say everything that keeps this site's table from a study; send nothing.

    Needs no kit where both the study and the table are given.
    """
    from cipherbayes.data.refusals import refuse_address
    from cipherbayes.engine.flare.site_settings import site_settings
    from cipherbayes.engine.table_check import check_table
    from cipherbayes.study.schema import Study

    loaded = Study.load(kit / "study.toml" if study is None else study)
    if table is not None:
        refuse_address(str(table))
        source, found = str(table), check_table(loaded, "here", str(table))
    else:
        settings = site_settings(kit)
        source, found = _check_settings(loaded, settings, kit)
    print_problems(source, found)
    if found.problems:
        raise typer.Exit(1)


def _check_settings(
    study: Study, settings: LocalSettings, kit: Path
) -> tuple[str, TableProblems]:
    """The name of a site's own table, and what is wrong with it."""
    from cipherbayes.engine.table_check import check_table

    query = settings.get("query")
    if query is None:
        source = str(settings["data"])
        return source, check_table(study, "here", source)
    return check_query(study, "here", query, kit)


def _show(identities: dict[str, Identity]) -> None:
    table = Table(title="identities: compare by telephone")
    table.add_column("party", overflow="fold")
    # Never cut: what is not seen is not compared.
    table.add_column("fingerprint", no_wrap=False, overflow="fold")
    for name, identity in sorted(identities.items()):
        table.add_row(name, identity.fingerprint)
    console.print(table)


def _grouped(text: str) -> str:
    """A fingerprint as people read it aloud."""
    return " ".join(text[i : i + 4] for i in range(0, len(text), 4))

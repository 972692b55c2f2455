"""``cipherbayes verify``: a server's result, checked without believing the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cipherbayes.cli.console import console

if TYPE_CHECKING:  # slow to import
    from cipherbayes.validation.verify import Findings

STYLES = {"holds": "green", "fails": "bold red", "not checked": "yellow"}


def verify(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder of a private run or result, or KIT/runs/RUN."),
    ],
    study: Annotated[
        Path | None,
        typer.Option(
            help="The study file as you know it.", show_default="the approved one"
        ),
    ] = None,
    roster: Annotated[
        Path | None,
        typer.Option(help="Keys that you pinned (roster.json).", show_default="found"),
    ] = None,
    result: Annotated[
        Path | None,
        typer.Option(help="Folder of the result to compare.", show_default="FOLDER"),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Fail unless draws are the same bit for bit."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute a private run's result again from the totals that the CSP signed.

    Reads no table. Ends with exit code 1 if anything differs, and says what.
    """
    from cipherbayes.validation.verify import verify as verify_run

    findings = verify_run(
        folder, study=study, roster=roster, result=result, exact=exact
    )
    if as_json:
        typer.echo(json.dumps(findings.document(), indent=2))
    else:
        for finding in findings:
            line = Text(f"{finding.state:>11}  ", style=STYLES[finding.state])
            line.append(f"{finding.check}: {finding.said}", style="default")
            console.print(line, soft_wrap=True)
        console.print(_conclusion(findings))
    if findings.failed:
        raise typer.Exit(1)


def _conclusion(findings: Findings) -> str:
    if failed := findings.failed:
        checks = "1 check fails" if len(failed) == 1 else f"{len(failed)} checks fail"
        if all(finding.open for finding in failed):
            return (
                f"{checks}: whether this is the result of the signed totals cannot be "
                "told here"
            )
        return f"{checks}: this is not the result of the signed totals"
    return (
        f"nothing differs; {len(findings.unchecked)} things cannot be seen from here, "
        "as said above"
    )

"""``cipherbayes ledger`` and ``cipherbayes keys``: what a party may look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cipherbayes.cli.console import console


def ledger(
    file: Annotated[Path, typer.Argument(help="A table's ledger (TABLE.ledger).")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show what has been released about a table, and what is left."""
    from cipherbayes.privacy.events import to_json
    from cipherbayes.privacy.ledger import Ledger

    book = Ledger.read(file)
    entries = list(book.entries())
    spent = book.spent()
    left = max(book.epsilon - spent, 0.0)
    if as_json:
        document = {
            "dataset": book.dataset,
            "epsilon": book.epsilon,
            "delta": book.delta,
            "spent": spent,
            "left": left,
            "entries": [
                {
                    "number": entry.number,
                    "time": entry.time,
                    "run": entry.run,
                    "round": entry.round,
                    "purpose": entry.purpose,
                    "study": entry.study,
                    "event": json.loads(to_json(entry.event)),
                    "epsilon": entry.epsilon,
                }
                for entry in entries
            ],
        }
        typer.echo(json.dumps(document, indent=2))
        return
    table = Table(title=f"{book.dataset}: releases")
    for heading in ("run", "study", "purpose", "rounds", "first", "last", "ε after"):
        table.add_column(heading)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for index, entry in enumerate(entries):
        key = (entry.run[:8], entry.study[:8], entry.purpose)
        groups.setdefault(key, []).append(index)
    for (run, study, purpose), members in groups.items():
        first, last = entries[members[0]], entries[members[-1]]
        row = [run, study, purpose, str(len(members))]
        row += [entry.time[:16].replace("T", " ") for entry in (first, last)]
        table.add_row(*row, f"{last.epsilon:.4g}")
    console.print(table)
    console.print(
        f"spent ε = {spent:.4g} of {book.epsilon:g} at δ = {book.delta:g}; "
        f"ε = {left:.4g} is left"
    )


def keys(
    folder: Annotated[Path, typer.Argument(help="A run's folder, or a key folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show the ids of keys, never their contents."""
    from cipherbayes.crypto.keys import KeyFolder
    from cipherbayes.errors import RunError

    homes = sorted(path for path in folder.rglob("keys") if path.is_dir())
    if not homes and any(folder.glob("*.key")):
        homes = [folder]
    if not homes:
        raise RunError(
            "holds no keys",
            where=str(folder),
            remedy="give the folder of a run, or a folder of *.key files",
        )
    rows = [
        {
            "party": home.parent.name if home.name == "keys" else home.name,
            "kind": record.kind,
            "id": record.id,
            "run": record.run,
            "parameters": record.parameters,
        }
        for home in homes
        for record in KeyFolder(home).records()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(title="keys (ids only)")
    for heading in ("party", "kind", "id", "run", "parameters"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row.values())
    console.print(table)

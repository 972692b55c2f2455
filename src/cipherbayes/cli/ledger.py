"""``cipherbayes ledger`` and ``cipherbayes keys``: what a party may look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cipherbayes.cli.console import console

if TYPE_CHECKING:
    from cipherbayes.privacy.ledger import Ledger

NOTHING = 1e-4
"""Share of a budget that no study can use: what rounding leaves."""


def ledger(
    file: Annotated[Path, typer.Argument(help="A table's ledger (TABLE.ledger).")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    adopt: Annotated[
        bool,
        typer.Option(help="Take over the newest copy of a ledger on a new machine."),
    ] = False,
    end: Annotated[
        str,
        typer.Option(
            metavar="RUN", help="Erase the answers of a run that will not be resumed."
        ),
    ] = "",
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="EPSILON", help="For the data's owner: set the table's budget."
        ),
    ] = None,
    table: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="For the data's owner: the table has another name or address now.",
        ),
    ] = "",
    copy: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Copy the ledger for a backup."),
    ] = None,
    restore: Annotated[
        Path | None,
        typer.Option(metavar="COPY", help="Put a copy back where FILE was lost."),
    ] = None,
) -> None:
    """Show what has been released about a table, and what is left."""
    if restore is not None:
        _restore(restore, file)
    if copy is not None:
        from cipherbayes.privacy.ledger_backup import copy_ledger

        copy_ledger(file, copy)
    from cipherbayes.privacy.events import to_json
    from cipherbayes.privacy.ledger import Ledger

    book = Ledger.read(file, adopt=adopt)
    if end:
        _end(book, end)
    if budget is not None:
        book.set_budget(budget)
    if table:
        book.name_table(table)
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
                    "site": entry.site,
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
    shown = Table(title=f"{book.dataset}: releases")
    for heading in ("run", "site", "study", "purpose", "rounds", "last", "ε after"):
        shown.add_column(heading, overflow="fold")
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for index, entry in enumerate(entries):
        key = (entry.run[:8], entry.site, entry.study[:8], entry.purpose)
        groups.setdefault(key, []).append(index)
    for group, members in groups.items():
        last = entries[members[-1]]
        time = last.time[:16].replace("T", " ")
        shown.add_row(*group, str(len(members)), time, f"{last.epsilon:.4g}")
    console.print(shown)
    console.print(
        f"spent ε = {spent:.4g} of {book.epsilon:g} at δ = {book.delta:g}; "
        + (
            f"ε = {left:.4g} is left"
            if left > NOTHING * book.epsilon
            else "nothing is left"
        )
    )


def _restore(copy: Path, file: Path) -> None:
    """Put a copy back, and say what has become of the budget."""
    from cipherbayes.privacy.ledger_backup import restore_ledger

    if not restore_ledger(copy, file):
        warn_of_budget(file)


def warn_of_budget(file: Path | str = "FILE") -> None:
    """Say that a ledger was put back closed."""
    console.print(
        "[yellow]warning:[/yellow] nothing shows that this is the newest copy, so "
        "nothing is left of the budget; find out what was released since, then set "
        f"one: cipherbayes ledger {file} --budget EPSILON (no budget in a study or in "
        "site.toml raises it)",
        soft_wrap=True,
    )


def _end(book: Ledger, run: str) -> None:
    """End the one run whose id begins so, at every site that it is charged for."""
    from cipherbayes.errors import PrivacyError

    found = {(e.run, e.site) for e in book.entries() if e.run.startswith(run.lower())}
    if len({entry for entry, _ in found}) != 1:
        raise PrivacyError(
            "no run, or more than one, has an id that begins so",
            where=str(book.path),
            remedy="give the run as `cipherbayes ledger FILE --json` shows it",
        )
    for entry, site in sorted(found):
        book.end(bytes.fromhex(entry), site)


def keys(
    folder: Annotated[Path, typer.Argument(help="A run's folder, or a key folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show the ids of keys, never their contents."""
    from cipherbayes.crypto.identity.signatures import Identity
    from cipherbayes.crypto.key_folder import KeyFolder
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
            "fingerprint": Identity.from_hex(record.id).fingerprint
            if record.kind == "identity"
            else "",
        }
        for home in homes
        for record in KeyFolder(home).records()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(title="keys (ids only)")
    for heading in ("party", "kind", "id", "run", "parameters", "fingerprint"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row.values())
    console.print(table)

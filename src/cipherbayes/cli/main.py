"""The ``cipherbayes`` command: one function per verb, errors in one line."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer

from cipherbayes.cli import (
    audit,
    calibrate,
    check,
    compare,
    deploy,
    export,
    init,
    ledger,
    omop,
    party,
    plan,
    predict,
    report,
    run,
    submit,
    verify,
    watch,
)
from cipherbayes.errors import CipherbayesError
from cipherbayes.version import __version__

app = typer.Typer(
    name="cipherbayes",
    help="Bayesian models across hospitals that may not pool their records.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


RESEARCH = ("data", "bench", "reproduce")
"""Commands of the package cipherbayes-research, for whoever has not installed it."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cipherbayes {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    pass


COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "A study on this machine, in this order": {
        "init": init.init,
        "plan": plan.plan,
        "check": check.check,
        "run": run.run,
        "watch": watch.watch,
        "resume": run.resume,
    },
    "Its result": {
        "report": report.report,
        "predict": predict.predict,
        "export": export.export,
        "compare": compare.compare,
        "verify": verify.verify,
    },
    "A table and its budget": {
        "ledger": ledger.ledger,
        "keys": ledger.keys,
        "omop": omop.omop,
    },
    "Whether promises hold": {
        "audit": audit.audit,
        "calibrate": calibrate.calibrate,
    },
    "A study on several machines": {
        "deploy": deploy.deploy,
        "submit": submit.submit,
    },
}
"""Commands by what they are for, as ``--help`` lists them."""

for _purpose, _commands in COMMANDS.items():
    for _name, _command in _commands.items():
        app.command(_name, rich_help_panel=_purpose)(_command)
for _role, _what in {
    "site": "A site on its own machine: request, install, approve, check, start.",
    "csp": "The CSP, which holds the key, on its own machine: request, install, "
    "approve, start.",
    "server": "The server on its own machine: request, install, start.",
}.items():
    app.add_typer(
        party.party_commands(_role, _what),
        name=_role,
        rich_help_panel="A study on several machines",
    )


def _add_extra(extra: EntryPoint) -> None:
    """Add a command of a package that is installed beside this one."""
    package = extra.dist.name if extra.dist else extra.module
    try:
        function = extra.load()
    except Exception as error:  # whatever is wrong there, the other commands work
        reason = f"{type(error).__name__}: {error}"
        why = f"the package {package} cannot be loaded ({reason})"
        _add_refusal(extra.name, why, f"install {package} again")
    else:
        app.command(extra.name, rich_help_panel=f"From {package}")(function)


def _add_refusal(name: str, why: str, remedy: str) -> None:
    """Add a command that is not listed and only says why it cannot be had."""

    def refuse() -> None:
        raise CipherbayesError(why, where=name, remedy=remedy)

    app.command(
        name,
        hidden=True,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(refuse)


_own = {command.name for command in app.registered_commands}
_own |= {group.name for group in app.registered_groups}
_extras = entry_points(group="cipherbayes.commands")
for _extra in sorted(_extras):
    if _extra.name not in _own:  # nobody replaces a command of this package
        _own.add(_extra.name)
        _add_extra(_extra)
for _name in sorted({*RESEARCH} - _extras.names):
    _add_refusal(
        _name,
        "this command comes with the package cipherbayes-research, which is not "
        "installed",
        "pip install cipherbayes-research, or ./research in a checkout",
    )


@cache
def _command_line() -> Callable[[], None]:
    """All commands with their options, read from their signatures once a process."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line; a user's mistake ends in one line and exit code 1."""
    # Passes over records have threads of their own. With those of a linear algebra
    # library inside of them, threads wait for each other: a round of a million rows
    # took a hundred times as long. Read when numpy is loaded, which is later.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Parties report to a run's log, not to the terminal.
    logging.getLogger("cipherbayes").addHandler(logging.NullHandler())
    try:
        _command_line()()
    except CipherbayesError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        # A place that cannot be read or written; what is there belongs to the user.
        place = "" if error.filename is None else f"{error.filename}: "
        print(
            f"error: {place}{error.strerror or 'cannot be used'}; check the path, the "
            "disk and its permissions",
            file=sys.stderr,
        )
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)

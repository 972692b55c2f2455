"""`--help` of every command says the whole of what was written for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.markup import render
from typer.main import get_command

from cipherbayes.cli.main import COMMANDS, app


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    yield name, command
    for each, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{name} {each}".strip())


ALL = dict(commands(get_command(app)))


def test_brackets_of_study_files_are_not_taken_for_markup() -> None:
    texts = [command.help or "" for command in ALL.values()]
    texts += [
        param.help
        for c in ALL.values()
        for param in c.params
        if getattr(param, "help", None)
    ]
    for text in texts:
        assert render(text).plain == text.replace("\\[", "[")


def test_every_command_and_option_says_what_it_does() -> None:
    for name, command in ALL.items():
        assert command.help, name
        for param in command.params:
            assert getattr(param, "help", None), (name, param.name)


def test_the_first_command_listed_is_the_first_to_type() -> None:
    (first, *_) = next(iter(COMMANDS.values()))
    assert first == "init"
    assert {name for group in COMMANDS.values() for name in group} <= set(ALL)

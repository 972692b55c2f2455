"""How results and progress look in a terminal."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from cipherbayes.engine.logs import JsonLines
from cipherbayes.storage.folders import LOG, make_folder

if TYPE_CHECKING:  # a command's help is shown without loading numpy
    from cipherbayes import typing
    from cipherbayes.results.record import MeanRow, ResultRecord

console = Console()

CSP = (
    "         (server: runs the rounds; CSP, the crypto service provider: holds the "
    "key and opens totals only)"
)


class RoundTime(ProgressColumn):
    """Milliseconds per round."""

    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("- ms/round")
        return Text(f"{1000.0 / task.speed:.1f} ms/round")


SILENCE = 10.0
"""Seconds after which a run whose output is no terminal says where it is."""


def progress_in_lines() -> typing.Progress:
    """Progress on standard error, now and then: for logs of long runs."""
    said = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said < SILENCE:
            return
        said = time.monotonic()
        after = "; drawing the posterior" if done == total else ""
        typer.echo(f"round {done} of {total}{after}", err=True)

    return report


@contextmanager
def progress_bar(
    epsilon: Callable[[int], float] | None = None,
) -> Iterator[typing.Progress]:
    """A bar with round, ε spent, ms per round and time left; off a terminal a line
    now and then.

    Parameters
    ----------
    epsilon
        ε spent after a number of rounds, where the study is private.
    """
    if not console.is_terminal:
        yield progress_in_lines()
        return
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(),
    ]
    if epsilon is not None:
        columns.append(TextColumn("ε {task.fields[epsilon]:.3f}"))
    columns += [RoundTime(), TimeRemainingColumn()]
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("round", total=None, epsilon=0.0)

        def report(done: int, total: int) -> None:
            spent = 0.0 if epsilon is None else epsilon(done)
            bar.update(
                task,
                description="drawing the posterior, round"
                if done == total
                else "round",
                completed=done,
                total=total,
                epsilon=spent,
            )

        yield report


def summary_table(record: ResultRecord) -> Table:
    """The posterior of ``result.json`` as a table."""
    share = f"{100 * record['interval']:g} %"
    table = Table(title=f"{record['study']}: posterior on your own units")
    table.add_column("parameter")
    for heading in ("mean", "sd", f"{share} interval", "R-hat", "ESS"):
        table.add_column(heading, justify="right")
    for row in record["posterior"]:
        spread = row["lower"] is not None
        table.add_row(
            escape(row["name"]),
            f"{row['mean']:.4g}",
            f"{row['sd']:.3g}" if row["sd"] is not None else "-",
            f"{row['lower']:.4g} to {row['upper']:.4g}" if spread else "-",
            f"{row['rhat']:.3f}" if row["rhat"] is not None else "-",
            f"{row['ess']:.0f}" if row["ess"] is not None else "-",
        )
    return table


@contextmanager
def logging_to(folder: Path) -> Iterator[None]:
    """Keep what the parties report in ``run.log``; they never report data."""
    make_folder(folder)
    descriptor = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    handler = logging.StreamHandler(os.fdopen(descriptor, "a", encoding="utf-8"))
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("cipherbayes")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.stream.close()


SPOKEN = {
    "auc": "AUC",
    "brier": "Brier score",
    "c_index": "concordance",
    "rmse": "root mean squared error",
    "risk_over_time": "slope along the predicted risk, late less early",
}
"""Scores whose names in ``result.json`` are not words."""


def score_in_words(name: str, score: MeanRow) -> str:
    """A score with its interval, called as in the report; a number of rows is a whole
    one."""
    form = ",.0f" if name in ("rows", "events") else ".3g"
    mean, lower, upper = (
        format(value, form) for value in (score["mean"], score["lower"], score["upper"])
    )
    spoken = SPOKEN.get(name, name.replace("_", " "))
    return f"{spoken} {mean} ({lower} to {upper})"


def print_result(record: ResultRecord) -> None:
    """Summary, metrics, privacy and warnings of a finished run."""
    from cipherbayes.protocols.certificate import promised
    from cipherbayes.results.record import (
        exact_scores,
        private_scores,
        scores_by_name,
    )

    console.print(summary_table(record))
    metrics = {k: v for k, v in exact_scores(record).items() if isinstance(v, float)}
    if metrics:
        shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        console.print(f"held-out rows: {shown}")
    private = private_scores(record)
    if private is not None:
        scores = [
            score_in_words(name, score)
            for name, score in scores_by_name(private).items()
        ]
        console.print(f"held-out rows, with noise: {', '.join(scores)}", soft_wrap=True)
    privacy = record["privacy"]
    promise = promised(privacy)
    if promise is None:
        console.print("privacy: none (all tables in one place, no budget)")
    else:
        word = "certified" if privacy["certified"] else "NOT CERTIFIED"
        against = ", ".join(privacy["holds_against"])
        console.print(
            f"privacy: ({promise[0]:g}, {promise[1]:g})-DP, {word}, "
            f"{privacy['relation']}; holds against {against or 'nobody'}",
            soft_wrap=True,
        )
        if any("CSP" in who for who in privacy["holds_against"]):
            console.print(CSP, soft_wrap=True, highlight=False)
    for warning in record["warnings"]:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)

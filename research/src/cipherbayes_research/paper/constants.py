"""Table of the auxiliary constant c, with the ε that each one really implies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cipherbayes.protocols.paper_claim import PaperSetting, paper_claim
from cipherbayes_research.paper.cells import Cell, Outcome, Results, Sources
from cipherbayes_research.paper.experiment import Experiment
from cipherbayes_research.paper.pictures import COLOURS, panels
from cipherbayes_research.paper.report import Report, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Table of c, with the honest ε of each"


@dataclass(frozen=True)
class Task:
    """A task of the paper: training rows N, batch τ, epochs T, and c by the number of
    sites."""

    records: int
    batch: int
    epochs: int
    constants: dict[int, int]


TASKS = {
    "density estimation": Task(10_000, 1000, 100, {1: 80, 2: 80}),
    "logistic regression": Task(
        3200, 320, 500, {1: 3500, 2: 3500, 5: 1000, 10: 1000, 16: 900}
    ),
    "survival analysis": Task(6299, 320, 500, {1: 2000, 2: 2000, 5: 800}),
}


def cells(quick: bool) -> list[Cell]:
    """Every c of the table, and c = 1; quick: one c of each task."""
    chosen = []
    for name, task in TASKS.items():
        known = {k: c for k, c in task.constants.items() if not quick or k == 2}
        chosen += [Cell(name, 0, k, 1.0, str(c)) for k, c in known.items()]
        chosen.append(Cell(name, 0, 1, 1.0, "1"))
    return chosen


def compute(cell: Cell, sources: Sources) -> Outcome:
    """The accountant's answer."""
    task = TASKS[cell.kind]
    claim = paper_claim(
        PaperSetting(
            epsilon=cell.epsilon,
            delta=1e-5,
            records=task.records,
            batch=task.batch,
            epochs=task.epochs,
            scale=float(cell.choice),
        )
    )
    return {"all": claim.honest_epsilon, "first": claim.first_round_epsilon}


def report(results: Results, quick: bool) -> Report:
    """Claimed ε = 1 beside what is spent."""
    rows = []
    for cell, outcome in sorted(results.items(), key=_order):
        setting = f"{cell.kind}, c = {cell.choice}"
        for metric, epsilon in (
            ("honest ε", outcome["all"]),
            ("honest ε of the first round", outcome["first"]),
        ):
            rows.append(
                Row(
                    setting,
                    cell.sites,
                    epsilon,
                    False,
                    metric,
                    epsilon,
                    None,
                    0,
                    paper=cell.epsilon,
                )
            )
    notes = [
        "paper: the claim; δ = 1e-5",
        "granting the paper a public preconditioner, secret minibatches and noise "
        "that nobody knows; c = 1 is the only constant that its theorem covers",
    ]
    return Report("constants", TITLE, quick, rows, [], {}, notes)


def _order(item: tuple[Cell, Outcome]) -> tuple[int, int, float]:
    cell = item[0]
    return list(TASKS).index(cell.kind), cell.sites, -float(cell.choice)


def draw(shown: Report) -> Figure:
    """Bars on a logarithmic axis, the claim as a line."""
    figure, (axes,) = panels(1, height=4.0, width=7.0)
    rows = [row for row in shown.rows if row.metric == "honest ε"]
    names = [f"{row.setting}, K = {row.sites}" for row in rows]
    bars = axes.barh(names, [row.mean or 0.0 for row in rows], color=COLOURS[1])
    numbers = [row.mean or 0.0 for row in rows]
    words = [f"{n:,.0f}" if n >= 100.0 else f"{n:.3g}" for n in numbers]
    axes.bar_label(bars, words, padding=2, fontsize=7)
    axes.axvline(1.0, color="black", linestyle="--", linewidth=1.0)
    axes.set_xscale("log")
    axes.margins(x=0.2)
    axes.invert_yaxis()
    axes.set_xlabel("honest ε where the paper claims 1 (dashed)")
    return figure


EXPERIMENT = Experiment(TITLE, None, cells, compute, report, draw)

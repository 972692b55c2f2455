"""Figure 2: Bayesian logistic regression on PhysioNet 2012 over the budget."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from cipherbayes_research.paper import mortality, physionet, ranked_columns
from cipherbayes_research.paper.cells import Cell, Results
from cipherbayes_research.paper.experiment import Experiment
from cipherbayes_research.paper.pictures import draw_budgets
from cipherbayes_research.paper.report import Report, difference, known
from cipherbayes_research.paper.splits import SPLITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Figure 2: logistic regression, PhysioNet 2012"
CERTIFIED = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
CLAIMED = (0.01, 0.1, 1.0, 10.0)
QUICK_EPOCHS = "50"
UPDATED = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Budgets of the encrypted update, the slowest by far."""


def cells(quick: bool) -> list[Cell]:
    """All settings on the same splits; quick: two splits, two budgets."""
    certified = (0.1, 1.0) if quick else CERTIFIED
    mapped = [e for e in certified if e in physionet.SETTINGS]
    claimed = (1.0,) if quick else CLAIMED
    epochs = QUICK_EPOCHS if quick else ""
    federated = (2,) if quick else (2, 5)
    chosen: list[Cell] = []
    for split in range(2 if quick else SPLITS):
        chosen += [Cell("no-data", split), Cell("pooled", split)]
        for choice, budgets in (("", mapped), (ranked_columns.CHOICE, certified)):
            chosen += [Cell("private", split, 1, e, choice) for e in budgets]
        chosen += [Cell("printed-pooled", split, 1, e, epochs) for e in claimed]
        for k in federated:
            chosen += [Cell("secure-sum", split, k, e, ranked_columns.CHOICE)
                       for e in certified]  # fmt: skip
            chosen += [Cell("printed-federated", split, k, e, epochs) for e in claimed]
        if not quick:
            chosen += [Cell("secure-sum", split, 5, e) for e in mapped]
    chosen += [
        Cell(kind, split, k, e, ranked_columns.CHOICE)
        for kind in ("encrypted-update", "simulated-update")
        for split in range(1 if quick else SPLITS)
        for k, e in ([(2, 1.0)] if quick else product(federated, UPDATED))
    ]
    return chosen + mortality.honest_cells(chosen)


def report(results: Results, quick: bool) -> Report:
    """Means, what ranked columns gain and what federation loses, learning curves."""
    groups = mortality.grouped(results)
    pairs = [
        (head, Cell(head.kind, 0, head.sites, head.epsilon))
        for head in groups
        if mortality.is_ranked(head)
    ]
    pairs += [
        (head, Cell("private", 0, 1, head.epsilon, head.choice))
        for head in groups
        if head.kind in ("secure-sum", "encrypted-update", "simulated-update")
    ]
    differences = [
        difference(
            {split: o["auc"] for split, o in groups[first].items()},
            {split: o["auc"] for split, o in groups[second].items()},
            (_place(first), _place(second)),
            metric="auc",
            epsilon=first.epsilon,
        )
        for first, second in pairs
        if second in groups
    ]
    notes = [
        "the majority class alone has an accuracy of 0.86: AUC comes first",
        "paper: AUC that its method is known to reach at the claimed ε; the paper "
        "prints curves without numbers",
    ]
    if quick:
        notes.append(f"quick: runs as printed stop after {QUICK_EPOCHS} epochs of 500")
    return Report(
        "logistic",
        TITLE,
        quick,
        mortality.rows_of(results),
        known(differences),
        {"learning": mortality.learning_curves(results, 1.0)},
        notes,
    )


def _place(head: Cell) -> str:
    return f"{mortality.name_of(head)}, K = {head.sites}"


def draw(shown: Report) -> Figure:
    """Learning curves at ε = 1, AUC and accuracy over ε."""
    figure = draw_budgets(shown, mortality.METRICS)
    figure.axes[-1].axhline(0.8615, color="0.45", linewidth=1.0, linestyle=":")
    return figure


EXPERIMENT = Experiment(TITLE, "physionet2012", cells, mortality.compute, report, draw)

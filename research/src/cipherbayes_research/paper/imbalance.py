"""Appendix: two sites, one four times as large as the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cipherbayes_research.paper import mortality, ranked_columns
from cipherbayes_research.paper.cells import Cell, Results
from cipherbayes_research.paper.experiment import Experiment
from cipherbayes_research.paper.pictures import draw_budgets
from cipherbayes_research.paper.report import Report, difference, known
from cipherbayes_research.paper.splits import SPLITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Appendix: sites of different sizes"
UNEVEN = "4:1"


def cells(quick: bool) -> list[Cell]:
    """Even and uneven sites over the budget."""
    budgets = (0.1, 1.0) if quick else (0.01, 0.1, 1.0, 10.0)
    claims = (1.0,) if quick else budgets
    epochs = "50" if quick else ""
    runs = [("secure-sum", e, ranked_columns.CHOICE) for e in budgets]
    runs += [("printed-federated", e, epochs) for e in claims]
    chosen = [
        Cell(kind, split, 2, epsilon, f"{choice} {sizes}".strip())
        for split in range(2 if quick else SPLITS)
        for kind, epsilon, choice in runs
        for sizes in ("", UNEVEN)
    ]
    return chosen + mortality.honest_cells(chosen)


def report(results: Results, quick: bool) -> Report:
    """Means, and uneven against even."""
    groups = mortality.grouped(results)
    differences = []
    for head, outcomes in groups.items():
        if not mortality.sizes_of(head):
            continue
        choice = head.choice.removesuffix(UNEVEN).strip()
        even = Cell(head.kind, 0, head.sites, head.epsilon, choice)
        claimed = head.kind in mortality.PRINTED
        claim = f", claimed ε = {head.epsilon:g}" if claimed else ""
        differences.append(
            difference(
                {split: o["auc"] for split, o in outcomes.items()},
                {split: o["auc"] for split, o in groups[even].items()},
                (mortality.name_of(head) + claim, mortality.name_of(even) + claim),
                metric="auc",
                epsilon=None if claimed else head.epsilon,
            )
        )
    rows = mortality.rows_of(results)
    note = (
        "as printed, τ/2 rows are drawn from each site whatever its size, so the small "
        "site's rows count four times as much; secure-sum adds sums and weighs "
        "records alike"
    )
    return Report("imbalance", TITLE, quick, rows, known(differences), {}, [note])


def draw(shown: Report) -> Figure:
    """AUC and accuracy over ε."""
    return draw_budgets(shown, mortality.METRICS)


EXPERIMENT = Experiment(TITLE, "physionet2012", cells, mortality.compute, report, draw)

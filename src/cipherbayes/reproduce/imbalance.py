"""Appendix: two sites, one four times as large as the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cipherbayes.reproduce import mortality
from cipherbayes.reproduce.cells import Cell, Results
from cipherbayes.reproduce.experiment import Experiment
from cipherbayes.reproduce.mortality import SETTINGS, values_of
from cipherbayes.reproduce.pictures import draw_curves, over_epsilon, panels
from cipherbayes.reproduce.report import Report, difference, known
from cipherbayes.reproduce.splits import SPLITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Appendix: sites of different sizes"
SHARES = ("1:1", "4:1")


def cells(quick: bool) -> list[Cell]:
    """Even and uneven sites over the budget."""
    budgets = (0.1, 1.0) if quick else (0.01, 0.1, 1.0, 10.0)
    chosen = [
        Cell(kind, split, 2, epsilon, shares)
        for split in range(2 if quick else SPLITS)
        for epsilon in budgets
        for shares in SHARES
        for kind in ("secure-sum", "printed-federated")
        if not (quick and kind == "printed-federated" and epsilon < 1.0)
    ]
    return chosen + mortality.honest_cells(chosen)


def report(results: Results, quick: bool) -> Report:
    """Means, and uneven against even."""
    heads = {(cell.kind, cell.epsilon) for cell in results if cell.kind in SETTINGS}
    differences = [
        difference(
            values_of(results, "auc", kind=kind, epsilon=epsilon, choice="4:1"),
            values_of(results, "auc", kind=kind, epsilon=epsilon, choice="1:1"),
            (f"{SETTINGS[kind]}, 4:1", f"{SETTINGS[kind]}, 1:1"),
            metric="auc",
            epsilon=epsilon if kind == "secure-sum" else None,
        )
        for kind, epsilon in sorted(heads)
    ]
    rows = mortality.rows_of(results)
    note = (
        "as printed, τ/2 rows are drawn from each site whatever its size, so the small "
        "site's rows count four times as much; secure-sum adds sums and weighs "
        "records alike"
    )
    return Report("imbalance", TITLE, quick, rows, known(differences), {}, [note])


def draw(shown: Report) -> Figure:
    """AUC and accuracy over ε."""
    figure, both = panels(2)
    for axes, metric in zip(both, ("auc", "accuracy"), strict=True):
        draw_curves(
            axes,
            over_epsilon(shown.rows, metric),
            title=f"test {metric}, two sites",
            xlabel="ε, certified or claimed",
            ylabel=metric,
        )
        axes.set_xscale("log")
    return figure


EXPERIMENT = Experiment(TITLE, "physionet2012", cells, mortality.compute, report, draw)

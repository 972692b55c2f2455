"""Appendix: logistic regression over 2, 5, 10 and 16 sites at ε = 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cipherbayes_research.paper import mortality, ranked_columns
from cipherbayes_research.paper.cells import Cell, Results
from cipherbayes_research.paper.experiment import Experiment
from cipherbayes_research.paper.mortality import SETTINGS, values_of
from cipherbayes_research.paper.pictures import WORDS, draw_together, panels
from cipherbayes_research.paper.report import Curve, Report, difference, known
from cipherbayes_research.paper.splits import SPLITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Appendix: number of sites, ε = 1"
SITES = (2, 5, 10, 16)


def cells(quick: bool) -> list[Cell]:
    """Certified and as printed, K from 2 to 16."""
    epochs = "50" if quick else ""
    chosen: list[Cell] = []
    for split in range(2 if quick else SPLITS):
        chosen.append(Cell("private", split, 1, 1.0, ranked_columns.CHOICE))
        for k in (2, 5) if quick else SITES:
            chosen.append(Cell("secure-sum", split, k, 1.0, ranked_columns.CHOICE))
            chosen.append(Cell("printed-federated", split, k, 1.0, epochs))
    return chosen + mortality.honest_cells(chosen)


def report(results: Results, quick: bool) -> Report:
    """Means, and the loss against all rows in one place."""
    counts = sorted({cell.sites for cell in results if cell.kind == "secure-sum"})
    pooled = values_of(results, "auc", kind="private")
    differences = [
        difference(
            values_of(results, "auc", kind="secure-sum", sites=k),
            pooled,
            (f"{SETTINGS['secure-sum']}, K = {k}", SETTINGS["private"]),
            metric="auc",
            epsilon=1.0,
        )
        for k in counts
    ]
    return Report(
        "sites",
        TITLE,
        quick,
        mortality.rows_of(results),
        known(differences),
        {"learning": mortality.learning_curves(results, 1.0)},
        ["one site may collude: noise of K/(K−1) times the variance of pooled runs"],
    )


def draw(shown: Report) -> Figure:
    """Learning curves, and AUC and accuracy over K."""
    figure, (left, *others) = panels(3, height=4.6)
    left.set(
        title="learning curves, ε = 1 (claimed or certified)",
        xlabel="share of the run",
        ylabel="test AUC",
    )
    parts = [(left, shown.curves["learning"])]
    for axes, metric in zip(others, mortality.METRICS, strict=True):
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in shown.rows:
            if row.metric == metric and row.mean is not None:
                lines.setdefault(row.setting, []).append((row.sites, row.mean))
        curves = [
            Curve(name, *map(list, zip(*sorted(points), strict=True)))
            for name, points in lines.items()
        ]
        parts.append((axes, curves))
        axes.set(title=f"test {WORDS[metric]}", xlabel="sites", xticks=(1, *SITES))
    draw_together(figure, parts)
    return figure


EXPERIMENT = Experiment(TITLE, "physionet2012", cells, mortality.compute, report, draw)

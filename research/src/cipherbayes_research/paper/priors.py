"""Appendix: various priors, logistic regression at ε = 1 and without privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cipherbayes_research.paper import mortality, physionet
from cipherbayes_research.paper.cells import Cell, Outcome, Results, Sources
from cipherbayes_research.paper.experiment import Experiment
from cipherbayes_research.paper.fitting import fit_and_score
from cipherbayes_research.paper.mortality import SETTINGS, values_of
from cipherbayes_research.paper.pictures import COLOURS, panels
from cipherbayes_research.paper.report import Report, Row, difference, known, summarised
from cipherbayes_research.paper.splits import SPLITS, split_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Appendix: priors"
PRIORS: dict[str, dict[str, Any]] = {
    "normal, scale 0.1": {"kind": "normal", "scale": 0.1},
    "normal, scale 0.3": {"kind": "normal", "scale": 0.3},
    "normal, scale 1": {"kind": "normal", "scale": 1.0},
    "laplace, scale 0.3": {"kind": "laplace", "scale": 0.3},
    "student-t, scale 0.3": {"kind": "student-t", "scale": 0.3},
    "SAPS II": physionet.saps_prior(physionet.SETTINGS[1.0]),
    "literature": physionet.literature_prior(physionet.SETTINGS[1.0]),
}
"""On the scale of columns in [-1, 1]. All but the last two are centred at zero; those
give the core variables the points of a published score, or their signs only."""


def cells(quick: bool) -> list[Cell]:
    """Every prior, certified at ε = 1 and without privacy."""
    return [
        Cell(kind, split, epsilon=epsilon, choice=prior)
        for split in range(2 if quick else SPLITS)
        for prior in PRIORS
        for kind, epsilon in (("private", 1.0), ("pooled", 0.0))
    ]


def compute(cell: Cell, sources: Sources) -> Outcome:
    """A fit with the columns and steps of ε = 1 and the prior of the cell."""
    assert sources.physionet is not None
    table = physionet.read(sources.physionet)
    train, test = split_rows(table.num_rows, cell.split)
    study = physionet.certified_study(
        cell.epsilon,
        records=train.size,
        prior=PRIORS[cell.choice],
        setting=physionet.SETTINGS[1.0],
    )
    metrics, _ = fit_and_score(study, table, [train], test)
    return {name: metrics[name] for name in mortality.METRICS}


def report(results: Results, quick: bool) -> Report:
    """A row for each prior, and what the literature's gains."""
    rows = [
        summarised(
            [outcome[metric] for outcome in outcomes.values()],
            setting=f"{SETTINGS[head.kind]}, {head.choice} prior",
            metric=metric,
            epsilon=head.epsilon or None,
            certified=bool(head.epsilon),
        )
        for head, outcomes in mortality.grouped(results).items()
        for metric in mortality.METRICS
    ]
    best = values_of(results, "auc", kind="private", choice="literature")
    differences = [
        difference(
            best,
            values_of(results, "auc", kind="private", choice=prior),
            ("literature prior", f"{prior} prior"),
            metric="auc",
            epsilon=1.0,
        )
        for prior in PRIORS
        if prior != "literature"
    ]
    return Report("priors", TITLE, quick, rows, known(differences))


def draw(shown: Report) -> Figure:
    """Dots with sd for each prior."""
    figure, both = panels(2)
    for axes, certified in zip(both, (False, True), strict=True):
        rows: list[Row] = [
            row
            for row in shown.rows
            if row.metric == "auc" and row.certified is certified
        ]
        axes.errorbar(
            [row.mean or 0.0 for row in rows],
            range(len(rows)),
            xerr=[row.sd or 0.0 for row in rows],
            fmt="o",
            color=COLOURS[int(certified)],
            capsize=3,
        )
        names = [row.setting.partition(", ")[2].rpartition(" prior")[0] for row in rows]
        axes.set_yticks(range(len(rows)), [n.partition(", ")[2] or n for n in names])
        axes.set_xlabel("test AUC, mean ± sd over splits")
        axes.set_title("ε = 1, certified" if certified else "no privacy")
    return figure


EXPERIMENT = Experiment(TITLE, "physionet2012", cells, compute, report, draw)

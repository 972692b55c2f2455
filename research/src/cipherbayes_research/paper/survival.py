"""Figure 3: exponential survival on FLchain over the budget.

The appendix's gradients are not gradients of its likelihood; runs as printed use the
corrected ones, with times in units of 5,000 days and α = 1 as in the paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cipherbayes.models.metrics import auc_at, c_index
from cipherbayes.protocols.paper_claim import PaperSetting, paper_claim
from cipherbayes.typing import Floats, Integers
from cipherbayes_research.paper import flchain, mortality
from cipherbayes_research.paper.as_printed import simulate
from cipherbayes_research.paper.cells import Cell, Outcome, Results, Sources
from cipherbayes_research.paper.experiment import Experiment
from cipherbayes_research.paper.fitting import fit_and_score
from cipherbayes_research.paper.mortality import PRINTED, values_of
from cipherbayes_research.paper.pictures import draw_budgets
from cipherbayes_research.paper.report import Report, difference, known, summarised
from cipherbayes_research.paper.splits import SPLITS, split_over_sites, split_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Figure 3: survival, FLchain"
CONSTANTS = {1: 2000.0, 2: 2000.0, 5: 800.0}
"""The paper's c for survival analysis, by the number of sites."""
RECORDS = 6299
METRICS = ("c_index", "auc")
SETTINGS = mortality.SETTINGS | {
    "no-data": "no-data score (prior means)",
    "age": "age alone",
}


def cells(quick: bool) -> list[Cell]:
    """All settings on the same splits; quick: two splits, two budgets."""
    certified = (0.1, 1.0) if quick else (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
    claimed = (1.0,) if quick else (0.01, 0.1, 1.0, 10.0)
    epochs = "50" if quick else ""
    chosen: list[Cell] = []
    for split in range(2 if quick else SPLITS):
        chosen += [Cell(kind, split) for kind in ("no-data", "age", "pooled")]
        chosen += [Cell("private", split, epsilon=e) for e in certified]
        chosen += [Cell("printed-pooled", split, 1, e, epochs) for e in claimed]
        for k in (2,) if quick else (2, 5):
            chosen += [Cell("secure-sum", split, k, e) for e in certified]
            chosen += [Cell("printed-federated", split, k, e, epochs) for e in claimed]
    return chosen + mortality.honest_cells(chosen)


def paper_setting(cell: Cell) -> PaperSetting:
    """The paper's constants: those of the logistic regression but for c."""
    return PaperSetting(
        epsilon=cell.epsilon,
        delta=1e-5,
        records=RECORDS,
        batch=mortality.BATCH,
        epochs=mortality.EPOCHS,
        scale=CONSTANTS[cell.sites],
    )


def compute(cell: Cell, sources: Sources) -> Outcome:
    """One cell."""
    if cell.kind == "honest":
        return {"epsilon": paper_claim(paper_setting(cell)).honest_epsilon}
    table = flchain.read(sources.flchain)
    train, test = split_rows(table.num_rows, cell.split)
    time = table["futime"].to_numpy()
    event = table["death"].to_numpy().astype(np.float64)

    def scores(risk: Floats) -> Outcome:
        t, c = time[test], event[test]
        middle = float(np.median(t[c == 1.0]))
        return {"c_index": c_index(t, c, risk), "auc": auc_at(middle, t, c, risk)}

    if cell.kind == "age":
        return scores(table["age"].to_numpy()[test])
    if cell.kind == "no-data":
        return scores(_prior_risk(table.take(test)))
    sites = split_over_sites(train, cell.sites, cell.split)
    if cell.kind in PRINTED:
        x = flchain.as_printed_rows(table, train)
        scaled = time / flchain.HORIZON

        def mean_gradient(theta: Floats, rows: Integers) -> Floats:
            residual = event[rows] - scaled[rows] * np.exp(x[rows] @ theta)
            return np.asarray(x[rows].T @ residual / rows.size)

        trace = simulate(
            paper_setting(cell),
            mean_gradient,
            sites,
            dimension=x.shape[1],
            seed=cell.split,
            encrypted=cell.kind == "printed-federated",
            epochs=int(cell.choice) if cell.choice else None,
        )
        curve = [scores(x[test] @ theta)["c_index"] for theta in trace.theta[::2]]
        return scores(x[test] @ trace.mean) | {"curve": curve}
    protocol = "pooled" if cell.kind == "private" else cell.kind
    study = flchain.certified_study(cell.epsilon, records=train.size, protocol=protocol)
    metrics, curve = fit_and_score(study, table, sites, test)
    middle: Any = metrics["auc_at"]
    return {"c_index": metrics["c_index"], "auc": middle[1]["auc"], "curve": curve}


def _prior_risk(rows: pa.Table) -> Floats:
    """The linear predictor of the prior means, no row of the study used."""
    from cipherbayes.models import Survival
    from cipherbayes.study.tables import open_site

    study = flchain.certified_study(0.0, records=1)
    held_out = open_site(study, "test", rows)
    theta = flchain.prior_mean(study)
    assert isinstance(study.model, Survival)
    parts = [study.model.fitted(theta, block) for block in held_out.blocks()]
    return np.concatenate(parts)


def report(results: Results, quick: bool) -> Report:
    """Means, and each certified setting against age alone."""
    honest = {
        (cell.sites, cell.epsilon): outcome["epsilon"]
        for cell, outcome in results.items()
        if cell.kind == "honest"
    }
    rows, differences = [], []
    age = values_of(results, "c_index", kind="age")
    for head, outcomes in mortality.grouped(results).items():
        if head.kind == "honest":
            continue
        printed = head.kind in PRINTED
        setting = SETTINGS[head.kind]
        certified = bool(head.epsilon) and not printed
        if printed:
            setting += f", claimed ε = {head.epsilon:g}"
        spent = honest.get((head.sites, head.epsilon))
        epsilon = spent if printed else head.epsilon or None
        rows += [
            summarised(
                [outcome[metric] for outcome in outcomes.values()],
                setting=setting,
                metric=metric,
                sites=head.sites,
                epsilon=epsilon,
                certified=certified,
            )
            for metric in METRICS
        ]
        if certified:
            gain = difference(
                {split: outcome["c_index"] for split, outcome in outcomes.items()},
                age,
                (f"{setting}, K = {head.sites}", SETTINGS["age"]),
                metric="c_index",
                epsilon=head.epsilon,
            )
            differences.append(gain)
    notes = [
        "auc: cumulative/dynamic AUC at the median event time of the test rows",
        "the paper prints curves without numbers",
    ]
    if quick:
        notes.append("quick: runs as printed stop after 50 epochs of 500")
    curves = {"learning": mortality.learning_curves(results, 1.0)}
    return Report("survival", TITLE, quick, rows, known(differences), curves, notes)


def draw(shown: Report) -> Figure:
    """Learning curves at ε = 1, C-index and AUC over ε."""
    return draw_budgets(shown, METRICS)


EXPERIMENT = Experiment(TITLE, "flchain", cells, compute, report, draw)

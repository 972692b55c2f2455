"""Cells on PhysioNet 2012 that several experiments share.

Kinds: ``no-data`` (the clinical score), ``pooled`` (the paper's setting 1), ``private``
(its setting 2, certified), ``secure-sum`` and ``encrypted-update`` (its setting 3,
certified), ``simulated-update`` (the last, its circuit in float64),
``printed-pooled`` and ``printed-federated`` (the paper's settings 2 and 3 as printed,
simulated), ``honest`` (what a claim as printed really spends).

Words of a choice: ``ranked`` for the settings of
:mod:`cipherbayes_research.paper.ranked_columns` instead of the public
map's; ``4:1`` for the sizes of sites; a number of epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.special import expit

from cipherbayes.models.metrics import accuracy, auc
from cipherbayes.protocols.paper_claim import PaperSetting, paper_claim
from cipherbayes.typing import Floats, Integers
from cipherbayes_research.datasets.physionet2012 import OUTCOME
from cipherbayes_research.paper import physionet, ranked_columns
from cipherbayes_research.paper.as_printed import Trace, simulate
from cipherbayes_research.paper.cells import Cell, Outcome, Results, Sources
from cipherbayes_research.paper.fitting import fit_and_score, simulate_and_score
from cipherbayes_research.paper.report import Curve, Row, summarised
from cipherbayes_research.paper.splits import split_over_sites, split_rows

CONSTANTS = {1: 3500.0, 2: 3500.0, 5: 1000.0, 10: 1000.0, 16: 900.0}
"""The paper's c for logistic regression, by the number of sites."""

BATCH, EPOCHS, TRAINING_ROWS = 320, 500, 3200

REFERENCE = {0.01: 0.52, 0.1: 0.62, 1.0: 0.71, 10.0: 0.79}
"""AUC that the paper's own method reached in an earlier run, by claimed ε; the paper
prints curves without numbers."""

CERTIFIED = ("private", "secure-sum", "encrypted-update")
PRINTED = ("printed-pooled", "printed-federated")
SETTINGS = {
    "no-data": "no-data clinical score",
    "pooled": "pooled, no privacy",
    "private": "pooled, private",
    "secure-sum": "federated, secure-sum",
    "encrypted-update": "federated, encrypted-update",
    "simulated-update": "federated, encrypted-update (simulated)",
    "printed-pooled": "pooled, as printed",
    "printed-federated": "federated, as printed (simulated)",
}
PROTOCOLS = {"private": "pooled", "simulated-update": "encrypted-update"}
"""Protocol of the kinds of cells that are not named after their protocol."""
METRICS = ("auc", "accuracy")
DRAWS = {"private": 10, "secure-sum": 3}
"""Number of runs of a cell by its kind; one for kinds that are not listed. The runs
differ only in their noise, each is certified, and the cell reports their mean: at a
small budget the noise of single runs moves the mean over ten splits by half a point. A
real study has one run, which is as good on average and varies more."""
MORE = {0.3: 10}
"""Factor on the number of runs of a pooled cell by ε, where the mean of ten runs varies
by more than its distance from the target."""


def compute(cell: Cell, sources: Sources) -> Outcome:
    """Run one cell and return its metrics."""
    if cell.kind == "honest":
        claim = paper_claim(paper_setting(cell))
        return {"epsilon": claim.honest_epsilon}
    assert sources.physionet is not None
    table = physionet.read(sources.physionet)
    train, test = split_rows(table.num_rows, cell.split)
    if cell.kind == "no-data":
        y = table.take(test)[OUTCOME].to_numpy().astype(np.float64)
        return {"auc": auc(y, physionet.clinical_score(table.take(test)))}
    sites = sites_of(cell, train)
    if cell.kind in PRINTED:
        return _as_printed(cell, table, sites, train, test)
    protocol = PROTOCOLS.get(cell.kind, cell.kind)
    known: dict[str, Any] = {"records": train.size, "protocol": protocol}
    if is_ranked(cell):
        table = ranked_columns.read(sources.physionet)
        study = ranked_columns.ranked_study(cell.epsilon, **known)
    else:
        study = physionet.certified_study(cell.epsilon, **known)
    # The learning curve is that of the first run.
    runs = [
        simulate_and_score(study, table, sites, test)
        if cell.kind == "simulated-update"
        else fit_and_score(study, table, sites, test, curve=number == 0)
        for number in range(runs_of(cell))
    ]
    outcome: Outcome = {
        name: float(np.mean([metrics[name] for metrics, _ in runs])) for name in METRICS
    }
    draws = [metrics["auc"] for metrics, _ in runs]
    return outcome | {"draws": draws, "curve": runs[0][1]}


def runs_of(cell: Cell) -> int:
    """How often a cell is run."""
    more = MORE.get(cell.epsilon, 1) if cell.kind == "private" else 1
    return DRAWS.get(cell.kind, 1) * more


def is_ranked(cell: Cell) -> bool:
    """Whether the cell is of the settings with ranked columns."""
    return ranked_columns.CHOICE in cell.choice.split()


def sizes_of(cell: Cell) -> str:
    """Proportions of the sites' rows such as ``4:1``; empty for even ones."""
    return next((word for word in cell.choice.split() if ":" in word), "")


def sites_of(cell: Cell, train: Integers) -> list[Integers]:
    """Rows of each site."""
    sizes = sizes_of(cell)
    ratios = [float(part) for part in sizes.split(":")] if sizes else None
    return split_over_sites(train, cell.sites, cell.split, ratios)


def epochs_of(cell: Cell) -> int | None:
    """Epochs after which a run as printed stops; None for all."""
    numbers = (int(word) for word in cell.choice.split() if word.isdecimal())
    return next(numbers, None)


def name_of(cell: Cell) -> str:
    """What a cell runs, in words."""
    sizes = sizes_of(cell)
    name = SETTINGS[cell.kind] + (", ranked columns" if is_ranked(cell) else "")
    return name + (f", sizes {sizes}" if sizes else "")


def paper_setting(cell: Cell) -> PaperSetting:
    """The paper's constants for a claim and a number of sites."""
    return PaperSetting(
        epsilon=cell.epsilon,
        delta=1e-5,
        records=TRAINING_ROWS,
        batch=BATCH,
        epochs=EPOCHS,
        scale=CONSTANTS[cell.sites],
    )


def _as_printed(
    cell: Cell,
    table: pa.Table,
    sites: Sequence[Integers],
    train: Integers,
    test: Integers,
) -> Outcome:
    x, y = physionet.as_printed_rows(table, train)

    def mean_gradient(theta: Floats, rows: Integers) -> Floats:
        part = x[rows]
        return np.asarray(part.T @ (y[rows] - expit(part @ theta)) / rows.size)

    trace: Trace = simulate(
        paper_setting(cell),
        mean_gradient,
        sites,
        dimension=x.shape[1],
        seed=cell.split,
        encrypted=cell.kind == "printed-federated",
        epochs=epochs_of(cell),
    )
    probability = expit(x[test] @ trace.mean)
    return {
        "auc": auc(y[test], probability),
        "accuracy": accuracy(y[test], probability),
        "curve": [auc(y[test], x[test] @ theta) for theta in trace.theta[::2]],
    }


def honest_cells(cells: Iterable[Cell]) -> list[Cell]:
    """The accounting of every claim among the cells."""
    claims = {(c.sites, c.epsilon) for c in cells if c.kind in PRINTED}
    return [Cell("honest", sites=k, epsilon=e) for k, e in sorted(claims)]


def grouped(results: Results) -> dict[Cell, dict[int, Outcome]]:
    """Outcomes by split, under the cell with split 0."""
    groups: dict[Cell, dict[int, Outcome]] = {}
    for cell, outcome in sorted(results.items()):
        head = Cell(cell.kind, 0, cell.sites, cell.epsilon, cell.choice)
        groups.setdefault(head, {})[cell.split] = outcome
    return groups


def rows_of(
    results: Results, metrics: Sequence[str] = METRICS, paper: bool = True
) -> list[Row]:
    """A row for each setting and metric."""
    honest = {
        (cell.sites, cell.epsilon): outcome["epsilon"]
        for cell, outcome in results.items()
        if cell.kind == "honest"
    }
    rows = []
    for head, outcomes in grouped(results).items():
        if head.kind == "honest":
            continue
        printed = head.kind in PRINTED
        setting = name_of(head)
        if printed:
            setting += f", claimed ε = {head.epsilon:g}"
        place, epsilon = (head.sites, head.epsilon), head.epsilon or None
        for metric in metrics:
            values = [o[metric] for o in outcomes.values() if metric in o]
            if not values:
                continue
            known = REFERENCE.get(head.epsilon) if paper and metric == "auc" else None
            rows.append(
                summarised(
                    values,
                    setting=setting,
                    metric=metric,
                    sites=head.sites,
                    epsilon=honest.get(place) if printed else epsilon,
                    certified=head.kind in CERTIFIED,
                    paper=known,
                )
            )
    return rows


def values_of(
    results: Results, metric: str, *, kind: str, **fields: Any
) -> dict[int, float]:
    """A metric by split for one setting."""
    wanted: Mapping[str, Any] = {"kind": kind, **fields}
    return {
        cell.split: outcome[metric]
        for cell, outcome in results.items()
        if all(getattr(cell, name) == value for name, value in wanted.items())
    }


def learning_curves(results: Results, epsilon: float) -> list[Curve]:
    """Mean AUC along the rounds, as a share of the run."""
    curves = []
    for head, outcomes in grouped(results).items():
        lines = [o["curve"] for o in outcomes.values() if o.get("curve")]
        if head.epsilon != epsilon or not lines:
            continue
        y = np.mean(lines, axis=0)
        x = np.arange(1, y.size + 1) / y.size
        label = f"{name_of(head)}, K = {head.sites}"
        curves.append(Curve(label, x.tolist(), y.tolist()))
    return curves

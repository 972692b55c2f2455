"""Polynomials for 1/(λ+√V): the paper's Chebyshev interpolant against minimax."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cipherbayes.crypto.ckks.polynomial import chebyshev, minimax
from cipherbayes_research.paper.cells import Cell, Outcome, Results, Sources
from cipherbayes_research.paper.experiment import Experiment
from cipherbayes_research.paper.pictures import draw_curves, panels
from cipherbayes_research.paper.report import Curve, Report, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Approximation of 1/(λ+√V), degree 7, λ = 1e-4"
ENDS = (1e-3, 1e-2, 0.03, 0.1)
KINDS = {"chebyshev": chebyshev, "minimax": minimax}


def cells(quick: bool) -> list[Cell]:
    """Both polynomials on every interval [a, 1]; it takes no time."""
    return [Cell(kind, choice=f"{low:g}") for kind in KINDS for low in ENDS]


def compute(cell: Cell, sources: Sources) -> Outcome:
    """Largest relative error, the first sign change beyond 1, and the error's curve."""
    low = float(cell.choice)
    polynomial = KINDS[cell.kind](low)
    v = np.geomspace(low, 1.0, 200)
    beyond = np.linspace(1.0, 2.0, 100_001)
    negative = beyond[polynomial(beyond) < 0.0]
    return {
        "error": polynomial.relative_error,
        "turns": float(negative[0]) if negative.size else None,
        "v": v.tolist(),
        "relative": (polynomial(v) * (1e-4 + np.sqrt(v)) - 1.0).tolist(),
    }


def report(results: Results, quick: bool) -> Report:
    """Errors by interval."""
    rows, curves = [], []
    for cell, outcome in sorted(results.items()):
        setting = f"{cell.kind} on [{cell.choice}, 1]"
        for metric, value in (
            ("largest relative error", outcome["error"]),
            ("V at which P turns negative", outcome["turns"]),
        ):
            rows.append(Row(setting, 1, None, False, metric, value, None, 0))
        if float(cell.choice) in (1e-3, 1e-2):
            curves.append(Curve(setting, outcome["v"], outcome["relative"]))
    notes = ["the paper evaluates chebyshev on [0.001, 1] and states no error"]
    return Report("approximation", TITLE, quick, rows, [], {"error": curves}, notes)


def draw(shown: Report) -> Figure:
    """Relative error over V, and its maximum over the interval's left end."""
    figure, (left, right) = panels(2)
    words = {"xlabel": "V", "ylabel": "P(V)(λ+√V) − 1", "title": "relative error"}
    draw_curves(left, shown.curves["error"], **words)
    left.set_xscale("log")
    lines = []
    for kind in KINDS:
        errors = {
            low: row.mean
            for low in ENDS
            for row in shown.rows
            if row.setting == f"{kind} on [{low:g}, 1]"
            and row.metric == "largest relative error"
            and row.mean is not None
        }
        lines.append(Curve(kind, list(errors), list(errors.values())))
    words = {"xlabel": "a", "ylabel": "largest relative error", "title": "on [a, 1]"}
    draw_curves(right, lines, **words)
    right.set_xscale("log")
    right.set_yscale("log")
    return figure


EXPERIMENT = Experiment(TITLE, None, cells, compute, report, draw)

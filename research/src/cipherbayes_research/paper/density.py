"""Figure 1: the mean of a two-dimensional Gaussian, 10,000 points, two sites, ε = 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cipherbayes.protocols.paper_claim import PaperSetting, paper_claim
from cipherbayes.results.run import run
from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats, Integers
from cipherbayes_research.paper.as_printed import simulate
from cipherbayes_research.paper.cells import Cell, Outcome, Results, Sources
from cipherbayes_research.paper.experiment import Experiment
from cipherbayes_research.paper.pictures import draw_together, panels
from cipherbayes_research.paper.report import Curve, Report, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Figure 1: density estimation"
TRUTH, VARIANCE, POINTS = (0.5, -0.5), 0.1, 10_000
PAPER = PaperSetting(
    epsilon=1.0, delta=1e-5, records=POINTS, batch=1000, epochs=100, scale=80.0
)
KINDS = {
    "exact": ("exact conjugate posterior", 1),
    "pooled": ("pooled, no privacy", 1),
    "printed-pooled": ("pooled, as printed, claimed ε = 1", 1),
    "printed-federated": ("federated, as printed (simulated), claimed ε = 1", 2),
    "private": ("pooled, private", 1),
    "secure-sum": ("federated, secure-sum", 2),
}


def cells(quick: bool) -> list[Cell]:
    """Five data sets of the paper's size; quick: one."""
    chosen = [
        Cell(kind, split, sites, epsilon=0.0 if kind in ("exact", "pooled") else 1.0)
        for split in range(1 if quick else 5)
        for kind, (_, sites) in KINDS.items()
    ]
    return [*chosen, Cell("honest", epsilon=1.0)]


def points(split: int) -> Floats:
    """The paper's data: N((0.5, -0.5), 0.1 I)."""
    rng = np.random.default_rng(split)
    return np.asarray(TRUTH + np.sqrt(VARIANCE) * rng.standard_normal((POINTS, 2)))


def compute(cell: Cell, sources: Sources) -> Outcome:
    """Mean and sd of the posterior, and θ along the run."""
    if cell.kind == "honest":
        return {"epsilon": paper_claim(PAPER).honest_epsilon}
    x = points(cell.split)
    precision = POINTS / VARIANCE + 1.0
    exact = x.sum(axis=0) / VARIANCE / precision
    if cell.kind == "exact":
        draws = np.array([exact, exact])
        return _outcome(draws, exact, [1.0 / np.sqrt(precision)] * 2)
    if cell.kind.startswith("printed"):
        rows = np.random.default_rng(cell.split).permutation(POINTS)

        def mean_gradient(theta: Floats, part: Integers) -> Floats:
            return np.asarray((x[part].mean(axis=0) - theta) / VARIANCE)

        trace = simulate(
            PAPER,
            mean_gradient,
            np.split(rows, cell.sites),
            dimension=2,
            seed=cell.split,
            encrypted=cell.kind == "printed-federated",
        )
        return _outcome(trace.theta, exact)
    sites = np.array_split(x, cell.sites)
    tables = {
        f"site-{k}": pa.table({"x1": part[:, 0], "x2": part[:, 1]})
        for k, part in enumerate(sites, start=1)
    }
    result = run(study(cell), tables)
    theta = np.asarray(result.posterior["posterior"].to_dataset()["theta"])
    return _outcome(theta.reshape(-1, 2), exact)


def study(cell: Cell) -> Study:
    """The product's own pSGLD over 100 full passes, as many as the paper's."""
    protocol = "secure-sum" if cell.kind == "secure-sum" else "pooled"
    document: dict[str, Any] = {
        "study": {"name": "density", "protocol": protocol},
        "model": {"kind": "gaussian", "variance": VARIANCE},
        "features": {
            "x1": {"low": -2.0, "high": 2.0},
            "x2": {"low": -2.0, "high": 2.0},
        },
        "prior": {"scale": 0.5},
        "inference": {"method": "psgld", "rounds": 100, "burn_in": 0.0},
    }
    if cell.epsilon:
        # Half-width 2: a record's gradient is 40 (z − θ), mostly shorter than 40.
        document["privacy"] = {
            "epsilon": cell.epsilon,
            "delta": 1e-5,
            "records": POINTS,
            "clip": 40.0,
        }
    else:
        document["inference"] |= {"chains": 1, "preconditioner": "rmsprop"}
    return Study.model_validate(document)


def _outcome(
    draws: Floats, exact: Floats, sd: Sequence[float] | None = None
) -> Outcome:
    last = draws[len(draws) // 2 :]
    kept = np.unique(np.linspace(0, len(draws) - 1, 50).round().astype(int))
    return {
        "mean": last.mean(axis=0).tolist(),
        "sd": list(sd) if sd is not None else last.std(axis=0).tolist(),
        "exact": exact.tolist(),
        "curve": draws[kept].tolist(),
    }


def report(results: Results, quick: bool) -> Report:
    """Error of each coordinate's mean against the exact one, and its spread."""
    honest = results.get(Cell("honest", epsilon=1.0), {}).get("epsilon")
    rows: list[Row] = []
    curves: dict[str, list[Curve]] = {"theta 1": [], "theta 2": []}
    for kind, (setting, sites) in KINDS.items():
        found = [o for cell, o in sorted(results.items()) if cell.kind == kind]
        if not found:
            continue
        errors = np.array([np.subtract(o["mean"], o["exact"]) for o in found])
        spreads = np.array([o["sd"] for o in found])
        epsilon = {"printed": honest, "private": 1.0, "secure": 1.0}.get(
            kind.partition("-")[0]
        )
        certified = kind in ("private", "secure-sum")
        for metric, values in (("rmse", np.sqrt(np.mean(errors**2, axis=1))),
                               ("posterior_sd", spreads.mean(axis=1))):  # fmt: skip
            spread = float(values.std(ddof=1)) if values.size > 1 else None
            mean = float(values.mean())
            rows.append(
                Row(
                    setting, sites, epsilon, certified, metric, mean, spread, len(found)
                )
            )
        for j, lines in enumerate(curves.values()):
            y = np.array(found[0]["curve"])[:, j]
            x = np.arange(1, y.size + 1) / y.size
            lines.append(Curve(setting, x.tolist(), y.tolist()))
    notes = [
        "rmse: of the last half's mean against the exact posterior mean",
        "the paper prints curves without numbers",
    ]
    return Report("density", TITLE, quick, rows, [], curves, notes)


def draw(shown: Report) -> Figure:
    """θ1 and θ2 along the run."""
    figure, both = panels(2, height=4.2)
    for axes, panel in zip(both, shown.curves, strict=True):
        title = f"{panel}, ε = 1 (claimed or certified)"
        axes.set(title=title, xlabel="share of the run", ylabel="θ")
    draw_together(figure, zip(both, shown.curves.values(), strict=True))
    return figure


EXPERIMENT = Experiment(TITLE, None, cells, compute, report, draw)

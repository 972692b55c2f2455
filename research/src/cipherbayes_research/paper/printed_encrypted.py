"""One short run of the paper's algorithm under encryption, beside its simulation.

The real protocol, Algorithms 3, 4 and 5 with the paper's circuit and two sites, and
the plaintext simulation with the same θ₁, z and (full) batches: what lies between
their trajectories is the error of encryption. The noise is drawn from a seed and
protects nobody; the rows are simulated.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.special import expit

from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.typing import Floats, Integers
from cipherbayes_research.paper.as_printed import simulate
from cipherbayes_research.paper.cells import Outcome
from cipherbayes_research.paper.fitting import prepared_rows

RECORDS, COLUMNS, SITES = 400, 8, 2


def study_document(rounds: int) -> dict[str, Any]:
    """A study in the paper's own mode, every batch all the rows."""
    features = {f"x{j}": {"low": -1.0, "high": 1.0} for j in range(COLUMNS)}
    return {
        "study": {
            "name": "printed",
            "protocol": "encrypted-update",
            "noise": "as-printed",
        },
        "model": {"kind": "logistic", "outcome": "y"},
        "features": features,
        "preparation": {"method": "as-printed", "intercept": 0.0},
        "prior": {"scale": 1.0},
        "privacy": {
            "epsilon": 1.0,
            "delta": 1e-5,
            "records": RECORDS,
            "randomness": "insecure-repeatable",
        },
        "paper": {
            "scale": 4.0,
            "batch": RECORDS,
            "epochs": rounds,
            "accept_two_sites": True,
        },
    }


def made_up_rows(seed: int = 0) -> pa.Table:
    """Uniform columns and an outcome that depends on all of them."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (RECORDS, COLUMNS))
    effects = np.linspace(-2.0, 2.0, COLUMNS)
    y = (rng.random(RECORDS) < expit(x @ effects)).astype(np.int64)
    return pa.table({f"x{j}": x[:, j] for j in range(COLUMNS)} | {"y": y})


def compare(rounds: int) -> Outcome:
    """Largest gap between the trajectories, beside how far θ moves."""
    from cipherbayes.engine.run_folder import noise_source
    from cipherbayes.protocols.as_printed.plan import PrintedPlan
    from cipherbayes.protocols.as_printed.server import NORMAL_UNIT
    from cipherbayes.protocols.plan import plan_study
    from cipherbayes.results.run import run
    from cipherbayes.study.schema import Study
    from cipherbayes.study.tables import with_sites

    table = made_up_rows()
    parts = np.array_split(np.arange(RECORDS), SITES)
    tables = {f"site-{k}": table.take(rows) for k, rows in enumerate(parts)}
    study = with_sites(Study.model_validate(study_document(rounds)), tables)
    plan = plan_study(study)
    assert isinstance(plan, PrintedPlan)
    with tempfile.TemporaryDirectory(prefix="cipherbayes-") as scratch:
        folder = Path(scratch) / "run"
        run(study, tables, out=folder)
        checkpoint = Checkpoint(folder / "server" / "checkpoint.sqlite")
        encrypted = np.array(checkpoint.trajectory())
        checkpoint.close()
    x, outcome = prepared_rows(study, table)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    x, y = x / np.linalg.norm(x, axis=1).max(), outcome["y"]

    def mean_gradient(theta: Floats, rows: Integers) -> Floats:
        residual = y[rows] - expit(x[rows] @ theta)
        return np.asarray(x[rows].T @ residual / rows.size)

    source = noise_source(study, "server")

    def z(t: int) -> Floats:
        drawn = source.share(COLUMNS, 1.0 / NORMAL_UNIT, f"z {t}")
        return np.asarray(drawn * NORMAL_UNIT, np.float64)

    seeded = np.random.default_rng(study.inference.seed)
    start = plan.prior.mean + plan.prior.scale * seeded.standard_normal(COLUMNS)
    trace = simulate(
        plan.setting,
        mean_gradient,
        parts,
        dimension=COLUMNS,
        seed=0,
        encrypted=True,
        start=start,
        noise=z,
    )
    moved = np.abs(np.diff(trace.theta, axis=0)).mean()
    return {
        "rounds": len(encrypted),
        "gap": float(np.abs(encrypted - trace.theta).max()),
        "move": float(moved),
    }

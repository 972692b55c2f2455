"""Fits of the product's own studies, scored on rows that they have not seen."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from cipherbayes.inference import averaged
from cipherbayes.models.metrics import Metrics, evaluate_each
from cipherbayes.privacy.accountant import calibrate_noise
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.results.run import run
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import open_site, with_sites
from cipherbayes.typing import Floats, Integers
from cipherbayes_research.paper.simulated_update import simulate_update

SCRATCH = Path("/dev/shm")  # noqa: S108 ledgers of throw-away runs; no data in them


@dataclass(frozen=True)
class Averaging:
    """Settings of the ``averaged`` method: clip C, step η, prior precision, rounds."""

    clip: float
    step: float
    precision: float
    rounds: int


def fit_and_score(
    study: Study,
    table: pa.Table,
    sites: Sequence[Integers],
    test: Integers,
    *,
    curve: bool = True,
) -> tuple[Metrics, list[float]]:
    """Metrics on the test rows, and the learning curve of a ranking model.

    The run is the product's own (:func:`cipherbayes.run`), each site with its rows.
    The curve is the AUC or C-index of θ after each round; empty without privacy, or
    where it is not asked for.
    """
    tables = {f"site-{k}": table.take(rows) for k, rows in enumerate(sites, start=1)}
    study = with_sites(study, tables)
    place = SCRATCH if SCRATCH.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="cipherbayes-", dir=place) as scratch:
        folder = Path(scratch) / "run"
        result = run(study, tables, out=folder)
        trajectory = _trajectory(folder) if curve and study.private else []
    return _scored(result.study, result.draws(), trajectory, table.take(test))


def simulate_and_score(
    study: Study, table: pa.Table, sites: Sequence[Integers], test: Integers
) -> tuple[Metrics, list[float]]:
    """Metrics and curve of an encrypted update, simulated without encryption."""
    tables = {f"site-{k}": table.take(rows) for k, rows in enumerate(sites, start=1)}
    draws, thetas = simulate_update(study, tables)
    return _scored(with_sites(study, tables), draws, thetas, table.take(test))


def _scored(
    study: Study, draws: Floats, trajectory: Sequence[Floats], test: pa.Table
) -> tuple[Metrics, list[float]]:
    """Metrics of some draws on test rows, and the score of θ after each round."""
    held_out = open_site(study, "test", test)

    def metrics(draws: Floats) -> Metrics:
        return evaluate_each(study.model, [(draws, held_out)])

    return metrics(draws), [score(metrics(theta[None])) for theta in trajectory]


def score(metrics: Metrics) -> float:
    """AUC or C-index."""
    value = metrics.get("auc", metrics.get("c_index"))
    assert isinstance(value, float)
    return value


def _trajectory(folder: Path) -> list[Floats]:
    """θ after each round of a finished run, at most fifty of them."""
    checkpoint = Checkpoint(folder / "server" / "checkpoint.sqlite")
    try:
        thetas = checkpoint.trajectory()
    finally:
        checkpoint.close()
    kept = np.unique(np.linspace(0, len(thetas) - 1, 50).round().astype(int))
    return [thetas[position] for position in kept]


def prepared_rows(study: Study, table: pa.Table) -> tuple[Floats, dict[str, Floats]]:
    """The design matrix as a site would make it, and its outcome columns."""
    blocks = list(open_site(study, "rows", table).blocks())
    x = np.concatenate([np.array(block.x).T for block in blocks])
    names = blocks[0].outcome
    return x, {
        n: np.concatenate([np.array(b.outcome[n]) for b in blocks]) for n in names
    }


def simulate_averaged(
    x: Floats,
    score: Callable[[Floats], Floats],
    prior_mean: Floats,
    setting: Averaging,
    *,
    epsilon: float,
    seed: int,
    delta: float = 1e-5,
) -> Floats:
    """The ``averaged`` method with seeded noise, to compare many settings quickly.

    The product's recursion and its σ, without grid, encryption and ledger. Protects
    nobody.

    Parameters
    ----------
    score
        s(η) of every row, so that its gradient is s·x.
    """
    rng = np.random.default_rng(seed)
    spread = setting.clip * calibrate_noise(epsilon, delta, setting.rounds)
    norms = np.linalg.norm(x, axis=1)
    state = averaged.init(prior_mean)
    for _ in range(setting.rounds):
        weights = score(x @ state.theta)
        sizes = np.maximum(np.abs(weights) * norms, 1e-12)
        weights = weights * np.minimum(1.0, setting.clip / sizes)
        released = x.T @ weights + spread * rng.standard_normal(x.shape[1])
        state = averaged.step(
            state,
            mean_gradient=released / len(x),
            prior_gradient=-setting.precision * (state.theta - prior_mean),
            records=len(x),
            size=setting.step,
            total_rounds=setting.rounds,
        )
    return state.average

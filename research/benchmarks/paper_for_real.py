"""The paper's own setting under encryption, beside its simulation, round by round.

``python paper_for_real.py STUDY --rounds 100`` runs a study in the paper's mode (such
as ``examples/paper-as-printed.toml``) with the paper's circuit for its first rounds,
and Algorithm 3 in plaintext with the same θ₁, z and minibatches, and exact means,
deviations and largest norm. What lies between their θ is the error of encryption, of
Algorithms 4 and 5 as well. Noise and minibatches come from a seed and protect nobody.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.special import expit

from cipherbayes.engine.run_folder import noise_source
from cipherbayes.protocols.as_printed.plan import PrintedPlan
from cipherbayes.protocols.as_printed.server import NORMAL_UNIT
from cipherbayes.protocols.plan import plan_study
from cipherbayes.protocols.stores import Checkpoint, checkpoint_file
from cipherbayes.results.run import run
from cipherbayes.storage.custody import VARIABLE
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import open_sites
from cipherbayes.typing import Floats, Integers
from cipherbayes_research.paper.as_printed import (
    ALPHA,
    adjusted,
    preconditioner_polynomial,
)


class EnoughError(Exception):
    """So many rounds were asked for."""


def encrypted(study: Study, rounds: int) -> tuple[Floats, float]:
    """θ after each of the first rounds, and CPU seconds of a round."""
    times: list[float] = []

    def progress(done: int, total: int) -> None:
        times.append(time.process_time())
        if len(times) >= rounds + prepared:
            raise EnoughError

    plan = plan_study(study)
    assert isinstance(plan, PrintedPlan)
    prepared = plan.prepared
    with tempfile.TemporaryDirectory(prefix="cipherbayes-") as scratch:
        os.environ[VARIABLE] = str(Path(scratch) / "state")
        folder = Path(scratch) / "run"
        # Copies, so that no ledger is left beside the tables.
        tables = {
            name: shutil.copy(str(site.table), Path(scratch) / f"{name}.csv")
            for name, site in study.sites.items()
        }
        with contextlib.suppress(EnoughError):
            run(study, tables, out=folder, progress=progress)
        checkpoint = Checkpoint(checkpoint_file(folder))
        theta = np.array(checkpoint.trajectory())
        checkpoint.close()
    late = np.diff(times)[prepared:]
    return theta, float(np.median(late))


def simulated(study: Study, rounds: int) -> Floats:
    """θ after each of the first rounds, computed in plaintext."""
    plan = plan_study(study)
    assert isinstance(plan, PrintedPlan)
    setting, sites = plan.setting, sorted(study.sites)
    columns, outcomes = {}, {}
    for site, table in open_sites(study, None).items():
        blocks = list(table.blocks())
        columns[site] = np.concatenate([np.array(block.x).T for block in blocks])
        outcomes[site] = np.concatenate([np.array(b.outcome["y"]) for b in blocks])
    every = np.concatenate(list(columns.values()))
    mean, sd = every.mean(axis=0), every.std(axis=0)
    sd = np.where(sd > 1e-6, sd, 1.0)
    largest = float(np.linalg.norm((every - mean) / sd, axis=1).max())
    x = {site: (z - mean) / (sd * largest) for site, z in columns.items()}
    source = noise_source(study, "server")
    seeded = np.random.default_rng(study.inference.seed)
    dimension = every.shape[1]
    theta = plan.prior.mean + plan.prior.scale * seeded.standard_normal(dimension)
    scale_of, moment = preconditioner_polynomial(setting.floor), np.zeros(dimension)
    kept = []
    for t in range(1, rounds + 1):
        gradient = np.zeros(dimension)
        for site in sites:
            rows = _minibatch(site, t, setting.batch // len(sites), len(x[site]))
            residual = outcomes[site][rows] - expit(x[site][rows] @ theta)
            own = x[site][rows].T @ residual / rows.size
            gradient += adjusted(own, setting.scale, setting.lipschitz) / len(sites)
        moment = ALPHA * moment + (1.0 - ALPHA) * gradient**2
        step = setting.step_size(t)
        prior = (plan.prior.mean - theta) / plan.prior.scale**2
        drift = 0.5 * step * (setting.records * gradient + prior)
        z = source.share(dimension, 1.0 / NORMAL_UNIT, f"z {t}") * NORMAL_UNIT
        spread = math.sqrt((setting.floor + setting.lipschitz) * step)
        theta = theta + (drift + spread * z) * scale_of(moment)
        kept.append(theta)
    return np.array(kept)


def _minibatch(site: str, t: int, size: int, count: int) -> Integers:
    """The records that a site with repeatable randomness takes in round t."""
    seed = hashlib.sha256(site.encode()).digest()
    digest = hashlib.sha256(seed + t.to_bytes(8, "little")).digest()
    rng = np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))
    return np.sort(rng.choice(count, size=min(size, count), replace=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    stated = Study.load(options.study)
    assert stated.privacy is not None
    repeatable = stated.privacy.model_copy(update={"randomness": "insecure-repeatable"})
    study = stated.model_copy(update={"privacy": repeatable})
    plan = plan_study(study)
    assert isinstance(plan, PrintedPlan)
    found, seconds = encrypted(study, options.rounds)
    wanted = simulated(study, len(found))
    gaps = np.abs(found - wanted).max(axis=1)
    moves = np.abs(np.diff(wanted, axis=0)).mean()
    line = {
        "rounds": len(found),
        "of": plan.setting.rounds,
        "cpu_s_a_round": round(seconds, 3),
        "cpu_hours_to_the_end": round(seconds * plan.setting.rounds / 3600, 2),
        "largest_gap": float(gaps.max()),
        "gap_after_10_20_50_and_all": [
            float(gaps[min(n, len(gaps)) - 1]) for n in (10, 20, 50, len(gaps))
        ],
        "mean_move_of_a_parameter": float(moves),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

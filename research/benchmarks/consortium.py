"""A whole study with many sites, on this machine: ``python consortium.py 16 100 1000``.

Every site is a party of its own, with its own table, ledger, keys and masks; all of
them are objects of one process. One line for each number of sites: seconds, memory,
what one site, the server and the CSP do in a round, and how far the posterior is from
the coefficients that made the rows. CPU time, since others may use the machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.special import expit

import cipherbayes as cb
from cipherbayes.protocols.plan import plan_study
from cipherbayes.storage.custody import VARIABLE
from cipherbayes_research.benchmarks.scans import peak_megabytes

EFFECTS = np.array([-0.4, 0.8, -0.5, 0.2])
NAMES = ("a", "b", "c")


def made_up(sites: int, rows: int, seed: int = 0) -> dict[str, pa.Table]:
    """A table for each site, all of one population."""
    rng = np.random.default_rng(seed)
    tables = {}
    for site in range(sites):
        x = rng.uniform(-1.0, 1.0, (rows, len(NAMES)))
        y = rng.random(rows) < expit(EFFECTS[0] + x @ EFFECTS[1:])
        columns = {name: x[:, j] for j, name in enumerate(NAMES)}
        tables[f"s{site:04d}"] = pa.table(columns | {"y": y.astype(np.int64)})
    return tables


def study(sites: int, rows: int, scratch: str) -> None:
    """Run one study and print its line."""
    os.environ[VARIABLE] = str(Path(scratch) / "state")
    tables = made_up(sites, rows)
    stated = cb.Study(
        study={"name": "consortium", "protocol": "secure-sum"},
        model={"kind": "logistic", "outcome": "y"},
        features={name: {"low": -1.0, "high": 1.0} for name in NAMES},
        privacy={"epsilon": 1.0, "delta": 1e-6, "records": sites * rows},
        sites={name: {} for name in tables},
    )
    plan = plan_study(stated)
    ended = [0.0]

    def progress(done: int, total: int) -> None:
        ended[0] = time.process_time()

    started, cpu = time.perf_counter(), time.process_time()
    result = cb.run(stated, tables, out=Path(scratch) / "run", progress=progress)
    record = json.loads((Path(scratch) / "run" / "result.json").read_text())
    timing, traffic = record["timing"], record["bytes"]
    parties = {each["name"]: each["seconds"] for each in record["parties"]}
    median_site = statistics.median(parties[name] for name in tables)
    away = [
        (row["mean"] - effect) / (row["sd"] or 1.0)
        for row, effect in zip(result.summary(), EFFECTS, strict=True)
    ]
    line = {
        "sites": sites,
        "rows_per_site": rows,
        "rounds": plan.rounds,
        "parameters": plan.scheme,
        "wall_s": round(time.perf_counter() - started, 1),
        "cpu_s": round(time.process_time() - cpu, 1),
        "rounds_cpu_s": round(ended[0] - cpu, 1),
        "peak_megabytes": round(peak_megabytes()),
        "site_ms_a_round": round(1e3 * median_site / plan.rounds, 2),
        "server_ms_a_round": round(1e3 * timing["server_s"] / plan.rounds, 1),
        "csp_ms_a_round": round(1e3 * timing["csp_s"] / plan.rounds, 1),
        "site_bytes_a_round": traffic["per_round_site"],
        "estimates_off_by_sd": [round(float(each), 2) for each in away],
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sites", type=int, nargs="+")
    parser.add_argument("--rows", type=int, default=50, help="rows of each site")
    parser.add_argument("--folder", help="where runs go meanwhile")
    options = parser.parse_args()
    for sites in options.sites:
        with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
            process = multiprocessing.get_context("spawn").Process(
                target=study, args=(sites, options.rows, scratch)
            )
            process.start()
            process.join()


if __name__ == "__main__":
    main()

"""How the system carries load: many sites, many rounds, long vectors, many rows.

Each study is run in a process of its own with the real parties, keys, ledgers and
messages. Memory is the most that process ever had: all parties together, Python and the
libraries included (some 250 MB of it). Milliseconds are CPU time a round, of the
slowest site, the server and the CSP; bytes are what one site sends in a round.

    python research/benchmarks/load.py [--quick] [--json] [ROW ...]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cipherbayes as cb

WIDE = 20


def numbers(rows: int, columns: int, seed: int) -> dict[str, Any]:
    """A table of numbers and an outcome."""
    rng = np.random.default_rng(seed)
    table: dict[str, Any] = {f"x{j}": rng.normal(size=rows) for j in range(columns)}
    table["y"] = (rng.random(rows) < 0.3).astype(float)
    return table


def written(folder: Path, name: str, rows: int, columns: int) -> str:
    """A Parquet file, row group by row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, writer = folder / f"{name}.parquet", None
    for start in range(0, rows, 1 << 19):
        size = min(1 << 19, rows - start)
        table = pa.table(numbers(size, columns, start))
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return str(path)


def study(sites: dict[str, str], columns: int, records: int, rounds: int) -> cb.Study:
    return cb.Study(
        study={"protocol": "secure-sum"},
        model=cb.models.Logistic(outcome="y"),
        features={f"x{j}": {"low": -3, "high": 3} for j in range(columns)},
        privacy={"epsilon": 1.0, "delta": 1e-6, "records": records},
        inference={"method": "averaged", "rounds": rounds},
        sites={name: {"data": path} for name, path in sites.items()},
    )


def consortium(
    sites: int, rows: int, columns: int, rounds: int
) -> Callable[[Path], cb.Study]:
    def make(folder: Path) -> cb.Study:
        names = [f"site-{k:02d}" for k in range(sites)]
        tables = {name: written(folder, name, rows, columns) for name in names}
        return study(tables, columns, sites * rows, rounds)

    return make


def one_large(rows: int) -> Callable[[Path], cb.Study]:
    def make(folder: Path) -> cb.Study:
        tables = {
            "large": written(folder, "large", rows, WIDE),
            "small": written(folder, "small", 1000, WIDE),
        }
        return study(tables, WIDE, rows + 1000, 3)

    return make


# d counts the intercept.
ROWS: dict[str, tuple[str, Callable[[Path], cb.Study], Callable[[Path], cb.Study]]] = {
    "sites": (
        "64 sites, d = 21, 10 rounds",
        consortium(64, 1000, WIDE, 10),
        consortium(8, 100, WIDE, 2),
    ),
    "rounds": (
        "5,000 rounds, 2 sites, d = 21",
        consortium(2, 1000, WIDE, 5000),
        consortium(2, 100, WIDE, 20),
    ),
    "dimension": (
        "d = 10,000, 3 sites, 3 rounds",
        consortium(3, 200, 9_999, 3),
        consortium(3, 50, 499, 2),
    ),
    "records": (
        "10,000,000 rows at one site, d = 21, 3 rounds",
        one_large(10_000_000),
        one_large(20_000),
    ),
}


def _measure(folder: str, text: str, answers: Any) -> None:
    given = cb.Study.model_validate_json(text)
    started = time.perf_counter()
    result = cb.run(given, out=Path(folder) / "run")
    wall = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    record = result.record
    answers.put(
        {
            "rounds": record["rounds"],
            "memory_mb": peak / 1024,
            "wall_s": wall,
            "site_ms_per_round": 1000 * record["timing"]["site_s"] / record["rounds"],
            "server_ms_per_round": 1000
            * record["timing"]["server_s"]
            / record["rounds"],
            "csp_ms_per_round": 1000 * record["timing"]["csp_s"] / record["rounds"],
            "bytes_per_round_site": record["bytes"]["per_round_site"],
            "total_bytes": record["bytes"]["total"],
            "epsilon": record["privacy"]["epsilon"],
        }
    )


def measure(make: Callable[[Path], cb.Study]) -> dict[str, Any]:
    """One study, in a process that has done nothing else."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        text = make(Path(folder)).model_dump_json()
        answers = context.SimpleQueue()
        process = context.Process(target=_measure, args=(folder, text, answers))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit("the study failed")
        found: dict[str, Any] = answers.get()
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| study | memory, MB | a site, ms | server, ms | CSP, ms "
        "| bytes a site sends a round | in all, s |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each['study']} | {each['memory_mb']:.0f} "
        f"| {each['site_ms_per_round']:.1f} | {each['server_ms_per_round']:.1f} "
        f"| {each['csp_ms_per_round']:.1f} | {each['bytes_per_round_site']:,} "
        f"| {each['wall_s']:.0f} |"
        for each in found.values()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; all if none")
    parser.add_argument("--quick", action="store_true", help="small versions of them")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {}
    for name in given.rows or ROWS:
        title, full, quick = ROWS[name]
        found[name] = {
            "study": f"{title} (quick)" if given.quick else title,
            **measure(quick if given.quick else full),
        }
    print(json.dumps(found, indent=2) if given.json else table(found))


if __name__ == "__main__":
    main()

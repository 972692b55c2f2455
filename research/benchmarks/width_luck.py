"""How much the width of a study's intervals depends on the noise that is drawn.

    python research/benchmarks/width_luck.py TABLES/flchain.csv ... --rows FILE
        [--studies 13] [--first 0] [--events rare]

Studies are those of ``spread_coverage.py --exact-scales``, each with three sets of
noise on the same records. No forecast can do better than one that knows the records
and everything else but the noise: as good as one such study tells of another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cipherbayes.validation.public_columns import Columns
from cipherbayes.validation.trial_records import Ground
from coverage_rows import lines, write
from exact_scales import release_with_exact_scales
from spread_coverage import table_options, tasks

NOISES = 3
NEAR = math.log(1.3)


def widths(columns: Columns, ground: Ground, number: int) -> dict[str, Any]:
    """The line of one study: median width over that without privacy, by noise."""
    found = []
    for noise in range(NOISES):
        released = release_with_exact_scales(columns, ground, number, noise=noise)
        trial = released.trial(*released.posterior(number), ground.events)
        found.append(float(np.median(trial.ratio)))
    key = ground.key(columns.name, number)
    return {"study": key, "widths": found, "plan": trial.expected}


def tell(rows: Sequence[Mapping[str, Any]]) -> None:
    """How often two studies of the same records are within a factor of 1.3."""
    logs = np.log([row["widths"] for row in rows])
    first, second = np.triu_indices(NOISES, 1)
    pairs = np.abs(logs[:, first] - logs[:, second])
    others = (logs.sum(axis=1, keepdims=True) - logs) / (NOISES - 1)
    plans = np.log([row["plan"] for row in rows])
    spread = math.sqrt(logs.var(axis=1, ddof=1).mean())
    print(f"{len(rows)} studies, {NOISES} sets of noise each")
    print(f"sd of the log width with other noise: {spread:.2f}")
    print(f"two of them within 1.3: {np.mean(pairs < NEAR):.2f}")
    print(f"one within 1.3 of two others: {np.mean(np.abs(logs - others) < NEAR):.2f}")
    print(f"one within 1.3 of the plan: {np.mean(np.abs(logs.T - plans) < NEAR):.2f}")


def main() -> None:
    parser = table_options(__doc__)
    given = parser.parse_args()
    done = {line["study"] for line in lines(given.rows)}
    tables = [Columns.read(path) for path in given.tables]
    if tables:
        wanted = tasks(tables, given.first, given.studies, given.events)
        for key, task in wanted.items():
            if key not in done:
                write(given.rows, widths(*task))
    tell(lines(given.rows))


if __name__ == "__main__":
    main()

"""How often intervals of private checks hold the truth.

    python research/benchmarks/checks.py [NAME ...] [--rows 400 1600]

prints, for each table, number of held-out rows and ε, how often 90 % intervals hold
what all rows say, how often those of somebody who sees the rows do, how many times as
wide the private ones are, and how far their means are off. ``--summary FILE`` pools
tables; ``--physionet set-a.tar.gz`` is needed for the table of that name.
``--characteristics flchain`` counts intervals of a description instead, ``--misfit``
how often a misfit is found (of the kinds that are named, or of all).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from cipherbayes_research.benchmarks.check_coverage import coverage
from cipherbayes_research.benchmarks.check_tables import (
    REPORTED,
    TUNING,
    population,
)
from cipherbayes_research.benchmarks.describe_coverage import describe_coverage
from cipherbayes_research.benchmarks.misfit_power import KINDS, power


def main() -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(TUNING | REPORTED))
    parser.add_argument("--rows", type=int, nargs="+", default=[400, 1600])
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.3, 1.0, 3.0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--physionet", type=Path)
    parser.add_argument("--out", type=Path, help="a file that lines are added to")
    parser.add_argument("--summary", type=Path, help="such a file, to be pooled")
    parser.add_argument("--characteristics", nargs="+", help="flchain, gbsg2, …")
    parser.add_argument("--misfit", action="store_true", help="how often it is found")
    parser.add_argument("--share", type=float, default=0.1, help="of [describe]")
    parser.add_argument("--uneven", action="store_true", help="sites that differ")
    parser.add_argument("--sites", type=int, default=2, help="of [describe]")
    given = parser.parse_args()
    if given.summary is not None:
        return summarise(given.summary)
    if given.misfit:
        return misfit(given)
    if given.characteristics is not None:
        return characteristics(given)
    for name in given.names:
        table = population(name, given.seed, given.physionet)
        for rows in given.rows:
            for epsilon in given.epsilon:
                found = coverage(table, epsilon, rows, given.repetitions, given.seed)
                for score, each in found.items():
                    print(
                        f"{name:<14}{rows:>6}{epsilon:>5g}  {score:<24}"
                        f"{each.covered:>6.2f}{each.plain:>6.2f}{each.ratio:>7.2f}"
                        f"{each.width:>8.3f}{each.off:>9.4f}{each.repetitions:>5}",
                        flush=True,
                    )
                    if given.out is not None:
                        line = {"table": name, "rows": rows, "epsilon": epsilon}
                        line |= {"score": score} | vars(each)
                        with given.out.open("a") as file:
                            file.write(json.dumps(line) + "\n")
    return None


def misfit(given: argparse.Namespace) -> None:
    """Print how often a misfit was found that is there, and one that is not."""
    for kind in [each for each in KINDS if each in given.names] or KINDS:
        for rows in given.rows:
            for epsilon in given.epsilon:
                right, wrong = power(kind, epsilon, rows, given.repetitions, given.seed)
                print(
                    f"{kind:<18}{rows:>6}{epsilon:>5g}  found {right:.2f}, "
                    f"something else {wrong:.2f}",
                    flush=True,
                )


def characteristics(given: argparse.Namespace) -> None:
    """Print coverage of the statistics of real tables, and their relative widths."""
    for name in given.characteristics:
        for epsilon in given.epsilon:
            found = describe_coverage(
                name,
                epsilon,
                given.share,
                given.repetitions,
                given.seed,
                given.physionet,
                uneven=given.uneven,
                sites=given.sites,
            )
            for (statistic, group), (covered, width, count) in sorted(found.items()):
                print(
                    f"{name:<10}{epsilon:>5g}  {statistic:<14}{group:<9}"
                    f"{covered:>7.3f}{width:>8.3f}{count:>6}",
                    flush=True,
                )


def summarise(path: Path) -> None:
    """Print coverage by kind of score and ε over all tables and numbers of rows."""
    pooled = defaultdict(list)
    for text in path.read_text().splitlines():
        line = json.loads(text)
        kind = "known" if line["table"] in TUNING else "new"
        # Of o/e and curves, all times, groups and bins together.
        score = line["score"].split()[0]
        pooled[kind, score, line["epsilon"]].append(line)
    for (kind, score, epsilon), lines in sorted(pooled.items()):
        counts = np.array([each["repetitions"] for each in lines], dtype=float)
        covered, plain, ratio = (
            np.average([each[key] for each in lines], weights=counts)
            for key in ("covered", "plain", "ratio")
        )
        tables = len({each["table"] for each in lines})
        cells = [round(each["covered"], 2) for each in lines]
        print(
            f"{kind:<6}{score:<24}{epsilon:>5g}{covered:>7.3f}{plain:>7.3f}"
            f"{ratio:>6.2f}{tables:>3} tables, cells {min(cells)} to {max(cells)}"
        )


if __name__ == "__main__":
    main()

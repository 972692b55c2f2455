"""How often intervals of private checks hold the truth, on invented held-out rows.

    python research/benchmarks/checks.py [--rows 800] [--repetitions 200]

prints, for each kind of predictions and each ε, how often 90 % intervals of AUC, Brier
score and log score (survival: AUC and Brier score at two times) hold what many more
rows would say, how wide they are, and how far their means are off.
"""

from __future__ import annotations

import argparse

from cipherbayes_research.benchmarks.check_coverage import KINDS, coverage


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=800)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--kind", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    heads = f"{'covered':>8}{'width':>8}{'off':>9}"
    print(f"{'predictions':<14}{'ε':>5}  {'score':<13}{heads}")
    for kind in given.kind:
        for epsilon in given.epsilon:
            found = coverage(kind, epsilon, given.rows, given.repetitions, given.seed)
            for name, each in found.items():
                print(
                    f"{kind:<14}{epsilon:>5g}  {name:<13}{each.covered:>8.2f}"
                    f"{each.width:>8.3f}{each.bias:>9.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

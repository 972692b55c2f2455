"""Coverage of whole studies on public tables, each study with a setting of its own.

    python research/benchmarks/public_tables.py TABLES --physionet set-a.tar.gz
    python research/benchmarks/spread_coverage.py TABLES/aids.csv ... --rows FILE
        [--studies 260] [--first 0] [--events rare] [--truth prior]
        [--exact-scales [--prior 1]] [--only kind=logistic,exponential epsilon=1]

A full grid of models, budgets, ranges, sites and tables would need thousands of studies
to say anything of one cell. Here every study draws its setting: each level of a factor
comes equally often, in an order that is shuffled for each factor by itself, so that
coverage can be told for each level of each factor. Rows go to FILE one by one (as
``cipherbayes calibrate --table --results`` writes them); a second run goes on where the
first stopped, and without ``--studies`` the file is only summed up. ``--events``: all
studies with as many events, of models that have any where they are rare. ``--truth
prior``: effects as the default prior has them. ``--exact-scales``: no whole studies but
:mod:`exact_scales`; with ``--prior`` under a prior of effects of that scale.
``--only``: no other levels of the named factors.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cipherbayes.validation.public_columns import Columns
from cipherbayes.validation.replicates import replicated
from cipherbayes.validation.trial_records import TRUTHS, Ground
from cipherbayes.validation.trials import (
    Trial,
    by_flag,
    from_line,
    summarised,
    to_line,
    trial,
)
from coverage_rows import lines, write
from exact_scales import trial_with_exact_scales

FACTORS: dict[str, Sequence[Any]] = {
    "kind": ("logistic", "exponential", "weibull", "poisson", "linear", "piecewise"),
    "epsilon": (0.3, 1.0, 3.0),
    "wider": (1.0, 3.0, 10.0, 30.0),
    "sites": (1, 5),
    "rows": (4_000, 10_000),
    "events": ("usual", "usual", "usual", "rare"),
}


def chosen_levels(text: str) -> tuple[str, list[Any]]:
    """A factor and the levels that ``factor=level,level`` names."""
    factor, _, names = text.partition("=")
    levels = [level for level in FACTORS[factor] if str(level) in names.split(",")]
    if not levels:
        raise SystemExit(f"{text}: levels of {factor} are {FACTORS[factor]}")
    return factor, levels


def drawn(levels: Sequence[Any], factor: str, count: int) -> list[Any]:
    """Levels of one factor for so many studies, each block of them a shuffle."""
    rng = np.random.default_rng([len(levels), *map(ord, factor)])
    found: list[Any] = []
    while len(found) < count:
        found += [levels[i] for i in rng.permutation(len(levels))]
    return found[:count]


def tasks(
    tables: Sequence[Columns],
    first: int,
    studies: int,
    events: str | None = None,
    truth: str = "clinical",
    only: Sequence[str] = (),
) -> dict[str, tuple[Columns, Ground, int]]:
    """The studies from ``first`` on, by key."""
    count = first + studies
    factors = FACTORS | dict(map(chosen_levels, only))
    if events is not None:
        factors["events"] = (events,)
    if events == "rare":
        factors["kind"] = [kind for kind in FACTORS["kind"] if kind != "linear"]
    chosen = {name: drawn(levels, name, count) for name, levels in factors.items()}
    placed = drawn(tables, "table", count)
    found = {}
    for i in range(first, count):
        stated = {name: levels[i] for name, levels in chosen.items()}
        ground = Ground(**stated, truth=truth)
        found[ground.key(placed[i].name, i)] = (placed[i], ground, i)
    return found


def work(task: tuple[Columns, Ground, int]) -> Trial:
    """One study."""
    return trial(*task)


def part(task: tuple[Columns, Ground, int], scale: float | None = None) -> Trial:
    """One study without its scales."""
    return trial_with_exact_scales(*task, scale)


def unnamed(found: Sequence[Trial]) -> list[tuple[bool, bool]]:
    """Whether the private interval holds, and the one without privacy.

    For every parameter that no flag names.
    """
    return [
        (held, plain)
        for each in found
        for name, held, plain in zip(each.names, each.held, each.plain, strict=True)
        if not any(not about or name in about for _, about in each.flags)
    ]


def tell(rows: Sequence[dict[str, Any]]) -> None:
    """Coverage by every level of every factor, then by flag."""
    found = [(row["study"], from_line(row)[1]) for row in rows]
    groups: dict[str, list[Trial]] = {"all": [each for _, each in found]}
    for factor in ("table", *FACTORS):
        for stated, each in found:
            groups.setdefault(f"{factor} {stated[factor]}", []).append(each)
    print(
        f"{'group':24} {'held':>13} {'plain':>6} {'difference':>14} width 90%  plan n"
    )
    for name, group in groups.items():
        row = summarised(group)
        widest = np.quantile(np.concatenate([each.ratio for each in group]), 0.9)
        print(
            f"{name:24} {row['coverage']:.3f} ± {row['se']:.3f} "
            f"{row['plain_coverage']:.3f} {row['difference']:+.3f} ± "
            f"{row['difference_se']:.3f} {row['width_ratio']:5.2f} {widest:4.2f} "
            f"{row['expected_over_actual']:5.2f} {row['replicates']} "
            f"({sum(each.unusable for each in group)} unusable, others "
            f"{row['usable_coverage'] or float('nan'):.3f})"
        )
    expected = [(each.expected, float(np.median(each.ratio))) for _, each in found]
    near = sum(1 / 1.3 < said / width < 1.3 for said, width in expected)
    twice = sum(1 / 2 < said / width < 2 for said, width in expected)
    held = sum(
        each.likely[0] <= width <= each.likely[1]
        for (_, each), (_, width) in zip(found, expected, strict=True)
        if each.likely
    )
    off = np.concatenate([each.off for _, each in found])
    print(
        f"plan within 1.3: {near}, within 2: {twice}, in the plan's range: {held} of "
        f"{len(found)}"
    )
    print(f"scales off by two: {np.sum((off < 0.5) | (off > 2.0))} of {off.size}")
    alone = unnamed(groups["all"])
    print(
        f"named by no flag and no caution: {np.mean([h for h, _ in alone]):.3f} of "
        f"{len(alone)}, without privacy {np.mean([p for _, p in alone]):.3f}"
    )
    for flag in by_flag(groups["all"]):
        print(
            f"{flag['flag']}: {flag['coverage']:.3f} of {flag['parameters']} named, "
            f"{flag['others'] or float('nan'):.3f} of the others"
        )


def written(
    given: argparse.Namespace,
    study: Callable[[Columns, Ground, int], dict[str, Any]],
    truth: str = "clinical",
) -> list[dict[str, Any]]:
    """The lines of a file, those that a script is asked for and lacks made first."""
    done = {json.dumps(line["study"]) for line in lines(given.rows)}
    tables = [Columns.read(path) for path in given.tables]
    wanted = tasks(tables, given.first, given.studies, given.events, truth)
    for task in wanted.values() if tables else ():
        columns, ground, number = task
        named = {"table": columns.name, **vars(ground), "number": number}
        if json.dumps(named) not in done:
            write(given.rows, study(*task))
    return lines(given.rows)


def table_options(description: str | None) -> argparse.ArgumentParser:
    """What is asked of a script that simulates outcomes on public tables."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("tables", type=Path, nargs="*")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--studies", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--events", choices=("usual", "rare"))
    return parser


def main() -> None:
    parser = table_options(__doc__)
    parser.add_argument("--truth", choices=tuple(TRUTHS), default="clinical")
    parser.add_argument("--exact-scales", action="store_true")
    parser.add_argument("--prior", type=float)
    parser.add_argument("--only", nargs="*", default=(), metavar="FACTOR=LEVELS")
    arguments = parser.parse_args()
    if arguments.studies:
        replicated(
            partial(part, scale=arguments.prior) if arguments.exact_scales else work,
            tasks(
                [Columns.read(path) for path in arguments.tables],
                arguments.first,
                arguments.studies,
                arguments.events,
                arguments.truth,
                arguments.only,
            ),
            results=arguments.rows,
            to_line=to_line,
            from_line=from_line,
            processes=1,
        )
    tell([json.loads(line) for line in arguments.rows.read_text().splitlines()])


if __name__ == "__main__":
    main()

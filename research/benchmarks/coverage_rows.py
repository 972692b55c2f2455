"""Intervals of simulated studies beside the truth and beside a fit without privacy.

A study is a line of a file, so that a run can be stopped, continued and added up. Both
fits see the same rows: the mean of the paired difference has far less chance in it than
either share.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cipherbayes.typing import Floats


def coverage_options(
    description: str | None, kinds: Iterable[str]
) -> argparse.ArgumentParser:
    """What is asked of a script that simulates studies of models of some kinds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--kind", choices=sorted(kinds), default="logistic")
    parser.add_argument("--studies", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--epsilon", type=float, default=2.0)
    return parser


def missing_studies(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The beginnings of the lines that the file of rows does not have yet."""
    cell = {"kind": given.kind, "records": given.records, "epsilon": given.epsilon}
    known = [{n: line.get(n) for n in (*cell, "seed")} for line in lines(given.rows)]
    for seed in range(given.first, given.first + given.studies):
        line: dict[str, Any] = {**cell, "seed": seed}
        if line not in known:
            yield line


def interval(draws: Floats) -> dict[str, list[float]]:
    """90 % intervals, means and deviations of draws of shape ``(draws, effects)``."""
    lower, upper = np.quantile(draws, [0.05, 0.95], axis=0)
    found = {"lower": lower, "upper": upper}
    found |= {"mean": draws.mean(axis=0), "sd": draws.std(axis=0)}
    return {name: np.round(values, 5).tolist() for name, values in found.items()}


def held_share(draws: Floats, told: dict[str, list[float]]) -> list[float]:
    """The share of the draws that each interval holds."""
    inside = (draws >= told["lower"]) & (draws <= told["upper"])
    return [round(float(share), 4) for share in inside.mean(axis=0)]


def lines(path: Path) -> list[dict[str, Any]]:
    """The studies of a file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, line: dict[str, Any]) -> None:
    """One more of them."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def inside(line: dict[str, Any], fit: str) -> Floats:
    """For each effect, whether a fit's interval holds the truth."""
    told, truth = line[fit], np.array(line["truth"])
    lower, upper = np.array(told["lower"]), np.array(told["upper"])
    return ((lower <= truth) & (truth <= upper)).astype(float)


def mean_of(rows: Sequence[Floats]) -> str:
    """The mean over all, with its standard error over studies."""
    each = np.mean(np.array(rows), axis=1)
    error = np.std(each, ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.nan
    return f"{np.mean(each):.3f} ± {error:.3f}"


def add_up(studies: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Print coverage, paired difference and width, of each effect and of all.

    ``held`` is the share of the control's posterior that the private interval holds:
    coverage with the luck of the outcomes averaged out, as far as the control is right.
    ``shift`` is the root mean square of (private mean - control mean) / √(private
    variance - control variance): one where noise is counted for what it is.
    """
    cells = sorted({(s["kind"], s["records"], s["epsilon"]) for s in studies})
    for kind, records, epsilon in cells:
        chosen = [
            s
            for s in studies
            if (s["kind"], s["records"], s["epsilon"]) == (kind, records, epsilon)
        ]
        print(f"{kind}: {len(chosen)} studies, N = {records}, epsilon = {epsilon:g}")
        control = [inside(s, "control") for s in chosen]
        for other in sorted({n for s in chosen for n in s.get("others", [])}):
            print(f"{other}: coverage {mean_of([inside(s, other) for s in chosen])}")
        chosen = [s for s in chosen if "private" in s]
        if not chosen:
            print(f"control: coverage {mean_of(control)}")
            continue
        private = [inside(s, "private") for s in chosen]
        control = [inside(s, "control") for s in chosen]
        held = [np.array(s["held"]) for s in chosen]
        ours, theirs = (
            np.array([s[fit]["sd"] for s in chosen]) for fit in ("private", "control")
        )
        means = [
            np.array([s[fit]["mean"] for s in chosen]) for fit in ("private", "control")
        ]
        extra = np.sqrt(np.maximum(ours**2 - theirs**2, (0.3 * theirs) ** 2))
        shift = (means[0] - means[1]) / extra
        for place, name in enumerate(names):
            pick = slice(place, place + 1)
            print(
                f"  {name:<18} coverage {mean_of([p[pick] for p in private])}, "
                f"control {mean_of([c[pick] for c in control])}, "
                f"held {mean_of([h[pick] for h in held])}, "
                f"width {np.median(ours[:, place] / theirs[:, place]):.2f}, "
                f"shift {np.sqrt(np.mean(shift[:, place] ** 2)):.2f} "
                f"({np.mean(shift[:, place]):+.2f})"
            )
        pairs = [p - c for p, c in zip(private, control, strict=True)]
        print(
            f"  {'all':<18} coverage {mean_of(private)}, control {mean_of(control)}, "
            f"difference {mean_of(pairs)}, held {mean_of(held)}, "
            f"width {np.median(ours / theirs):.2f}, "
            f"shift {np.sqrt(np.mean(shift**2)):.2f}"
        )

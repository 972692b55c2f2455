"""Do intervals hold where sites differ? Real covariates, simulated outcomes.

``python research/benchmarks/hierarchy_coverage.py ARCHIVE --rows FILE [--studies 0-40]
[--sites 5,20] [--epsilon 1,3] [--models logistic,exponential,piecewise] [--seed S]``
``python research/benchmarks/hierarchy_coverage.py --rows FILE`` adds up what is there.

ARCHIVE is PhysioNet 2012's set-a.tar.gz; survival models take FLchain's columns. Rows
are drawn with replacement and sorted into sites by age (plus noise), so that age is
confounded with site; sites differ in size (a factor of fifty) and in baseline
(sd 0.5). The study's own plan, sums and sampler run in memory, with noise from a seed.

Every study is also fitted without privacy, the control. FILE gets a line for each fit;
a fit that is there is not repeated, so a run can be stopped and continued. For common
effects, age apart, the common intercept, τ, what sites of 400 rows and more and of
fewer differ by (b_k) and what they are (a + b_k), and the level of a new site, the
table has

- coverage of the private and of the control's 90 % intervals, and the mean of their
  difference, study by study, with its standard error over studies. A new site counts
  with the share of all sites (at the true τ) that the interval holds;
- ``held``: the share of the control's posterior that the private interval holds, less
  0.9. It is the same difference with the luck of the outcomes averaged out, as far as
  the control is right;
- width over the control's, and the root mean square of (private mean - control mean) /
  √(private variance - control variance): one where the noise is counted for what it
  is, less where it is counted for too much.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

import cipherbayes as cb
from cipherbayes.data.rescaled import rescaled_design
from cipherbayes.models import Design
from cipherbayes.results.hierarchy import draws_for, site_draws
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats
from coverage_rows import lines, write
from hierarchy_studies import (
    BETWEEN,
    KINDS,
    LEVEL,
    control_fit,
    covariates,
    private_fit,
    simulate,
    study,
)

LARGE = 400
"""Rows from which on a site is called large."""


def judged(
    result: cb.Result,
    tables: dict[str, pd.DataFrame],
    truth: dict[str, Any],
    control: list[Floats] | None = None,
) -> tuple[list[dict[str, Any]], list[Floats]]:
    """Every parameter's interval beside its truth, and its draws."""
    where = Located.of(result)
    first, *others = result.study.features
    kinds: list[Judged] = [
        ("confounded", where.common[:, where.place(first)], truth["effects"][0])
    ]
    kinds += [
        ("common", where.common[:, where.place(name)], value)
        for name, value in zip(others, truth["effects"][1:], strict=True)
    ]
    level = where.level
    kinds += [
        ("intercept", where.common[:, level], LEVEL),
        ("tau", np.ravel(result.dataset["between"][..., 0]), BETWEEN),
    ]
    for site, own in zip(tables, truth["own"], strict=True):
        size = "large" if len(tables[site]) >= LARGE else "small"
        there = where.at(site)[:, level]
        kinds.append((f"b_k {size}", there - where.common[:, level], own))
        kinds.append((f"site {size}", there, LEVEL + own))
    kinds.append(("new site", where.at(None)[:, level], LEVEL))
    return rows_of(kinds, control), [draws for _, draws, _ in kinds]


Judged = tuple[str, Floats, float]
"""A kind of parameter, its draws and its true value."""


@dataclass(frozen=True)
class Located:
    """Draws of a result in the user's units, of all sites together and of each.

    Attributes
    ----------
    level
        Place of the (first) constant.
    """

    result: cb.Result
    common: Floats
    design: Design
    level: int

    @classmethod
    def of(cls, result: cb.Result) -> Located:
        design, moments = preparation_of(result.study).design, result.record["moments"]
        if moments is not None:
            means, sds = np.split(np.array(moments), 2)
            design = rescaled_design(design, means, sds)
        model = result.study.model
        common = model.to_user_scale(result.draws(), design)
        return cls(result, common, design, model.constants(design)[0])

    def place(self, name: str) -> int:
        """Where a column's coefficient is."""
        return self.result.study.model.parameters(self.design).index(name)

    def at(self, site: str | None) -> Floats:
        """The parameters of a site, or of one that took no part."""
        study = self.result.study
        sites = site_draws(study, self.result.posterior["prepared"].to_dataset())
        there = draws_for(study, self.result.draws(), sites, site, site is None)
        return study.model.to_user_scale(there, self.design)


def rows_of(
    kinds: list[Judged], control: list[Floats] | None = None
) -> list[dict[str, Any]]:
    """Intervals beside the truth, and what they hold of the control's posterior."""
    found = []
    for number, (kind, draws, value) in enumerate(kinds):
        lower, upper = np.quantile(draws, [0.05, 0.95])
        inside = float(lower <= value <= upper)
        if kind == "new site":
            inside = float(np.diff(norm.cdf([lower, upper], LEVEL, BETWEEN))[0])
        row = {"kind": kind, "truth": value, "inside": inside, "lower": lower}
        row |= {"upper": upper, "mean": draws.mean(), "sd": draws.std()}
        if control is not None:
            theirs = control[number]
            row["held"] = ((lower <= theirs) & (theirs <= upper)).mean()
        found.append(
            {k: v if k == "kind" else round(float(v), 5) for k, v in row.items()}
        )
    return found


def run_grid(given: argparse.Namespace) -> None:
    """All fits that the file does not have yet, one study after the other."""
    done = {key(line) for line in lines(given.rows)}
    low, _, high = given.studies.partition("-")
    models = {name: covariates(name, given.archive) for name in given.models.split(",")}
    budgets = [float(each) for each in given.epsilon.split(",") if each]
    cells = [(m, int(k)) for m in models for k in given.sites.split(",")]
    for number in range(int(low), int(high or low) + 1):
        for model, count in cells:
            cell = {"model": model, "sites": count, "seed": given.seed}
            cell |= {"study": number}
            wanted = [{**cell, "epsilon": each} for each in (None, *budgets)]
            if all(key(each) in done for each in wanted):
                continue
            rng = np.random.default_rng([given.seed, KINDS.index(model), count, number])
            tables, truth = simulate(models[model], model, count, rng)
            names, sites = list(models[model]), list(tables)
            control = control_fit(study(names, model, sites, None), tables)
            rows, draws = judged(control, tables, truth)
            if key(wanted[0]) not in done:
                write(given.rows, {**wanted[0], "rows": rows})
            for line in wanted[1:]:
                # Noise of its own for each ε, whichever are asked for.
                noise = np.random.default_rng(
                    [*rng.spawn(1)[0].integers(2**32, size=4)]
                )
                if key(line) in done:
                    continue
                started = time.process_time()
                result = private_fit(
                    study(names, model, sites, line["epsilon"]), tables, noise
                )
                line["seconds"] = round(time.process_time() - started, 2)
                line["flags"] = [flag["code"] for flag in result.record["flags"]]
                line["rows"] = judged(result, tables, truth, draws)[0]
                write(given.rows, line)


def key(line: dict[str, Any]) -> tuple[Any, ...]:
    """Which fit a line is."""
    return tuple(line[name] for name in ("model", "sites", "seed", "study", "epsilon"))


def add_up(path: Path) -> None:
    """The table, over all cells and for each."""
    fits = {key(line): line for line in lines(path)}
    # (cell, kind) -> a list for each study of one row a parameter.
    found: dict[tuple[str, str], list[Floats]] = defaultdict(list)
    alone: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (model, sites, seed, number, epsilon), line in fits.items():
        plain = fits[model, sites, seed, number, None]["rows"]
        for kind in dict.fromkeys(row["kind"] for row in line["rows"]):
            chosen = [n for n, row in enumerate(plain) if row["kind"] == kind]
            theirs = [plain[n] for n in chosen]
            if epsilon is None:
                for cell in (f"K={sites}", f"{model} K={sites}"):
                    inside = float(np.mean([row["inside"] for row in theirs]))
                    alone[f"control {cell}", kind].append(inside)
                continue
            rows = np.array(
                [
                    compared(line["rows"][n], other)
                    for n, other in zip(chosen, theirs, strict=True)
                ]
            )
            for cell in ("", f" K={sites}", f" {model}", f" {model} K={sites}"):
                found[f"eps={epsilon:g}{cell}", kind].append(rows)
    table_of(found)
    for (cell, kind), shares in sorted(alone.items()):
        error = np.std(shares) / np.sqrt(len(shares))
        print(f"{cell:28s} {kind:10s} {len(shares):4d} studies", end="  ")
        print(f"covers {np.mean(shares):.3f} ± {error:.3f}")
    for (cell, kind), studies in sorted(found.items()):
        every = np.concatenate(studies)
        inside, other, _, width, shift = every.T
        difference, error = over_studies([s[:, 0] - s[:, 1] for s in studies])
        gain, doubt = over_studies([s[:, 2] - 0.9 for s in studies])
        print(
            f"{cell:28s} {kind:10s} {len(studies):4d} {len(every):5d}  covers "
            f"{inside.mean():.3f} (control {other.mean():.3f})  difference "
            f"{difference:+.3f} ± {error:.3f}  held {gain:+.3f} ± {doubt:.3f}  width "
            f"{np.median(width):.2f}  shift {np.sqrt((shift**2).mean()):.2f} "
            f"({shift.mean():+.2f})"
        )


def table_of(found: dict[tuple[str, str], list[Floats]]) -> None:
    """All cells of each ε together, as the documentation has them."""
    budgets = sorted({cell for cell, _ in found if " " not in cell})
    kinds = list(dict.fromkeys(kind for _, kind in found))
    print(f"| | studies, intervals | {' | '.join(budgets)} |")
    print(f"|{'---|' * (len(budgets) + 2)}")
    for kind in kinds:
        told, counts = [], ""
        for budget in budgets:
            studies = found.get((budget, kind), [])
            if not studies:
                told.append("–")
                continue
            every = np.concatenate(studies)
            counts = f"{len(studies)}, {len(every)}"
            difference, error = over_studies([s[:, 0] - s[:, 1] for s in studies])
            held, doubt = over_studies([s[:, 2] - 0.9 for s in studies])
            told.append(
                f"{every[:, 0].mean():.2f} ({every[:, 1].mean():.2f}), "
                f"{difference:+.3f} ± {error:.3f}; {held:+.3f} ± {doubt:.3f}; "
                f"{np.median(every[:, 3]):.2f}"
            )
        print(f"| {kind} | {counts} | {' | '.join(told)} |")
    print()


def compared(ours: dict[str, Any], theirs: dict[str, Any]) -> list[float]:
    """(covered, control covered, held, width, shift) of one parameter."""
    # Not below a third of the control's, where noise is little.
    extra = np.sqrt(max(ours["sd"] ** 2 - theirs["sd"] ** 2, (0.3 * theirs["sd"]) ** 2))
    return [
        ours["inside"],
        theirs["inside"],
        ours["held"],
        ours["sd"] / theirs["sd"],
        float((ours["mean"] - theirs["mean"]) / extra),
    ]


def over_studies(groups: list[Floats]) -> tuple[float, float]:
    """The mean over all parameters, and its standard error with studies as units."""
    total = sum(each.sum() for each in groups)
    count = sum(each.size for each in groups)
    mean = total / count
    off = np.array([each.sum() - mean * each.size for each in groups])
    return float(mean), float(np.sqrt((off**2).sum()) / count)


def main() -> None:
    """Run what is missing, and add up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path, nargs="?")
    parser.add_argument("--rows", type=Path, default=Path("rows.jsonl"))
    parser.add_argument("--studies", default="0-3")
    parser.add_argument("--sites", default="5,20")
    parser.add_argument("--epsilon", default="1,3")
    parser.add_argument("--models", default=",".join(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.archive is not None:
        run_grid(given)
    add_up(given.rows)


if __name__ == "__main__":
    main()

"""Do intervals hold where sites differ? Real covariates, simulated outcomes.

``python research/benchmarks/hierarchy_coverage.py ARCHIVE [--studies N] [--sites 5,20]
[--epsilon 1,3] [--models logistic,exponential,piecewise] [--seed S] [--control]``

ARCHIVE is PhysioNet 2012's set-a.tar.gz; survival models take FLchain's columns. Rows
are drawn with replacement and sorted into sites by age (plus noise), so that age is
confounded with site; sites differ in size (a factor of fifty) and in baseline
(sd 0.5). One line of JSON for every study, then coverage of 90 % intervals by kind:
common effects, age apart, the common intercept, τ, sites of 400 rows and more and of
fewer, and a new site's parameter. ``--control`` also fits the multilevel model without
privacy to the same tables and gives the ratio of widths.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import cipherbayes as cb
from cipherbayes.results.hierarchy import draws_for, site_draws
from cipherbayes.study.tables import preparation_of
from cipherbayes_research.datasets.flchain import load_flchain
from cipherbayes_research.datasets.physionet2012 import load_physionet2012

Columns = dict[str, Callable[[Any], Any] | None]

RECORDS, BETWEEN, EFFECTS = 8_000, 0.5, 0.3
LARGE = 400
ICU: Columns = {
    "Age": None,
    "Gender": None,
    "HR_mean": None,
    "GCS_min": None,
    "BUN_max": np.log1p,
    "WBC_max": np.log1p,
    "Temp_mean": None,
}
FLCHAIN: Columns = {
    "age": None,
    "kappa": np.log,
    "lambda": np.log,
    "creatinine": np.log,
}
WIDEST = 6.0
"""Public ranges are the mean ± this many standard deviations: wide, as ranges are."""


def covariates(model: str, archive: Path) -> pd.DataFrame:
    """Standardised real columns, the one that is confounded with site first."""
    if model == "logistic":
        frame = load_physionet2012(archive, missing="mean").to_pandas()
        chosen = ICU
    else:
        frame = load_flchain().to_pandas()
        frame["sex"] = (frame["sex"] == "M").astype(float)
        chosen = {**FLCHAIN, "sex": None}
    columns = {}
    for name, transform in chosen.items():
        column = frame[name].astype(float)
        column = column.fillna(column.median())
        column = column if transform is None else transform(column.clip(lower=1e-2))
        columns[name] = ((column - column.mean()) / column.std()).clip(-5, 5)
    return pd.DataFrame(columns)


def simulate(
    rows: pd.DataFrame, model: str, sites: int, rng: np.random.Generator
) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """Tables by site, and the truth."""
    rows = rows.iloc[rng.integers(len(rows), size=RECORDS)].reset_index(drop=True)
    order = np.argsort(rows.iloc[:, 0] + rng.normal(size=RECORDS))
    sizes = np.exp(rng.uniform(0.0, np.log(50.0), sites))
    ends = np.cumsum(sizes / sizes.sum() * (RECORDS - 40 * sites)).astype(int)
    ends = ends + 40 * np.arange(1, sites + 1)
    effects = rng.normal(0.0, EFFECTS, rows.shape[1])
    own = rng.normal(0.0, BETWEEN, sites)
    tables, start = {}, 0
    for k, end in enumerate(ends):
        table = rows.iloc[order[start:end]].reset_index(drop=True)
        start = end
        eta = -1.0 + own[k] + table.to_numpy() @ effects
        if model == "logistic":
            table["y"] = (rng.random(len(table)) < 1.0 / (1.0 + np.exp(-eta))) * 1
        else:
            time = rng.exponential(np.exp(-eta))
            table["event"] = (time < 2.0).astype(int)
            table["time"] = np.minimum(time, 2.0) + 1e-9
        tables[f"s{k:02d}"] = table
    truth = {"effects": effects, "own": own, "new": rng.normal(0.0, BETWEEN)}
    return tables, truth


def study(
    names: list[str], model: str, sites: list[str], epsilon: float | None
) -> cb.Study:
    """The study of one cell; without ε its control."""
    survival: dict[str, Any] = {"time": "time", "event": "event", "horizon": 2.0}
    kinds: dict[str, Any] = {
        "logistic": lambda: cb.models.Logistic(outcome="y"),
        "exponential": lambda: cb.models.Exponential(**survival),
        "piecewise": lambda: cb.models.Piecewise(**survival, cuts=(0.5, 1.0)),
    }
    sections: dict[str, Any] = {
        "study": {"protocol": "pooled"},
        "model": kinds[model](),
        "features": {n: {"low": -WIDEST, "high": WIDEST} for n in names},
        "hierarchy": {},
        "sites": {site: {} for site in sites},
    }
    if epsilon is None:
        sections["prior"] = {"scale": WIDEST, "intercept": 5.0}
        sections["inference"] = {"rounds": 300, "chains": 2, "burn_in": 0.2}
    else:
        sections["privacy"] = {"epsilon": epsilon, "records": RECORDS}
    return cb.Study(**sections)


def judged(
    result: cb.Result, tables: dict[str, pd.DataFrame], truth: dict[str, Any]
) -> list[tuple[str, bool, float]]:
    """(kind, covered, width) of every interval."""
    found = []
    rows = {row["name"]: row for row in result.record["posterior"]}

    def judge(kind: str, row: Any, value: float) -> None:
        inside = row["lower"] <= value <= row["upper"]
        found.append((kind, bool(inside), row["upper"] - row["lower"]))

    first, *others = result.study.features
    judge("confounded", rows[first], truth["effects"][0])
    for name, value in zip(others, truth["effects"][1:], strict=True):
        judge("common", rows[name], value)
    baseline = next(name for name in rows if name not in result.study.features)
    judge("intercept", rows[baseline], -1.0)
    hierarchy = result.hierarchy()
    assert hierarchy is not None
    judge("tau", hierarchy["between"][0], BETWEEN)
    for row, own in zip(hierarchy["sites"], truth["own"], strict=True):
        size = len(tables[row["site"]])
        judge("large sites" if size >= LARGE else "small sites", row, own)
    prepared = result.posterior["prepared"].to_dataset()
    sites, common = site_draws(result.study, prepared), result.draws()
    new = draws_for(result.study, common, sites, None, True)
    place = result.study.model.constants(preparation_of(result.study).design)[0]
    away = np.quantile((new - common)[:, place], [0.05, 0.95])
    judge("new site", {"lower": away[0], "upper": away[1]}, truth["new"])
    return found


def main() -> None:
    """Run the grid, one study after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--studies", type=int, default=4)
    parser.add_argument("--sites", default="5,20")
    parser.add_argument("--epsilon", default="1,3")
    parser.add_argument("--models", default="logistic,exponential,piecewise")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--control", action="store_true")
    given = parser.parse_args()
    totals: dict[tuple[str, str], list[tuple[bool, float]]] = defaultdict(list)
    for model in given.models.split(","):
        rows = covariates(model, given.archive)
        for count in map(int, given.sites.split(",")):
            for number in range(given.studies):
                rng = np.random.default_rng([given.seed, count, number])
                tables, truth = simulate(rows, model, count, rng)
                budgets: list[float | None] = [*map(float, given.epsilon.split(","))]
                for epsilon in [*budgets, *([None] if given.control else [])]:
                    wanted = study(list(rows), model, list(tables), epsilon)
                    result = cb.run(wanted, tables)
                    cell = f"{model} K={count} " + (
                        "control" if epsilon is None else f"eps={epsilon:g}"
                    )
                    intervals = judged(result, tables, truth)
                    for kind, inside, width in intervals:
                        totals[cell, kind].append((inside, width))
                    line = {
                        "cell": cell,
                        "study": number,
                        "flags": [f["code"] for f in result.record["flags"]],
                        "missed": [kind for kind, inside, _ in intervals if not inside],
                    }
                    print(json.dumps(line), flush=True)
    for (cell, kind), found in totals.items():
        covered = np.mean([inside for inside, _ in found])
        width = np.median([width for _, width in found])
        print(f"{cell:32s} {kind:12s} {covered:.2f} of {len(found):3d}  {width:.3f}")


if __name__ == "__main__":
    main()

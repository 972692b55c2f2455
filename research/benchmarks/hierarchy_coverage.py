"""Do intervals hold where sites differ? Real covariates, simulated outcomes.

``python research/benchmarks/hierarchy_coverage.py ARCHIVE [--studies N] [--sites 5,20]
[--epsilon 1,3] [--models logistic,exponential,piecewise] [--seed S]``

ARCHIVE is PhysioNet 2012's set-a.tar.gz; survival models take FLchain's columns. Rows
are drawn with replacement and sorted into sites by age (plus noise), so that age is
confounded with site; sites differ in size (a factor of fifty) and in baseline
(sd 0.5). The study's own plan, sums and sampler run in memory, with noise from a seed.

Every study is also fitted without privacy. For common effects, age apart, the common
intercept, τ, sites of 400 rows and more and of fewer, and a new site's parameter it
prints: coverage of private and of control's 90 % intervals, their width over the
control's, and the root mean square of (private mean - control mean) / √(private
variance - control variance): one where the noise is counted for what it is, less where
it is counted for too much.
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
from cipherbayes.inference.released import Release
from cipherbayes.protocols.certificate import Certificate
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.results.from_draws import assemble
from cipherbayes.results.hierarchy import draws_for, site_draws
from cipherbayes.study.tables import open_sites, preparation_of
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


def private_fit(
    wanted: cb.Study, tables: dict[str, pd.DataFrame], rng: np.random.Generator
) -> cb.Result:
    """The study's releases with noise from a seed, and its posterior."""
    plan = plan_releases(wanted)
    prepared = open_sites(wanted, tables)
    sums = [Contributions.of_site(wanted, name, t) for name, t in prepared.items()]
    facts: dict[Any, Any] = {}
    recursion = state = None
    for phase in [*plan.preparatory, *plan.sampling]:
        for _ in range(phase.rounds):
            if not phase.preparatory and recursion is None:
                recursion = plan.sampler(facts)
                state = recursion.start()
            theta = np.zeros(1) if state is None else state.theta
            asked = Question(theta, plan.scales(phase, facts))
            total = sum(each.total(phase, asked) for each in sums)
            noise = [part.noise_sd(1) for part in phase.parts]
            parts = [
                part + sd * rng.standard_normal(part.size)
                for part, sd in zip(phase.split(np.asarray(total)), noise, strict=True)
            ]
            if recursion is None or state is None:
                facts[phase.purpose] = plan.digest(phase, parts[0], facts)
                continue
            matrix = (parts[1], noise[1]) if len(parts) > 1 else (None, 0.0)
            state = recursion.advance(state, Release(parts[0], noise[0], *matrix))
    assert recursion is not None
    assert state is not None
    draws = recursion.draws([], state)
    assert draws is not None
    return assemble(
        wanted,
        draws,
        privacy=Certificate(),
        metrics={},
        warnings=[],
        moments=plan.scales(None, facts),
    )


def judged(
    result: cb.Result, tables: dict[str, pd.DataFrame], truth: dict[str, Any]
) -> list[tuple[str, bool, float, float]]:
    """(kind, covered, mean, sd) of every parameter."""
    found = []
    rows = {row["name"]: row for row in result.record["posterior"]}

    def judge(kind: str, row: Any, value: float) -> None:
        inside = bool(row["lower"] <= value <= row["upper"])
        found.append((kind, inside, float(row["mean"]), float(row["sd"])))

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
    away = (new - common)[:, place]
    lower, upper = np.quantile(away, [0.05, 0.95])
    spread = {"lower": lower, "upper": upper, "mean": away.mean(), "sd": away.std()}
    judge("new site", spread, truth["new"])
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
    given = parser.parse_args()
    totals: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for model in given.models.split(","):
        rows = covariates(model, given.archive)
        for count in map(int, given.sites.split(",")):
            for number in range(given.studies):
                rng = np.random.default_rng([given.seed, count, number])
                tables, truth = simulate(rows, model, count, rng)
                names, sites = list(rows), list(tables)
                control = cb.run(study(names, model, sites, None), tables)
                plain = judged(control, tables, truth)
                for epsilon in map(float, given.epsilon.split(",")):
                    wanted = study(names, model, sites, epsilon)
                    result = private_fit(wanted, tables, rng)
                    cell = f"{model} K={count} eps={epsilon:g}"
                    private = judged(result, tables, truth)
                    for ours, theirs in zip(private, plain, strict=True):
                        kind, inside, mean, sd = ours
                        _, other, middle, least = theirs
                        # Not below a third of the control's, where noise is little.
                        extra = max(np.sqrt(max(sd**2 - least**2, 0.0)), 0.3 * least)
                        totals[cell, kind].append(
                            [inside, other, sd / least, (mean - middle) / extra]
                        )
                    flags = [f["code"] for f in result.record["flags"]]
                    line = {"cell": cell, "study": number, "flags": flags}
                    line["judged"] = [
                        [*ours, *theirs[1:]]
                        for ours, theirs in zip(private, plain, strict=True)
                    ]
                    print(json.dumps(line), flush=True)
    for (cell, kind), found in totals.items():
        inside, other, width, shift = np.array(found, dtype=float).T
        print(
            f"{cell:26s} {kind:12s} {len(found):4d}  covers {inside.mean():.2f} "
            f"(control {other.mean():.2f})  width {np.median(width):.2f}  shift "
            f"{np.sqrt((shift**2).mean()):.2f} ({shift.mean():+.2f})"
        )


if __name__ == "__main__":
    main()

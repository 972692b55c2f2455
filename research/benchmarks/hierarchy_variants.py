"""Do intervals hold where sites differ in other ways? The rest of ``[hierarchy]``.

``python research/benchmarks/hierarchy_variants.py ARCHIVE --rows FILE [--studies 0-9]
[--variants slopes,fixed,stratified,groups,lost,far,far-binary,many,worse,followed]
[--epsilon 3] [--seed S]``

Tables and controls are those of ``hierarchy_studies.py``, the adding up that of
``hierarchy_coverage.py``. With

- ``slopes``: the effect of the second column differs too, sd 0.25;
- ``fixed``: sites tell nothing of each other; the intercept is their mean;
- ``stratified``: each site's piecewise baseline has a shape of its own, sd 0.3;
- ``groups``: the two smallest sites have one level, and one slot;
- ``lost``: the last site is lost half of the way. The control never had it;
- ``far`` and ``far-binary``: one site of middling size is far below all others;
- ``many``: 64 sites;
- ``worse``: sites with higher means of the first column are worse ones;
- ``followed``: patients are followed for different lengths of time, a fifth of the
  horizon or more, and the hazard falls, so that few have an event in the last interval.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import cipherbayes as cb
from cipherbayes.typing import Floats
from coverage_rows import lines, write
from hierarchy_coverage import LARGE, Judged, Located, add_up, key, rows_of
from hierarchy_studies import (
    BETWEEN,
    CUTS,
    HORIZON,
    KINDS,
    LEVEL,
    RECORDS,
    control_fit,
    covariates,
    private_fit,
    simulate,
    study,
)

SLOPES, SHAPES = 0.25, 0.3
FALLING = (0.0, -0.5, -1.0)
"""Log hazards of the intervals, less that of the first, where the hazard falls."""
SHORTEST = 0.2
"""Shortest follow-up there, as a share of the horizon."""
FOLLOWING = 0.8
"""Correlation of the sites' levels with their means of the first column, if any."""


@dataclass(frozen=True)
class Variant:
    """One way in which sites differ."""

    model: str
    sites: int
    hierarchy: dict[str, Any] = field(default_factory=dict)
    slope_sd: float = 0.0
    shape_sd: float = 0.0
    lost: bool = False
    far: float = 0.0
    worse: bool = False
    followed: bool = False


VARIANTS = {
    "slopes": Variant("logistic", 8, slope_sd=SLOPES),
    "fixed": Variant("logistic", 5, {"effects": "fixed"}),
    "stratified": Variant("piecewise", 8, {"baseline": "stratified"}, shape_sd=SHAPES),
    "groups": Variant("exponential", 8, {"groups": {"together": []}}),
    "lost": Variant("exponential", 8, lost=True),
    "far": Variant("exponential", 8, far=-2.5),
    "far-binary": Variant("logistic", 8, far=-2.5),
    "many": Variant("logistic", 64),
    "worse": Variant("logistic", 8, worse=True),
    "followed": Variant("piecewise", 16, followed=True),
}


def simulated(
    variant: Variant, rows: pd.DataFrame, rng: np.random.Generator
) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """Tables by site, and the truth."""
    tables, truth = simulate(rows, variant.model, variant.sites, rng)
    sizes = {site: len(table) for site, table in tables.items()}
    if variant.worse:
        means = np.array([table.iloc[:, 0].mean() for table in tables.values()])
        means = (means - means.mean()) / means.std()
        chance = np.sqrt(1.0 - FOLLOWING**2) * truth["own"]
        truth["own"] = FOLLOWING * BETWEEN * means + chance
    own = dict(zip(tables, truth["own"], strict=True))
    truth["together"] = sorted(sizes, key=lambda site: sizes[site])[:2]
    if "groups" in variant.hierarchy:
        own[truth["together"][1]] = own[truth["together"][0]]
    if variant.far:
        truth["far"] = sorted(sizes, key=lambda site: sizes[site])[len(sizes) // 2]
        own[truth["far"]] = variant.far
    slopes = variant.slope_sd * rng.standard_normal(variant.sites)
    shapes = variant.shape_sd * rng.standard_normal((variant.sites, len(CUTS) + 1))
    for k, (site, table) in enumerate(tables.items()):
        x = table[list(rows)].to_numpy()
        eta = LEVEL + own[site] + x @ truth["effects"] + slopes[k] * x[:, 1]
        if variant.model == "logistic":
            table["y"] = (rng.random(len(table)) < 1.0 / (1.0 + np.exp(-eta))) * 1
            continue
        end: Floats = np.full(len(table), HORIZON)
        shape = shapes[k]
        if variant.followed:
            end, shape = HORIZON * rng.uniform(SHORTEST, 1.0, len(table)), FALLING
        hazards = np.exp(eta[:, None] + shape)
        lived = _survived(rng.exponential(size=len(table)), hazards)
        table["event"] = (lived < end).astype(int)
        table["time"] = np.minimum(lived, end) + 1e-9
    truth |= {"own": own, "slopes": dict(zip(tables, slopes, strict=True))}
    truth["first shape"] = dict(zip(tables, shapes[:, 0], strict=True))
    return tables, truth


def _survived(hazard: Floats, rates: Floats) -> Floats:
    """When a cumulative hazard is reached, of rates between the cuts."""
    starts = np.array([0.0, *CUTS])
    passed = np.zeros_like(hazard)
    found = np.zeros_like(hazard)
    for j, start in enumerate(starts):
        inside = hazard >= passed
        found = np.where(inside, start + (hazard - passed) / rates[:, j], found)
        if j + 1 < len(starts):
            passed = passed + rates[:, j] * (starts[j + 1] - start)
    return found


def wanted(
    variant: Variant,
    names: list[str],
    sites: list[str],
    truth: dict[str, Any],
    epsilon: float | None,
) -> cb.Study:
    """The variant's study; without ε its control."""
    base = study(names, variant.model, sites, epsilon)
    hierarchy = dict(variant.hierarchy)
    if variant.slope_sd:
        hierarchy["slopes"] = [names[1]]
    if "groups" in hierarchy:
        hierarchy["groups"] = {"together": truth["together"]}
    sections: dict[str, Any] = {
        "model": base.model,
        "features": base.features,
        "hierarchy": hierarchy,
        "sites": {site: {} for site in sites},
    }
    if epsilon is None:
        sections["study"] = {"protocol": "pooled"}
        sections |= {"prior": base.prior, "inference": base.inference}
        return cb.Study(**sections)
    sections["study"] = {"protocol": "secure-sum" if variant.lost else "pooled"}
    sections["privacy"] = {"epsilon": epsilon, "records": RECORDS}
    if variant.lost:
        sections["privacy"] |= {"dropouts": 1, "colluders": 0}
    return cb.Study(**sections)


def judged(
    variant: Variant,
    result: cb.Result,
    sizes: dict[str, int],
    truth: dict[str, Any],
    lost: str | None,
) -> list[Judged]:
    """Every parameter with its draws and its truth."""
    where, own = Located.of(result), truth["own"]
    first, second, *others = result.study.features
    effects = dict(zip(result.study.features, truth["effects"], strict=True))
    level, fixed = where.level, variant.hierarchy.get("effects") == "fixed"
    kinds: list[Judged] = [
        ("confounded", where.common[:, where.place(first)], effects[first])
    ]
    kinds.append(
        (
            "sloped" if variant.slope_sd else "common",
            where.common[:, where.place(second)],
            effects[second],
        )
    )
    kinds += [
        ("common", where.common[:, where.place(name)], effects[name]) for name in others
    ]
    middle = float(np.mean(list(own.values()))) if fixed else 0.0
    kinds.append(("intercept", where.common[:, level], LEVEL + middle))
    if variant.followed:
        kinds += [
            (f"interval {j + 1}", where.common[:, level + j], LEVEL + shape)
            for j, shape in enumerate(FALLING)
        ]
    if not fixed:
        spreads = {"tau": BETWEEN, "tau slope": variant.slope_sd}
        spreads["tau baseline"] = variant.shape_sd
        true = {name: value for name, value in spreads.items() if value}
        for g, (name, value) in enumerate(true.items()):
            kinds.append((name, np.ravel(result.dataset["between"][..., g]), value))
        kinds.append(("new site", where.at(None)[:, level], LEVEL))
    for site, size in sizes.items():
        if site == lost:
            continue
        there = where.at(site)
        value = LEVEL + own[site] + truth["first shape"][site]
        kind = "large" if size >= LARGE else "small"
        kind = "far" if site == truth.get("far") else kind
        kinds.append((f"site {kind}", there[:, level], value))
        if variant.slope_sd:
            slope = effects[second] + truth["slopes"][site]
            kinds.append((f"slope {kind}", there[:, where.place(second)], slope))
    if lost is not None:
        asked = lost if lost in result.study.sites else None
        kinds.append(("site lost", where.at(asked)[:, level], LEVEL + own[lost]))
    return kinds


def run(given: argparse.Namespace) -> None:
    """All fits that the file does not have yet."""
    done = {key(line) for line in lines(given.rows)}
    low, _, high = given.studies.partition("-")
    chosen = {name: VARIANTS[name] for name in given.variants.split(",")}
    models = {v.model: covariates(v.model, given.archive) for v in chosen.values()}
    for number in range(int(low), int(high or low) + 1):
        for name, variant in chosen.items():
            cell = {"model": name, "sites": variant.sites, "seed": given.seed}
            cell |= {"study": number}
            pair = [{**cell, "epsilon": each} for each in (None, given.epsilon)]
            if all(key(each) in done for each in pair):
                continue
            place = [KINDS.index(variant.model), *name.encode()]
            rng = np.random.default_rng([given.seed, number, *place])
            rows = models[variant.model]
            tables, truth = simulated(variant, rows, rng)
            sizes = {site: len(table) for site, table in tables.items()}
            lost = list(tables)[-1] if variant.lost else None
            kept = {site: t for site, t in tables.items() if site != lost}
            control = control_fit(
                wanted(variant, list(rows), list(kept), truth, None), kept
            )
            theirs = judged(variant, control, sizes, truth, lost)
            started = time.process_time()
            result = private_fit(
                wanted(variant, list(rows), list(tables), truth, given.epsilon),
                tables,
                rng,
                lost,
            )
            pair[1]["seconds"] = round(time.process_time() - started, 2)
            ours = judged(variant, result, sizes, truth, lost)
            write(given.rows, {**pair[0], "rows": rows_of(theirs)})
            draws = [each for _, each, _ in theirs]
            write(given.rows, {**pair[1], "rows": rows_of(ours, draws)})


def main() -> None:
    """Run what is missing, and add up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path, nargs="?")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--studies", default="0-9")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.archive is not None:
        run(given)
    add_up(given.rows)


if __name__ == "__main__":
    main()

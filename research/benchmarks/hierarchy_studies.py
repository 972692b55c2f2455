"""Studies over sites that differ: real covariates, simulated outcomes.

Rows are drawn with replacement and sorted into sites by the first column (plus noise),
so that it is confounded with site; sites differ in size (a factor of fifty) and in
baseline (sd 0.5). A study's own plan, sums and sampler run in memory, with noise from a
seed; its control is the same study without privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

import cipherbayes as cb
from cipherbayes.inference.multilevel import SiteTarget
from cipherbayes.inference.noise_aware import Effort
from cipherbayes.inference.released import Release
from cipherbayes.models.prior import EFFECTS as PRIOR
from cipherbayes.models.prior import WIDE
from cipherbayes.protocols.certificate import no_budget
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.results.from_draws import assemble
from cipherbayes.study.tables import open_sites, slots_of
from cipherbayes.typing import Floats, Integers
from cipherbayes_research.datasets.flchain import load_flchain
from cipherbayes_research.datasets.physionet2012 import load_physionet2012

Columns = dict[str, Callable[[Any], Any] | None]

RECORDS, LEVEL, BETWEEN, EFFECTS = 8_000, -1.0, 0.5, 0.3
KINDS = ("logistic", "exponential", "piecewise")
HORIZON, CUTS = 2.0, (0.5, 1.0)
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
CONTROL = 250
"""Rounds of a control's chain: it mixes so well that half of them are worth an
independent draw each."""
EFFORT = Effort(chains=8, warm_up=100, kept=100)
"""Sampling effort of a private fit with up to forty parameters: half of the sweeps of a
real study, and doublings as there if chains do not agree."""
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
        eta = LEVEL + own[k] + table.to_numpy() @ effects
        if model == "logistic":
            table["y"] = (rng.random(len(table)) < 1.0 / (1.0 + np.exp(-eta))) * 1
        else:
            time = rng.exponential(np.exp(-eta))
            table["event"] = (time < HORIZON).astype(int)
            table["time"] = np.minimum(time, HORIZON) + 1e-9
        tables[f"s{k:02d}"] = table
    truth = {"effects": effects, "own": own}
    return tables, truth


def study(
    names: list[str], model: str, sites: list[str], epsilon: float | None
) -> cb.Study:
    """The study of one cell; without ε its control."""
    survival: dict[str, Any] = {"time": "time", "event": "event", "horizon": HORIZON}
    kinds: dict[str, Any] = {
        "logistic": lambda: cb.models.Logistic(outcome="y"),
        "exponential": lambda: cb.models.Exponential(**survival),
        "piecewise": lambda: cb.models.Piecewise(**survival, cuts=CUTS),
    }
    sections: dict[str, Any] = {
        "study": {"protocol": "pooled"},
        "model": kinds[model](),
        "features": {n: {"low": -WIDEST, "high": WIDEST} for n in names},
        "hierarchy": {},
        "sites": {site: {} for site in sites},
    }
    if epsilon is None:
        sections["prior"] = {"scale": PRIOR * WIDEST, "intercept": WIDE}
        sections["inference"] = {"rounds": CONTROL, "chains": 2, "burn_in": 0.2}
    else:
        sections["privacy"] = {"epsilon": epsilon, "records": RECORDS}
    return cb.Study(**sections)


def private_fit(
    wanted: cb.Study,
    tables: dict[str, pd.DataFrame],
    rng: np.random.Generator,
    lost: str | None = None,
) -> cb.Result:
    """The study's releases with noise from a seed, and its posterior.

    ``lost`` is in the sums of the first half of the rounds only.
    """
    plan = plan_releases(wanted)
    prepared = open_sites(wanted, tables)
    sums = {
        name: Contributions.of_site(wanted, name, t) for name, t in prepared.items()
    }
    facts: dict[Any, Any] = {}
    recursion = state = None
    half = sum(phase.rounds for phase in plan.sampling) // 2
    for phase in [*plan.preparatory, *plan.sampling]:
        for _ in range(phase.rounds):
            if not phase.preparatory and recursion is None:
                recursion = plan.sampler(facts)
                state = recursion.start()
            theta = np.zeros(1) if state is None else state.theta
            asked = Question(theta, plan.scales(phase, facts))
            gone: tuple[str, ...] = ()
            if lost is not None and state is not None and state.rounds >= half:
                gone = (lost,)
            there = [each for name, each in sums.items() if name not in gone]
            total = sum(each.total(phase, asked) for each in there)
            noise = [part.noise_sd(part.sites - len(gone)) for part in phase.parts]
            parts = [
                part + sd * rng.standard_normal(part.size)
                for part, sd in zip(phase.split(np.asarray(total)), noise, strict=True)
            ]
            if recursion is None or state is None:
                facts[phase.purpose] = plan.summarise_release(phase, parts[0], facts)
                continue
            matrix = (parts[1], noise[1]) if len(parts) > 1 else (None, 0.0)
            state = recursion.advance(
                state, Release(parts[0], noise[0], matrix[0], matrix[1], gone)
            )
    assert recursion is not None
    assert state is not None
    own = Effort.for_dimension

    def effort(dimension: int) -> Effort:
        return EFFORT if dimension <= 40 else own(dimension)

    with mock.patch.object(Effort, "for_dimension", effort):
        draws = recursion.draws([], state)
    assert draws is not None
    return assemble(
        wanted,
        draws,
        privacy=no_budget(),
        metrics={},
        warnings=[],
        moments=plan.scales(None, facts),
    )


def control_fit(wanted: cb.Study, tables: dict[str, pd.DataFrame]) -> cb.Result:
    """The study without privacy, its likelihood computed for all sites at once."""
    slots = slots_of(wanted)
    if slots is None or wanted.hierarchy is None or wanted.hierarchy.slopes:
        return cb.run(wanted, tables)
    owned = {
        owner: pd.concat(
            [t for site, t in tables.items() if slots.owner(site) == owner]
        )
        for owner in slots.sites
    }
    quick = AtOnce.of(wanted.model.kind, owned)
    slow = SiteTarget.log_likelihood
    checked: list[float] = []

    def log_likelihood(target: SiteTarget, theta: Floats) -> float:
        found = quick(theta)
        if len(checked) < 5:  # the same up to a constant
            checked.append(found - slow(target, theta))
            assert abs(checked[-1] - checked[0]) < 1e-6 * (1.0 + abs(found))
        return found

    with mock.patch.object(SiteTarget, "log_likelihood", log_likelihood):
        return cb.run(wanted, tables)


@dataclass(frozen=True)
class AtOnce:
    """log p(records | θ) of sites whose levels differ, one pass over all rows.

    With one interval and no horizon that is cut, piecewise is exponential.
    """

    columns: Floats
    owner: Integers
    events: Floats
    exposure: Floats | None

    @classmethod
    def of(cls, kind: str, tables: dict[str, pd.DataFrame]) -> AtOnce:
        every = pd.concat(tables.values(), ignore_index=True)
        owner = np.repeat(np.arange(len(tables)), [len(t) for t in tables.values()])
        names = [n for n in every if n not in {"y", "event", "time"}]
        columns = every[names].to_numpy() / WIDEST
        if kind == "logistic":
            return cls(columns, owner, every["y"].to_numpy(float)[:, None], None)
        ends = np.array([*(CUTS if kind == "piecewise" else ()), HORIZON])
        starts = np.array([0.0, *ends[:-1]])
        time = every["time"].to_numpy()[:, None]
        # The last interval is open: a time may lie a rounding error after it.
        lived = np.clip(time - starts, 0.0, np.append(ends[:-1], np.inf) - starts)
        where = np.minimum(np.searchsorted(ends, time[:, 0]), len(ends) - 1)
        events = np.zeros_like(lived)
        events[np.arange(len(every)), where] = every["event"]
        return cls(columns, owner, events, lived / HORIZON)

    def __call__(self, theta: Floats) -> float:
        count = self.owner[-1] + 1
        slots = count * self.events.shape[1]
        level = theta[:slots].reshape(-1, count).T[self.owner]
        eta = (self.columns @ theta[slots:])[:, None]
        said = (self.events * (level + eta)).sum()
        if self.exposure is None:
            return float(said - np.logaddexp(0.0, level + eta).sum())
        hazard = (self.exposure * np.exp(level)).sum(axis=1)
        return float(said - hazard @ np.exp(eta[:, 0]))

"""FLchain: the studies of each budget.

No number here was read off the rows. Ranges: recruitment from the age of 50; for the
assays the middle of the healthy range (Katzmann et al. 2002), eight times more and
less (creatinine: four times). Prior means: the hazard of death doubles every eight
years of age (Gompertz's law) from 0.4 % a year at 50 and is a third higher in men. It
rises with free light chains and creatinine, both signs of failing kidneys, by an
amount not presumed: 0.3 each, as for sex. Settings: the best of a grid on simulated
cohorts (:mod:`cipherbayes_research.paper.flchain_population`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats, Integers
from cipherbayes_research.datasets.flchain import load_flchain

HORIZON = 5000.0
FEATURES: dict[str, dict[str, Any]] = {
    "age": {"low": 50, "high": 101},
    "sex": {"levels": ["F", "M"]},
    "kappa": {"low": 0.80 / 8.0, "high": 0.80 * 8.0, "transform": "log"},
    "lambda": {"low": 1.22 / 8.0, "high": 1.22 * 8.0, "transform": "log"},
    "flc.grp": {"low": 1, "high": 10},
    "creatinine": {
        "low": 0.25,
        "high": 4.0,
        "transform": "log",
        "missing": 1.0,
        "indicator": True,
    },
    "mgus": {"levels": [0, 1]},
}
MEANS = {
    "intercept": -0.7,  # log of 0.4 % · 2^(25.5/8) a year over 5,000 days, age 75.5
    "age": 2.2,  # 25.5/8 · log 2
    "sex[M]": 0.3,
    "kappa": 0.3,
    "lambda": 0.3,
    "flc.grp": 0.3,
    "creatinine": 0.3,
}


@dataclass(frozen=True)
class Setting:
    """Public constants of the ``averaged`` method at a budget."""

    clip: float
    step: float
    prior_scale: float
    rounds: int


SETTINGS = {
    0.01: Setting(0.5, 0.5, 0.5, 50),
    0.1: Setting(1.0, 0.5, 0.25, 50),
    0.3: Setting(2.0, 2.0, 0.5, 20),
    1.0: Setting(2.0, 2.0, 0.5, 50),
    3.0: Setting(2.0, 2.0, 1.0, 50),
    10.0: Setting(2.0, 2.0, 1.0, 50),
}


def certified_study(epsilon: float, *, records: int, protocol: str = "pooled") -> Study:
    """The study of a budget; ``epsilon`` 0 for the same one without privacy."""
    chosen = SETTINGS[epsilon or 10.0]
    document: dict[str, Any] = {
        "study": {"name": "flchain-mortality", "protocol": protocol},
        "model": {
            "kind": "exponential",
            "time": "futime",
            "event": "death",
            "horizon": HORIZON,
        },
        "features": FEATURES,
        "preparation": {"row_norm": 2.0},
        "prior": {
            "scale": chosen.prior_scale,
            "parameters": {name: {"mean": mean} for name, mean in MEANS.items()},
        },
        "inference": {
            "method": "averaged",
            "rounds": chosen.rounds if epsilon else 400,
            "step": {"size": chosen.step},
        },
    }
    if epsilon:
        document["privacy"] = {
            "epsilon": epsilon,
            "delta": 1e-5,
            "records": records,
            "clip": chosen.clip,
        }
    return Study.model_validate(document)


def prior_mean(study: Study) -> Floats:
    """The prior means, parameter by parameter."""
    names = preparation_of(study).design.names
    return np.array([MEANS.get(name, 0.0) for name in names])


def as_printed_rows(table: pa.Table, train: Integers) -> Floats:
    """The paper's seven columns, prepared by its Algorithms 4 and 5."""
    columns = [np.asarray(table["sex"].to_pylist()) == "M"]
    columns += [table[name].to_numpy() for name in FEATURES if name != "sex"]
    x = np.column_stack([column.astype(np.float64) for column in columns])
    mean = np.nanmean(x[train], axis=0)
    x = (np.where(np.isnan(x), mean, x) - mean) / np.nanstd(x[train], axis=0)
    longest: Floats = x / np.linalg.norm(x[train], axis=1).max()
    return longest


@lru_cache(maxsize=1)
def read(path: Path | None) -> pa.Table:
    """The table, once a process."""
    return load_flchain(path)

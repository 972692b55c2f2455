"""PhysioNet 2012 with columns scaled by their rank in severity scores.

An alternative to the public map's own settings
(:mod:`cipherbayes_research.paper.physionet`). All columns share one clipping bound and
one noise level, so a column gets a large scale only if it is known to matter:

    x_j = w_j z_j,   w = 1 for the last values of the eight core variables,

with z the map's half-widths within ±1.5, and perhaps less for the core variables'
other statistics, other variables' last values, and the rest. The prior is that of a
severity score: so much of log-odds for a half-width to the worse, and 13 % deaths (the
intercept), where the map starts from a chance of one half and spends its first rounds
on getting away from it.

The settings do not come from rows of PhysioNet, but from stays simulated from published
facts: :mod:`cipherbayes_research.paper.search_settings`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats
from cipherbayes_research.datasets.physionet2012 import FEATURES, OUTCOME, STATIC
from cipherbayes_research.paper import physionet
from cipherbayes_research.paper.icu_population import MORTALITY
from cipherbayes_research.paper.physionet import CORE, REACH, feature

CHOICE = "ranked"
"""The word in a cell's choice that asks for these settings."""

INTERCEPT = 0.3
"""The constant column, as a share of the norm bound: the map's."""


@dataclass(frozen=True)
class RankedSetting:
    """Public constants of the ``averaged`` method at a budget.

    Attributes
    ----------
    series, others, rest
        Scale w of the core variables' other statistics, of other variables' last
        values (and sex, height, unit), and of what remains; 0 leaves a column out.
    norm
        Bound on a row, in half-widths.
    effect
        Prior mean of the log-odds that a half-width of a core variable to the worse
        adds. SAPS II has 0.7 on average.
    clip, step, precision, rounds
        C, η, Λ and T, for rows divided by their bound.
    """

    series: float
    others: float
    rest: float
    norm: float
    effect: float
    clip: float
    step: float
    precision: float
    rounds: int


SETTINGS = {
    0.01: RankedSetting(0.0, 0.0, 0.0, 4.8, 0.8, 0.2, 2.0, 30.0, 20),
    0.1: RankedSetting(0.0, 0.0, 0.0, 2.6, 0.2, 0.5, 5.0, 30.0, 20),
    0.3: RankedSetting(0.25, 0.25, 0.25, 3.6, 0.2, 0.5, 20.0, 1.0, 20),
    1.0: RankedSetting(0.5, 0.5, 0.25, 4.8, 0.2, 0.5, 80.0, 0.3, 20),
    3.0: RankedSetting(0.5, 0.5, 0.25, 3.6, 0.2, 0.7, 80.0, 0.3, 20),
    10.0: RankedSetting(0.5, 0.5, 0.25, 4.8, 0.2, 0.7, 80.0, 0.3, 40),
}
"""What ``python -m cipherbayes_research.paper.search_settings`` prints."""


def column_scales(setting: RankedSetting) -> dict[str, float]:
    """w of every column that is used."""
    core = {name.partition("_")[0] for name in CORE}
    scales = {}
    for name in FEATURES:
        if name in CORE:
            scale = 1.0
        elif name in STATIC or name.endswith("_last"):
            scale = setting.others
        else:
            scale = setting.series if name.partition("_")[0] in core else setting.rest
        if scale:
            scales[name] = scale
    return scales


def ranked_study(epsilon: float, *, records: int, protocol: str = "pooled") -> Study:
    """The study of a budget, for tables :func:`within_ranges`.

    A column is scaled by w through a public range that is 1/w times as wide.
    """
    chosen = SETTINGS[epsilon]
    scales = column_scales(chosen)
    k = chosen.norm / REACH
    constant = INTERCEPT * k
    means: dict[str, Any] = {
        name: chosen.effect * REACH * s for name, s in CORE.items()
    }
    means["intercept"] = math.log(MORTALITY / (1.0 - MORTALITY)) / constant
    document: dict[str, Any] = {
        "study": {"name": "physionet-mortality", "protocol": protocol},
        "model": {"kind": "logistic", "outcome": OUTCOME},
        "features": {name: feature(name, REACH / w) for name, w in scales.items()},
        "preparation": {"row_norm": k, "intercept": constant},
        "prior": {
            "scale": 1.0 / (k * math.sqrt(chosen.precision)),
            "parameters": {name: {"mean": mean} for name, mean in means.items()},
        },
        "inference": {
            "method": "averaged",
            "rounds": chosen.rounds,
            "step": {"size": chosen.step / k**2},
        },
        "privacy": {
            "epsilon": epsilon,
            "delta": 1e-5,
            "records": records,
            "clip": chosen.clip * k,
        },
    }
    if protocol == "encrypted-update":
        document["inference"] |= physionet.preconditioned(epsilon)
    return Study.model_validate(document)


def within_ranges(table: pa.Table) -> pa.Table:
    """Every value clipped to its public range, each record by itself.

    The ranges of :func:`ranked_study` are wider: a rare reading would otherwise count
    for more in a column of low rank than in one of high rank.
    """
    columns: dict[str, Floats | pa.ChunkedArray] = {}
    for name in table.column_names:
        if name in FEATURES:
            bounds = feature(name)
            values = table[name].to_numpy().astype(np.float64)
            columns[name] = np.clip(values, bounds["low"], bounds["high"])
        else:
            columns[name] = table[name]
    return pa.table(columns)


@lru_cache(maxsize=1)
def read(path: Path) -> pa.Table:
    """The cached table within its ranges, once a process."""
    return within_ranges(physionet.read(path))

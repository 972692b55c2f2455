"""PhysioNet 2012: its public feature map, and the studies of each budget.

Centres and half-widths are normal values and the ranges that severity scores use:
clinical common knowledge, not read off the rows. A feature's public range is
centre ± 1.5 half-widths (of the logarithm where marked); missing means normal. The
floors of the map's logarithms, centre/50 and 0.001, lie below every value that the
ranges do not clip anyway.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats, Integers
from cipherbayes_research.datasets.physionet2012 import FEATURES, OUTCOME, STATIC

REACH = 1.5
# fmt: off
LINEAR = {
    "Albumin": (3.5, 1.5), "Cholesterol": (160, 80), "DiasABP": (60, 25),
    "FiO2": (0.4, 0.4), "GCS": (13, 6), "HCO3": (24, 8), "HCT": (32, 9),
    "HR": (85, 35), "K": (4.1, 1.2), "MAP": (80, 25), "Mg": (2.0, 0.7),
    "Na": (139, 8), "NIDiasABP": (60, 25), "NIMAP": (78, 25), "NISysABP": (118, 40),
    "PaCO2": (40, 15), "pH": (7.39, 0.12), "RespRate": (19, 9), "SaO2": (97, 4),
    "SysABP": (118, 40), "Temp": (37, 1.5), "Age": (65, 25), "Height": (170, 20),
    "Gender": (0.5, 0.5), "ICUType": (2.5, 1.5),
}
LOGARITHMIC = {
    "ALP": (80, 4), "ALT": (30, 10), "AST": (35, 10), "Bilirubin": (0.8, 10),
    "BUN": (18, 4), "Creatinine": (1.0, 4), "Glucose": (125, 2.2), "Lactate": (1.6, 4),
    "PaO2": (110, 3), "Platelets": (200, 3), "TroponinI": (0.5, 30),
    "TroponinT": (0.05, 30), "Urine": (100, 8), "WBC": (11, 3), "Weight": (80, 1.6),
}
"""Centre, and the factor of one half-width."""

CORE = {
    "Age": 1, "GCS_last": -1, "BUN_last": 1, "Urine_last": -1, "Lactate_last": 1,
    "HR_last": 1, "HCO3_last": -1, "Bilirubin_last": 1,
}
"""Eight variables of severity scores and the sign that the literature gives them."""
# fmt: on

COLUMN_SETS: dict[str, tuple[str, ...]] = {
    "core8": tuple(CORE),
    "last40": tuple(c for c in FEATURES if c in STATIC or c.endswith("_last")),
    "all184": FEATURES,
}
ROW_NORMS = {"core8": 2.6, "last40": 4.8, "all184": 7.0}
"""Bounds on a row's norm, in half-widths."""

# fmt: off
SAPS_POINTS = {
    "Age": 6, "GCS_last": 8, "BUN_last": 6, "Urine_last": 11, "HR_last": 4,
    "HCO3_last": 3, "Bilirubin_last": 9, "Lactate_last": 47 / 7,
}
# fmt: on
"""Points that SAPS II (Le Gall, Lemeshow and Saulnier 1993) adds when a core variable
moves from its centre by one half-width to the worse: age 65 to 90, GCS 13 to 7, urea
nitrogen 18 to 72, urine from 2.4 to 0.3 litres a day, heart rate 85 to 120,
bicarbonate 24 to 16, bilirubin 0.8 to 8. It does not read lactate: mean of the rest."""

SAPS_LOGIT = 0.0737 + 0.9971 / 41.0
"""Log-odds of a point at the usual score of 40: the derivative of
0.0737 s + 0.9971 ln(s + 1)."""

PRIOR_MEANS = {"core8": 0.4, "last40": 0.4, "all184": 0.7}
"""Prior mean of a core variable's coefficient, its sign aside, on the scale of rows
divided by their norm bound."""


@dataclass(frozen=True)
class Setting:
    """Public constants of the ``averaged`` method at a budget.

    On the scale of rows divided by their norm bound: clip C, step η, prior
    precision, rounds T.
    """

    columns: str
    clip: float
    step: float
    precision: float
    rounds: int


SETTINGS = {
    0.1: Setting("core8", 0.4, 8.0, 10.0, 20),
    0.3: Setting("core8", 0.4, 25.0, 1.0, 20),
    1.0: Setting("last40", 0.4, 80.0, 1.0, 20),
    3.0: Setting("all184", 0.5, 25.0, 0.3, 200),
    10.0: Setting("all184", 1.0, 80.0, 0.3, 40),
}
"""Those that came with the public feature map, found without the test rows; it has
none for ε = 0.01."""


class PublicRange(TypedDict):
    """A number's entry of ``[features]``."""

    low: float
    high: float
    transform: NotRequired[Literal["log"]]
    missing: float


def feature(column: str, reach: float = REACH) -> PublicRange:
    """The public range of a column, as ``[features]`` has it.

    Parameters
    ----------
    reach
        Half-widths from the centre to either end.
    """
    name = column.partition("_")[0]
    if name in LINEAR:
        centre, half = LINEAR[name]
        return {
            "low": centre - reach * half,
            "high": centre + reach * half,
            "missing": float(centre),
        }
    centre, factor = LOGARITHMIC[name]
    return {
        "low": centre / factor**reach,
        "high": centre * factor**reach,
        "transform": "log",
        "missing": float(centre),
    }


def scale_of(columns: str) -> float:
    """k: how much longer rows in [-1, 1] are than rows divided by their bound."""
    return ROW_NORMS[columns] / REACH


def certified_study(
    epsilon: float,
    *,
    records: int,
    protocol: str = "pooled",
    prior: dict[str, Any] | None = None,
    setting: Setting | None = None,
) -> Study:
    """The study of a budget; ``epsilon`` 0 for the same one without privacy.

    Multiplying rows by k divides θ by k: clip and intercept grow by k, the step
    shrinks by k², the prior's scale by k.

    Parameters
    ----------
    prior
        Another prior than the literature's, as ``[prior]`` has it.
    """
    chosen = setting or SETTINGS[epsilon or 10.0]
    k = scale_of(chosen.columns)
    document: dict[str, Any] = {
        "study": {"name": "physionet-mortality", "protocol": protocol},
        "model": {"kind": "logistic", "outcome": OUTCOME},
        "features": {name: feature(name) for name in COLUMN_SETS[chosen.columns]},
        "preparation": {"row_norm": k, "intercept": 0.3 * k},
        "prior": prior or literature_prior(chosen),
        "inference": {
            "method": "averaged",
            "rounds": chosen.rounds if epsilon else 400,
            "step": {"size": chosen.step / k**2},
        },
    }
    if protocol == "encrypted-update":
        document["inference"] |= preconditioned(epsilon)
    if epsilon:
        document["privacy"] = {
            "epsilon": epsilon,
            "delta": 1e-5,
            "records": records,
            "clip": chosen.clip * k,
        }
    return Study.model_validate(document)


def preconditioned(epsilon: float) -> dict[str, Any]:
    """Steps of the encrypted update, for which those of ``averaged`` mean nothing:
    the product's own size, and as many as its design has."""
    return {"rounds": 10 if epsilon <= 1.0 else 40, "step": {}}


def literature_prior(setting: Setting) -> dict[str, Any]:
    """N(literature, 1/precision): the core variables' signs times one size."""
    k = scale_of(setting.columns)
    mean = PRIOR_MEANS[setting.columns] / k
    return {
        "scale": 1.0 / (k * math.sqrt(setting.precision)),
        "parameters": {name: {"mean": mean * sign} for name, sign in CORE.items()},
    }


def saps_prior(setting: Setting) -> dict[str, Any]:
    """N(SAPS II, 1/precision): what the published score gives for a half-width."""
    sizes = {name: REACH * SAPS_LOGIT * points for name, points in SAPS_POINTS.items()}
    return literature_prior(setting) | {
        "parameters": {name: {"mean": sizes[name] * s} for name, s in CORE.items()}
    }


def as_printed_rows(table: pa.Table, train: Integers) -> tuple[Floats, Floats]:
    """The paper's preparation from the training rows: means for missing values,
    Algorithm 4 (standardise) and Algorithm 5 (divide by the longest row)."""
    x = np.column_stack([table[name].to_numpy() for name in FEATURES])
    mean = np.nanmean(x[train], axis=0)
    x = np.where(np.isnan(x), mean, x) - mean
    sd = x[train].std(axis=0)
    x /= np.where(sd > 0.0, sd, 1.0)
    x /= np.linalg.norm(x[train], axis=1).max()
    return x, table[OUTCOME].to_numpy().astype(np.float64)


def clinical_score(table: pa.Table) -> Floats:
    """The no-data score: the eight core variables in half-widths, equal weights."""
    total = np.zeros(table.num_rows)
    for name, sign in CORE.items():
        bounds = feature(name)
        low, high = bounds["low"], bounds["high"]
        values = np.nan_to_num(table[name].to_numpy(), nan=bounds["missing"])
        values = np.clip(values, low, high)
        if "transform" in bounds:
            low, high, values = np.log(low), np.log(high), np.log(values)
        total += sign * (2.0 * values - low - high) / (high - low)
    return total


@lru_cache(maxsize=1)
def read(path: Path) -> pa.Table:
    """The cached table, once a process."""
    return pyarrow.parquet.read_table(path)

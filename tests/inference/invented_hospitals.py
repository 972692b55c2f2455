"""Five invented hospitals that differ, and a study over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import cipherbayes as cb
from cipherbayes.models import Logistic

FEATURES = {"x": {"low": -3, "high": 3}, "z": {"low": -3, "high": 3}}
SITES = ("a", "b", "c", "d", "e")
BETWEEN = 0.7


def tables(count: int = 300, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Five hospitals that differ in their level; x differs between them too."""
    rng = np.random.default_rng(seed)
    found = {}
    for k, site in enumerate(SITES):
        x = np.clip(rng.normal(0.3 * (k - 2), 1.0, count), -3, 3)
        z = np.clip(rng.normal(size=count), -3, 3)
        level = BETWEEN * np.sqrt(2.5) * (-1.0, 0.5, -0.5, 1.0, 0.0)[k]
        eta = -0.5 + level + 0.8 * x - 0.5 * z
        y = (rng.random(count) < 1.0 / (1.0 + np.exp(-eta))).astype(int)
        found[site] = pd.DataFrame({"x": x, "z": z, "y": y})
    return found


def study(**sections: Any) -> cb.Study:
    return cb.Study(
        features=FEATURES,
        **{
            "model": Logistic(outcome="y"),
            "hierarchy": {},
            "sites": {site: {} for site in SITES},
            **sections,
        },
    )

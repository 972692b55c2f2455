"""Studies over three hospitals that may differ."""

from __future__ import annotations

from typing import Any

import cipherbayes as cb

SITES = ("east", "north", "south")


def study_of(**sections: Any) -> cb.Study:
    return cb.Study(
        **{
            "model": cb.models.Logistic(outcome="death"),
            "features": {"age": {"low": 18, "high": 100}},
            "hierarchy": {},
            "privacy": {"epsilon": 1.0, "records": 900},
            "sites": {site: {} for site in SITES},
            **sections,
        }
    )

"""A study that takes a moment, stated in Python."""

from __future__ import annotations

from typing import Any

import cipherbayes as cb

FEATURES = {"age": {"low": 18, "high": 100}, "sex": {"levels": ["F", "M"]}}


def study(**sections: Any) -> cb.Study:
    inference = {"rounds": 60, "chains": 1}
    if "privacy" in sections:
        inference = {"method": "averaged", "rounds": 4}  # type: ignore[dict-item]
    return cb.Study(
        model=cb.models.Logistic(outcome="death"),
        features=FEATURES,
        inference=inference,
        **sections,
    )

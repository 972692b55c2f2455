"""No model is left out of the tables by which models are tested."""

from __future__ import annotations

from model_scenarios import MODELS

from cipherbayes.models.registry import registered

NETWORKS = {"neural-logistic", "neural-weibull"}
"""They have a plain model for their output, and test_neural.py."""


def test_every_model_is_compared_with_its_plain_formula() -> None:
    assert {model.kind for model, _ in MODELS.values()} == {*registered} - NETWORKS

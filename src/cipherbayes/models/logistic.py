"""Bayesian logistic regression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from scipy.special import expit

from cipherbayes import kernels
from cipherbayes.models.base import Model, RecordGradients, Rows
from cipherbayes.typing import Floats


class Logistic(Model):
    """A binary outcome y with P(y = 1) = p = 1 / (1 + exp(-eta)), eta = x'beta.

    log p(y | x, beta) = y eta - log(1 + exp(eta)); gradient x (y - p);
    second derivative in eta -p (1 - p).

    Parameters
    ----------
    outcome
        Column of zeros and ones.
    """

    roles: ClassVar[Mapping[str, str]] = {"y": "outcome"}
    kind: Literal["logistic"] = "logistic"
    outcome: str

    def prepare_outcome(self, raw: Mapping[str, Floats]) -> dict[str, Floats]:
        y = raw["y"]
        if not np.all((y == 0.0) | (y == 1.0)):
            raise ValueError(
                f"column '{self.outcome}' is not binary: recode it to 0 and 1"
            )
        return {"y": y}

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        eta = kernels.linear_predictor(theta, rows.x)
        result: Floats = rows.outcome["y"] * eta - np.logaddexp(0.0, eta)
        return result

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        eta = kernels.linear_predictor(theta, rows.x)
        return RecordGradients(rows, score=rows.outcome["y"] - expit(eta))

    def information_diagonal(self, theta: Floats, rows: Rows) -> Floats:
        p = expit(kernels.linear_predictor(theta, rows.x))
        result: Floats = rows.x**2 @ (p * (1.0 - p))
        return result

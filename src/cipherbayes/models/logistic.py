"""Bayesian logistic regression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from scipy.special import expit

from cipherbayes.models import kernels
from cipherbayes.models.base import Model, refuse_times
from cipherbayes.models.design import Design
from cipherbayes.models.held_out import BinaryCheck
from cipherbayes.models.influence import (
    BoundedInfluence,
    Influence,
    InfluenceBound,
    Weighting,
)
from cipherbayes.models.metrics import Metrics, binary_metrics
from cipherbayes.models.outcomes import require_binary
from cipherbayes.models.registry import register
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.typing import Floats


@register
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
    family: ClassVar[str] = "binary"
    measure: ClassVar[str | None] = "odds ratio"
    title: ClassVar[str | None] = "logistic regression"
    kind: Literal["logistic"] = "logistic"
    outcome: str

    def prepare_outcome(self, raw: Mapping[str, Floats]) -> dict[str, Floats]:
        require_binary(raw["y"], self.outcome)
        return {"y": raw["y"]}

    def check_outcomes(self, outcome: Mapping[str, Floats]) -> None:
        y = outcome["y"]
        if y.size == 0 or y.min() == y.max():
            raise ValueError(
                f"outcome column '{self.outcome}' does not hold both classes: "
                "a study needs rows with 0 and rows with 1"
            )

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        eta = kernels.linear_predictor(theta, rows.x)
        # log p(y) = -log(1 + exp(-eta)) for y = 1 and -log(1 + exp(eta)) for y = 0;
        # y eta - log(1 + exp(eta)) would cancel where p is close to one.
        result: Floats = -np.logaddexp(0.0, (1.0 - 2.0 * rows.outcome["y"]) * eta)
        return result

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        eta = kernels.linear_predictor(theta, rows.x)
        return RecordGradients(rows, score=rows.outcome["y"] - kernels.expit(eta))

    def information_diagonal(self, theta: Floats, rows: Rows) -> Floats:
        eta = kernels.linear_predictor(theta, rows.x)
        # expit(-eta) rather than 1 - p, which is zero from eta = 37 on.
        result: Floats = rows.x**2 @ (expit(eta) * expit(-eta))
        return result

    @property
    def held_out_check(self) -> BinaryCheck:
        return BinaryCheck(self)

    def curvature_of(self, events: float, design: Design) -> float:
        return events * (1.0 - events)

    @property
    def bounded_influence(self) -> LogisticInfluence:
        return LogisticInfluence(self)

    def predict(self, draws: Floats, rows: Rows, times: Floats | None = None) -> Floats:
        refuse_times(self, times)
        probabilities: Floats = expit(draws @ rows.x)
        return probabilities

    def fitted(self, theta: Floats, rows: Rows) -> Floats:
        probability: Floats = expit(kernels.linear_predictor(theta, rows.x))
        return probability

    def metrics(self, outcome: Mapping[str, Floats], fitted: Floats) -> Metrics:
        return binary_metrics(outcome["y"], fitted)


class LogisticInfluence(BoundedInfluence):
    """g = w x (y − p), A = w p (1 − p) x x': a score that is bounded as it is.

    E[p (1 − p)] ≈ ¼ (1 + π v / 8)^(−½) for a normal eta of variance v (MacKay 1992).
    """

    saturates: ClassVar[bool] = True
    multilevel: ClassVar[bool] = True

    def at(self, theta: Floats, rows: Rows, bound: InfluenceBound) -> Influence:
        eta = kernels.linear_predictor(theta, rows.x)
        score, information = kernels.logistic_terms(
            eta, rows.outcome["y"], rows.squared_norms, bound.clip
        )
        return Influence(rows, score, information)

    def weighting(self, bound: InfluenceBound) -> Weighting:
        return Weighting(bound.clip**2)

    def sensitivities(self, bound: InfluenceBound) -> tuple[float, float]:
        """‖g‖ ≤ C because |y − p| ≤ 1; ‖A‖ ≤ C² / 4 because p (1 − p) ≤ 1/4."""
        return bound.clip, 0.25 * bound.clip**2

"""Exponential survival: a constant hazard for each record."""

from __future__ import annotations

from typing import Literal

import numpy as np

from cipherbayes import kernels
from cipherbayes.models.base import Design, RecordGradients, Rows
from cipherbayes.models.survival import LARGEST_ETA, Survival
from cipherbayes.typing import Floats


class Exponential(Survival):
    """A survival time with hazard exp(eta), eta = x'beta.

    log p(t, c | x, beta) = c eta - t exp(eta); gradient x (c - t exp(eta));
    second derivative in eta -t exp(eta); survival S(t | x) = exp(-t exp(eta)).

    The paper's model with mean alpha exp(eta') is this one with beta = -beta' and
    intercept -log(alpha). Past eta = 700 the hazard stays at exp(700), so that
    nothing overflows.
    """

    kind: Literal["exponential"] = "exponential"

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        eta = kernels.linear_predictor(theta, rows.x)
        # The hazard per horizon is `horizon` times that per unit of the user's time.
        log_hazard = eta - np.log(self.horizon)
        result: Floats = rows.outcome["event"] * log_hazard
        result -= rows.outcome["time"] * _hazard(eta)
        return result

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        hazard = _hazard(kernels.linear_predictor(theta, rows.x))
        score = rows.outcome["event"] - rows.outcome["time"] * hazard
        return RecordGradients(rows, score=score)

    def information_diagonal(self, theta: Floats, rows: Rows) -> Floats:
        hazard = _hazard(kernels.linear_predictor(theta, rows.x))
        result: Floats = rows.x**2 @ (rows.outcome["time"] * hazard)
        return result

    def risk(self, theta: Floats, rows: Rows) -> Floats:
        return kernels.linear_predictor(theta, rows.x)

    def predict(self, draws: Floats, rows: Rows, times: Floats | None = None) -> Floats:
        scaled = self.scaled_times(times)
        hazard = _hazard(draws @ rows.x)
        with np.errstate(over="ignore"):  # an infinite cumulative hazard: S = 0
            survival: Floats = np.exp(-hazard[:, :, None] * scaled)
        return survival

    def to_user_scale(self, draws: Floats, design: Design) -> Floats:
        """Log hazards per unit of the user's time: the intercept less log(horizon)."""
        user = design.to_user_scale(draws)
        if design.intercept is not None:
            user[..., 0] -= np.log(self.horizon)
        return user


def _hazard(eta: Floats) -> Floats:
    result: Floats = np.exp(np.minimum(eta, LARGEST_ETA))
    return result

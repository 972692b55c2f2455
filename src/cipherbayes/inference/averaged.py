"""Noisy gradient ascent with the mean of the last half of the iterates.

    θ ← θ + η/N · (g̃ − Λ (θ − θ₀)),

with g̃ the released gradient sum and the prior N(θ₀, Λ⁻¹). The best plain
predictor at a small budget; a point, not a posterior: it has no intervals.

References
----------
Polyak and Juditsky (1992), Acceleration of stochastic approximation by averaging.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.typing import Floats


@dataclass(frozen=True)
class AveragedState:
    """θ after some rounds, and the mean of the θ after half of all rounds."""

    theta: Floats
    average: Floats
    rounds: int


def init(theta: Floats) -> AveragedState:
    """Start at ``theta``."""
    return AveragedState(theta.copy(), np.zeros_like(theta), 0)


def step(
    state: AveragedState,
    *,
    mean_gradient: Floats,
    prior_gradient: Floats,
    records: float,
    size: float,
    total_rounds: int,
) -> AveragedState:
    """One update; the average takes in the iterates after round T // 2."""
    theta = state.theta + size * (mean_gradient + prior_gradient / records)
    rounds = state.rounds + 1
    average = taken_in(state.average, theta, rounds, total_rounds)
    return AveragedState(theta, average, rounds)


def taken_in(average: Floats, theta: Floats, rounds: int, total_rounds: int) -> Floats:
    """The mean with θ after so many rounds, which counts after round T // 2."""
    kept = rounds - total_rounds // 2
    return average if kept < 1 else average + (theta - average) / kept


def point(average: Floats, theta: Floats, rounds: int, total_rounds: int) -> Floats:
    """The mean; θ itself where a run stopped before there was one."""
    return average if rounds > total_rounds // 2 else theta

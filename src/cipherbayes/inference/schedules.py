"""Schedules of step sizes: functions from the round t = 1, 2, … to η_t."""

from __future__ import annotations

import math
from collections.abc import Callable

from cipherbayes.inference.settings import Step

Schedule = Callable[[int], float]


def constant(size: float) -> Schedule:
    """η_t = size."""
    return lambda t: size


def polynomial(size: float, power: float, offset: float = 0.0) -> Schedule:
    """η_t = size · (offset + t)^(-power) (Welling and Teh, 2011)."""
    return lambda t: size * (offset + t) ** -power


def paper_step_size(
    t: int,
    *,
    epsilon: float,
    delta: float,
    records: float,
    batch: float,
    epochs: float,
    lipschitz: float,
    gamma: float,
    floor: float,
) -> float:
    """The paper's η_t (Algorithm 1): T epochs of minibatches of τ among N records.

    η_t = γ ε² (λ+L) τ / (32 L² N log(2.5 N T / (τ δ)) log(2/δ) t).
    """
    logs = math.log(2.5 * records * epochs / (batch * delta)) * math.log(2.0 / delta)
    top = gamma * epsilon**2 * (floor + lipschitz) * batch
    return top / (32.0 * lipschitz**2 * records * logs * t)


def fixed_schedule(
    step: Step, *, records: int, batch: int, rounds: int, floor: float
) -> Schedule | None:
    """The schedule a study fixes, or None where the step is automatic."""
    if step.schedule == "polynomial" and step.size is not None:
        return polynomial(step.size, step.power, step.offset)
    if step.schedule == "paper":
        epsilon = 1.0 if step.epsilon is None else step.epsilon
        return lambda t: paper_step_size(
            t,
            epsilon=epsilon,
            delta=step.delta,
            records=records,
            batch=batch,
            epochs=max(rounds * batch / records, 1.0),
            lipschitz=step.lipschitz,
            gamma=step.gamma,
            floor=floor,
        )
    return None if step.size is None else constant(step.size)

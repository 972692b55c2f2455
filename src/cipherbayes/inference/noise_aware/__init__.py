"""A posterior that knows of its noise: schedule, rounds, and draws afterwards.

See :mod:`~cipherbayes.inference.noise_aware.schedule` for what is released,
:mod:`~cipherbayes.inference.noise_aware.recursion` for the rounds and
:mod:`~cipherbayes.inference.noise_aware.posterior` for what comes after them.
"""

from __future__ import annotations

from cipherbayes.inference.noise_aware.flags import Flag
from cipherbayes.inference.noise_aware.posterior import (
    Effort,
    Posterior,
    sample_posterior,
)
from cipherbayes.inference.noise_aware.recursion import (
    NoiseAware,
    NoiseAwareState,
)
from cipherbayes.inference.noise_aware.schedule import (
    ROUNDS,
    Round,
    influence_bound,
    noise_multiplier,
    rounds,
)
from cipherbayes.inference.noise_aware.shape import ScoreShape

__all__ = [
    "ROUNDS",
    "Effort",
    "Flag",
    "NoiseAware",
    "NoiseAwareState",
    "Posterior",
    "Round",
    "ScoreShape",
    "influence_bound",
    "noise_multiplier",
    "rounds",
    "sample_posterior",
]

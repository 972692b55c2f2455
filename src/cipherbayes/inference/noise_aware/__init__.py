"""A posterior of θ that accounts for the privacy noise in everything released.

What is released is decided in :mod:`~.schedule`; :mod:`~.recursion` chooses the θ of
each round, and after the last one :mod:`~.posterior` draws from the posterior by way of

- :mod:`~.evidence`: the likelihood of the releases given the information matrix H,
- :mod:`~.information_prior` and :mod:`~.information`: the prior of H and its draws,
- :mod:`~.scores` and :mod:`~.slicing`: draws of θ given H,
- :mod:`~.flags`: the warnings about the result.
"""

from __future__ import annotations

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

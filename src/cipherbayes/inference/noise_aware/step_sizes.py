"""Step sizes of Hamiltonian trajectories, one for each chain.

Adapted to a share of accepted trajectories by dual averaging.

References
----------
Hoffman and Gelman (2014), The No-U-Turn sampler, section 3.2.
"""

from __future__ import annotations

import numpy as np

from cipherbayes.typing import Floats

FIRST_STEP = 0.25
"""Step size before any adaptation, in the metric's units."""
ACCEPTANCE = 0.8
"""Share of trajectories to accept, at which step sizes are adapted."""
LEAST_STEP, MOST_STEP = 1e-3, 1.2
"""Ends of the range of step sizes."""


class StepSizes:
    """The present step sizes, and what they are adapted from.

    Attributes
    ----------
    current
        One step size for each chain.
    """

    def __init__(self, chains: int) -> None:
        self.current: Floats = np.full(chains, FIRST_STEP)
        self.restart()

    def restart(self) -> None:
        """Forget what was learnt, since the metric is another; keep the sizes."""
        chains = self.current.size
        self._mean = np.log(2.0 * FIRST_STEP) * np.ones(chains)
        self._error = np.zeros(chains)
        self._log_average = np.log(FIRST_STEP) * np.ones(chains)
        self._count = 0

    def update(self, accepted: Floats) -> None:
        """Adapt to trajectories accepted with these probabilities."""
        self._count += 1
        share = 1.0 / (self._count + 10.0)
        self._error = (1.0 - share) * self._error + share * (ACCEPTANCE - accepted)
        log_step = self._mean - np.sqrt(self._count) / 0.15 * self._error
        log_step = np.clip(log_step, np.log(LEAST_STEP), np.log(MOST_STEP))
        fade = self._count**-0.75
        self._log_average = fade * log_step + (1.0 - fade) * self._log_average
        self.current = np.asarray(np.exp(log_step))

    def fix(self) -> None:
        """Use the averages from now on."""
        self.current = np.asarray(np.exp(self._log_average))

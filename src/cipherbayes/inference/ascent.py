"""Ascent along preconditioned gradients that were computed under encryption.

    θ ← θ + η · u_t,    u_t = P(V_t) (h_t + s ∇log p(θ_t)),

with h_t the scaled, noised gradient sum and P ≈ 1/(λ + √V) the preconditioner that
the encrypted circuit evaluates. Only u_t is ever decrypted. What is reported is the
mean of the iterates after half of the rounds. It is a point, not a posterior: at the
few rounds a budget pays for, a chain whose only noise is the privacy noise has
neither mixed nor the right temperature.

References
----------
Li, Chen, Carlson and Carin (2016), Preconditioned stochastic gradient Langevin
dynamics for deep neural networks. Polyak and Juditsky (1992), Acceleration of
stochastic approximation by averaging.
"""

from __future__ import annotations

from collections.abc import Sequence

from cipherbayes.inference import averaged
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.released import Recursion, Release, ServerState
from cipherbayes.inference.settings import Inference
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.typing import Floats

UNIT_NOISE = 0.1
"""σ': standard deviation of the noise in h, which its scale s is chosen for."""
MORE_ROUNDS_ABOVE = 1.0
"""ε above which a study that names no number of rounds has forty and not ten."""


def default_rounds(epsilon: float) -> int:
    """Rounds of a study that states none: few where noise is most of a step."""
    return 10 if epsilon <= MORE_ROUNDS_ABOVE else 40


class EncryptedAscent(Recursion):
    """Ascent along decrypted directions, averaged over its last half.

    Parameters
    ----------
    rounds
        Rounds in all; those after half of them are averaged.
    size
        η of each parameter.
    """

    def __init__(
        self, settings: Inference, prior: ResolvedPrior, *, rounds: int, size: Floats
    ) -> None:
        super().__init__(settings, prior)
        self.rounds = rounds
        self.size = size

    def advance(self, state: ServerState, release: Release) -> ServerState:
        theta = state.theta + self.size * release.gradient_sum
        rounds = state.rounds + 1
        average = averaged.taken_in(state.memory, theta, rounds, self.rounds)
        return ServerState(theta, average, rounds)

    def draws(self, trajectory: Sequence[Floats], last: ServerState) -> Draws:
        point = averaged.point(last.memory, last.theta, last.rounds, self.rounds)
        return Draws.of_point(point, len(trajectory))

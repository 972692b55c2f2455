"""The noise-aware rounds as a server runs them, one release after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cipherbayes.inference.chains import Draws
from cipherbayes.inference.noise_aware import recursion
from cipherbayes.inference.noise_aware.posterior import sample_posterior
from cipherbayes.inference.noise_aware.recursion import NoiseAware, RoundRelease
from cipherbayes.inference.noise_aware.schedule import ROUNDS
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.inference.released import Recursion, Release, State
from cipherbayes.inference.settings import Inference
from cipherbayes.models import Design, Model
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.typing import Floats


class NoiseAwareRounds(Recursion):
    """All rounds, and the posterior of all that they released.

    ``memory`` of a state is everything released so far, as one vector.
    """

    def __init__(
        self, settings: Inference, prior: ResolvedPrior, model: Model, design: Design
    ) -> None:
        self.settings = settings
        self.prior = prior
        self._rounds = NoiseAware(prior, ScoreShape.of(model, design))

    def start(self) -> State:
        return self._state(self._rounds.init())

    def advance(self, state: State, release: Release) -> State:
        inner = self._rounds.advance(
            recursion.State.from_vector(state.memory),
            RoundRelease(
                release.gradient_sum,
                release.noise_sd,
                release.information,
                release.information_sd,
            ),
        )
        return self._state(inner)

    def draws(self, trajectory: Sequence[Floats], last: State) -> Draws | None:
        """The posterior; None before the last round, when there is none yet."""
        if last.rounds < ROUNDS:
            return None
        inner = recursion.State.from_vector(last.memory)
        posterior = sample_posterior(self._rounds, inner, seed=self.settings.seed)
        return replace(posterior.draws, flags=posterior.flags)

    def _state(self, inner: recursion.State) -> State:
        return State(self._rounds.position(inner), inner.to_vector(), inner.rounds)

"""The noise-aware method as a server runs it, one release after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cipherbayes.inference.between_sites import SitePrior
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.influence import pack
from cipherbayes.inference.method import SiteRecords
from cipherbayes.inference.noise_aware.posterior import sample_posterior
from cipherbayes.inference.noise_aware.recursion import NoiseAware, NoiseAwareState
from cipherbayes.inference.noise_aware.schedule import ROUNDS
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.inference.released import Recursion, Release, ServerState
from cipherbayes.inference.settings import Inference
from cipherbayes.models import Design, Model
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.typing import Floats


class NoiseAwareRounds(Recursion):
    """All rounds, and the posterior of all that they released.

    ``memory`` of a state is everything released so far, as one vector.
    """

    def __init__(
        self,
        settings: Inference,
        prior: ResolvedPrior,
        model: Model,
        design: Design,
        site_records: SiteRecords | None = None,
    ) -> None:
        self.settings = settings
        self.prior = prior
        self._slots = prior.slots if isinstance(prior, SitePrior) else None
        shape = ScoreShape.of(model, design, self._slots, site_records)
        self._rounds = NoiseAware(prior, shape)

    def start(self) -> ServerState:
        return self._state(self._rounds.init())

    def advance(self, state: ServerState, release: Release) -> ServerState:
        if self._slots is not None and release.information is not None:
            matrix = self._slots.unpack(release.information)
            release = replace(release, information=pack(matrix))
        inner = self._rounds.advance(NoiseAwareState.from_vector(state.memory), release)
        return self._state(inner)

    def draws(self, trajectory: Sequence[Floats], last: ServerState) -> Draws | None:
        """The posterior; None before the last round, when there is none yet."""
        if last.rounds < ROUNDS:
            return None
        inner = NoiseAwareState.from_vector(last.memory)
        posterior = sample_posterior(self._rounds, inner, seed=self.settings.seed)
        return replace(posterior.draws, flags=posterior.flags)

    def _state(self, inner: NoiseAwareState) -> ServerState:
        return ServerState(
            self._rounds.position(inner), inner.to_vector(), inner.rounds
        )

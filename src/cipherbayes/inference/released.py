"""Samplers that see only released, noised gradient sums.

Everything here is post-processing of releases that are already private: the
preconditioner, the step, the average. The randomness is derived from the study's
seed and the round, so a run that is interrupted and resumed goes on as if
nothing had happened; none of it protects anyone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from cipherbayes.inference import averaged, psgld
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.method import PublicFacts
from cipherbayes.inference.schedules import Schedule, constant, fixed_schedule
from cipherbayes.inference.settings import Inference
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.typing import Floats

PRIVACY_SHARE = 0.8
"""Largest share of the Langevin variance that may come from the privacy noise. Below
one, because V, and with it G, fluctuates around its mean."""
STIFFEST_STEP = 0.5
"""Contraction η/2·λ that the automatic step has in the direction of largest curvature
λ."""


@dataclass(frozen=True)
class Release:
    """What one round released: noised sums over the records, and the noise in them.

    Attributes
    ----------
    gradient_sum
        Sum of bounded per-record gradients (scores) plus noise.
    noise_sd
        Standard deviation of the noise in each coordinate: that of all shares that
        were added, not the certified one.
    information, information_sd
        The same of the packed information sum; None and 0 in rounds without one.
    lost
        Sites that are in the sums no more.
    """

    gradient_sum: Floats
    noise_sd: float
    information: Floats | None = None
    information_sd: float = 0.0
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerState:
    """What a server remembers between rounds, whatever the method.

    ``memory`` is V of RMSprop, the running average, or everything released so far.
    """

    theta: Floats
    memory: Floats
    rounds: int


class Recursion(ABC):
    """How a server gets from θ_t and one release to θ_{t+1}, and at last to draws."""

    def __init__(self, settings: Inference, prior: ResolvedPrior) -> None:
        self.settings = settings
        self.prior = prior

    def start(self) -> ServerState:
        """The state before the first round: θ at the prior mean."""
        theta = np.array(self.prior.mean, dtype=np.float64)
        return ServerState(theta, np.zeros_like(theta), 0)

    @abstractmethod
    def advance(self, state: ServerState, release: Release) -> ServerState:
        """The state after one more release."""

    @abstractmethod
    def draws(self, trajectory: Sequence[Floats], last: ServerState) -> Draws | None:
        """What the run reports, from θ after each round; None if that is too soon."""


class GradientRecursion(Recursion):
    """A recursion that steps along mean gradients, as clipped and sampled records give.

    ĝ = (released sum) / (N · rate).
    """

    def __init__(
        self,
        settings: Inference,
        prior: ResolvedPrior,
        *,
        records: float,
        rounds: int,
        rate: float,
        curvature: float,
    ) -> None:
        """State what is public.

        Parameters
        ----------
        records
            N, declared or released with noise.
        rounds
            Releases that the budget pays for.
        rate
            Probability with which a record takes part in a release.
        curvature
            A public guess of the largest eigenvalue of a record's mean
            information, which bounds the automatic step.
        """
        super().__init__(settings, prior)
        self.records = records
        self.rounds = rounds
        self.rate = rate
        self.curvature = curvature

    @classmethod
    def of(cls, facts: PublicFacts) -> Self:
        """The recursion of a study that releases clipped gradients."""
        return cls(
            facts.settings,
            facts.prior,
            records=facts.records,
            rounds=facts.rounds,
            rate=facts.rate,
            curvature=facts.model.largest_curvature(facts.design),
        )

    def mean_gradient(self, release: Release) -> tuple[Floats, float]:
        """ĝ and the standard deviation of the privacy noise in it."""
        taken = self.records * self.rate
        return release.gradient_sum / taken, release.noise_sd / taken


class PrivatePsgld(GradientRecursion):
    """pSGLD (or SGLD) whose Langevin noise is, as far as it goes, the privacy noise.

    With ĝ the released mean gradient and s its noise's standard deviation the
    update gets (η/2)² G² N² s² of variance from the release; only what is missing
    to η G is injected (:func:`cipherbayes.inference.psgld.step`). The automatic
    step keeps the former below the latter, η ≤ 0.8 · 4 / (G N² s²), and
    η/2 · G · (N·curvature + prior precision) at one half, for the largest G of the
    round: only the ratios within G matter then, as they should where noise is most
    of V.
    """

    def advance(self, state: ServerState, release: Release) -> ServerState:
        settings, n = self.settings, self.records
        mean, noise = self.mean_gradient(release)
        inner = psgld.PsgldState(state.theta, state.memory, state.rounds)
        scale: Floats | float = 1.0
        if settings.preconditioner != "none":
            inner = psgld.update_second_moment(inner, mean, self._alpha(state))
            scale = psgld.preconditioner(inner, self._floor(inner))
        rng = np.random.default_rng([settings.seed, state.rounds])
        inner, _ = psgld.step(
            rng.standard_normal(inner.theta.shape),
            inner,
            mean_gradient=mean,
            prior_gradient=self.prior.gradient(state.theta),
            records=n,
            size=self._schedule(noise, float(np.max(scale)))(state.rounds + 1),
            scale=scale,
            noise_variance=noise**2,
        )
        return ServerState(inner.theta, inner.second_moment, inner.rounds)

    def _floor(self, state: psgld.PsgldState) -> float:
        """λ of the preconditioner; with automatic steps at least half the largest √V.

        G then varies by a factor of three at most. Without that bound the
        coordinate with the smallest gradient sets the step of all others, and a
        coordinate that is far from its place hardly moves.
        """
        automatic = self.settings.step.schedule == "constant" and (
            self.settings.step.size is None
        )
        largest = float(np.sqrt(state.second_moment.max()))
        return max(self.settings.floor, 0.5 * largest if automatic else 0.0)

    def _alpha(self, state: ServerState) -> float:
        """α; zero in the first round, so that V is ĝ² there and not (1 − α) ĝ².

        With V a tenth of ĝ², the first step would be too long.
        """
        return self.settings.alpha if state.rounds else 0.0

    def _schedule(self, noise: float, scale: float) -> Schedule:
        """The study's step sizes, or the largest that this round's G allows."""
        settings = self.settings
        fixed = fixed_schedule(
            settings.step,
            records=int(self.records),
            batch=min(settings.batch or int(self.records), int(self.records)),
            rounds=self.rounds,
            floor=settings.floor,
        )
        if fixed is not None:
            return fixed
        stiffest = self.records * self.curvature + 1.0 / self.prior.scale.min() ** 2
        size = 2.0 * STIFFEST_STEP / (scale * stiffest)
        if noise > 0.0:
            share = 4.0 * PRIVACY_SHARE / (scale * (self.records * noise) ** 2)
            size = min(size, share)
        return constant(size)

    def draws(self, trajectory: Sequence[Floats], last: ServerState) -> Draws:
        burn_in = int(self.settings.burn_in * len(trajectory))
        kept = np.array(trajectory[burn_in :: self.settings.thin])[None]
        sizes = np.full(kept.shape[:2], np.nan)
        return Draws(kept, sizes, is_point=False, rounds=len(trajectory))


class PrivateAverage(GradientRecursion):
    """Noisy gradient ascent, averaged over its last half: a point, no intervals."""

    def advance(self, state: ServerState, release: Release) -> ServerState:
        size = self.settings.step.size or 1.0 / self.curvature
        inner = averaged.step(
            averaged.AveragedState(state.theta, state.memory, state.rounds),
            mean_gradient=self.mean_gradient(release)[0],
            prior_gradient=self.prior.gradient(state.theta),
            records=self.records,
            size=size,
            total_rounds=self.rounds,
        )
        return ServerState(inner.theta, inner.average, inner.rounds)

    def draws(self, trajectory: Sequence[Floats], last: ServerState) -> Draws:
        point = averaged.point(last.memory, last.theta, last.rounds, self.rounds)
        return Draws.of_point(point, len(trajectory))

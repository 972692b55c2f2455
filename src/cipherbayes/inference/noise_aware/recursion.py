"""The rounds: from released sums to the θ at which the next ones are taken.

With ḡ, θ̄ precision-weighted averages of the released score sums and of where they
were taken, s² the variance of ḡ and H the shrunk information sum,

    ḡ ~ N(H (θ* − θ̄), H + s² I),     θ* ~ N(μ₀, Λ⁻¹),
    K = H (H + s² I)⁻¹,  J = Λ + K H,  m = J⁻¹ (Λ μ₀ + K (ḡ + H θ̄)),
    θ ← θ + (m − θ) min(1, r √d / ‖m − θ‖).

Before the window a score sum taken at θ_t counts as if its variance were
σ_t² + (λ² / d) ‖H (θ_t − θ)‖²: along the way from θ_t to θ the curvature changes by
about a share λ, so what was seen far away is soon forgotten. In the window only the
noise counts, and half of a step is made, as where θ turns back. The trust region r is
needed: far from its place the curvature says little (the hazard models diverge without
it). Everything here is post-processing.

Where scores are of residuals over a scale σ that is learnt, all this is in units of the
scale at one θ (:meth:`NoiseAware.measured_at`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cipherbayes.inference.between_sites import SitePrior
from cipherbayes.inference.noise_aware.schedule import (
    BURN_IN,
    EARLY_INFORMATION,
    ROUNDS,
)
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.inference.noise_aware.shrinkage import shrunk
from cipherbayes.inference.released import Release
from cipherbayes.models.packing import packed_length, unpack
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.typing import Floats

TRUST = 0.7
CURVATURE_CHANGE = 0.3
"""λ."""
FORGETTING = 0.25
"""Weight of the information sums so far when another arrives before the window."""
HALF, TURN = 0.5, -0.5
"""Share of a step that is made within the window, whose sums are averaged: the average
of sums is the sum at the average place only where these are close. And of a step whose
cosine with the last one is below -½: with too small an H whole steps leap from one side
of the mode to the other and back."""


@dataclass(frozen=True)
class NoiseAwareState:
    """All sums that the rounds so far have released, and the θ of the next round.

    Attributes
    ----------
    theta
        Where the next sums are taken, in internal units.
    rounds
        Rounds done.
    visited, gradients
        θ and score sum of every round, shape ``(24, d)``; zero where not yet done.
    gradient_sd, held_back
        Noise of every score sum; 1 where the trust region shortened the step.
    information, information_precision
        Packed sums Σ H̃_t / sd² and Σ 1 / sd² of the early rounds and the window,
        shapes ``(2, d (d + 1) / 2)`` and ``(2,)``.
    first_trace
        Trace of the first round's information sum, and the sd of its noise.
    """

    theta: Floats
    rounds: int
    visited: Floats
    gradients: Floats
    gradient_sd: Floats
    held_back: Floats
    information: Floats
    information_precision: Floats
    first_trace: Floats

    def to_vector(self) -> Floats:
        """Everything as one float64 vector, for a checkpoint."""
        parts = [np.array([self.theta.size, self.rounds], dtype=np.float64)]
        parts += [np.ravel(getattr(self, name)) for name in _shapes(self.theta.size)]
        return np.concatenate(parts)

    @classmethod
    def from_vector(cls, vector: Floats) -> NoiseAwareState:
        """The inverse of :meth:`to_vector`."""
        dimension = int(vector[0]) if vector.size > 2 else 0
        shapes = _shapes(dimension)
        sizes = [int(np.prod(shape)) for shape in shapes.values()]
        if dimension < 1 or vector.size != 2 + sum(sizes):
            raise ValueError("not a state of the noise-aware rounds")
        pieces = np.split(vector[2:], np.cumsum(sizes)[:-1])
        arrays = {
            name: piece.reshape(shape).copy()
            for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
        }
        return cls(rounds=int(vector[1]), **arrays)


def _shapes(dimension: int) -> dict[str, tuple[int, ...]]:
    return {
        "theta": (dimension,),
        "visited": (ROUNDS, dimension),
        "gradients": (ROUNDS, dimension),
        "gradient_sd": (ROUNDS,),
        "held_back": (ROUNDS,),
        "information": (2, packed_length(dimension)),
        "information_precision": (2,),
        "first_trace": (2,),
    }


@dataclass(frozen=True)
class NoiseAware:
    """The recursion of one study.

    Attributes
    ----------
    prior
        Of θ on the prepared scale.
    shape
        Of the model's score sums.
    """

    prior: ResolvedPrior
    shape: ScoreShape

    @property
    def prior_mean(self) -> Floats:
        """μ₀ in internal units."""
        return self.shape.inside(self.prior.mean)

    def prior_covariance(self) -> Floats:
        """Λ⁻¹ in internal units: of a prior that is not normal, with its scales for
        sds; where sites may differ, as far as they are expected to."""
        if isinstance(self.prior, SitePrior):
            covariance = self.prior.covariance(self.prior.start)
            return self.shape.covariance_inside(covariance)
        return self.shape.prior_covariance(self.prior.scale**2)

    def init(self) -> NoiseAwareState:
        """The state before the first round: θ at the prior mean."""
        shapes = _shapes(len(self.shape.basis))
        arrays = {name: np.zeros(shape) for name, shape in shapes.items()}
        arrays["theta"] = self.prior_mean.copy()
        return NoiseAwareState(rounds=0, **arrays)

    def position(self, state: NoiseAwareState) -> Floats:
        """θ on the prepared scale, at which the next round's sums are taken."""
        return self.shape.outside(state.theta)

    def advance(self, state: NoiseAwareState, release: Release) -> NoiseAwareState:
        """The state after one more round."""
        t = state.rounds
        if not 0 <= t < ROUNDS:
            raise ValueError("all rounds have been done")
        if (release.information is not None) != (
            t >= BURN_IN or t in EARLY_INFORMATION
        ):
            raise ValueError(f"round {t} and its information sum do not go together")
        visited, gradients = state.visited.copy(), state.gradients.copy()
        deviations, held = state.gradient_sd.copy(), state.held_back.copy()
        visited[t], gradients[t] = state.theta, release.gradient_sum
        deviations[t] = release.noise_sd
        information = state.information.copy()
        precision = state.information_precision.copy()
        trace = state.first_trace
        if release.information is not None:
            part = int(t >= BURN_IN)
            if part == 0:  # information at a θ that has been left is worth less
                information[0] *= FORGETTING
                precision[0] *= FORGETTING
            information[part] += release.information / release.information_sd**2
            precision[part] += 1.0 / release.information_sd**2
            if t == 0:
                dimension = state.theta.size
                total = np.trace(unpack(release.information))
                trace = np.array([total, release.information_sd * np.sqrt(dimension)])
        seen = replace(
            state,
            rounds=t + 1,
            visited=visited,
            gradients=gradients,
            gradient_sd=deviations,
            information=information,
            information_precision=precision,
            first_trace=trace,
        )
        step = self._posterior_mean(seen) - state.theta
        # In units of the prior, so that the region does not depend on the scales.
        here = self.shape.outside(step) / self.prior.scale
        last = self.shape.outside(state.theta - state.visited[t - 1]) / self.prior.scale
        length = float(np.linalg.norm(here))
        turns_back = t > 0 and here @ last < TURN * length * np.linalg.norm(last)
        if t >= BURN_IN or turns_back:
            step *= HALF
            length *= HALF
        most = TRUST * np.sqrt(step.size)
        if length > most:
            held[t] = 1.0
            step *= most / length
        return replace(seen, theta=state.theta + step, held_back=held)

    def measured_at(
        self, theta: Floats, state: NoiseAwareState
    ) -> tuple[NoiseAware, NoiseAwareState]:
        """Recursion and state in units of the scale at an internal θ.

        A score sum of residuals over σ_t has the slope H in units of σ_t. With λ =
        σ_t / σ that sum times λ has it in units of σ, whatever σ_t; a learnt log scale,
        whose score sum grows as e^(2Δ) − 1, Δ = log σ* − log σ_t, almost so:
        e^Δ − e^−Δ where λ = e^−Δ. Its noise is λ times as large, too.
        """
        shape = self.shape.measured_at(theta)
        if shape is self.shape:
            return self, state
        own = self.shape.scale(theta)
        there = [self.shape.scale(each) for each in state.visited]
        ratio = np.array(there, dtype=np.float64) / np.float64(own)

        def turned(internal: Floats) -> Floats:
            return shape.inside(self.shape.outside(internal))

        return replace(self, shape=shape), replace(
            state,
            theta=turned(state.theta),
            visited=turned(state.visited),
            gradients=ratio[:, None] * state.gradients,
            gradient_sd=ratio * state.gradient_sd,
        )

    def _posterior_mean(self, state: NoiseAwareState) -> Floats:
        """m, in units of the recursion's own."""
        recursion, measured = self.measured_at(state.theta, state)
        if recursion is self:
            return self._mean(state)
        return self.shape.inside(recursion.shape.outside(recursion._mean(measured)))

    def _mean(self, state: NoiseAwareState) -> Floats:
        information = estimate_at(self.shape, state.theta, *_information_so_far(state))
        if state.rounds > BURN_IN:
            place, gradient, variance = averages(state)
        else:
            place, gradient, variance = _recent(state, information)
        noise = variance * np.eye(place.size)
        weight = np.linalg.solve(information + noise, information).T
        if isinstance(self.prior, SitePrior):
            precision = np.linalg.inv(self.prior_covariance())
        else:
            precision = self.shape.prior_precision(self.prior.scale**2)
        right = weight @ (gradient + information @ place)
        right += precision @ self.prior_mean
        return np.asarray(np.linalg.solve(precision + weight @ information, right))


def averages(state: NoiseAwareState) -> tuple[Floats, Floats, float]:
    """(θ̄, ḡ, s²) of the window's rounds so far."""
    window = slice(BURN_IN, state.rounds)
    return _averaged(state, window, 1.0 / state.gradient_sd[window] ** 2)


def everything(
    state: NoiseAwareState, shape: ScoreShape, besides: Floats | float = 0.0
) -> tuple[Floats, Floats, float, Floats]:
    """(θ̄, ḡ, s²) of all rounds, and the precision of each round's score sum.

    Those taken far from the window count less, as in the steps; ``besides`` is a
    variance that each has besides.
    """
    centre = averages(state)[0]
    information = estimate_at(shape, centre, *information_estimate(state))
    moved = (state.visited - centre) @ information
    change = CURVATURE_CHANGE**2 * (moved**2).mean(axis=1)
    change[BURN_IN:] = 0.0
    weights = 1.0 / (state.gradient_sd**2 + change + besides)
    return *_averaged(state, slice(0, ROUNDS), weights), weights


def _recent(
    state: NoiseAwareState, information: Floats
) -> tuple[Floats, Floats, float]:
    """(θ̄, ḡ, s²) of all rounds so far, those taken far from θ counting less."""
    done = slice(0, state.rounds)
    moved = (state.visited[done] - state.theta) @ information
    change = CURVATURE_CHANGE**2 * (moved**2).mean(axis=1)
    weights = 1.0 / (state.gradient_sd[done] ** 2 + change)
    return _averaged(state, done, weights)


def _averaged(
    state: NoiseAwareState, chosen: slice, weights: Floats
) -> tuple[Floats, Floats, float]:
    total = float(weights.sum())
    place = weights @ state.visited[chosen] / total
    gradient = weights @ state.gradients[chosen] / total
    return place, gradient, 1.0 / total


def estimate_at(
    shape: ScoreShape, theta: Floats, noisy: Floats, noise_sd: float
) -> Floats:
    """A positive definite estimate of H from sums taken at θ."""
    return shrunk(noisy, noise_sd, shape.layout(theta, noisy, noise_sd))


def information_estimate(state: NoiseAwareState) -> tuple[Floats, float]:
    """(H̃, s_H) of the window."""
    precision = float(state.information_precision[1])
    return unpack(state.information[1] / precision), float(precision**-0.5)


def _information_so_far(state: NoiseAwareState) -> tuple[Floats, float]:
    """(H̃, s_H) of all rounds: a step may be wrong where the posterior may not."""
    precision = float(state.information_precision.sum())
    return unpack(state.information.sum(axis=0) / precision), float(precision**-0.5)

"""The rounds: from released sums to the θ at which the next ones are taken.

Each round makes a Newton step to the posterior mean m given the releases so far,
shortened where it is long. With ḡ and θ̄ the precision-weighted averages of the released
score sums and of the θ at which they were taken, s² the noise variance of ḡ and H the
shrunk information sum,

    ḡ ~ N(H (θ* − θ̄), H + s² I),     θ* ~ N(μ₀, Λ⁻¹),
    K = H (H + s² I)⁻¹,  J = Λ + K H,  m = J⁻¹ (Λ μ₀ + K (ḡ + H θ̄)),
    θ ← θ + (m − θ) min(1, r √d / ‖m − θ‖).

Before the window a score sum taken at θ_t is given the variance
σ_t² + (λ² / d) ‖H (θ_t − θ)‖²: between θ_t and θ the curvature changes by about a share
λ, so sums taken far away count for less. In the window the variance is the noise's
alone, and only half of a step is made; so it is wherever θ turns back. The trust region
r is needed because a curvature says little far from where it was taken: without it the
hazard models diverge. Everything here is post-processing.

Where a model divides residuals by a scale σ that is learnt, all of this is in units of
the scale at one θ (:meth:`NoiseAware.measured_at`).
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
"""r, largest step in prior standard deviations, over √d."""
CURVATURE_CHANGE = 0.3
"""λ, share by which the curvature is taken to change between a round's θ and the
present one: it says how much less the scores taken there count."""
FORGETTING = 0.25
"""Weight that the information sums so far keep when another arrives before the window:
they were taken at a θ that has been left."""
LEAST_SQUARE = 0.1
"""Least s², the square of the residuals' scale over that at θ, that is taken from a
score: noise hides whether it is less."""
PART_OF_STEP = 0.5
"""Share of a Newton step that is made within the window, and where θ turns back. The
window's sums are averaged, which is right only where their θ are close together; and
with an estimate of H that is too small, whole steps would leap across the mode and
back."""
TURNS_BACK = -0.5
"""Cosine between a step and the one before it below which θ turns back."""


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
        Noise sd of every score sum; 1 in rounds whose step the trust region shortened,
        0 in others.
    information, information_precision
        Packed sums Σ H̃_t / sd² and Σ 1 / sd² of the early rounds and the window,
        shapes ``(2, d (d + 1) / 2)`` and ``(2,)``.
    first_trace
        Trace of the first round's information sum, and the sd of its noise.
    first_information, first_information_sd
        That information sum, packed, and its noise sd as an array of one.
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
    first_information: Floats
    first_information_sd: Floats

    def to_vector(self) -> Floats:
        """Everything as one float64 vector, for a checkpoint."""
        parts = [np.array([self.theta.size, self.rounds], dtype=np.float64)]
        parts += [np.ravel(getattr(self, name)) for name in _shapes(self.theta.size)]
        return np.concatenate(parts)

    @classmethod
    def from_vector(cls, vector: Floats) -> NoiseAwareState:
        """The state that :meth:`to_vector` turned into this vector."""
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
    """Shape of each array of a state, in the order of its vector."""
    return {
        "theta": (dimension,),
        "visited": (ROUNDS, dimension),
        "gradients": (ROUNDS, dimension),
        "gradient_sd": (ROUNDS,),
        "held_back": (ROUNDS,),
        "information": (2, packed_length(dimension)),
        "information_precision": (2,),
        "first_trace": (2,),
        "first_information": (packed_length(dimension),),
        "first_information_sd": (1,),
    }


@dataclass(frozen=True)
class NoiseAware:
    """The rounds of one study: its prior and what is public about its score sums.

    "Internal units" are those of the releases: θ = B · (internal θ), B the basis of
    :class:`~.shape.ScoreShape`.

    Attributes
    ----------
    prior
        Prior of θ on the prepared scale.
    shape
        How the mean of the model's score sum depends on θ.
    """

    prior: ResolvedPrior
    shape: ScoreShape

    @property
    def prior_mean(self) -> Floats:
        """μ₀ in internal units."""
        return self.shape.inside(self.prior.mean)

    def prior_covariance(self) -> Floats:
        """Λ⁻¹, the covariance of the prior in internal units.

        A prior that is not normal has its scales taken for standard deviations. Where
        sites may differ, they differ by the τ that the sampler starts from.
        """
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
        first, first_sd = state.first_information, state.first_information_sd
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
                first = np.array(release.information, dtype=np.float64)
                first_sd = np.array([release.information_sd])
        seen = replace(
            state,
            rounds=t + 1,
            visited=visited,
            gradients=gradients,
            gradient_sd=deviations,
            information=information,
            information_precision=precision,
            first_trace=trace,
            first_information=first,
            first_information_sd=first_sd,
        )
        step = self._posterior_mean(seen) - state.theta
        # In units of the prior, so that the region does not depend on the scales.
        here = self.shape.outside(step) / self.prior.scale
        last = self.shape.outside(state.theta - state.visited[t - 1]) / self.prior.scale
        length = float(np.linalg.norm(here))
        turns_back = t > 0 and here @ last < TURNS_BACK * length * np.linalg.norm(last)
        if t >= BURN_IN or turns_back:
            step *= PART_OF_STEP
            length *= PART_OF_STEP
        most = TRUST * np.sqrt(step.size)
        if length > most:
            held[t] = 1.0
            step *= most / length
        return replace(seen, theta=state.theta + step, held_back=held)

    def measured_at(
        self, theta: Floats, state: NoiseAwareState
    ) -> tuple[NoiseAware, NoiseAwareState]:
        """This recursion and its state in units of the residual scale σ at ``theta``.

        A score sum of residuals over σ_t becomes one of residuals over σ when it is
        multiplied by λ = σ_t / σ, and so does its noise. For the coefficients this is
        exact. The score sum of the log scale itself grows as
        e^(2Δ) − 1 with Δ = log σ* − log σ_t; times λ = e^−Δ it is e^Δ − e^−Δ, which is
        nearly linear. Where no scale is learnt, nothing changes.
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

    def _straightened(self, state: NoiseAwareState) -> NoiseAwareState:
        """The rounds so far with scores of the log residual scale that grow with it.

        Where residuals have a share s of the scale at θ_t their score says s² − 1, and
        a Newton step would be (s² − 1) / 2, a half however small s is. Here the score
        is what it would be, were it linear in log s.
        """
        if self.shape.scale(state.theta) is None:
            return state
        information = estimate_at(self.shape, state.theta, *_information_so_far(state))
        unit = self.shape.basis[-1, -1] / information[-1, -1]
        gradients = state.gradients.copy()
        squares = 1.0 + 2.0 * unit * gradients[: state.rounds, -1]
        lower = 0.5 * np.log(np.maximum(squares, LEAST_SQUARE)) / unit
        gradients[: state.rounds, -1] = np.where(
            squares < 1.0, lower, gradients[: state.rounds, -1]
        )
        return replace(state, gradients=gradients)

    def _posterior_mean(self, state: NoiseAwareState) -> Floats:
        """m of the module's equations, in this recursion's own units."""
        recursion, measured = self.measured_at(state.theta, self._straightened(state))
        if recursion is self:
            return self._mean(state)
        return self.shape.inside(recursion.shape.outside(recursion._mean(measured)))

    def _mean(self, state: NoiseAwareState) -> Floats:
        """m where state and recursion are in the same units already."""
        information = estimate_at(self.shape, state.theta, *_information_so_far(state))
        if state.rounds > BURN_IN:
            place, gradient, variance = window_averages(state)
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


def window_averages(state: NoiseAwareState) -> tuple[Floats, Floats, float]:
    """(θ̄, ḡ, s²) averaged over the window's rounds so far."""
    window = slice(BURN_IN, state.rounds)
    return _averaged(state, window, 1.0 / state.gradient_sd[window] ** 2)


def averages_of_all_rounds(
    state: NoiseAwareState, shape: ScoreShape, more_variance: Floats | float = 0.0
) -> tuple[Floats, Floats, float, Floats]:
    """(θ̄, ḡ, s²) averaged over all rounds, and the precision of each round's score sum.

    Sums taken far from the window count for less, as in the steps. ``more_variance`` is
    added to the variance of each round's score sum.
    """
    centre = window_averages(state)[0]
    information = estimate_at(shape, centre, *information_estimate(state))
    moved = (state.visited - centre) @ information
    change = CURVATURE_CHANGE**2 * (moved**2).mean(axis=1)
    change[BURN_IN:] = 0.0
    weights = 1.0 / (state.gradient_sd**2 + change + more_variance)
    return *_averaged(state, slice(0, ROUNDS), weights), weights


def _recent(
    state: NoiseAwareState, information: Floats
) -> tuple[Floats, Floats, float]:
    """(θ̄, ḡ, s²) averaged over all rounds so far, those far from θ counting less."""
    done = slice(0, state.rounds)
    moved = (state.visited[done] - state.theta) @ information
    change = CURVATURE_CHANGE**2 * (moved**2).mean(axis=1)
    weights = 1.0 / (state.gradient_sd[done] ** 2 + change)
    return _averaged(state, done, weights)


def _averaged(
    state: NoiseAwareState, chosen: slice, weights: Floats
) -> tuple[Floats, Floats, float]:
    """(θ̄, ḡ, s²) of the chosen rounds, averaged with these precisions."""
    total = float(weights.sum())
    place = weights @ state.visited[chosen] / total
    gradient = weights @ state.gradients[chosen] / total
    return place, gradient, 1.0 / total


def estimate_at(
    shape: ScoreShape, theta: Floats, noisy: Floats, noise_sd: float
) -> Floats:
    """A positive definite estimate of H from a noised information sum taken at θ."""
    return shrunk(noisy, noise_sd, shape.layout(theta, noisy, noise_sd))


def information_estimate(state: NoiseAwareState) -> tuple[Floats, float]:
    """(H̃, s_H): the average of the window's information sums, and its noise sd."""
    precision = float(state.information_precision[1])
    return unpack(state.information[1] / precision), float(precision**-0.5)


def _information_so_far(state: NoiseAwareState) -> tuple[Floats, float]:
    """(H̃, s_H) averaged over all rounds so far, those before the window too.

    They were taken at another θ. That is good enough for a step, which later rounds
    correct; the posterior uses the window's only.
    """
    precision = float(state.information_precision.sum())
    return unpack(state.information.sum(axis=0) / precision), float(precision**-0.5)

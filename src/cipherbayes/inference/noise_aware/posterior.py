"""Draws of the posterior of θ after all rounds, counting the noise of every release.

The sampler alternates between the information matrix H, which is known only through
noise (:class:`~.information.InformationSampler`), and θ. Given H the averaged score sum
is Gaussian, ḡ ~ N(H (θ − θ̄), V + s² I), so

    θ | H ~ N(J⁻¹ (Λ μ₀ + L (ḡ + H θ̄)), J⁻¹),  L = H (V + s² I)⁻¹,  J = Λ + L H,

with V = K H K the variance of the records' score sum (:mod:`~.down_weighting`). Where
the model's score saturates or grows with the exponential of the linear predictor, its
mean is that of :mod:`~.saturation` or :mod:`~.tilting`, and θ is drawn by
:mod:`~.slicing`, or by :mod:`~.trajectories` where it grows and parameters are many.
Laplace and Student-t priors are scale mixtures of normals, whose scales are drawn given
θ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cipherbayes.inference.between_sites import SitePrior, typical
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.diagnostics import rhat
from cipherbayes.inference.flags import Flag, Leeway
from cipherbayes.inference.noise_aware.alike_columns import follows_from_others
from cipherbayes.inference.noise_aware.contrasts import evidence_of
from cipherbayes.inference.noise_aware.drawn_flags import LARGEST_RHAT
from cipherbayes.inference.noise_aware.evidence import DENSE, Evidence
from cipherbayes.inference.noise_aware.flags import CommonParameters, flags_of
from cipherbayes.inference.noise_aware.information import InformationSampler
from cipherbayes.inference.noise_aware.recursion import (
    NoiseAware,
    NoiseAwareState,
    window_averages,
)
from cipherbayes.inference.noise_aware.residual_scale import ResidualScale
from cipherbayes.inference.noise_aware.schedule import ROUNDS
from cipherbayes.inference.noise_aware.scores import (
    first_bend,
    next_bend,
    score_of,
)
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.inference.noise_aware.sites import compared_sites, in_context
from cipherbayes.inference.noise_aware.slicing import Score, slice_theta
from cipherbayes.inference.noise_aware.tilting import TiltedScore
from cipherbayes.inference.noise_aware.trajectories import Target, ThetaTrajectories
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.typing import Floats, Progress

MIXED = 1.03
"""R-hat at or below which the sampler has run long enough."""
PATIENCE = 2
"""Further doublings where R-hat is so large that the result could not be used: the
privacy budget is spent, and only computing time can save it."""
SCALE_TRIES = 5
"""Draws of coefficients and a learnt scale in a sweep: the prior takes some."""
WALK = 0.9
"""Correlation from sweep to sweep of a chain's draw of the first round's noise."""


@dataclass(frozen=True)
class Posterior:
    """Draws of θ on the prepared scale, and the warnings about them."""

    draws: Draws
    flags: tuple[Flag, ...]
    leeways: tuple[Leeway, ...] = ()


@dataclass(frozen=True)
class Effort:
    """How long the sampler runs: chains, discarded and kept sweeps, and doublings.

    While R-hat is above 1.03 the kept sweeps are discarded and a run of twice the
    length follows, thinned to as many draws, at most ``doublings`` times. While it is
    above 1.2, where the result could not be used, this is done up to twice more.
    """

    chains: int = 8
    warm_up: int = 200
    kept: int = 200
    doublings: int = 3

    @classmethod
    def for_dimension(cls, dimension: int) -> Effort:
        """The effort for a number of parameters: fewer sweeps where each costs more."""
        if dimension <= 20:
            return cls()
        if dimension <= DENSE:
            return cls(chains=4, warm_up=150, kept=250, doublings=2)
        return cls(chains=4, warm_up=100, kept=150, doublings=1)


SHORT = Effort(chains=4, warm_up=80, kept=40, doublings=0)
"""What it takes to say how wide intervals are on average."""


def sample_posterior(
    recursion: NoiseAware,
    state: NoiseAwareState,
    *,
    seed: int,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Posterior:
    """Draws of θ given everything that a finished recursion was given.

    Parameters
    ----------
    recursion, state
        The rounds, and their state after the last one.
    seed
        Seed of the sampler's randomness, which protects nobody.
    effort
        Chains and sweeps; chosen by the dimension where None.
    progress
        Called with (sweeps done, sweeps in all).
    """
    recursion, state = recursion.measured_at(window_averages(state)[0], state)
    effort = effort or Effort.for_dimension(recursion.prior.mean.size)
    total = effort.warm_up + effort.kept
    walk = _warmed_up(recursion, state, effort, seed, progress)
    recursion, evidence, shape = walk.recursion, walk.evidence, recursion.shape
    patience = PATIENCE if effort.doublings else 0
    for doubling in range(effort.doublings + patience + 1):
        walk.forget()
        kept = [walk.run(2**doubling) for _ in range(effort.kept)]
        theta, between, common = (
            np.stack(part, axis=1) for part in zip(*kept, strict=True)
        )
        mixing = rhat(np.concatenate([theta, between], axis=2))
        enough = MIXED if doubling < effort.doublings else LARGEST_RHAT
        if not np.nanmax(mixing, initial=1.0) > enough:
            break
    if progress is not None:
        progress(total, total)
    sizes = np.full(theta.shape[:2], np.nan)
    theta = shape.outside(theta)
    draws = Draws(theta, sizes, is_point=False, rounds=ROUNDS)
    alike = walk.alike
    prior = recursion.prior
    if not isinstance(prior, SitePrior):
        return Posterior(draws, *flags_of(recursion, state, evidence, draws, alike))
    judged = CommonParameters(common, prior.common, prior.slots.loading, between)
    flags, leeways = flags_of(recursion, state, evidence, draws, alike, judged)
    draws = replace(
        draws,
        theta=common,
        sites=prior.site_draws(theta, common, between),
        comparison=compared_sites(recursion, prior.told, evidence, typical(between)),
    )
    return Posterior(draws, flags, leeways)


def plausible_information(recursion: NoiseAware, state: NoiseAwareState) -> Floats:
    """A few draws of H given everything that was released, shape ``(draws, d, d)``.

    Of a short run of the sampler: enough for what H says on average, not for intervals.
    ``recursion`` and ``state`` are finished, in units of the residual scale.
    """
    walk = _warmed_up(recursion, state, SHORT, seed=0)
    found = []
    for _ in range(SHORT.kept):
        walk.step(adapting=False)
        found.append(walk.sampler.information())
    return np.concatenate(found)


def _warmed_up(
    recursion: NoiseAware,
    state: NoiseAwareState,
    effort: Effort,
    seed: int,
    progress: Progress | None = None,
) -> _Walk:
    """The sampler's chains after its warm-up."""
    evidence = evidence_of(recursion, state)
    if not evidence.draws_correlations:
        evidence = evidence.blurred()
    rng = np.random.default_rng([seed, ROUNDS])
    walk = _Walk(in_context(recursion, evidence), evidence, effort.chains, rng)
    for sweep in range(effort.warm_up):
        if sweep in (effort.warm_up // 4, effort.warm_up // 2):
            walk.sampler.renew_metric()
        walk.step(adapting=True)
        if progress is not None:
            progress(sweep + 1, effort.warm_up + effort.kept)
    walk.sampler.stop_adapting()
    walk.trajectories.stop_adapting()
    return walk


class _Walk:
    """The state of all chains: H, the scales of the prior, and θ."""

    def __init__(
        self,
        recursion: NoiseAware,
        evidence: Evidence,
        chains: int,
        rng: np.random.Generator,
    ) -> None:
        self.recursion, self.evidence, self.rng = recursion, evidence, rng
        bend = first_bend(recursion.shape, evidence)
        prior = recursion.prior
        follows = prior.follows if isinstance(prior, SitePrior) else None
        if follows is not None:
            follows = follows.inside(recursion.shape.basis)
        self.sampler = InformationSampler(evidence, chains, rng, bend, follows)
        self.between = self.common = self.spread = np.zeros((chains, 0))
        if isinstance(prior, SitePrior):
            self.set_between(prior, np.tile(prior.start, (chains, 1)))
            self.set_precision(prior)
        else:
            self.set_prior(np.tile(prior.scale**2, (chains, 1)))
        self.forget()
        self.residual = ResidualScale.of(recursion.shape, evidence)
        self.first = rng.standard_normal(chains)
        self.mode = np.tile(evidence.place, (chains, 1))
        self.trajectories = ThetaTrajectories(self.mode)
        self.theta = _draw_theta(
            rng, evidence, self.sampler.information(), self.precision
        )

    def set_prior(self, variances: Floats) -> None:
        """Use these variances of independent priors from now on, one row a chain."""
        shape = self.recursion.shape
        self.covariance = _moderate(shape, shape.prior_covariance(variances))
        self.precision = shape.prior_precision(variances)

    def set_between(self, prior: SitePrior, between: Floats) -> None:
        """Use this τ, by how much sites differ, of every chain from now on."""
        self.between = between
        self.sampler.chains.following = prior.following(between)
        alone = replace(prior, context=None).covariance(between)
        self.covariance = self.recursion.shape.covariance_inside(alone)

    def set_precision(self, prior: SitePrior) -> None:
        """Use the Λ that every chain's τ and H give from now on."""
        covariance = self.followed(prior).covariance(self.between)
        covariance = self.recursion.shape.covariance_inside(covariance)
        self.precision = np.asarray(np.linalg.inv(covariance))

    def followed(self, prior: SitePrior) -> SitePrior:
        """The prior with levels that follow the means in every chain's own H."""
        information = self.sampler.information()
        return prior.in_context(self.recursion.shape.information_outside(information))

    def forget(self) -> None:
        """Start counting anew how often columns follow from the others."""
        self._seen, self._alike = 0, np.zeros(self.evidence.dimension)

    @property
    def alike(self) -> Floats:
        """Share of the draws in which each column almost followed from the others."""
        return np.asarray(self._alike / max(self._seen, 1))

    def run(self, sweeps: int) -> tuple[Floats, Floats, Floats]:
        """θ, how much sites differ and common parameters, after so many sweeps."""
        for _ in range(sweeps):
            self.step(adapting=False)
        now = follows_from_others(self.evidence, self.sampler.information())
        self._alike += now.mean(axis=0)
        self._seen += 1
        return self._told(), self.spread, self.common

    def _told(self) -> Floats:
        """θ, with a learnt scale for what its score tells."""
        if self.residual is None:
            return self.theta
        told = self.residual.told(self.sampler.information(), self.theta)
        return np.where(np.isfinite(told), told, self.theta)

    def step(self, *, adapting: bool) -> None:
        """One sweep: H, β, θ, and then τ or the scales of the prior."""
        prior = self.recursion.prior
        self.sampler.sweep(self.covariance, adapting=adapting)
        self.sampler.set_bend(self._bend())
        information = self.sampler.information()
        if isinstance(prior, SitePrior):
            self.set_precision(prior)
        bend = self.sampler.chains.bend
        score = score_of(self.recursion.shape, self.evidence, information, bend)
        if score is None:
            self._draw(information)
        else:
            self.theta, self.mode = slice_theta(
                self.rng,
                self.evidence,
                score,
                information,
                self.precision,
                self.theta,
                self.mode,
            )
            if isinstance(score, TiltedScore) and self.evidence.dimension > DENSE:
                near = self.trajectories.near
                target = Target.of(
                    self.evidence, score, information, self.precision, near
                )
                self.theta = self.trajectories.moved(
                    self.rng, target, self.theta, adapting=adapting
                )
        if isinstance(prior, SitePrior):
            self._move_between(prior, information, score)
        elif prior.kind != "normal":
            self.set_prior(_draw_scales(self.rng, self.recursion, self.theta))

    def _draw(self, information: Floats) -> None:
        """The next θ, where the score is linear in it but for a learnt scale."""
        tries = 1 if self.residual is None else SCALE_TRIES
        for _ in range(tries):
            theta = _draw_theta(self.rng, self.evidence, information, self.precision)
            if self.residual is None:
                self.theta = theta
                return
            now, new = (
                self.residual.log_weight(information, each, self.precision)
                for each in (self.theta, theta)
            )
            accepted = np.log(self.rng.random(now.size)) < new - np.where(
                np.isfinite(now), now, -1e300
            )
            self.theta = np.where(accepted[:, None], theta, self.theta)

    def _move_between(
        self, prior: SitePrior, information: Floats, score: Score | None
    ) -> None:
        """Update τ given H, and the θ that moves with it."""
        evidence, shape = self.evidence, self.recursion.shape
        inverse = np.linalg.inv(evidence.score_covariance(information))

        def log_likelihood(theta: Floats) -> Floats:
            inside = shape.inside(theta)
            if score is None:
                mean = np.matvec(information, inside - evidence.place)
            else:
                mean = score.mean(inside)
            residual = evidence.gradient - mean
            squared = np.vecdot(residual, np.matvec(inverse, residual))
            return np.asarray(-0.5 * squared)

        theta, between, self.common, self.spread = self.followed(prior).update(
            self.rng, shape.outside(self.theta), self.between, log_likelihood
        )
        self.theta = shape.inside(theta)
        self.set_between(prior, between)

    def _bend(self) -> Floats:
        """The next β, from how far the curvature has fallen since the first round.

        At θ = 0, where the first round usually is, A is H, so tr A now over tr H then
        is the fall. Only its own noised release says what tr H was then: its posterior
        is the release plus noise, which changes slowly enough for A to follow.
        """
        white = self.rng.standard_normal(self.first.shape)
        self.first = WALK * self.first + np.sqrt(1.0 - WALK**2) * white
        trace, noise = self.evidence.first_trace
        information, bend = self.sampler.information(), self.sampler.chains.bend
        found = next_bend(
            self.recursion.shape,
            self.evidence,
            information,
            bend,
            trace + noise * self.first,
        )
        # Half of the way only, because A depends on β and β on A.
        return 0.5 * (bend + found)


def _moderate(shape: ScoreShape, covariance: Floats) -> Floats:
    """Λ⁻¹ as used in the density of H, with no effect's prior sd above one.

    The wider the prior of θ, the more a given ḡ speaks for an H with directions without
    information, in which θ may be anything (Lindley's paradox). A very wide prior, such
    as half the public range of an outcome, many times the residuals' sd, is not meant
    to say that.
    """
    width = len(shape.basis) if shape.width is None else shape.width
    columns = np.array([j for j in range(width) if j not in shape.constants], int)
    sizes = covariance[:, columns, columns]
    shrinking = np.ones(covariance.shape[:2])
    shrinking[:, columns] = np.minimum(1.0, sizes**-0.5)
    return np.asarray(covariance * shrinking[:, :, None] * shrinking[:, None, :])


def _draw_theta(
    rng: np.random.Generator,
    evidence: Evidence,
    information: Floats,
    prior_precision: Floats,
) -> Floats:
    """A draw of θ for every H of a stack, where the score is linear in θ."""
    weight = np.linalg.solve(evidence.score_covariance(information), information)
    weight = weight.transpose(0, 2, 1)
    precision = weight @ information
    precision = 0.5 * (precision + precision.transpose(0, 2, 1)) + prior_precision
    seen = evidence.gradient + information @ evidence.place
    right = np.matvec(weight, seen)
    right += prior_precision @ evidence.prior_mean
    lower = np.linalg.cholesky(precision)
    white = rng.standard_normal(right.shape)
    half = np.linalg.solve(lower, right[..., None])[..., 0] + white
    drawn = np.linalg.solve(lower.transpose(0, 2, 1), half[..., None])
    return np.asarray(drawn[..., 0])


def _draw_scales(
    rng: np.random.Generator, recursion: NoiseAware, theta: Floats
) -> Floats:
    """A draw of the prior's variances, of a scale mixture of normals, given θ.

    Laplace: 1/v ~ inverse Gaussian(1 / (b |u|), 1 / b²) (Park and Casella 2008);
    Student-t: v ~ inverse gamma((df + 1) / 2, (df b² + u²) / 2), u = θ − μ₀.
    """
    prior: ResolvedPrior = recursion.prior
    scale = prior.scale
    outside = recursion.shape.outside(theta)
    away = np.maximum(np.abs(outside - prior.mean), 1e-12 * scale)
    if prior.kind == "laplace":
        return np.asarray(1.0 / rng.wald(1.0 / (scale * away), 1.0 / scale**2))
    rate = 0.5 * (prior.df * scale**2 + away**2)
    return np.asarray(rate / rng.gamma(0.5 * (prior.df + 1.0), size=theta.shape))

"""Langevin chains and gradient ascent over pooled tables, without privacy.

This is the paper's setting (1). A chain takes steps of :mod:`~.psgld` or
:mod:`~.fisher`, whose step size is chosen here where the study states none; the point
estimate takes those of :mod:`~.averaged`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cipherbayes.errors import RunError
from cipherbayes.inference import averaged, fisher, psgld
from cipherbayes.inference.between_sites import SiteDraws
from cipherbayes.inference.schedules import fixed_schedule
from cipherbayes.inference.settings import Inference
from cipherbayes.inference.site_comparison import SiteComparison
from cipherbayes.inference.target import Target
from cipherbayes.typing import Floats, Integers, Progress

if TYPE_CHECKING:
    from cipherbayes.inference.flags import Flag, Leeway


STIFFEST_STEP = 0.1
"""Contraction η/2·λ in one step of the direction with the largest curvature λ. An
explicit Euler step inflates that direction's variance by 1/(1 − 0.05), its sd by
2.6 %."""
FISHER_STEP = 0.25
"""Contraction of every direction in one step in the Fisher metric, where the inflation
is undone exactly for a Gaussian posterior."""
FARTHEST = 1e4
"""Distance from the prior mean, in prior scales, beyond which a chain has diverged."""
MINIBATCH_SHARE = 0.05
"""Variance that minibatch noise may add to θ, as a share of the Langevin noise."""


@dataclass(frozen=True)
class Draws:
    """What a sampler kept, on the prepared scale.

    Attributes
    ----------
    theta
        Shape ``(chains, draws, d)``; one draw for a point estimate.
    step_size
        Step size of each kept draw, shape ``(chains, draws)``.
    is_point
        Whether this is an estimate without a spread.
    rounds
        Rounds of each chain, burn-in included.
    flags
        Warnings about the draws.
    leeways
        How warnings that depend on the draws may read for others of this posterior.
    sites
        What differs between sites; None where they are taken to be alike. ``theta``
        are then the common parameters.
    comparison
        How the sites compare, where they may differ.
    site_records
        The released number of records of each site, where it was released.
    """

    theta: Floats
    step_size: Floats
    is_point: bool
    rounds: int
    flags: tuple[Flag, ...] = ()
    sites: SiteDraws | None = None
    comparison: SiteComparison | None = None
    site_records: Floats | None = None
    leeways: tuple[Leeway, ...] = ()

    @classmethod
    def of_point(cls, theta: Floats, rounds: int) -> Draws:
        """A point estimate after so many rounds."""
        size = np.full((1, 1), np.nan)
        return cls(theta[None, None, :], size, is_point=True, rounds=rounds)


def sample(target: Target, settings: Inference, progress: Progress) -> Draws:
    """Run chains of Langevin steps over pooled tables.

    Parameters
    ----------
    target
        The log posterior.
    settings
        The study's ``[inference]`` table.
    progress
        Called with (rounds done, rounds in all), those of all chains together.
    """
    adaptive = settings.gamma_term or not target.model.near_gaussian
    kind = settings.preconditioner or ("rmsprop" if adaptive else "fisher")
    chains = settings.chains or 4
    rounds = settings.rounds or (4_000 if kind == "fisher" else 20_000)
    burn_in = int(settings.burn_in * rounds)
    kept = range(burn_in, rounds, settings.thin)
    theta = np.empty((chains, len(kept), target.start.size))
    sizes = np.empty((chains, len(kept)))
    walk: Iterator[tuple[Floats, Floats | float]]
    if kind == "fisher":
        walk = _fisher_walk(target, settings, chains)
    else:
        walk = _rmsprop_walk(target, settings, chains, rounds, kind == "rmsprop")
    for t in range(rounds):
        positions, step = next(walk)
        if t >= burn_in and (t - burn_in) % settings.thin == 0:
            theta[:, (t - burn_in) // settings.thin] = positions
            sizes[:, (t - burn_in) // settings.thin] = np.asarray(step)
        if t % 64 == 0 or t == rounds - 1:
            _refuse_divergence(target, positions, t)
            progress((t + 1) * chains, chains * rounds)
    return Draws(theta, sizes, is_point=False, rounds=rounds)


def _refuse_divergence(target: Target, theta: Floats, t: int) -> None:
    """Raise :class:`RunError` where a chain is far outside of its prior."""
    away = np.abs(theta - target.prior.mean) / target.prior.scale
    if not np.all(away < FARTHEST):  # NaN included
        raise RunError(
            f"the chain diverged by round {t + 1}",
            where="[inference.step]",
            remedy="lower the step size, leave size out to have it chosen, or narrow "
            "[prior] where rows say nothing of a parameter",
        )


def _minibatch(
    rng: np.random.Generator, records: int, settings: Inference
) -> tuple[Integers | None, float]:
    """Rows of a minibatch (None: all), and the divisor that makes a sum a mean."""
    if settings.batch is None or settings.batch >= records:
        return None, float(records)
    if settings.sampling == "poisson":
        rate = settings.batch / records
        return np.flatnonzero(rng.random(records) < rate), float(settings.batch)
    rows = rng.choice(records, size=settings.batch, replace=False, shuffle=False)
    return np.sort(rows), float(settings.batch)


def _fisher_walk(
    target: Target, settings: Inference, chains: int
) -> Iterator[tuple[Floats, float]]:
    """Chains that start around the mode, spread twice as wide as the posterior."""
    mode = target.mode()
    metric = fisher.metric(target.curvature(mode))
    size = settings.step.size or 2.0 * FISHER_STEP
    rngs = _sources(settings, chains)
    states = [fisher.init(mode + 2.0 * metric.noise(rng)) for rng in rngs]
    while True:
        for k, (rng, state) in enumerate(zip(rngs, states, strict=True)):
            rows, divisor = _minibatch(rng, target.records, settings)
            data = target.likelihood_gradient(state.theta, rows)
            gradient = target.prior.gradient(state.theta)
            gradient = gradient + data * (target.records / divisor)
            states[k] = fisher.step(
                rng, state, gradient=gradient, metric=metric, size=size
            )
        yield np.array([state.theta for state in states]), size


def _sources(settings: Inference, chains: int) -> list[np.random.Generator]:
    """A stream of random numbers for each chain."""
    return [np.random.default_rng([settings.seed, chain]) for chain in range(chains)]


def _rmsprop_walk(
    target: Target, settings: Inference, chains: int, rounds: int, adaptive: bool
) -> Iterator[tuple[Floats, Floats]]:
    """The paper's sampler, all chains side by side; plain SGLD where not ``adaptive``.

    θ, V and G have one row for each chain, so that a model can compute the gradients of
    all chains at once.
    """
    rngs = _sources(settings, chains)
    burn_in = int(settings.burn_in * rounds)
    batch = min(settings.batch or target.records, target.records)
    fixed = fixed_schedule(
        settings.step,
        records=target.records,
        batch=batch,
        rounds=rounds,
        floor=settings.floor,
    )
    recalibrate = {0, *(burn_in * k // 16 for k in (1, 2, 4, 8, 12, 16))}
    width = target.start.size
    spread = np.array([rng.standard_normal(width) for rng in rngs])
    state = psgld.init(target.start + 0.1 * spread)
    settled, frozen = np.zeros_like(state.theta), False
    sizes = np.zeros((chains, 1))
    for t in range(rounds):
        mean = _mean_gradients(rngs, target, state.theta, settings)
        if adaptive and not frozen:
            state = psgld.update_second_moment(state, mean, settings.alpha)
            if burn_in // 2 <= t < burn_in:
                settled += state.second_moment / (burn_in - burn_in // 2)
            if t == burn_in and settings.adapt == "burn-in" and burn_in > 1:
                state = psgld.PsgldState(state.theta, settled, state.rounds)
                frozen = True
        scale = (
            psgld.preconditioner(state, settings.floor)
            if adaptive
            else np.ones_like(state.theta)
        )
        if fixed is not None:
            sizes = np.full((chains, 1), fixed(t + 1))
        elif t in recalibrate:
            for k, (rng, theta) in enumerate(zip(rngs, state.theta, strict=True)):
                noise = _minibatch_variance(rng, target, theta, settings)
                sizes[k] = _automatic_size(target, theta, scale[k], noise)
        correction: Floats | float = 0.0
        if settings.gamma_term and adaptive and not frozen:
            information = [target.mean_information(theta) for theta in state.theta]
            correction = psgld.gamma(
                state,
                mean,
                np.array(information),
                alpha=settings.alpha,
                floor=settings.floor,
            )
        state, _ = psgld.step(
            np.array([rng.standard_normal(width) for rng in rngs]),
            state,
            mean_gradient=mean,
            prior_gradient=target.prior.gradient(state.theta),
            records=target.records,
            size=sizes,
            scale=scale,
            correction=correction,
        )
        yield state.theta, sizes[:, 0].copy()


def _mean_gradients(
    rngs: Sequence[np.random.Generator],
    target: Target,
    thetas: Floats,
    settings: Inference,
) -> Floats:
    """ĝ of every chain, over all records or over a minibatch of its own."""
    batches = [_minibatch(rng, target.records, settings) for rng in rngs]
    if all(rows is None for rows, _ in batches):
        return target.likelihood_gradients(thetas) / target.records
    return np.array(
        [
            target.likelihood_gradient(theta, rows) / divisor
            for theta, (rows, divisor) in zip(thetas, batches, strict=True)
        ]
    )


def _minibatch_variance(
    rng: np.random.Generator, target: Target, theta: Floats, settings: Inference
) -> Floats:
    """Variance of ĝ over minibatches at a fixed θ, from sixteen of them."""
    if settings.batch is None or settings.batch >= target.records:
        return np.zeros_like(theta)
    means = []
    for _ in range(16):
        rows, divisor = _minibatch(rng, target.records, settings)
        means.append(target.likelihood_gradient(theta, rows) / divisor)
    return np.asarray(np.var(means, axis=0, ddof=1))


def _automatic_size(
    target: Target, theta: Floats, scale: Floats, minibatch_variance: Floats
) -> float:
    """The largest step that keeps discretisation and minibatch noise small."""
    size = 2.0 * STIFFEST_STEP / target.largest_curvature(theta, scale)
    # (η/2)² G² N² Var ≤ share · η G
    noise = float(np.max(scale * target.records**2 * minibatch_variance))
    return size if noise == 0.0 else min(size, 4.0 * MINIBATCH_SHARE / noise)


def average(target: Target, settings: Inference, progress: Progress) -> Draws:
    """Gradient ascent over pooled tables, averaged over its last half."""
    rounds = settings.rounds or 200
    rng = np.random.default_rng(settings.seed)
    state = averaged.init(target.start)
    scale = np.ones_like(state.theta)
    size = settings.step.size or target.records / target.largest_curvature(
        state.theta, scale
    )
    for t in range(rounds):
        rows, divisor = _minibatch(rng, target.records, settings)
        state = averaged.step(
            state,
            mean_gradient=target.likelihood_gradient(state.theta, rows) / divisor,
            prior_gradient=target.prior.gradient(state.theta),
            records=target.records,
            size=size,
            total_rounds=rounds,
        )
        _refuse_divergence(target, state.theta, t)
        progress(t + 1, rounds)
    return Draws(
        state.average[None, None, :], np.array([[size]]), is_point=True, rounds=rounds
    )

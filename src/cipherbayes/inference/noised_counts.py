"""The posterior of the rates behind counts that were released with noise.

Cells have rates r(φ), a smooth function of a few parameters φ with a normal prior. A
released count ñ is Poisson with its rate, plus noise of a known standard deviation s.
Its mean is r and its variance r + s², as if

    ñ_c + s² ~ Poisson(r_c(φ) + s²),     φ ~ N(m, P⁻¹),

which is exact without noise and normal with much of it. (A normal density with variance
r + s² is not the same: where counts are small its score is correlated with its square,
and intervals are too narrow.) Sums that vary together, such as rows and their outcomes,
are normal instead, with the covariance that they have at the mode. So an interval of
any function of φ counts both that the rows are a sample and that noise was added to
their sums.

The sampler draws from a wide distribution around the mode, keeps draws in proportion to
how much likelier they are under the posterior, and moves them on by a few trajectories
of Hamiltonian Monte Carlo (Neal 2011), all at a time, in coordinates in which the
posterior is close to a standard normal. It reads released numbers only, and its seed is
fixed: the same release gives the same posterior.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cipherbayes.typing import Floats

PROPOSED = 800
"""Number of draws from the wide distribution around the mode."""
FREEDOM = 8.0
"""Degrees of freedom of that distribution, a multivariate t."""
CHAINS = 100
"""How many of these draws are kept and moved on."""
LEAP = 0.4
"""Size of a leapfrog step before adaptation, in posterior standard deviations."""
ACCEPTED = 0.8
"""Share of trajectories to accept, at which the step size is adapted."""
LEAST_RATE = 1e-6
"""Smallest rate of a cell, so that logarithms exist."""
SCORING = 50
"""Most steps of Fisher scoring to the mode."""
LONGEST_STEP = 5.0
"""Most that a step of scoring changes a parameter by. Where many rows are in a cell
that the prior has next to none in, a whole step would overshoot by many orders of
magnitude, and so would a hundredth of it."""
LEAST_GAIN = 1e-3
"""Gain of log density below which scoring ends."""
REWEIGHTED = 3
"""How often the mode of :func:`sample_normal` is sought, each time with the covariance
at the mode before."""
SIZES = np.array([1.0, 0.5, 0.2, 0.05, 0.01])
"""Shares of a scoring step that are tried; the best is taken."""


class Walk(NamedTuple):
    """How far draws are moved: trajectories that are discarded and kept, and the most
    leapfrog steps of one."""

    burn_in: int
    kept: int
    leaps: int


SHORT, LONG = Walk(5, 8, 5), Walk(30, 20, 12)
"""Where cells take long to compute and the posterior is close to a normal; and where
they do not, or where its tails are heavier."""

Pull = Callable[[Floats], Floats]
"""From weights of the cells, ``(k, c)``, to the gradient of Σ_c weights_c r_c(φ)."""
Cells = Callable[[Floats], tuple[Floats, Pull]]
"""From rows of parameters, ``(k, d)``, to the cells' rates and their :data:`Pull`."""


@dataclass(frozen=True)
class Smooth:
    """A prior: its mean, and R with R'R the precision P of a normal one.

    With ``freedom`` each row of R (φ - m) follows a t distribution with so many degrees
    of freedom, normal where that is infinite: mostly near zero, and sometimes far away.
    """

    mean: Floats
    root: Floats
    freedom: Floats | None = None

    def away(self, phi: Floats) -> tuple[Floats, Floats]:
        """R (φ - m) of each row of parameters, and its log density but for a
        constant."""
        away = (phi - self.mean) @ self.root.T
        if self.freedom is None:
            return away, -0.5 * (away**2).sum(axis=1)
        far = np.isfinite(self.freedom)
        few = self.freedom[far]
        logs = -0.5 * (away[:, ~far] ** 2).sum(axis=1)
        logs -= (0.5 * (few + 1.0) * np.log1p(away[:, far] ** 2 / few)).sum(axis=1)
        return away, logs

    def weights(self, away: Floats) -> Floats:
        """What rows are multiplied by in the gradient: one where they are normal."""
        if self.freedom is None:
            return np.ones_like(away)
        far = np.isfinite(self.freedom)
        held = np.where(far, self.freedom, 1.0)
        found: Floats = np.where(far, (held + 1.0) / (held + away**2), 1.0)
        return found


def second_differences(count: int, sd: float, level_sd: float) -> Floats:
    """R of a prior of ``count`` values along a line that favours straight ones.

    Second differences have the standard deviation ``sd``; each value by itself has
    ``level_sd``, far larger.
    """
    bends = np.diff(np.eye(count), n=2, axis=0) / sd
    return np.concatenate([bends, np.eye(count) / level_sd])


def block_diag(*blocks: Floats) -> Floats:
    """R of parameters whose priors are independent, block by block."""
    whole = np.zeros(np.sum([block.shape for block in blocks], axis=0))
    row = column = 0
    for block in blocks:
        rows, columns = block.shape
        whole[row : row + rows, column : column + columns] = block
        row, column = row + rows, column + columns
    return whole


def sample_rates(
    counts: Floats,
    noise: float,
    cells: Cells,
    prior: Smooth,
    walk: Walk = LONG,
) -> Floats:
    """The mode of φ and after it draws, shape ``(1 + s, d)``, from released counts and
    the standard deviation of their noise."""
    return _sampled(_Counts(counts, cells, prior, noise), walk)


def likeliest_rates(
    counts: Floats,
    noise: float,
    cells: Cells,
    prior: Smooth,
) -> tuple[Floats, Floats]:
    """The mode of φ, and the inverse of the information there."""
    mode, whiten = _Counts(counts, cells, prior, noise).mode()
    return mode, whiten @ whiten.T


def sample_normal(
    sums: Floats, cells: Cells, prior: Smooth, covariance: Callable[[Floats], Floats]
) -> Floats:
    """The mode of φ followed by draws, shape ``(1 + s, d)``, from correlated sums.

    Parameters
    ----------
    covariance
        The covariance of the sums as a function of one vector of parameters.
    """
    return _sampled(_normal_target(sums, cells, prior, covariance), LONG)


def _normal_target(
    sums: Floats, cells: Cells, prior: Smooth, covariance: Callable[[Floats], Floats]
) -> _Sums:
    phi = prior.mean
    for _ in range(REWEIGHTED):
        weight = np.linalg.inv(covariance(phi)).astype(np.float64)
        target = _Sums(sums, cells, prior, weight)
        phi, _ = target.mode()
    return target


def _sampled(target: _Target, walk: Walk, seed: int = 1) -> Floats:
    """The mode followed by draws from a posterior, as the module describes."""
    rng = np.random.default_rng(seed)
    mode, whiten = target.mode()
    phi = _proposed(target, mode, whiten, rng)
    density, slope = target.density(phi)
    size = LEAP
    kept = []
    for step in range(walk.burn_in + walk.kept):
        speed = rng.standard_normal(phi.shape)
        there, moved, gradient = phi, speed, slope
        for _ in range(int(rng.integers(2, walk.leaps + 1))):
            moved = moved + 0.5 * size * gradient @ whiten
            there = there + size * moved @ whiten.T
            reached, gradient = target.density(there)
            moved = moved + 0.5 * size * gradient @ whiten
        gain = reached - density - 0.5 * ((moved**2).sum(1) - (speed**2).sum(1))
        gain = np.where(np.isfinite(gain), gain, -np.inf)
        taken = np.log(rng.random(CHAINS)) < gain
        phi = np.where(taken[:, None], there, phi)
        density = np.where(taken, reached, density)
        slope = np.where(taken[:, None], gradient, slope)
        if step < walk.burn_in:
            share = float(np.exp(np.minimum(gain, 0.0)).mean())
            size *= np.exp(share - ACCEPTED)
        else:
            kept.append(phi)
    return np.concatenate([mode[None], *kept])


def about_the_mode(values: Floats) -> Floats:
    """Draws of a function of φ, shifted so that their median is its value at the mode.

    Where many parameters are hardly known, the draws of a nonlinear function lie to one
    side of its value at the mode, and that value is the one that is right on average.

    Parameters
    ----------
    values
        At the mode and at the draws, along the first axis.
    """
    at_mode, draws = values[0], values[1:]
    moved = draws + (at_mode - np.median(draws, axis=0))
    held: Floats = np.clip(moved, draws.min(axis=0), draws.max(axis=0))
    return held


def _proposed(
    target: _Target, mode: Floats, whiten: Floats, rng: np.random.Generator
) -> Floats:
    """Draws around the mode, resampled by their importance weights."""
    normal = rng.standard_normal((PROPOSED, mode.size))
    normal *= np.sqrt(FREEDOM / rng.chisquare(FREEDOM, (PROPOSED, 1)))
    phi = mode + normal @ whiten.T
    square = (normal**2).sum(axis=1) / FREEDOM
    weight = target.density(phi)[0] + 0.5 * (FREEDOM + mode.size) * np.log1p(square)
    share = np.exp(weight - weight.max())
    # Systematic resampling, evenly spaced over the cumulated weights: less is left to
    # chance than with independent choices.
    places = (np.arange(CHAINS) + rng.random()) / CHAINS
    found = np.searchsorted(np.cumsum(share) / share.sum(), places)
    chosen: Floats = phi[np.minimum(found, PROPOSED - 1)]
    return chosen


@dataclass(frozen=True)
class _Target(ABC):
    """The posterior of φ: its log density, and its mode by Fisher scoring."""

    released: Floats
    cells: Cells
    prior: Smooth

    def mode(self) -> tuple[Floats, Floats]:
        """The mode, and a matrix W with WW' the inverse of the information there."""
        phi = self.prior.mean
        root = self.prior.root
        for _ in range(SCORING):
            rates, pull = self.cells(phi[None])
            slopes = pull(np.eye(self.released.size))
            held = self.prior.weights(self.prior.away(phi[None])[0])[0]
            precision = (root * held[:, None]).T @ root
            information = slopes.T @ self.weigh(rates[0], slopes) + precision
            before, gradient = self.density(phi[None])
            step = np.linalg.solve(information, gradient[0])
            step *= min(1.0, LONGEST_STEP / float(np.abs(step).max()))
            tried = phi + SIZES[:, None] * step
            reached = self.density(tried)[0]
            best = int(np.argmax(reached))
            if not reached[best] > before[0] + LEAST_GAIN:
                break
            phi = tried[best]
        return phi, np.linalg.inv(np.linalg.cholesky(information)).T

    def density(self, phi: Floats) -> tuple[Floats, Floats]:
        """The log density of each row of parameters, and its gradient."""
        rates, pull = self.cells(phi)
        fit, slope = self.fit(rates)
        away, logs = self.prior.away(phi)
        pulled = (self.prior.weights(away) * away) @ self.prior.root
        return fit + logs, pull(slope) - pulled

    @abstractmethod
    def fit(self, rates: Floats) -> tuple[Floats, Floats]:
        """Log likelihood of each row of rates, and its gradient in them."""

    @abstractmethod
    def weigh(self, rates: Floats, slopes: Floats) -> Floats:
        """The inverse covariance of the cells times ``slopes``, a row for each cell."""


@dataclass(frozen=True)
class _Counts(_Target):
    """Counts of different rows, with independent noise."""

    noise: float

    def fit(self, rates: Floats) -> tuple[Floats, Floats]:
        mean = np.maximum(rates, LEAST_RATE) + self.noise**2
        seen = np.maximum(self.released + self.noise**2, 0.0)
        return (seen * np.log(mean) - mean).sum(axis=1), seen / mean - 1.0

    def weigh(self, rates: Floats, slopes: Floats) -> Floats:
        variance = np.maximum(rates, LEAST_RATE) + self.noise**2
        weighed: Floats = slopes / variance[:, None]
        return weighed


@dataclass(frozen=True)
class _Sums(_Target):
    """Sums that are correlated, with the inverse covariance ``weight``."""

    weight: Floats

    def fit(self, rates: Floats) -> tuple[Floats, Floats]:
        away = self.released - rates
        slope = away @ self.weight
        return -0.5 * (away * slope).sum(axis=1), slope

    def weigh(self, rates: Floats, slopes: Floats) -> Floats:
        return self.weight @ slopes

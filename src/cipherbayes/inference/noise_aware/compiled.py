"""The inner loops of the posterior, in C where a compiler was present.

The C code (``loops/``) computes the same as the numpy of :mod:`~.information` and
:mod:`~.slicing`. The numpy is used where the extension was not built, and tests compare
the two. C is given random numbers and draws none, and what it computes for one chain
does not depend on the others, so a seed gives the same draws with any number of
threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cipherbayes.inference.noise_aware.coordinates import Coordinates
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.information_prior import InformationPrior
from cipherbayes.inference.noise_aware.saturation import (
    SaturatingBySite,
    SaturatingScore,
)
from cipherbayes.inference.noise_aware.site_means import Means
from cipherbayes.inference.noise_aware.tilting import TiltedBySite, TiltedScore
from cipherbayes.inference.site_context import SiteContext
from cipherbayes.typing import Floats, Integers

_loops: Any
try:
    _loops = import_module("cipherbayes.inference.noise_aware._loops")
except ImportError:  # no C compiler when the package was installed
    _loops = None

COMPILED: bool = _loops is not None
"""Whether the extension was built."""

SCORES = (SaturatingScore, TiltedScore, TiltedBySite, SaturatingBySite)
CompiledScore = SaturatingScore | TiltedScore | TiltedBySite | SaturatingBySite
"""Classes of scores whose mean and derivative C can compute."""

Metric = NDArray[np.float32]
"""M of :mod:`~.information`, upper triangular."""

SMALLEST_RANK = 1e-15
"""Eigenvalues of the contrasts' matrix, over the largest, that are rounding error."""


@dataclass(frozen=True)
class TrajectoryLaw:
    """What the density depends on besides the evidence, for every chain.

    Attributes
    ----------
    means
        The laws of the columns' means.
    prior_covariance
        Λ⁻¹ of θ.
    bend
        β.
    following
        √f τ, how much sites' levels follow the means of columns.
    """

    means: Means
    prior_covariance: Floats
    bend: Floats
    following: Floats


class Loops:
    """The density of what HMC moves, and HMC's trajectories, computed by C.

    C reads the prior of H from tables. Another prior changes the tables and not the C
    code, as long as every moved entry either has a :class:`~.information_prior.Law` or
    is normal around a number or around another moved entry.
    """

    def __init__(
        self,
        evidence: Evidence,
        parts: Coordinates,
        prior: InformationPrior,
        direct: bool,
        follows: SiteContext | None = None,
    ) -> None:
        self._evidence, self._parts = evidence, parts
        self._followed = _followed(parts, follows)
        self._prior, self._direct = prior, direct
        self._contrasts = _half(evidence.quadratic)
        first = evidence.first if parts.correlated else None
        self._first: tuple[Floats | None, ...] = (None, None, None)
        if first is not None:
            each = (first.vectors, first.seen, first.precision)
            self._first = tuple(_plain(part) for part in each)
        self.renew()

    def renew(self) -> None:
        """Read the laws of the prior again, after their λ changed."""
        parts, prior = self._parts, self._prior
        rows, law_of = [], np.full(parts.size, -1, dtype=np.int64)
        columns = np.full((parts.size, 2), -1, dtype=np.int64)
        for number, law in enumerate(prior.laws):
            centre = -1 if law.centre is None else law.centre
            gamma = law.of_scale
            rows.append(
                (
                    law.form.share,
                    centre,
                    law.scale,
                    law.offset,
                    gamma.shape,
                    gamma.scale,
                )
            )
            law_of[law.which] = number
            if law.columns is not None:
                columns[law.which] = law.columns
        self._laws = (np.array(rows, dtype=np.float64), law_of, columns)

    def _problem(self, prior_covariance: Floats) -> tuple[Any, ...]:
        """The fields of ``Problem`` in loops.h, in the order of take_problem."""
        parts, prior, evidence = self._parts, self._prior, self._evidence
        off = prior_covariance.copy()
        index = np.arange(evidence.dimension)
        off[:, index, index] = 0.0
        return (
            parts.order,
            len(parts.constants),
            _plain(parts.from_blocks) if parts.framed else None,
            None if parts.power is None else _plain(parts.power),
            parts.reference,
            prior.pulled_by,
            *self._laws,
            evidence.place,
            evidence.gradient,
            evidence.place - evidence.prior_mean,
            _plain(evidence.information),
            _plain(evidence.linear),
            self._contrasts,
            evidence.variation,
            evidence.variance,
            evidence.information_sd,
            self._direct,
            not off.any() and not self._followed[2].size,
            *self._followed,
            *self._first,
        )

    def density(
        self, moved: Floats, law: TrajectoryLaw
    ) -> tuple[Floats, Floats, Floats]:
        """log p, its gradient and A, as ``InformationSampler.density`` has them."""
        chains, d = len(moved), self._evidence.dimension
        value, gradient = np.empty(chains), np.empty(moved.shape)
        built = np.empty((chains, d, d))
        problem = self._problem(law.prior_covariance)
        laws = self._of_chains(law, slice(None))
        _loops.density(problem, laws, _plain(moved), value, gradient, built)
        return value, gradient, built

    def leapfrog(
        self,
        metric: Metric,
        step: Floats,
        leaps: int,
        moved: Floats,
        momentum: Floats,
        law: TrajectoryLaw,
    ) -> tuple[Floats, Floats, Floats]:
        """Where trajectories end, A there, and the log of the acceptance ratio.

        The ratio is NaN where a trajectory went out of bounds.
        """
        chains, d = len(moved), self._evidence.dimension
        place, momentum = moved.copy(), momentum.copy()
        built, gain = np.empty((chains, d, d)), np.empty(chains)
        problem = self._problem(law.prior_covariance)

        def run(some: slice) -> None:
            _loops.leapfrog(
                problem,
                self._of_chains(law, some),
                metric,
                step[some],
                leaps,
                place[some],
                momentum[some],
                built[some],
                gain[some],
            )

        share_out(run, chains)
        return place, built, gain

    def _of_chains(self, law: TrajectoryLaw, some: slice) -> tuple[Floats, ...]:
        """The fields of ``ChainLaw`` in loops.h, of some chains."""
        normal = (each[some] for each in self._prior.normal(law.means))
        covariance = _plain(law.prior_covariance)[some]
        return *normal, covariance, law.bend[some], law.following[some]


def slice_theta(
    evidence: Evidence,
    score: CompiledScore,
    matrices: tuple[Floats, Floats],
    kept: Floats,
    random: tuple[Floats, Floats, Floats],
    theta: Floats,
    mode: Floats,
) -> tuple[Floats, Floats]:
    """θ and the mode of every chain, as :func:`~.slicing.sliced` computes them."""
    theta, mode = theta.copy(), mode.copy()
    target = (
        evidence.gradient,
        evidence.variation,
        evidence.variance,
        evidence.prior_mean,
        kept,
    )
    information, precision = (_plain(each) for each in matrices)

    def run(some: slice) -> None:
        _loops.slice_theta(
            *_fields(score, some),
            target,
            (information[some], precision[some]),
            tuple(each[some] for each in random),
            theta[some],
            mode[some],
        )

    share_out(run, len(theta))
    return theta, mode


def _fields(score: CompiledScore, some: slice) -> tuple[int, tuple[Any, ...]]:
    """The number of a score's class in loops.h, and its fields in module.c's order."""
    if isinstance(score, SaturatingScore):
        each = (score.slope, score.strength, score.bend, score.fixed)
        return 0, tuple(_plain(part[some]) for part in each)
    if isinstance(score, TiltedScore):
        form, skew = score.shape.straightening, score.shape.skew
        each = (score.information, score.pull, score.mass, score.origin)
        straight = None
        if form is not None:
            vectors = (form.along, form.first, form.last)
            straight = (*(_plain(vector) for vector in vectors), form.limit)
        return 1, (
            *(_plain(part[some]) for part in each),
            score.place,
            None if skew is None else _plain(skew),
            straight,
        )
    public = (score.constants, score.others, score.values, score.place)
    if isinstance(score, TiltedBySite):
        each = (score.masses, score.means, score.within, score.origin)
        return 2, (*public, *(_plain(part[some]) for part in each))
    each = (score.masses, score.means, score.slope, score.origin)
    bent = (score.levels, score.strength, score.bend)
    return 3, (*public, *(_plain(part[some]) for part in (*each, *bent)))


def share_out(run: Callable[[slice], None], chains: int) -> None:
    """Call ``run`` with parts of the chains, as many at once as there are cores."""
    workers = min(chains, _cores())
    ends = [chains * k // workers for k in range(workers + 1)]
    parts = [slice(*pair) for pair in pairwise(ends)]
    waiting = [_pool(workers).submit(run, part) for part in parts[1:]]
    run(parts[0])
    for each in waiting:
        each.result()


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    """The threads that work beside the calling one."""
    return ThreadPoolExecutor(max(workers - 1, 1), "cipherbayes-chains")


if hasattr(os, "register_at_fork"):
    # A forked child does not have its parent's threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _followed(
    parts: Coordinates, follows: SiteContext | None
) -> tuple[Integers, Floats, Floats, Floats]:
    """What levels follow: columns among the others, units of the blocks' rows, σ, l Σβ.

    No columns where levels follow nothing.
    """
    if follows is None:
        units, none = np.ones(parts.order.size), np.zeros((1, 0))
        return none.astype(np.int64), units, none[0], none
    place = np.empty(parts.order.size, dtype=np.int64)
    place[parts.order] = np.arange(parts.order.size)
    columns = place[follows.columns] - len(parts.constants)
    units = follows.units[parts.order]
    return np.ascontiguousarray(columns), units, follows.scale, _plain(follows.tilts)


def _half(quadratic: Floats) -> Floats:
    """C with C'C this positive semidefinite matrix, with as many rows as its rank."""
    values, vectors = np.linalg.eigh(quadratic)
    some = values > SMALLEST_RANK * max(float(values[-1]), 1e-300)
    return _plain((vectors[:, some] * np.sqrt(values[some])).T)


def _plain(values: Floats) -> Floats:
    """The values as a contiguous float64 array in C order, as the C code reads it."""
    return np.ascontiguousarray(values, dtype=np.float64)

"""Scores and information of records whose missing values are drawn.

Record i becomes M rows that differ in its missing values, which are drawn from
p(value | complete features). With row m's likelihood L_m = p(outcome | row m, θ),

    ω_m = L_m / Σ L,    g_i = Σ ω_m g_m,    log p_i = log(Σ L_m / M):

by Fisher's identity g_i is the score of what was observed of the record. By Louis's
identity its information is that of complete rows less what the missing values hide,

    A_i = Σ ω_m A_m − Σ ω_m (s_m − s̄) (s_m − s̄)',    s = g / √w,

with w the weight of an unusual row. The inverse of a sum of such matrices is the total
variance W + B that Rubin's rules estimate from the spread between imputations. So
intervals account for missing values, and nothing more is released for them.

References
----------
Louis (1982), Finding the observed information matrix when using the EM algorithm, JRSS
B 44. Rubin (1987), Multiple imputation for nonresponse in surveys.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cipherbayes.models import kernels
from cipherbayes.models.base import Model
from cipherbayes.models.influence import Influence, mallows_weights
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.typing import Floats

Expand = Callable[[Rows], tuple[Rows, Rows | None]]
"""From a block to its complete records and the drawn rows of the others."""

ROOM = 1.0 - 2.0**-40
"""Largest sum of the weights of a record's rows, before rounding adds to it."""


def weights(model: Model, theta: Floats, rows: Rows, draws: int) -> Floats:
    """ω of the rows of each record, shape ``(records, draws)``.

    Formal guarantees
    -----------------
    None is negative, and those of a record add up to at most 1 in exact arithmetic:
    their quotients by a sum of M terms are off by fewer than M + 2 roundings, and 2⁻⁴⁰
    is left for them. They depend on the record's rows and theta alone.

    Edge cases
    ----------
    A record none of whose rows has a finite log-likelihood has weights of zero.
    """
    log = model.log_likelihood(theta, rows).reshape(-1, draws)
    log = np.where(np.isfinite(log), log, -np.inf)
    with np.errstate(all="ignore"):
        likelihood = np.exp(log - log.max(axis=1, keepdims=True))
        found = likelihood / _added(likelihood)[:, None] * ROOM
    return np.where(np.isfinite(found), found, 0.0)


def log_likelihood(model: Model, theta: Floats, rows: Rows, draws: int) -> Floats:
    """log p(what was observed of the record | θ) of each record."""
    log = model.log_likelihood(theta, rows).reshape(-1, draws)
    most = log.max(axis=1)
    return np.asarray(most + np.log(np.exp(log - most[:, None]).mean(axis=1)))


def gradient(
    gradients: RecordGradients, share: Floats, limit: float | None = None
) -> Floats:
    """Σ_i Σ_m ω_m g_m, every g_m shortened to ``limit`` first."""
    records = kernels.by_record(_shortened(gradients.matrix(), limit), share)
    return np.asarray(records.sum(axis=1))


def influence_of_records(
    influence: Influence,
    share: Floats,
    clip: float,
    limits: tuple[float, float],
    *,
    with_information: bool,
) -> tuple[Floats, Floats | None]:
    """Σ g_i, and Σ A_i as a matrix, over records with drawn rows.

    Parameters
    ----------
    share
        ω, shape ``(records, draws)``.
    clip
        C, beyond which rows are weighted down.
    limits
        Bounds on |g_i| and |A_i|, what roundings may hide taken off.

    Formal guarantees
    -----------------
    Every g_m is shortened to the first limit, and g_i is a sum of them with weights
    that are not negative and add up to at most one: its norm keeps the limit. A_i is
    shortened to the second as a whole. Both are computed record by record, with no
    product of matrices over records before they are bounded; what is not finite counts
    zero.
    """
    rows, draws = influence.rows, share.shape[1]
    score = influence.score * rows.x
    if influence.extra is not None:
        score = np.concatenate([score, influence.extra])
    bounded = _shortened(score, limits[0])
    persons = np.ones(len(share))
    if rows.shares is not None:
        persons = rows.shares[::draws]
    mean = kernels.by_record(bounded, share)
    total = (mean * persons).sum(axis=1)
    if not with_information:
        return total, None
    whole = np.where(
        np.isfinite(score),
        score / np.sqrt(mallows_weights(rows.squared_norms, clip)),
        0,
    )
    middle = kernels.by_record(whole, share)
    dimension = len(score)
    summed = np.empty((dimension, dimension))
    squares = np.zeros(len(share))
    kept: list[tuple[int, int, Floats]] = []
    for one in range(dimension):
        for other in range(one, dimension):
            complete = _entry(influence, one, other) - whole[one] * whole[other]
            entry = kernels.by_record(complete[None], share)[0]
            entry = entry + middle[one] * middle[other]
            squares = squares + (1.0 if one == other else 2.0) * entry**2
            kept.append((one, other, entry))
    norms = np.sqrt(squares)
    shorter = limits[1] / np.maximum(norms, limits[1])
    shorter = np.where(np.isfinite(norms), shorter * persons, 0.0)
    for one, other, entry in kept:
        entry = np.where(shorter > 0.0, entry * shorter, 0.0)
        summed[one, other] = summed[other, one] = entry.sum()
    return total, summed


def _entry(influence: Influence, one: int, other: int) -> Floats:
    """Entry (one, other) of A of every row, one ≤ other."""
    x, width = influence.rows.x, len(influence.rows.x)
    if other < width:
        return np.asarray(influence.information * x[one] * x[other])
    cross, corner = influence.of_extras
    if one < width:
        return np.asarray(x[one] * cross[other - width])
    return np.asarray(corner[one - width, other - width])


def _shortened(vectors: Floats, limit: float | None) -> Floats:
    """Columns shortened to norm ``limit``; those that are not finite become zero."""
    if limit is None:
        return vectors
    squares = np.zeros(vectors.shape[1])
    for row in vectors:
        squares = squares + row * row
    norms = np.sqrt(squares)
    factor = limit / np.maximum(norms, limit)
    usable = np.isfinite(norms)
    return np.where(usable, vectors * np.where(usable, factor, 0.0), 0.0)


def _added(values: Floats) -> Floats:
    """Row sums, added in the order of the columns."""
    total = np.zeros(len(values))
    for column in values.T:
        total = total + column
    return total

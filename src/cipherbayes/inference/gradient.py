"""Passes over a site's records: bounded gradient sums, likelihoods, information.

A pass goes block by block: partial sums of ``BLOCK_ROWS`` records each are added in
block order, so the result has the same bits for a table held or streamed and for
any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cipherbayes.data.blocks import BLOCK_ROWS, block_count
from cipherbayes.data.imputing import DRAWS
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.inference import imputed
from cipherbayes.inference.imputed import Expand
from cipherbayes.models import kernels
from cipherbayes.models.base import Model
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.typing import UNIT_ROUNDOFF, Floats, Integers

SMALLEST_CLIP, LARGEST_CLIP = 1e-100, 1e100
"""Bounds on a record's contribution that are allowed: within them no weight
overflows."""
LARGEST_NORM = 1e200
"""Norm of a gradient above which it counts as zero: its weight could be subnormal and
inaccurate."""


def gradient_sum(
    model: Model,
    theta: Floats,
    table: PreparedTable,
    *,
    rows: Integers | None = None,
    clip: float | None = None,
    expand: Expand | None = None,
) -> Floats:
    """sum_i g_i min(1, C / |g_i|), g_i the gradient of record i, C = ``clip``.

    Parameters
    ----------
    rows
        Sorted positions of the records to sum over; all of them where None.
    clip
        Bound on the Euclidean norm of one record's contribution; None for none.
    expand
        How records with missing values become several rows; without a clip only.

    Formal guarantees
    -----------------
    The contribution of every record, as the vector of float64 numbers that is
    added, has Euclidean norm at most ``clip``, all roundings counted: records are
    bounded to ``clip`` less what rounding can add. It depends on that record and
    theta alone. The sum of n contributions is computed with an error of at most
    gamma(D) times the sum of their absolute values in each coordinate,
    gamma(D) = D u / (1 - D u), u = 2**-53, D = ``summation_depth(n)``.

    Edge cases
    ----------
    A zero gradient is left as it is. A gradient that is NaN or infinite contributes
    the zero vector, and so may one of norm above 1e200 or of a record whose squared
    norm overflows. No records: zero.
    """
    if clip is None:

        def whole(block: Rows) -> Floats:
            if expand is None:
                return model.gradient_sum(theta, block)
            complete, drawn = expand(block)
            total = np.zeros(theta.size)
            if complete.count:  # every record of a block may have a gap
                total = model.gradient_sum(theta, complete)
            if drawn is not None:
                share = imputed.weights(model, theta, drawn, DRAWS)
                total = total + imputed.gradient(model.gradients(theta, drawn), share)
            return total

        return _total(theta.size, table, rows, whole)
    if not SMALLEST_CLIP <= clip <= LARGEST_CLIP:
        raise ValueError(f"clip must lie between {SMALLEST_CLIP} and {LARGEST_CLIP}")
    # What rounding can add: p + q additions of squares, and a few operations more.
    parameters = len(model.parameters(table.design))
    width = table.design.width + parameters
    limit = clip * (1.0 - 2.0 * (width + 16) * UNIT_ROUNDOFF)

    def bounded(block: Rows) -> Floats:
        # No warning of overflow, which would depend on the records.
        with np.errstate(all="ignore"):
            return bounded_sum(model.gradients(theta, block), limit)

    return _total(parameters, table, rows, bounded)


def gradient_sums(model: Model, thetas: Floats, table: PreparedTable) -> Floats:
    """:func:`gradient_sum` over all records, unbounded, at several thetas."""
    return _total(thetas.shape, table, None, lambda b: model.gradient_sums(thetas, b))


def log_likelihood_sum(
    model: Model,
    theta: Floats,
    table: PreparedTable,
    *,
    rows: Integers | None = None,
    expand: Expand | None = None,
) -> float:
    """sum_i log p(record i | theta)."""

    def part(block: Rows) -> float:
        if expand is None:
            return float(model.log_likelihood(theta, block).sum())
        complete, drawn = expand(block)
        total = 0.0
        if complete.count:
            total = float(model.log_likelihood(theta, complete).sum())
        if drawn is not None:
            seen = imputed.log_likelihood(model, theta, drawn, DRAWS)
            total += float(seen.sum())
        return total

    return sum(table.map(part, rows))


def information_diagonal(
    model: Model, theta: Floats, table: PreparedTable, *, rows: Integers | None = None
) -> Floats:
    """-sum_i d²log p(record i | theta) / d theta_j² for each parameter j."""
    total = np.zeros(len(model.parameters(table.design)))
    for part in table.map(lambda b: model.information_diagonal(theta, b), rows):
        total += part
    return total


def summation_depth(rows: int) -> int:
    """Most roundings that one record's term meets on its way into a sum of ``rows``.

    With D = ``summation_depth(n)`` and u = 2**-53, a coordinate of
    :func:`gradient_sum` differs from the exact sum of its n terms w_i x_ij by at
    most D u / (1 - D u) sum_i |w_i x_ij| (Higham, Accuracy and Stability of
    Numerical Algorithms, section 4.2).

    Formal guarantees
    -----------------
    Holds for any order of addition within a block, hence for the compiled loops
    and for numpy's: a product and at most B - 1 additions within its block, then
    one addition for each block but the first.
    """
    return min(rows, BLOCK_ROWS) + max(block_count(rows) - 1, 0)


def bounded_sum(gradients: RecordGradients, limit: float) -> Floats:
    """Sum of the gradients of a block, each shortened to norm ``limit``.

    The norm is bounded up to the roundings that :func:`gradient_sum` leaves room
    for. Here, too, what is not finite contributes zero.
    """
    rows, score, extra = gradients.rows, gradients.score, gradients.extra
    if extra is None:
        scores = gradients.column_scores
        bounded = kernels.clip_scores(scores, rows.squared_norms, limit)
        return kernels.weighted_sum(rows.x, bounded)
    with np.errstate(over="ignore", invalid="ignore"):
        norms = _norms(rows, score, extra)
        # Beyond LARGEST_NORM limit / norm could be subnormal, hence inaccurate.
        usable = norms <= LARGEST_NORM
        weights = np.where(norms > limit, limit / np.maximum(norms, limit), 1.0)
        parts = []
        if score is not None:
            bounded = np.where(usable, score * weights, 0.0)
            parts.append(kernels.weighted_sum(rows.x, bounded))
        if not usable.all():
            extra = np.where(usable, extra, 0.0)
    parts.append(kernels.weighted_sum(extra, weights))
    return np.concatenate(parts)


def _norms(rows: Rows, score: Floats | None, extra: Floats) -> Floats:
    """Norms that are never too small by more than roundings, underflow included."""
    linear = np.zeros(rows.count)
    if score is not None:
        roots = np.sqrt(rows.squared_norms + kernels.NORM_FLOOR)
        linear = np.abs(score) * roots
    largest = np.maximum(linear, np.abs(extra).max(axis=0, initial=0.0))
    scale = np.where(largest > 0.0, largest, 1.0)
    squares = (linear / scale) ** 2 + kernels.add_rows((extra / scale) ** 2)
    norms: Floats = largest * np.sqrt(squares)
    return norms


def _total(
    shape: int | tuple[int, ...],
    table: PreparedTable,
    rows: Integers | None,
    part: Callable[[Rows], Floats],
) -> Floats:
    """The sum of ``part`` over all blocks, in block order."""
    total = np.zeros(shape)
    for each in table.map(part, rows):
        total += each
    return total

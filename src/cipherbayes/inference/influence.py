"""Passes over a site's records: bounded weighted score sums and information sums.

An information sum is released packed (:mod:`~cipherbayes.models.packing`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.data.imputing import DRAWS
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.inference import imputed
from cipherbayes.inference.imputed import Expand
from cipherbayes.models import kernels
from cipherbayes.models.base import Model
from cipherbayes.models.influence import (
    Influence,
    InfluenceBound,
    require_bounded_influence,
)
from cipherbayes.models.packing import pack, packed_length, packed_scales
from cipherbayes.models.rows import Rows
from cipherbayes.typing import UNIT_ROUNDOFF, Floats

SMALLEST_CLIP, LARGEST_CLIP = 1e-50, 1e50
"""Sensitivities that are allowed: within them the square of a bound is a normal
float64."""
LARGEST_NORM = 1e100
"""Norm of a contribution above which it counts as zero: its square would overflow."""


@dataclass(frozen=True)
class InfluenceSums:
    """Σ g_i, and Σ A_i packed (None where it was not asked for)."""

    gradient: Floats
    information: Floats | None


def influence_sums(
    model: Model,
    theta: Floats,
    table: PreparedTable,
    bound: InfluenceBound,
    *,
    with_information: bool,
    expand: Expand | None = None,
) -> InfluenceSums:
    """Sums over the records of the model's bounded scores and information.

    Parameters
    ----------
    theta
        Parameters on the prepared scale.
    bound
        The public bounds C and c.
    with_information
        Whether the information sum is wanted too.
    expand
        How records with missing values become several rows
        (:class:`~cipherbayes.data.imputing.Imputing`); None where there are none. The
        table is then as it is prepared, and what comes back as it is seen.

    Formal guarantees
    -----------------
    With (Δ_g, Δ_H) the ``sensitivities(bound)`` of the model's bounded influence, the
    contribution of every record, as the float64 numbers that are added, has Euclidean
    norm at most Δ_g in the score sum and at most Δ_H in the packed information sum, all
    roundings counted. It depends on that record and theta alone. Contributions are
    bounded here once more, to Δ less what rounding can add, so the promise does not
    rest on the model's own algebra. The error of a sum of n contributions is that of
    :func:`cipherbayes.inference.gradient.summation_depth`, with five roundings more.
    Where a record is a person with n rows, g_i and A_i are means over them; because
    (Σ g / n)(Σ g / n)' ≤ Σ gg' / n, E[g_i g_i'] ≤ E[A_i] holds however its rows depend
    on each other. A record whose missing values are drawn adds means over its rows
    (:mod:`~cipherbayes.inference.imputed`), within the same bounds.

    Edge cases
    ----------
    A contribution that is NaN, infinite, or of a record whose squared norm exceeds
    1e200 counts as zero. No records: zero.
    """
    bounded = require_bounded_influence(model)
    sensitivities = bounded.sensitivities(bound)
    if not all(SMALLEST_CLIP <= each <= LARGEST_CLIP for each in sensitivities):
        raise ValueError(f"bounds lie between {SMALLEST_CLIP} and {LARGEST_CLIP}")
    dimension = len(model.parameters(table.design))
    room = 1.0 - 4.0 * (table.design.width + dimension + 16) * UNIT_ROUNDOFF
    most_score, most_information = (each * room for each in sensitivities)

    def part(rows: Rows) -> tuple[Floats, Floats | None]:
        # A warning of an overflow would depend on the records.
        with np.errstate(all="ignore"):
            if expand is None:
                return complete(rows)
            whole, drawn = expand(rows)
            gradient, information = complete(whole)
            if drawn is None:
                return gradient, information
            share = imputed.weights(model, theta, drawn, DRAWS)
            more, matrix = imputed.influence_of_records(
                bounded.at(theta, drawn, bound),
                share,
                bound.clip,
                (most_score, most_information),
                with_information=with_information,
            )
            if information is None or matrix is None:
                return gradient + more, None
            return gradient + more, information + pack(matrix)

    def complete(rows: Rows) -> tuple[Floats, Floats | None]:
        if not rows.count:  # every record of a block may have a gap
            return nothing()
        with np.errstate(all="ignore"):
            influence = bounded.at(theta, rows, bound)
            gradient = _gradient(influence, most_score)
            if not with_information:
                return gradient, None
            return gradient, _information(influence, most_information)

    def nothing() -> tuple[Floats, Floats | None]:
        matrix = np.zeros(packed_length(dimension)) if with_information else None
        return np.zeros(dimension), matrix

    gradient, information = nothing()
    for gradient_part, information_part in table.map(part):
        gradient += gradient_part
        if information is not None and information_part is not None:
            information += information_part
    return InfluenceSums(gradient, information)


def _gradient(influence: Influence, limit: float) -> Floats:
    """The score sum of a block, each record's score shortened to norm ``limit``."""
    rows, score, extra = influence.rows, influence.score, influence.extra
    if extra is None and rows.shares is None:
        score = kernels.shorten(score, rows.squared_norms, limit, LARGEST_NORM)
        return kernels.weighted_sum(rows.x, score)
    with np.errstate(all="ignore"):
        squares = score**2 * (rows.squared_norms + kernels.NORM_FLOOR)
        if extra is not None:
            squares = squares + kernels.add_rows(extra**2)
        weights = _shortening(np.sqrt(squares), limit, rows)
        weights = _shared(weights, rows)
        score = np.where(weights > 0.0, score * weights, 0.0)
    total = kernels.weighted_sum(rows.x, score)
    if extra is None:
        return total
    extra = np.where(weights > 0.0, extra, 0.0)
    return np.concatenate([total, kernels.weighted_sum(extra, weights)])


def _information(influence: Influence, limit: float) -> Floats:
    """The packed information sum of a block, each record's bounded by ``limit``."""
    rows, information = influence.rows, influence.information
    cross, corner = influence.cross, influence.corner
    if cross is None and rows.shares is None:
        information = kernels.shorten(
            information, rows.squared_norms, limit, LARGEST_NORM, matrices=True
        )
        return kernels.weighted_gram(rows.x, information) * packed_scales(len(rows.x))
    with np.errstate(all="ignore"):
        lengths = rows.squared_norms + kernels.NORM_FLOOR
        squares = (information * lengths) ** 2
        if cross is not None and corner is not None:
            squares = squares + 2.0 * lengths * kernels.add_rows(cross**2)
            squares = squares + kernels.add_rows((corner**2).reshape(-1, rows.count))
        weights = _shortening(np.sqrt(squares), limit, rows)
        weights = _shared(weights, rows)
        usable = weights > 0.0
        information = np.where(usable, information * weights, 0.0)
    width = len(rows.x)
    triangle = kernels.weighted_gram(rows.x, information)
    if cross is None or corner is None:
        return triangle * packed_scales(width)
    whole = np.zeros((width + len(cross),) * 2)  # of which the upper half is packed
    whole[np.triu_indices(width)] = triangle
    cross = np.where(usable, cross * weights, 0.0)
    whole[:width, width:] = np.transpose(
        [kernels.weighted_sum(rows.x, own) for own in cross]
    )
    whole[width:, width:] = np.where(usable, corner * weights, 0.0).sum(axis=-1)
    return pack(whole)


def _shortening(norms: Floats, limit: float, rows: Rows) -> Floats:
    """min(1, limit / norm), zero where a record cannot be used."""
    weights = np.where(norms > limit, limit / np.maximum(norms, limit), 1.0)
    usable = (norms <= LARGEST_NORM) & (rows.squared_norms <= LARGEST_NORM**2)
    result: Floats = np.where(usable, weights, 0.0)
    return result


def _shared(weights: Floats, rows: Rows) -> Floats:
    """These weights times each row's share, where several rows are one person's."""
    return weights if rows.shares is None else weights * rows.shares

"""The inner loops of a gradient pass, compiled where a C compiler was present.

A block ``x`` has shape ``(p, m)``: one row per design column, so that a slice
``x[:, a:b]`` of a table needs no copy. The compiled loops release the GIL and add
in one fixed order; the numpy ones are used where the extension was not built.

Formal guarantees
-----------------
What a loop says of one record (a linear predictor, a norm, a clipped score, a
probability) is computed by the same operations, each rounded by itself, wherever
the record stands in its block and however many others there are. Only sums over
records depend on the order of the records, within the usual rounding error.
Matrix products of numpy do not have this property: BLAS treats the last few columns
of a block differently, and with parameters that cancel each other the difference
can be as large as the result.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from cipherbayes.typing import Bools, Floats, Integers

_compiled: Any
try:
    _compiled = import_module("cipherbayes._kernels")
except ImportError:  # no C compiler when the package was installed
    _compiled = None

COMPILED: bool = _compiled is not None

WIDEST_GRAM = 48
"""Columns up to which the compiled loop is faster than a matrix product of BLAS."""

CONSTANT, DOUBLE = 0, 4
STORED_TYPES = tuple(map(np.dtype, ("V0", "i1", "i2", "f4", "f8")))
"""Types of stored columns, by their number; the first is a constant's."""

NORM_FLOOR = 1e-300
"""Added to a squared norm before its root: more than all squares that may have
underflowed to zero in it, less than one rounding of any squared norm above 1e-284."""


def linear_predictor(theta: Floats, x: Floats, out: Floats | None = None) -> Floats:
    """eta_i = sum_j theta_j x_ji for a block ``x`` of shape ``(p, m)``.

    Several theta, one per row, give one row of eta each, up to rounding: for
    predictions, never for a sum that is released.
    """
    if theta.ndim > 1:
        result: Floats = np.matmul(theta, x, out=out)
        return result
    eta = np.empty(x.shape[1]) if out is None else out
    if _compiled is not None:
        _compiled.linear_predictor(_line(theta), _block(x), eta)
        return eta
    eta[:] = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        _add_in_fours([theta[j] * x[j] for j in range(len(x))], eta)
    return eta


def weighted_sum(x: Floats, weights: Floats) -> Floats:
    """g_j = sum_i x_ji weights_i for a block ``x`` of shape ``(p, m)``."""
    if _compiled is None:
        result: Floats = np.matmul(x, weights)
        return result
    total = np.empty(x.shape[0])
    _compiled.weighted_sum(_block(x), _line(weights), total)
    return total


def squared_norms(x: Floats) -> Floats:
    """n_i = sum_j x_ji² for a block ``x`` of shape ``(p, m)``."""
    norms = np.zeros(x.shape[1])
    if _compiled is not None:
        _compiled.squared_norms(_block(x), norms)
        return norms
    with np.errstate(over="ignore"):
        _add_in_fours([row * row for row in x], norms)
    return norms


def add_rows(values: Floats) -> Floats:
    """sum_j v_ji for each record i, row after row whatever the shape ``(q, m)``.

    numpy's own sum over the first axis adds in another order where m = 1.
    """
    total = np.zeros(values.shape[1:])
    for row in values:
        total += row
    return total


def by_record(values: Floats, share: Floats) -> Floats:
    """Σ_m ω_m v_im of records with M rows each, one row after the other.

    Parameters
    ----------
    values
        Shape ``(k, records × M)``, a record's rows together.
    share
        ω, shape ``(records, M)``.
    """
    several = share.shape[1]
    parts = values.reshape(len(values), -1, several)
    total = np.zeros(parts.shape[:2])
    for m in range(several):
        total = total + share[:, m] * parts[:, :, m]
    return total


def mean_by_record(values: Floats, several: int) -> Floats:
    """The mean of each record's ``several`` values, which stand together."""
    if several == 1:
        return values
    even = np.full((values.size // several, several), 1.0 / several)
    mean: Floats = by_record(values[None], even)[0]
    return mean


def clip_scores(score: Floats, squared_norms: Floats, limit: float) -> Floats:
    """s_i min(1, limit / (|s_i| r_i)), r_i = sqrt(n_i + floor), in the form sign(s_i)
    limit / r_i where it is shortened.

    Formal guarantees
    -----------------
    With ``n_i`` the squared norm of x_i and every rounding counted, the result times
    x_i has Euclidean norm at most ``limit (1 + (p + 8) 2**-53)`` for ``limit`` from
    1e-100 to 1e100: sign(s) limit / r never overflows nor becomes subnormal.

    Edge cases
    ----------
    A score or norm that is NaN, infinite, or whose product overflows gives 0.
    """
    out = np.empty_like(score)
    if _compiled is not None:
        floor = NORM_FLOOR
        _compiled.clip_scores(_line(score), _line(squared_norms), out, limit, floor)
        return out
    with np.errstate(all="ignore"):
        root = np.sqrt(squared_norms + NORM_FLOOR)
        size = np.abs(score) * root
        np.copyto(out, score)
        np.copyto(out, np.copysign(limit / root, score), where=size > limit)
        out[~(size <= np.finfo(np.float64).max)] = 0.0
    return out


def prepare_column(values: Floats, centre: float, scale: float, out: Floats) -> int:
    """z_i = (v_i - centre) scale held within [-1, 1], written to ``out``.

    Returns how many v_i are NaN or infinite.
    """
    if _compiled is not None:
        unusable: int = _compiled.prepare_column(_line(values), out, centre, scale)
        return unusable
    with np.errstate(over="ignore", invalid="ignore"):
        np.subtract(values, centre, out=out)
        np.multiply(out, scale, out=out)
    np.clip(out, -1.0, 1.0, out=out)
    return values.size - int(np.isfinite(values).sum())


def move_columns(
    x: Floats, mean: Floats, scale: Floats, out: Floats | None = None
) -> tuple[Floats, Floats]:
    """(x_j - mean_j) scale_j for each column j of a block, and its squared norms."""
    if out is None:
        out = np.empty(x.shape)
    norms = np.empty(x.shape[1])
    if _compiled is not None:
        _compiled.move_columns(_block(x), _line(mean), _line(scale), out, norms)
        return out, norms
    np.subtract(x, mean[:, None], out=out)
    np.multiply(out, scale[:, None], out=out)
    return out, squared_norms(out)


def restore_columns(
    record: NDArray[np.uint8],
    offsets: Integers,
    kinds: Integers,
    recipes: Floats,
    x: Floats,
    norms: Floats,
    width: int,
) -> None:
    """Write stored columns to ``x``, and to ``norms`` the squared norms of its first
    ``width`` rows.

    Parameters
    ----------
    record
        Bytes of the columns, each beginning at its place in ``offsets``.
    kinds
        Their types in :data:`STORED_TYPES`; a :data:`CONSTANT` has no bytes.
    recipes
        For each column centre, scale, low, high, mean and rescale of
        z = (v - centre) scale held within [low, high], x = (z - mean) rescale; a
        constant is its centre.
    """
    if _compiled is not None:
        _compiled.restore_columns(record, offsets, kinds, recipes, x, norms, width)
        return
    for j, (offset, kind) in enumerate(zip(offsets, kinds, strict=True)):
        centre, scale, low, high, mean, rescale = recipes[j]
        if kind == CONSTANT:
            x[j] = centre
            continue
        values = record[offset:].view()[: STORED_TYPES[kind].itemsize * x.shape[1]]
        with np.errstate(over="ignore", invalid="ignore"):
            z = (values.view(STORED_TYPES[kind]).astype(np.float64) - centre) * scale
            x[j] = (np.clip(z, low, high) - mean) * rescale
    norms[:] = squared_norms(x[:width])


def logistic_terms(
    eta: Floats, y: Floats, squared_norms: Floats, clip: float
) -> tuple[Floats, Floats]:
    """w (y - p) and w p (1 - p) of logistic regression, p = expit(eta).

    w = min(1, (clip / ‖x‖)²), the weights of Mallows.
    """
    if _compiled is not None:
        score, information = np.empty_like(eta), np.empty_like(eta)
        _compiled.logistic_terms(
            eta, _line(y), _line(squared_norms), score, information, clip**2
        )
        return score, information
    weights = clip**2 / np.maximum(squared_norms, clip**2)
    p, q = special.expit(eta), special.expit(-eta)
    return weights * (y - p), weights * p * q


def shorten(
    values: Floats,
    squared_norms: Floats,
    limit: float,
    most: float,
    *,
    matrices: bool = False,
) -> Floats:
    """v_i min(1, limit / n_i), n_i the norm of v_i x_i or of the matrix v_i x_i x_i'.

    Formal guarantees
    -----------------
    With ``squared_norms`` those of x_i and every rounding counted, the result times
    x_i, or x_i x_i', has a norm of at most ``limit (1 + (p + 16) 2**-53)``: the squared
    norm is never taken to be too small, by :data:`NORM_FLOOR`.

    Edge cases
    ----------
    Zero where n_i or ‖x_i‖ is NaN, infinite or beyond ``most``.
    """
    if _compiled is not None:
        out = np.empty_like(values)
        _compiled.shorten(
            _line(values), _line(squared_norms), out, limit, NORM_FLOOR, most, matrices
        )
        return out
    with np.errstate(all="ignore"):
        lengths = squared_norms + NORM_FLOOR
        squares = (values * lengths) ** 2 if matrices else values**2 * lengths
        norms = np.sqrt(squares)
        weights = np.where(norms > limit, limit / np.maximum(norms, limit), 1.0)
        usable = (norms <= most) & (squared_norms <= most**2)
        result: Floats = np.where(usable, values * weights, 0.0)
    return result


def weighted_gram(x: Floats, weights: Floats) -> Floats:
    """sum_i weights_i x_i x_i' for a block, its upper triangle row by row."""
    p = x.shape[0]
    if _compiled is None or p > WIDEST_GRAM:
        full = np.matmul(x * weights, x.T)
        triangle: Floats = full[np.triu_indices(p)]
        return triangle
    total = np.empty(p * (p + 1) // 2)
    _compiled.weighted_gram(_block(x), _line(weights), total)
    return total


def count_bins(
    z: Floats, centre: float, half: float, stand_in: float, bins: int
) -> Floats:
    """How many values are in each of the equal bins of [centre - half, centre + half].

    Values within 1e-12 of ``stand_in`` (NaN for none) and those outside are in none.
    """
    if _compiled is not None:
        counts, spare = np.zeros(bins + 1), np.zeros(bins + 1)
        _compiled.count_bins(_line(z), counts, spare, centre, half, stand_in)
        return counts[:bins]
    places, _ = bin_places(z, centre, half, stand_in, bins)
    return np.bincount(places, minlength=bins).astype(np.float64)


def bin_places(
    z: Floats, centre: float, half: float, stand_in: float, bins: int
) -> tuple[Integers, Bools]:
    """The bins of the values that are in one, and which these are."""
    inside = (z - centre) / half
    kept = np.abs(inside) <= 1.0
    if not np.isnan(stand_in):
        kept &= np.abs(z - stand_in) > 1e-12
    places = np.floor((inside[kept] + 1.0) * (0.5 * bins))
    return np.minimum(places, bins - 1).astype(np.int64), kept


def expit(x: Floats) -> Floats:
    """The logistic function 1 / (1 + exp(-x)), to within 4 roundings (2**-53 each).

    Below x = -708 it stays at the 3e-308 that it has there.
    """
    if _compiled is None:
        result: Floats = special.expit(x)
        return result
    out = np.empty(x.shape)
    _compiled.expit(_line(x).ravel(), out.ravel())
    return out


def _add_in_fours(terms: list[Floats], total: Floats) -> None:
    """Add rows to ``total`` in the order of the compiled loops."""
    whole = len(terms) - len(terms) % 4
    for j in range(0, whole, 4):
        a, b, c, d = terms[j : j + 4]
        total += (a + b) + (c + d)
    for term in terms[whole:]:
        total += term


def _line(values: Floats) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float64)


def _block(x: Floats) -> Floats:
    if x.dtype == np.float64 and (x.strides[1] == 8 or x.shape[1] <= 1):
        return x
    return np.ascontiguousarray(x, dtype=np.float64)

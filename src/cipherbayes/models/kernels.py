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
from scipy import special

from cipherbayes.typing import Floats

_compiled: Any
try:
    _compiled = import_module("cipherbayes._kernels")
except ImportError:  # no C compiler when the package was installed
    _compiled = None

COMPILED: bool = _compiled is not None

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

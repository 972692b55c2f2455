"""Curves over a public range: polynomials and splines as well-scaled columns.

A curve of a number is a straight line plus bends. On t in [-1, 1], the public range of
the (transformed) number, its functions are

    poly(x, d)   t, t², ..., t^d;
    rcs(x, k)    t, and k - 2 cubic splines that are straight beyond the outer knots
                 (Harrell 2015, Regression modeling strategies, section 2.4.5);
    bs(x, ...)   t, ..., t^d, and (t - knot)_+^d for each inner knot, which span the
                 same curves as B-splines do (de Boor 1978, chapter IX).

They are made orthogonal to the constant and to each other over the uniform distribution
on the range, in this order, and scaled so that the largest absolute value is one. So
the first column is the number itself as it is prepared without a curve, every other one
is a bend, and a prior of the same scale lets each move the linear predictor as far as
the straight line. Nothing is learnt from rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from cipherbayes.models.formula import Curve
from cipherbayes.typing import Floats

QUANTILES: dict[int, tuple[float, ...]] = {
    3: (0.1, 0.5, 0.9),
    4: (0.05, 0.35, 0.65, 0.95),
    5: (0.05, 0.275, 0.5, 0.725, 0.95),
    6: (0.05, 0.23, 0.41, 0.59, 0.77, 0.95),
    7: (0.025, 0.1833, 0.3417, 0.5, 0.6583, 0.8167, 0.975),
}
"""Harrell's places of so many knots, here as shares of the public range."""

NODES = 8
"""Points of a quadrature between two knots: exact for the products of cubic pieces."""
GRID = 2001
"""Points of a grid over the range, on which a column's largest value is looked for."""
LEAST_BEND = 1e-6
"""Share of a function that must not follow from those before it."""


@dataclass(frozen=True)
class Basis:
    """The columns of a curve.

    Attributes
    ----------
    kind, degree, knots
        Which functions of t; knots on [-1, 1].
    weights
        Column k is the sum of ``weights[k, j]`` times function j, the constant first;
        shape ``(columns, columns + 1)``.

    Formal guarantees
    -----------------
    Every column of :meth:`fill` lies within [-1, 1] for every t, and is computed
    record by record with the same operations wherever a record stands.
    """

    kind: Curve
    degree: int
    knots: tuple[float, ...]
    weights: Floats

    @property
    def width(self) -> int:
        return len(self.weights)

    def fill(self, t: Floats, out: Floats) -> None:
        """Write the columns at t (shape ``(m,)``) to the first rows of ``out``."""
        out[: self.width] = 0.0
        for j, values in enumerate(_functions(self.kind, self.degree, self.knots, t)):
            # Function j is in the columns from j - 1 on.
            for k in range(max(j - 1, 0), self.width):
                out[k] += self.weights[k, j] * values
        np.clip(out[: self.width], -1.0, 1.0, out=out[: self.width])

    def on_grid(self) -> Floats:
        """The columns on an even grid over [-1, 1]."""
        t = np.linspace(-1.0, 1.0, GRID)
        columns = np.empty((self.width, t.size))
        self.fill(t, columns)
        return columns


def spread_knots(kind: Curve, size: int, degree: int) -> tuple[float, ...]:
    """Knots on [-1, 1] for a curve that gives only how many there are."""
    if kind == "rcs":
        return tuple(2.0 * share - 1.0 for share in QUANTILES[size])
    if kind == "bs":
        inner = size - degree
        return tuple(2.0 * (j + 1) / (inner + 1) - 1.0 for j in range(inner))
    return ()


@lru_cache(maxsize=256)
def basis_of(kind: Curve, degree: int, knots: tuple[float, ...]) -> Basis:
    """The orthogonal, scaled columns of a curve.

    ValueError where the knots are so close together that a column follows from others.
    """
    edges = sorted({-1.0, 1.0, *knots})
    nodes, share = np.polynomial.legendre.leggauss(NODES)
    pieces = [
        (0.5 * (low + high) + 0.5 * (high - low) * nodes, 0.5 * (high - low) * share)
        for low, high in pairwise(edges)
    ]
    t, mass = (np.concatenate(part) for part in zip(*pieces, strict=True))
    raw = np.stack(list(_functions(kind, degree, knots, t)), axis=1)
    root = np.sqrt(0.5 * mass)[:, None]
    _, upper = np.linalg.qr(raw * root)
    upper *= np.sign(np.diag(upper))[:, None]
    norms = np.linalg.norm(raw * root, axis=0)
    if not np.all(np.diag(upper) > LEAST_BEND * norms):
        raise ValueError("knots are too close together")
    weights = np.linalg.inv(upper).T[1:]
    grid = np.concatenate([np.linspace(-1.0, 1.0, GRID), knots])
    values = np.stack(list(_functions(kind, degree, knots, grid)))
    weights /= np.abs(weights @ values).max(axis=1)[:, None]
    weights[0] = 0.0
    weights[0, 1] = 1.0  # the number itself, to the last bit
    return Basis(kind, degree, knots, weights)


def _functions(
    kind: Curve, degree: int, knots: tuple[float, ...], t: Floats
) -> Iterator[Floats]:
    """The constant, t, and the other functions of a curve, each of shape ``(m,)``."""
    yield np.ones_like(t)
    yield t
    if kind == "rcs":
        *first, inner, last = knots
        span = last - knots[0]
        for knot in first:
            bend = _beyond(t, knot, 3)
            bend -= _beyond(t, inner, 3) * ((last - knot) / (last - inner))
            bend += _beyond(t, last, 3) * ((inner - knot) / (last - inner))
            yield bend / span**2
        return
    power = t
    for _ in range(degree - 1):
        power = power * t
        yield power
    for knot in knots:
        yield _beyond(t, knot, degree)


def _beyond(t: Floats, knot: float, degree: int) -> Floats:
    """(t - knot)_+ to a power, by multiplications."""
    part = np.maximum(t - knot, 0.0)
    result = part
    for _ in range(degree - 1):
        result = result * part
    return np.array(result)

"""Degree-7 polynomials for the preconditioner 1/(λ + √V), in three shapes.

*Standard form* Σ a_j V^j is what the paper evaluates. *Factored form* needs four
levels and no scalar multiplication:

    P(V) = lead (V − r₀) (y + c₁) [(y + β V + c₂)(y + d) + e],   y = (V + h)².

Any real polynomial of degree 7 is lead (V − r₀) Π_i (V² + b_i V + c_i) over three
real quadratics, so the form exists unless β vanishes. With the quadratic (b, c) that
stays beside V − r₀, h = b/2 and Q₃..Q₀ the coefficients of the product of the other
two,

    β = Q₃ − 2b,   d' = (Q₁ − b Q₂ + b²(b + β))/β,   c₂' = Q₂ − b(b + β) − d',
    e = Q₀ − c₂' d',   c₁ = c − h²,   c₂ = c₂' − h²,   d = d' − h².
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from cipherbayes.errors import CryptoError
from cipherbayes.typing import Floats

DEGREE = 7
SMALLEST_SLOPE = 1e-3
"""β below this would divide by almost nothing."""

_REMEZ_ROUNDS = 60
_GRID = 20_001


@dataclass(frozen=True)
class FactoredForm:
    """lead (V − r₀)(y + c₁)[(y + βV + c₂)(y + d) + e] with y = (V + h)²."""

    lead: float
    root: float
    shift: float
    first: float
    slope: float
    second: float
    third: float
    rest: float

    def __call__(self, v: Floats) -> Floats:
        y = (v + self.shift) ** 2
        inner = (y + self.slope * v + self.second) * (y + self.third) + self.rest
        return np.asarray(self.lead * (v - self.root) * (y + self.first) * inner)


@dataclass(frozen=True)
class PreconditionerPolynomial:
    """P(V) ≈ 1/(λ + √V) on [low, 1].

    Parameters
    ----------
    coefficients
        a_0..a_7.
    low
        a: left end of the interval it was fitted on.
    floor
        λ.
    """

    coefficients: tuple[float, ...]
    low: float
    floor: float

    def __post_init__(self) -> None:
        if len(self.coefficients) != DEGREE + 1 or self.coefficients[-1] == 0.0:
            raise CryptoError(
                "the preconditioner is not a polynomial of degree 7",
                remedy="use chebyshev() or minimax()",
            )
        if not np.isfinite(self.coefficients).all():
            raise CryptoError("the preconditioner has a coefficient that is no number")

    def __call__(self, v: Floats) -> Floats:
        return np.asarray(Polynomial(self.coefficients)(v))

    @property
    def relative_error(self) -> float:
        """Largest |P (λ + √V) − 1| on the interval."""
        v = _nodes(self.low, _GRID)
        return float(np.abs(self(v) * (self.floor + np.sqrt(v)) - 1.0).max())

    @property
    def curvature(self) -> float:
        """A bound on |P''| over [0, 1]."""
        second = Polynomial(self.coefficients).deriv(2)
        step = 1.0 / (_GRID - 1)
        steepest = float(np.abs(second.deriv().coef).sum())
        grid = np.linspace(0.0, 1.0, _GRID)
        return float(np.abs(second(grid)).max()) + 0.5 * step * steepest

    def factored_forms(self) -> list[FactoredForm]:
        """Every factored form: which roots pair up is free where they are real.

        Raises
        ------
        CryptoError
            If β vanishes in all of them.
        """
        forms = [
            form
            for root, quadratics in _splits(self.coefficients)
            for form in _forms(self.coefficients[-1], root, quadratics)
        ]
        v = np.linspace(0.0, 1.0, 257)
        size = np.abs(self(v)).max()
        good = [form for form in forms if np.abs(form(v) - self(v)).max() < 1e-7 * size]
        if not good:
            raise CryptoError(
                "the polynomial has no usable factored form",
                remedy="choose another interval, or the literal circuit",
            )
        return good


def chebyshev(low: float, floor: float = 1e-4) -> PreconditionerPolynomial:
    """The polynomial through 1/(λ + √V) at the eight Chebyshev nodes of [low, 1].

    The paper's choice, with low = 1e-3: relative error up to 61 %.
    """
    _check(low, floor)
    series = Chebyshev.interpolate(_target(floor), DEGREE, domain=[low, 1.0])
    return _polynomial(series, low, floor)


def minimax(low: float, floor: float = 1e-4) -> PreconditionerPolynomial:
    """The polynomial with the smallest largest relative error on [low, 1].

    Remez's exchange for the weight λ + √V: at nine points the error alternates,

        P(x_i)(λ + √x_i) + (−1)^i E = 1.
    """
    _check(low, floor)
    target, grid = _target(floor), _nodes(low, _GRID)
    points = _nodes(low, DEGREE + 2)
    signs = (-1.0) ** np.arange(DEGREE + 2)
    for _ in range(_REMEZ_ROUNDS):
        scaled = (2.0 * points - 1.0 - low) / (1.0 - low)
        matrix = np.polynomial.chebyshev.chebvander(scaled, DEGREE)
        matrix = np.column_stack((matrix / target(points)[:, None], signs))
        solved = np.linalg.solve(matrix, np.ones(DEGREE + 2))
        series = Chebyshev(solved[:-1], domain=[low, 1.0])
        error = series(grid) / target(grid) - 1.0
        points = _alternation(grid, error)
        largest, smallest = np.abs(error).max(), abs(solved[-1])
        if largest <= smallest * (1.0 + 1e-9):
            break
    return _polynomial(series, low, floor)


def _check(low: float, floor: float) -> None:
    if not 1e-5 <= low < 0.9 or not 0.0 < floor < 1.0:
        raise CryptoError(
            "the interval or the floor of the preconditioner is unusable",
            remedy="give an interval [a, 1] with a from 1e-5 to 0.9 and 0 < λ < 1",
        )


def _target(floor: float) -> Callable[[Floats], Floats]:
    return lambda v: np.asarray(1.0 / (floor + np.sqrt(v)))


def _nodes(low: float, count: int) -> Floats:
    """Chebyshev's extreme points: dense at the ends, where the error turns fast."""
    angles = np.linspace(np.pi, 0.0, count)
    return np.asarray(0.5 * (1.0 + low) + 0.5 * (1.0 - low) * np.cos(angles))


def _alternation(grid: Floats, error: Floats) -> Floats:
    """The largest error between two changes of sign, at the nine best in a row."""
    bounds = np.flatnonzero(np.diff(np.sign(error)) != 0.0) + 1
    runs = np.split(np.arange(len(grid)), bounds)
    peaks = [run[np.abs(error[run]).argmax()] for run in runs]
    while len(peaks) > DEGREE + 2:
        peaks.pop(0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1)
    if len(peaks) < DEGREE + 2:
        raise CryptoError(
            "the minimax polynomial was not found", remedy="choose a larger a"
        )
    return np.asarray(grid[peaks])


def _polynomial(
    series: Chebyshev, low: float, floor: float
) -> PreconditionerPolynomial:
    standard = series.convert(kind=Polynomial, domain=[-1.0, 1.0], window=[-1.0, 1.0])
    return PreconditionerPolynomial(tuple(map(float, standard.coef)), low, floor)


def _splits(
    coefficients: tuple[float, ...],
) -> Iterator[tuple[float, list[tuple[float, float]]]]:
    """Every way to write the polynomial as one root and three real quadratics."""
    roots = [complex(z) for z in Polynomial(coefficients).roots()]
    real = [z.real for z in roots if abs(z.imag) <= 1e-9 * max(1.0, abs(z))]
    upper = [z for z in roots if z.imag > 1e-9 * max(1.0, abs(z))]
    pairs = [(-2.0 * z.real, abs(z) ** 2) for z in upper]
    for index, root in enumerate(real):
        for paired in _pairings(real[:index] + real[index + 1 :]):
            yield root, pairs + [(-(p + q), p * q) for p, q in paired]


def _pairings(values: list[float]) -> Iterator[list[tuple[float, float]]]:
    if not values:
        yield []
        return
    first, rest = values[0], values[1:]
    for index, partner in enumerate(rest):
        for tail in _pairings(rest[:index] + rest[index + 1 :]):
            yield [(first, partner), *tail]


def _forms(
    lead: float, root: float, quadratics: list[tuple[float, float]]
) -> Iterator[FactoredForm]:
    for one, two in combinations(range(3), 2):
        b, c = quadratics[3 - one - two]
        (b1, c1), (b2, c2) = quadratics[one], quadratics[two]
        q3, q2 = b1 + b2, b1 * b2 + c1 + c2
        q1, q0 = b1 * c2 + b2 * c1, c1 * c2
        slope = q3 - 2.0 * b
        if abs(slope) < SMALLEST_SLOPE:
            continue
        third = (q1 - b * q2 + b * b * (b + slope)) / slope
        second = q2 - b * (b + slope) - third
        h = 0.5 * b
        yield FactoredForm(
            lead=lead,
            root=root,
            shift=h,
            first=c - h * h,
            slope=slope,
            second=second - h * h,
            third=third - h * h,
            rest=q0 - second * third,
        )

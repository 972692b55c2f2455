"""Degree-7 polynomials for the preconditioner 1/(λ + √V), in two shapes.

*Standard form* Σ a_j V^j is what the paper evaluates. *Factored form* needs four
levels, of which scalars take none:

    P(V) = lead [(V − ρ)(y + c) + κ] [(y + m)² + f V + e],   y = (V + h)².

It exists for every real polynomial of degree 7, which is lead times a monic cubic
V³ + A₂V² + A₁V + A₀ times a monic quartic V⁴ + Q₃V³ + … + Q₀:

    h = Q₃/4,   m = Q₂/2 − 3h²,   f = Q₁ − 4h³ − 4mh,   e = Q₀ − (h² + m)²,
    ρ = 2h − A₂,   c = A₁ − h² + 2hρ,   κ = A₀ + ρ(h² + c).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from numpy.polynomial.polynomial import polyfromroots

from cipherbayes.errors import CryptoError
from cipherbayes.typing import Floats

DEGREE = 7

_REMEZ_ROUNDS = 60
_GRID = 20_001


@dataclass(frozen=True)
class FactoredForm:
    """lead [(V − ρ)(y + c) + κ] [(y + m)² + f V + e] with y = (V + h)².

    Attributes
    ----------
    lead, root, first, carried
        a₇, ρ, c and κ.
    shift, middle, slope, rest
        h, m, f and e.
    """

    lead: float
    root: float
    first: float
    carried: float
    shift: float
    middle: float
    slope: float
    rest: float

    @classmethod
    def of(cls, lead: float, cubic: Floats, quartic: Floats) -> FactoredForm:
        """From the monic factors' coefficients, the constant one first."""
        a0, a1, a2, _ = map(float, cubic)
        q0, q1, q2, q3, _ = map(float, quartic)
        h = q3 / 4.0
        m = q2 / 2.0 - 3.0 * h**2
        root = 2.0 * h - a2
        first = a1 - h**2 + 2.0 * h * root
        return cls(
            lead=lead,
            root=root,
            first=first,
            carried=a0 + root * (h**2 + first),
            shift=h,
            middle=m,
            slope=q1 - 4.0 * h**3 - 4.0 * m * h,
            rest=q0 - (h**2 + m) ** 2,
        )

    def __call__(self, v: Floats) -> Floats:
        y = (v + self.shift) ** 2
        cubic = (v - self.root) * (y + self.first) + self.carried
        quartic = (y + self.middle) ** 2 + self.slope * v + self.rest
        return np.asarray(self.lead * cubic * quartic)


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
        """Every factored form: which roots make the cubic is free.

        Raises
        ------
        CryptoError
            If rounding errors spoil all of them.
        """
        lead = self.coefficients[-1]
        forms = [
            FactoredForm.of(lead, cubic, quartic)
            for cubic, quartic in _splits(self.coefficients)
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


def _splits(coefficients: tuple[float, ...]) -> Iterator[tuple[Floats, Floats]]:
    """Every way to write the polynomial as a real cubic times a real quartic."""
    roots = [complex(z) for z in Polynomial(coefficients).roots()]
    real = [(z.real,) for z in roots if abs(z.imag) <= 1e-9 * max(1.0, abs(z))]
    pairs = [(z, z.conjugate()) for z in roots if z.imag > 1e-9 * max(1.0, abs(z))]
    factors: list[tuple[complex, ...]] = [*real, *pairs]
    for count in (2, 3):
        for chosen in combinations(range(len(factors)), count):
            cubic = [z for i in chosen for z in factors[i]]
            rest = set(range(len(factors))).difference(chosen)
            if len(cubic) == 3:
                quartic = [z for i in rest for z in factors[i]]
                yield _monic(cubic), _monic(quartic)


def _monic(roots: list[complex]) -> Floats:
    """Coefficients of the polynomial with these roots, the constant one first."""
    return np.asarray(polyfromroots(roots).real, np.float64)

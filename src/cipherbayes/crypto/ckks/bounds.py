"""Levels, scales and noise in one place: the circuits run on bounds first.

A circuit is written once, against :class:`Arithmetic`. Run on :class:`Bounds` it
says for every intermediate result what its level and scale are, in which interval
its values lie and how large its error can be, and **refuses** where a value plus its
error could reach half the modulus and wrap around. Run on SEAL
(:mod:`~cipherbayes.crypto.ckks.arithmetic`) it computes.

**Values.** A result stands for an array of intervals, one for each cell of a
partition of V ∈ [0, 1]; a polynomial's coefficient is never larger than its largest
slot, so slots bound everything.

**Noise.** A polynomial with independent coefficients, sub-Gaussian of variance v,
has slots |σ(e)| ≤ T √(n v) with T = 7.2, except with probability 8 e^(−0.853 T²) <
2⁻⁶⁰ a slot (eight directions, each a Chernoff bound). So, in units of the last bit:

=================  ====================================================
encoding           T √(n/12)
fresh, K sites     √K T [√(n/12)(2 + S) + √(n v_e) (1 + 2 S)/p]
rescaling, size z  T √(n/12) (1 + S + … + S^(z−1))
relinearising      T √(n v_e) Σ_i q_i (T √(n/12) + n/π) / p + T √(n/12)(1 + S)
=================  ====================================================

where S ≥ |σ(s)| bounds the secret key's slots (3.6 √(2n/3); key generation draws
again until the key keeps to it, which takes one or two draws) and v_e = 10.5 is the
variance of SEAL's error; n/π is there because SEAL's digits are not centred. That
rounding errors are independent and uniform is the usual heuristic; ternary, uniform
and centred binomial variables are sub-Gaussian with their own variance.

First-order terms (one rounding error times values) are kept apart from products of
two errors. Over R slots that hold the same value the former average to 1/√R of the
bound, because the roots of unity of different slots are orthogonal.

References: Gentry, Halevi and Smart 2012 (ePrint 2012/099); Li, Micciancio,
Schultz and Sorrell 2022 (ePrint 2022/816).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from cipherbayes.crypto.ckks.parameters import CkksParameters
from cipherbayes.errors import CryptoError
from cipherbayes.typing import Floats

TAIL = 7.2
KEY_TAIL = 3.6
ERROR_VARIANCE = 10.5
UNIT_ROUNDOFF = 2.0**-53
SCALE_MISMATCH = 1e-9
_SLACK = 1.0 + 1e-6


class Scaled(Protocol):
    """What every arithmetic's results have in common."""

    @property
    def scale(self) -> float: ...

    @property
    def level(self) -> int: ...


Node = TypeVar("Node", bound=Scaled)


class Arithmetic(Protocol[Node]):
    """The operations that circuits are made of."""

    def add(self, a: Node, b: Node) -> Node: ...

    def add_constant(self, a: Node, value: float) -> Node: ...

    def times(self, a: Node, factor: int) -> Node:
        """The same values at ``factor`` times the scale."""

    def weighted(self, a: Node, weight: float, scale: float) -> Node:
        """``weight`` times the values at ``scale``: one integer multiplication."""

    def multiply(self, a: Node, b: Node) -> Node: ...

    def square(self, a: Node) -> Node: ...

    def relinearise(self, a: Node) -> Node: ...

    def rescale(self, a: Node) -> Node: ...

    def drop(self, a: Node, level: int) -> Node:
        """The same scale modulo fewer primes."""


@dataclass(frozen=True)
class Tracked:
    """An intermediate result as the bounds see it.

    Attributes
    ----------
    scale, level, size
        What SEAL would have; ``level`` counts primes.
    low, high
        Interval of the values in each cell.
    noise
        First-order error in each cell, in units of the last bit.
    cross
        Products of errors, and rounded constants.
    """

    scale: float
    level: int
    size: int
    low: Floats
    high: Floats
    noise: Floats
    cross: Floats

    @property
    def magnitude(self) -> Floats:
        """Largest absolute value in each cell."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def peak(self) -> float:
        """Largest scaled value with its error."""
        scaled = self.magnitude * self.scale + self.noise + self.cross
        return float(scaled.max()) * _SLACK


def key_bound(parameters: CkksParameters) -> float:
    """S: no slot of the secret key is larger."""
    return KEY_TAIL * math.sqrt(2.0 * parameters.ring / 3.0)


def fresh_noise(parameters: CkksParameters, sites: int) -> float:
    """Error of a sum of fresh encryptions, in units of the last bit."""
    n, s = parameters.ring, key_bound(parameters)
    rounding = TAIL * math.sqrt(n / 12.0) * (2.0 + s)
    errors = TAIL * math.sqrt(n * ERROR_VARIANCE) * (1.0 + 2.0 * s)
    return math.sqrt(sites) * (rounding + errors / parameters.special)


class Bounds:
    """Arithmetic on :class:`Tracked`: what could happen, in the worst case."""

    def __init__(self, parameters: CkksParameters) -> None:
        self.parameters = parameters
        n = parameters.ring
        self._key = key_bound(parameters)
        self._rounding = TAIL * math.sqrt(n / 12.0)
        self._error = TAIL * math.sqrt(n * ERROR_VARIANCE)
        self._digit = self._rounding + n / math.pi

    @property
    def encoding(self) -> float:
        """Error of an encoded vector, in units of the last bit."""
        return self._rounding

    def check(self, a: Tracked, what: str) -> Tracked:
        """``a``, if it provably does not wrap around its modulus."""
        room = self.parameters.modulus(a.level) // 2
        if not a.peak < room:
            excess = math.log2(a.peak / room)
            raise CryptoError(
                f"the {what} could exceed its modulus by {excess:.1f} bits",
                remedy="use the hardened circuit, a smaller drift or an easier "
                "polynomial",
            )
        return a

    def add(self, a: Tracked, b: Tracked) -> Tracked:
        _require_same(a, b)
        total = replace(
            a,
            size=max(a.size, b.size),
            low=a.low + b.low,
            high=a.high + b.high,
            noise=a.noise + b.noise,
            cross=a.cross + b.cross + SCALE_MISMATCH * 1e-6 * b.magnitude * b.scale,
        )
        return self.check(total, "sum")

    def add_constant(self, a: Tracked, value: float) -> Tracked:
        rounding = 0.5 + abs(value) * a.scale * UNIT_ROUNDOFF
        shifted = replace(
            a, low=a.low + value, high=a.high + value, cross=a.cross + rounding
        )
        return self.check(shifted, "sum with a constant")

    def times(self, a: Tracked, factor: int) -> Tracked:
        grown = replace(
            a,
            scale=a.scale * factor,
            noise=a.noise * abs(factor),
            cross=a.cross * abs(factor),
        )
        return self.check(grown, "multiple")

    def weighted(self, a: Tracked, weight: float, scale: float) -> Tracked:
        factor = abs(float(integer_weight(a.scale, weight, scale)))
        ends = np.sort(np.stack((a.low * weight, a.high * weight)), axis=0)
        rounding = a.magnitude * a.scale * (0.5 + factor * UNIT_ROUNDOFF)
        grown = replace(
            a,
            scale=scale,
            low=ends[0],
            high=ends[1],
            noise=a.noise * factor,
            cross=a.cross * factor + rounding,
        )
        return self.check(grown, "weighted term")

    def multiply(self, a: Tracked, b: Tracked) -> Tracked:
        corners = np.stack(
            (a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high)
        )
        left, right = a.magnitude * a.scale, b.magnitude * b.scale
        product = Tracked(
            a.scale * b.scale,
            min(a.level, b.level),
            a.size + b.size - 1,
            corners.min(axis=0),
            corners.max(axis=0),
            left * b.noise + right * a.noise,
            (left + a.noise + a.cross) * b.cross
            + (right + b.noise) * a.cross
            + a.noise * b.noise,
        )
        return self.check(product, "product")

    def square(self, a: Tracked) -> Tracked:
        product = self.multiply(a, a)
        high = np.maximum(a.low**2, a.high**2)
        low = np.where(
            (a.low <= 0) & (a.high >= 0), 0.0, np.minimum(a.low**2, a.high**2)
        )
        return replace(product, low=low, high=high)

    def relinearise(self, a: Tracked) -> Tracked:
        if a.size != 3:
            raise CryptoError("only a product of two polynomials is relinearised")
        primes = self.parameters.primes[: a.level]
        digits = sum(q / self.parameters.special for q in primes) * self._digit
        extra = self._error * digits + self._rounding * (1.0 + self._key)
        return self.check(
            replace(a, size=2, noise=a.noise + extra), "relinearised product"
        )

    def rescale(self, a: Tracked) -> Tracked:
        prime = float(self.parameters.primes[a.level - 1])
        rounding = self._rounding * sum(self._key**i for i in range(a.size))
        smaller = replace(
            a,
            scale=a.scale / prime,
            level=a.level - 1,
            noise=a.noise / prime + rounding,
            cross=a.cross / prime,
        )
        return self.check(smaller, "rescaled product")

    def scalar_product(self, a: Tracked, scale: float, packs: int) -> Tracked:
        """A rescaled sum of packs, each times a vector of weights that sum to 1."""
        weighted = replace(
            a,
            scale=a.scale * scale,
            noise=a.noise * scale + packs * a.magnitude * a.scale * self._rounding,
            cross=a.cross * scale,
        )
        return self.rescale(self.check(weighted, "scalar product"))

    def rotated_sum(self, a: Tracked) -> Tracked:
        """A value plus its rotation, of which every slot has a part."""
        primes = self.parameters.primes[: a.level]
        digits = sum(q / self.parameters.special for q in primes) * self._digit
        extra = self._error * digits + self._rounding * (1.0 + self._key)
        return replace(a, noise=2.0 * a.noise + extra, cross=2.0 * a.cross)

    def drop(self, a: Tracked, level: int) -> Tracked:
        return self.check(replace(a, level=level), "value with fewer primes")


def integer_weight(scale: float, weight: float, target: float) -> int:
    """The integer that turns values at ``scale`` into weighted ones at ``target``."""
    factor = round(weight * target / scale)
    if abs(factor) < 2**16:
        raise CryptoError(
            "an integer weight would be too coarse",
            remedy="use the hardened circuit or an easier polynomial",
        )
    return factor


def _require_same(a: Scaled, b: Scaled) -> None:
    if a.level != b.level or abs(a.scale / b.scale - 1.0) > SCALE_MISMATCH:
        raise CryptoError("only values at one level and scale can be added")

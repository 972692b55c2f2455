"""Levels, scales and noise in one place: the circuits run on bounds first.

A circuit is written once, against :class:`Arithmetic`. Run on :class:`Bounds` it
says for every intermediate result what its level and scale are, in which interval
its values lie and how large its error can be, and **refuses** where a value plus its
error could reach half the modulus and wrap around. Run on SEAL
(:mod:`~cipherbayes.crypto.ckks.arithmetic`) it computes.

**Values.** A result stands for an array of intervals, one for each cell of a
partition of V ∈ [0, 1]; a polynomial's coefficient is never larger than its largest
slot, so slots bound everything.

**Noise.** Elementary errors are those of
:mod:`~cipherbayes.crypto.ckks.error_sizes`. First-order terms (one elementary error
times values) are kept apart from products of two errors, and twice: for the worst
slot, and for the mean over the slots that hold one value, which is smaller. They are
also kept by source. What one error becomes on several ways through a circuit adds up;
different errors are independent and sub-Gaussian, so that

    |Σ_i c_i e_i| ≤ T √(Σ_i (c_i s_i)²)

with the tail probability of each |e_i| ≤ T s_i. Products of errors are never averaged
and add up. Errors are counted from the function of what the sites encoded: how a
site's floating point rounds its own integers, to one part in 2⁴⁶, depends on no key
and no ciphertext.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol, TypeVar

import numpy as np

from cipherbayes.crypto.ckks.error_sizes import mean_errors, slot_errors
from cipherbayes.crypto.ckks.parameters import CkksParameters
from cipherbayes.errors import CryptoError
from cipherbayes.typing import UNIT_ROUNDOFF, Floats

SCALE_MISMATCH = 1e-9
CELLS = 512
"""Cells that V is partitioned into."""
FLOAT_ERROR = 2.0**-46
"""Relative error of SEAL's floating-point decoder, n up to 16384."""
_SLACK = 1.0 + 1e-6


class Scaled(Protocol):
    """What every arithmetic's results have in common."""

    @property
    def scale(self) -> float: ...

    @property
    def level(self) -> int: ...


Node = TypeVar("Node", bound=Scaled)


class Arithmetic(Protocol[Node]):
    """The operations that circuits are made of.

    An operation uses its first operand up, all but :meth:`copy` and :meth:`drop`: what
    is needed again is copied first.
    """

    def copy(self, a: Node) -> Node: ...

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


Sources = Mapping[int, Floats]
"""First-order error by source, each of shape (2, cells): slot and mean."""


@dataclass(frozen=True)
class Tracked:
    """An intermediate result as the bounds see it.

    Attributes
    ----------
    scale, level, size
        What SEAL would have; ``level`` counts primes.
    low, high
        Interval of the values in each cell.
    sources
        First-order error in each cell, in units of the last bit, by source: of the
        worst slot, then of the mean over the slots that hold one value.
    cross
        Products of errors, and rounded constants.
    """

    scale: float
    level: int
    size: int
    low: Floats
    high: Floats
    sources: Sources
    cross: Floats

    @property
    def noise(self) -> Floats:
        """First-order error of all sources together."""
        squares = [size**2 for size in self.sources.values()]
        return np.asarray(np.sqrt(sum(squares, np.zeros((2, 1)))))

    @property
    def magnitude(self) -> Floats:
        """Largest absolute value in each cell."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def peak(self) -> float:
        """Largest scaled value with its error."""
        scaled = self.magnitude * self.scale + self.noise[0] + self.cross
        return float(scaled.max()) * _SLACK


class Bounds:
    """Arithmetic on :class:`Tracked`: what could happen, in the worst case."""

    def __init__(self, parameters: CkksParameters, dimension: int | None) -> None:
        self.parameters = parameters
        slot = slot_errors(parameters)
        mean = slot if dimension is None else mean_errors(parameters, dimension)
        self._sizes = (slot, mean)
        self._names = count()

    def new_source(self) -> int:
        """A name for an error that is independent of all others."""
        return next(self._names)

    def source(self, size: Floats) -> Sources:
        """A new error of this size."""
        return {self.new_source(): size}

    @property
    def encoding(self) -> Floats:
        """Error of an encoded vector."""
        return np.array([[sizes.encoding] for sizes in self._sizes])

    def fresh(self, sites: int) -> Floats:
        """Error of a sum of fresh encryptions."""
        return np.array([[sizes.fresh(sites)] for sizes in self._sizes])

    def rescaling(self, size: int) -> Floats:
        """Error of rounding ``size`` polynomials."""
        return np.array([[sizes.rescaling(size)] for sizes in self._sizes])

    def _switching(self, level: int) -> Floats:
        return np.array([[sizes.switching(level)] for sizes in self._sizes])

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

    def copy(self, a: Tracked) -> Tracked:
        return a

    def add(self, a: Tracked, b: Tracked) -> Tracked:
        _require_same(a, b)
        total = replace(
            a,
            size=max(a.size, b.size),
            low=a.low + b.low,
            high=a.high + b.high,
            sources=together(a.sources, b.sources),
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
        multiple = replace(
            a,
            scale=a.scale * factor,
            sources=grown(a.sources, abs(factor)),
            cross=a.cross * abs(factor),
        )
        return self.check(multiple, "multiple")

    def weighted(self, a: Tracked, weight: float, scale: float) -> Tracked:
        factor = abs(float(integer_weight(a.scale, weight, scale)))
        ends = np.sort(np.stack((a.low * weight, a.high * weight)), axis=0)
        rounding = a.magnitude * a.scale * (0.5 + factor * UNIT_ROUNDOFF)
        term = replace(
            a,
            scale=scale,
            low=ends[0],
            high=ends[1],
            sources=grown(a.sources, factor),
            cross=a.cross * factor + rounding,
        )
        return self.check(term, "weighted term")

    def multiply(self, a: Tracked, b: Tracked) -> Tracked:
        corners = np.stack(
            (a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high)
        )
        left, right = a.magnitude * a.scale, b.magnitude * b.scale
        noise, other = a.noise[0], b.noise[0]
        product = Tracked(
            a.scale * b.scale,
            min(a.level, b.level),
            a.size + b.size - 1,
            corners.min(axis=0),
            corners.max(axis=0),
            together(grown(b.sources, left), grown(a.sources, right)),
            (left + noise + a.cross) * b.cross
            + (right + other) * a.cross
            + noise * other,
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
        sources = together(a.sources, self.source(self._switching(a.level)))
        switched = replace(a, size=2, sources=sources)
        return self.check(switched, "relinearised product")

    def rescale(self, a: Tracked) -> Tracked:
        prime = float(self.parameters.primes[a.level - 1])
        smaller = replace(
            a,
            scale=a.scale / prime,
            level=a.level - 1,
            sources=together(
                grown(a.sources, 1.0 / prime), self.source(self.rescaling(a.size))
            ),
            cross=a.cross / prime,
        )
        return self.check(smaller, "rescaled product")

    def scalar_product(self, a: Tracked, scale: float, packs: int) -> Tracked:
        """A rescaled sum of packs, each times a vector of weights that sum to 1."""
        rounding = packs * a.magnitude * a.scale * self.encoding
        weighted = replace(
            a,
            scale=a.scale * scale,
            sources=together(grown(a.sources, scale), self.source(rounding)),
            cross=a.cross * scale,
        )
        return self.rescale(self.check(weighted, "scalar product"))

    def rotated_sum(self, a: Tracked) -> Tracked:
        """A value plus its rotation, of which every slot has a part."""
        switched = self.source(self._switching(a.level))
        sources = together(grown(a.sources, 2.0), switched)
        return replace(a, sources=sources, cross=2.0 * a.cross)

    def drop(self, a: Tracked, level: int) -> Tracked:
        return self.check(replace(a, level=level), "value with fewer primes")


def grown(sources: Sources, factor: float | Floats) -> Sources:
    """The errors of something that was multiplied."""
    return {name: size * factor for name, size in sources.items()}


def together(a: Sources, b: Sources) -> Sources:
    """The errors of a sum: those of one source add up."""
    total = dict(a)
    for name, size in b.items():
        total[name] = total[name] + size if name in total else size
    return total


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

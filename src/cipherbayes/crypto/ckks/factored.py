"""The circuits ``fast`` and ``hardened``: factored polynomial, running block sums.

Levels count primes; L is a fresh ciphertext's. With R from
:mod:`~cipherbayes.crypto.ckks.blocks` and the constants of
:class:`~cipherbayes.crypto.ckks.polynomial.FactoredForm`:

======  =====================================  ==============================
level   result                                 key switches
======  =====================================  ==============================
L       h, h², sums of blocks
v + 1   R                                      R
v       V, u = ν h + drift                     (V + h)²
v − 1   y, w = u (V − ρ)                       w in ``fast`` only
v − 2   X = w (y + c) + κ u                    X in ``fast`` only
        Y = (y + m)² + f V + e                 (y + m)²
v − 2   out = X Y, decrypted with s, s², …     none
======  =====================================  ==============================

``fast`` has L = v + 1. ``hardened`` has L = v + 2: by its smallest prime the past is
divided, so that no bit of R goes to integer weights and the sites encode h at about
2⁵⁶, far above the error of a fresh encryption, which is what flooding is paid for. It
leaves w and X unrelinearised: decryption does not mind more polynomials, and its
primes have room for the rounding errors this costs (they are in the bounds). ``fast``
does not have that room.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cipherbayes.crypto.ckks.blocks import BlockPlan, block_length, good_weight
from cipherbayes.crypto.ckks.bounds import (
    CELLS,
    FLOAT_ERROR,
    Arithmetic,
    Bounds,
    Node,
    Tracked,
    together,
)
from cipherbayes.crypto.ckks.circuit import Circuit, Evaluator, Update
from cipherbayes.crypto.ckks.keys import EvaluationKeys
from cipherbayes.crypto.ckks.parameters import CkksParameters, ckks_set
from cipherbayes.crypto.ckks.polynomial import FactoredForm
from cipherbayes.errors import CryptoError


@dataclass(frozen=True)
class Tuning:
    """What distinguishes the two circuits.

    Attributes
    ----------
    parameters
        Name of the parameter set.
    divided
        Whether one more prime is spent to divide the past.
    variance_bits
        log₂ of V's scale at the end of a block.
    weight, forgotten
        About W where the past is not divided, and what is left out: see
        :class:`~cipherbayes.crypto.ckks.blocks.BlockPlan`.
    boost
        m of μ_j = round(m α^(−(L−1−j))), which evens V's scale out over a block;
        0 for none.
    switched
        Whether w and X are relinearised.
    """

    parameters: str
    divided: bool
    variance_bits: float
    weight: int
    forgotten: float
    boost: int
    switched: bool


TUNINGS = {
    "fast": Tuning("ckks-8192-fast", False, 34.25, 2**18, 2e-6, 4, True),
    "hardened": Tuning("ckks-16384-hardened", True, 59.35, 1, 1e-9, 6, False),
}


def preconditioned(
    arithmetic: Arithmetic[Node],
    form: FactoredForm,
    squares: Node,
    mean: Node,
    *,
    tuning: Tuning,
    boost: int,
    start: float,
) -> Node:
    """P(V) · mean / lead, with V = squares + start: the circuit itself.

    ``squares`` is R, one level above V; ``mean`` is u at the level of V. Both are used
    up.
    """
    a = arithmetic
    v = a.rescale(a.times(a.relinearise(squares), boost))
    low_mean, low_v = a.drop(mean, mean.level - 1), a.drop(v, v.level - 1)
    y = a.square(a.add_constant(a.copy(v), form.shift + start))
    y = a.rescale(a.relinearise(y))
    w = a.multiply(mean, a.add_constant(v, start - form.root))
    w = a.rescale(a.relinearise(w) if tuning.switched else w)
    x = a.multiply(w, a.add_constant(a.copy(y), form.first))
    x = a.relinearise(x) if tuning.switched else x
    x = a.rescale(a.add(x, a.weighted(low_mean, form.carried, x.scale)))
    inner = a.relinearise(a.square(a.add_constant(y, form.middle)))
    inner = a.add(inner, a.weighted(low_v, form.slope, inner.scale))
    inner = a.rescale(a.add_constant(inner, form.rest + form.slope * start))
    return a.multiply(x, inner)


@dataclass(frozen=True)
class _Place:
    """What the bookkeeping says about one place in a block."""

    multiple: int
    scale: float
    size: int
    level: int
    noise: float


class FactoredCircuit(Circuit):
    """``fast`` or ``hardened``, for one update.

    Raises
    ------
    CryptoError
        If the bookkeeping cannot show that nothing wraps around, in any round.
    """

    def __init__(self, name: str, update: Update) -> None:
        tuning = TUNINGS[name]
        self.name = name
        self.update = update
        self.tuning = tuning
        self.parameters: CkksParameters = ckks_set(tuning.parameters)
        self._check_size()
        alpha, length = update.alpha, block_length(update.alpha)
        growth = alpha ** (1 - length)
        primes = self.parameters.primes
        self.variance_level = len(primes) - (2 if tuning.divided else 1)
        base = 2.0**tuning.variance_bits * primes[self.variance_level] * (1.0 - alpha)
        base /= growth * max(1, tuning.boost)
        if tuning.divided:
            weight = primes[-1]
        else:
            weight = good_weight(alpha, tuning.weight)
            base /= weight
        self.blocks = BlockPlan(
            alpha, math.sqrt(base), weight, tuning.forgotten, tuning.divided
        )
        self._places: dict[int, _Place] = {}
        self.form = self._best_form()
        for place in range(length):
            self._place(place + 1)

    def _best_form(self) -> FactoredForm:
        """The factored form with the smallest noise bound."""
        found: dict[float, FactoredForm] = {}
        problems: list[CryptoError] = []
        for form in self.update.polynomial.factored_forms():
            try:
                found[self._derive(form, 1).noise] = form
            except CryptoError as refusal:
                problems.append(refusal)
        if not found:
            raise problems[-1]
        return found[min(found)]

    def _place(self, round: int) -> _Place:
        place = self.blocks.place(round)
        if place not in self._places:
            self._places[place] = self._derive(self.form, place + 1)
        return self._places[place]

    def _derive(self, form: FactoredForm, round: int) -> _Place:
        """Run the circuit on bounds, with the largest multiple ν that fits."""
        single = self._bounded(form, round, 1)
        room = self.parameters.modulus(single.level) // 2
        multiple = max(1, math.floor(0.99 * room / single.peak))
        out = self._bounded(form, round, multiple)
        scale = out.scale / form.lead
        noise = float((out.noise[1] + out.cross).max()) / abs(scale)
        decoder = FLOAT_ERROR * float(out.magnitude.max()) * abs(form.lead)
        return _Place(multiple, scale, out.size, out.level, noise + decoder)

    def _bounded(self, form: FactoredForm, round: int, multiple: int) -> Tracked:
        update, blocks = self.update, self.blocks
        bounds = Bounds(self.parameters, update.dimension)
        edges = np.linspace(0.0, 1.0, CELLS + 1) ** 2
        low, high = edges[:-1], edges[1:]
        root = np.sqrt(high / (1.0 - update.alpha))
        fresh = bounds.fresh(update.sites)
        scale, sum_scale = blocks.scale(round), blocks.sum_scale(round)
        # ΔV = 2 (1 − α) Σ α^(t−i) h_i Δh_i with independent Δh_i. Scales grow within
        # a block as weights do, so α^(t−i)/scale_i² is largest for i = t, and ΔV's
        # proxy deviation is at most that of Δh_t times 2 √((1 − α) V). What is of
        # second order, Σ (1 − α) α^(t−i) Δh_i², is at most the largest Δh_i².
        # Δh_t is in u as well: one source.
        newest = bounds.new_source()
        slope = 2.0 * np.sqrt((1.0 - update.alpha) * high)
        squares = Tracked(
            sum_scale,
            self.parameters.levels,
            3,
            low,
            high,
            {newest: slope * sum_scale * fresh / scale},
            np.full(CELLS, (fresh[0] / blocks.base) ** 2 * sum_scale),
        )
        before, after = self.boosts(round)
        squares = bounds.times(squares, before)
        if blocks.divided:
            past = bounds.times(bounds.check(squares, "running sum"), blocks.weight)
            rounded = bounds.source(bounds.rescaling(past.size))
            squares = replace(squares, sources=together(squares.sources, rounded))
            squares = bounds.drop(squares, self.variance_level + 1)
        mean = Tracked(
            scale * multiple,
            self.variance_level,
            2,
            -root - update.drift,
            root + update.drift,
            together(
                {newest: fresh * multiple}, bounds.source(bounds.encoding * multiple)
            ),
            np.zeros(CELLS),
        )
        return preconditioned(
            bounds,
            form,
            bounds.check(squares, "running sum"),
            bounds.check(mean, "mean"),
            tuning=self.tuning,
            boost=after,
            start=0.0,
        )

    def boosts(self, round: int) -> tuple[int, int]:
        """μ_j, which evens the scale of V out over a block, and 1.

        μ_j comes first where R is multiplied by it, which costs nothing where A is
        multiplied anyway; otherwise R is multiplied when it has two polynomials only.
        """
        left = self.blocks.length - 1 - self.blocks.place(round)
        boost = round_half_up(self.tuning.boost * self.update.alpha**-left)
        return (1, boost) if self.blocks.divided else (boost, 1)

    def multiple(self, round: int) -> int:
        """ν: the largest integer multiple of h that provably fits."""
        return self._place(round).multiple

    def place(self, round: int) -> int:
        return self.blocks.place(round)

    def window(self, round: int) -> range:
        return self.blocks.window(round)

    def message_scale(self, round: int) -> float:
        return self.blocks.scale(round)

    def output_scale(self, round: int) -> float:
        return self._place(round).scale

    @cached_property
    def output_shape(self) -> tuple[int, int]:
        place = self._place(1)
        return place.size, place.level

    def noise_bound(self, round: int) -> float:
        return self._place(round).noise

    def evaluator(self, keys: EvaluationKeys, seal_evaluator: Any = None) -> Evaluator:
        from cipherbayes.crypto.ckks.factored_evaluator import FactoredEvaluator

        return FactoredEvaluator(self, keys, seal_evaluator)


def round_half_up(value: float) -> int:
    """The nearest integer, at least 1."""
    return max(1, math.floor(value + 0.5))

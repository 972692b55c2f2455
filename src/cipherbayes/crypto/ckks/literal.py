"""The circuit ``literal``: the paper's own, as the benchmark's baseline.

n = 2¹⁴, primes [55, 45 × 6 | 55], Δ = 2⁴⁵. The gradients of r rounds share one
ciphertext, each in its own slots; V is ⌈219/r⌉ scalar products, a sum and log₂ r
rotations; the polynomial is in standard form; the division by K is delayed.

=====  =====================================  ==================
level  result                                 HM, SM, Rot
=====  =====================================  ==================
7      g = Σ_k g_k  (K h)
6      g², added to its pack; c g             1 HM, 1 SM
5      V = Σ weights · pack, rotated          ⌈219/r⌉ SM, log₂ r Rot
4      V²; a_j V (j = 1, 3, 5, 7)             1 HM, 4 SM
3      V⁴; (a₃V)V², (a₇V)V²; a₂V², a₆V²       3 HM, 2 SM
2      (a₅V)V⁴, (a₆V²)V⁴, (a₇V³)V⁴; a₄V⁴      3 HM, 1 SM
1      G · (c g + drift)                      1 HM
=====  =====================================  ==================

In all 9 HM, 8 + ⌈219/r⌉ SM and log₂ r ≤ 8 Rot, as in the paper's table. Products that
are added are added before they are relinearised and rescaled (7 key switches for the
9 HM), and weights are encoded once and kept.

The paper divides a_j by K^{2j}. At Δ = 2⁴⁵ that leaves no digit of a₇ beyond K = 8,
so the division by K² is in the window's weights, at no cost. The window keeps
⌈219/r⌉ packs, the newest partly filled: what is left out weighs less than α^(219 − r).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import tenseal.sealapi as sealapi

from cipherbayes.crypto.ckks.arithmetic import (
    Rehearsal,
    ScaledCiphertext,
    SealArithmetic,
)
from cipherbayes.crypto.ckks.blocks import check_round
from cipherbayes.crypto.ckks.bounds import (
    CELLS,
    Arithmetic,
    Bounds,
    Node,
    Tracked,
    together,
)
from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.crypto.ckks.circuit import Circuit, Evaluator, Update
from cipherbayes.crypto.ckks.keys import EvaluationKeys
from cipherbayes.crypto.ckks.parameters import ckks_set
from cipherbayes.crypto.ckks.round_order import InOrderEvaluator
from cipherbayes.errors import CryptoError
from cipherbayes.typing import Floats

WINDOW = 219
MOST_PACKED = 256
"""r at most: a pack then holds the window, and eight rotations add it up."""
SCALE = 2.0**45


def standard_form(
    arithmetic: Arithmetic[Node],
    coefficients: Sequence[float],
    primes: Sequence[int],
    v: Node,
) -> Node:
    """Σ a_j V^j in three levels, with 7 HM and 7 SM.

    The scalars' scales are chosen so that all terms meet at one scale.
    """
    a, (a0, a1, a2, a3, a4, a5, a6, a7) = arithmetic, coefficients
    v2 = a.rescale(a.relinearise(a.square(a.copy(v))))
    v4 = a.rescale(a.relinearise(a.square(a.copy(v2))))
    at_v, at_v2 = float(primes[v.level - 1]), float(primes[v2.level - 1])
    final = v4.scale * SCALE / primes[v4.level - 1]

    def by_v(weight: float, scale: float) -> Node:
        return a.rescale(a.weighted(a.copy(v), weight, scale * at_v))

    def product(x: Node, y: Node) -> Node:
        return a.relinearise(a.multiply(x, y))

    third = product(by_v(a3, final * at_v2 / v2.scale), v2)
    low = a.rescale(a.add(third, a.weighted(a.copy(v2), a2, third.scale)))
    seventh = a.rescale(product(by_v(a7, SCALE * at_v2 / v2.scale), v2))
    sixth = a.rescale(a.weighted(v2, a6, SCALE * at_v2))
    fifth = a.drop(by_v(a5, SCALE), v4.level)
    # Three products that are added take one key switch.
    high = a.add(a.multiply(fifth, v4), a.multiply(sixth, v4))
    high = a.relinearise(a.add(high, a.multiply(seventh, v4)))
    total = a.rescale(a.add(high, a.weighted(v4, a4, v4.scale * SCALE)))
    for term in (low, by_v(a1, final)):
        total = a.add(total, a.drop(term, total.level))
    return a.add_constant(total, a0)


class LiteralCircuit(Circuit):
    """The paper's circuit, for one update.

    Raises
    ------
    CryptoError
        If d is larger than the slots, or the bookkeeping cannot show that nothing
        wraps around.
    """

    name = "literal"

    def __init__(self, update: Update) -> None:
        self.update = update
        self.parameters = ckks_set("ckks-16384-literal")
        self._check_size()
        if self.chunks > 1:
            self.packed = 1
        else:
            fitting = 2 ** int(math.log2(self.parameters.slots // update.dimension))
            self.packed = min(fitting, MOST_PACKED)
        self.packs = -(-WINDOW // self.packed)
        self._out, self._noise = self._derive()

    @property
    def stride(self) -> int:
        """Slots between the gradients of two rounds."""
        return self.parameters.slots // self.packed

    @property
    def replicas(self) -> int:
        return 1

    def place(self, round: int) -> int:
        """Which of the r places of its ciphertext a round's gradient has."""
        return (check_round(round) - 1) % self.packed

    def layout(self, values: Floats, round: int) -> list[Floats]:
        slots = self.parameters.slots
        chunks = []
        for start in range(0, len(values), slots):
            part = values[start : start + slots] * self.update.sites
            filled = np.zeros(slots)
            first = self.place(round) * self.stride
            filled[first : first + len(part)] = part
            chunks.append(filled)
        return chunks

    def _collect(self, slots: Floats, width: int, round: int) -> Floats:
        first = self.place(round) * self.stride
        return slots[first : first + width]

    def rotation_steps(self) -> tuple[int, ...]:
        return tuple(self.stride * 2**i for i in range(self.packed.bit_length() - 1))

    def window(self, round: int) -> range:
        pack = (check_round(round) - 1) // self.packed
        return range(max(0, pack - self.packs + 1) * self.packed + 1, round + 1)

    def message_scale(self, round: int) -> float:
        return SCALE

    def output_scale(self, round: int) -> float:
        return self._out.scale

    @cached_property
    def output_shape(self) -> tuple[int, int]:
        return self._out.size, self._out.level

    def noise_bound(self, round: int) -> float:
        return self._noise

    def _derive(self) -> tuple[Tracked, float]:
        """Run the circuit on bounds."""
        update, bounds = self.update, Bounds(self.parameters, None)
        primes, sites = self.parameters.primes, update.sites
        edges = np.linspace(0.0, 1.0, CELLS + 1) ** 2
        low, high = edges[:-1], edges[1:]
        root = np.sqrt(high / (1.0 - update.alpha))
        nothing = np.zeros(CELLS)
        fresh = bounds.source(bounds.fresh(sites) + nothing)
        g = Tracked(SCALE * sites, len(primes), 2, -root, root, fresh, nothing)
        square = bounds.rescale(bounds.relinearise(bounds.square(g)))
        v = bounds.scalar_product(square, self.window_scale, self.packs)
        for _ in self.rotation_steps():
            v = bounds.rotated_sum(v)
        v = replace(v, low=low, high=high)
        gain = standard_form(bounds, update.polynomial.coefficients, primes, v)
        # Intervals do not see that the powers of V cancel; the chord's error does.
        ends = update.polynomial(np.stack((low, high)))
        slack = update.polynomial.curvature * (high - low) ** 2 / 8.0
        gain = replace(
            gain, low=ends.min(axis=0) - slack, high=ends.max(axis=0) + slack
        )
        u = bounds.rescale(bounds.weighted(g, 1.0, g.scale * self._step_scale))
        u = replace(
            u,
            low=-root - update.drift,
            high=root + update.drift,
            sources=together(u.sources, bounds.source(bounds.encoding)),
        )
        u = bounds.drop(u, gain.level)
        out = bounds.rescale(bounds.relinearise(bounds.multiply(gain, u)))
        noise = float((out.noise[1] + out.cross).max()) / out.scale
        return out, noise

    @property
    def window_scale(self) -> float:
        """Scale of the window's weights: V keeps Δ after its rescaling."""
        sites = float(self.update.sites)
        square = (SCALE * sites) ** 2 / self.parameters.primes[-1]
        return SCALE * self.parameters.primes[-2] / square

    @property
    def _step_scale(self) -> float:
        """c: what g is multiplied with before the last product (1/K and a scale)."""
        return self.parameters.primes[-1] / self.update.sites

    def evaluator(self, keys: EvaluationKeys, seal_evaluator: Any = None) -> Evaluator:
        return LiteralEvaluator(self, keys, seal_evaluator)


class LiteralEvaluator(InOrderEvaluator):
    """The packs of the window, and the circuit on them."""

    _circuit: LiteralCircuit

    def __init__(
        self, circuit: LiteralCircuit, keys: EvaluationKeys, seal_evaluator: Any = None
    ) -> None:
        if set(keys.steps) != set(circuit.rotation_steps()):
            raise CryptoError("the evaluation keys belong to another circuit")
        super().__init__(circuit, keys)
        self._evaluator = (
            self._scheme.evaluator if seal_evaluator is None else seal_evaluator
        )
        self._arithmetic = SealArithmetic(self._scheme, keys.relin, seal_evaluator)
        self._packs: list[list[ScaledCiphertext]] = []
        self._weights: dict[int, Any] = {}

    def absorb(self, round: int, messages: Sequence[CkksCiphertext]) -> None:
        circuit, a = self._circuit, self._arithmetic
        scale = SCALE * circuit.update.sites
        self._means = self._admit(round, messages, scale)
        squares = [
            a.rescale(a.relinearise(a.square(a.copy(mean)))) for mean in self._means
        ]
        if circuit.place(round) == 0:
            self._packs.insert(0, squares)
            del self._packs[circuit.packs :]
        else:
            self._packs[0] = [
                a.add(pack, square)
                for pack, square in zip(self._packs[0], squares, strict=True)
            ]
        self._round = round

    def step_factor(self) -> float:
        """What h is multiplied with before the last product."""
        return 1.0

    def output(self, drift: Floats | None = None) -> CkksCiphertext:
        circuit, a, round = self._circuit, self._arithmetic, self._round
        update, parameters = circuit.update, circuit.parameters
        factor = self.step_factor()
        self._check_output(drift)
        outputs = []
        for chunk, mean in enumerate(self._means):
            v = self._variance(chunk)
            if not a.constants:
                a.constants = self._all_constants(v, mean)
            v = a.add_constant(v, update.initial * update.alpha**round)
            gain = standard_form(
                a, update.polynomial.coefficients, parameters.primes, v
            )
            # K h at scale Δ is h at scale K Δ: the delayed division by K.
            u = a.weighted(a.copy(mean), factor, mean.scale * circuit._step_scale)
            u = a.drop(a.rescale(u), gain.level)
            if drift is not None and drift.any():
                slots = parameters.slots
                part = drift[chunk * slots : (chunk + 1) * slots]
                u = a.add_vector(u, circuit.layout(part / update.sites, round)[0])
            out = a.rescale(a.relinearise(a.multiply(gain, u)))
            outputs.append(self._scheme.coefficients(out.cipher, out.level))
        return CkksCiphertext(
            parameters, self._keys.key_id, update.dimension, np.stack(outputs)
        )

    def _all_constants(
        self, v: ScaledCiphertext, mean: ScaledCiphertext
    ) -> dict[tuple[float, int], Any]:
        """Those that no round changes: encoded once, as weights are."""
        circuit, rehearsal = self._circuit, Rehearsal(self._scheme)
        coefficients = circuit.update.polynomial.coefficients
        primes = circuit.parameters.primes
        standard_form(rehearsal, coefficients, primes, rehearsal.node(v.scale, v.level))
        target = mean.scale * circuit._step_scale
        rehearsal.weighted(rehearsal.node(mean.scale, mean.level), 1.0, target)
        return rehearsal.constants

    def _variance(self, chunk: int) -> ScaledCiphertext:
        """Σ weights · pack, rescaled, then summed over the r places by rotations."""
        circuit, evaluator, total = self._circuit, self._evaluator, None
        newest = circuit.place(self._round)
        for index, pack in enumerate(self._packs):
            product = sealapi.Ciphertext()
            weights = self._weight(newest + index * circuit.packed)
            evaluator.multiply_plain(pack[chunk].cipher, weights, product)
            if total is None:
                total = product
            else:
                evaluator.add_inplace(total, product)
        level = circuit.parameters.levels - 1
        scale = self._packs[0][chunk].scale * circuit.window_scale
        v = self._arithmetic.rescale(ScaledCiphertext(total, scale, level))
        for step in reversed(circuit.rotation_steps()):
            turned = sealapi.Ciphertext()
            evaluator.rotate_vector(v.cipher, step, self._keys.galois, turned)
            evaluator.add_inplace(turned, v.cipher)
            v = ScaledCiphertext(turned, v.scale, v.level)
        return v

    def _weight(self, age: int) -> Any:
        """(1 − α) α^(age − i) at the slots of place i, encoded once for each age."""
        if age not in self._weights:
            circuit, alpha = self._circuit, self._circuit.update.alpha
            ages = age - np.arange(circuit.packed)
            inside = (ages >= 0) & (ages < WINDOW)
            weights = np.zeros(circuit.packed)
            weights[inside] = (1.0 - alpha) * alpha ** ages[inside]
            plain = sealapi.Plaintext()
            self._scheme.encoder.encode(
                np.repeat(weights, circuit.stride).tolist(),
                self._scheme.level_ids[circuit.parameters.levels - 1],
                circuit.window_scale,
                plain,
            )
            plain.scale = 1.0
            self._weights[age] = plain
        return self._weights[age]

    def state(self) -> bytes:
        """Refused: a window of 219 rounds is rebuilt from the sites' ciphertexts."""
        raise CryptoError(
            "the literal circuit keeps no state on disk",
            remedy="rebuild it from the sites' ciphertexts of the window",
        )

    def restore(self, data: bytes) -> None:
        self.state()

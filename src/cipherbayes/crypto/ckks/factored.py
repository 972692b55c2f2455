"""The circuits ``fast`` and ``hardened``: factored polynomial, running block sums.

Levels count primes; L is a fresh ciphertext's. With R from
:mod:`~cipherbayes.crypto.ckks.blocks` and the constants of
:class:`~cipherbayes.crypto.ckks.polynomial.FactoredForm`:

======  =====================================  ==============================
level   result                                 key switches
======  =====================================  ==============================
L       h, R                                   R
L − 1   V, u = ν h + drift                     (V + h)²
L − 2   y, y + βV, w = u (V − r₀)              w, X, Y in ``fast`` only
L − 3   X = w (y + c₁)
        Y = (y + βV + c₂)(y + d) + e
L − 3   out = X Y, decrypted with s, s², …     none
======  =====================================  ==============================

``hardened`` leaves w, X and Y unrelinearised: decryption does not mind more
polynomials, and its primes have room for the rounding errors this costs (they are in
the bounds). ``fast`` does not have that room.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cipherbayes.crypto.ckks.arithmetic import Encrypted, SealArithmetic, replicated
from cipherbayes.crypto.ckks.blocks import (
    BlockPlan,
    block_length,
    check_round,
    good_weight,
)
from cipherbayes.crypto.ckks.bounds import (
    Arithmetic,
    Bounds,
    Node,
    Tracked,
    fresh_noise,
)
from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext, add_coefficients
from cipherbayes.crypto.ckks.circuit import Circuit, Evaluator, Update
from cipherbayes.crypto.ckks.keys import EvaluationKeys
from cipherbayes.crypto.ckks.parameters import CkksParameters, ckks_set
from cipherbayes.crypto.ckks.polynomial import FactoredForm
from cipherbayes.crypto.ckks.scheme import ckks_scheme
from cipherbayes.crypto.framing import Kind, decode_frame, encode_frame
from cipherbayes.errors import CryptoError
from cipherbayes.typing import Floats

CELLS = 512
ENCODER_ERROR = 2.0**-46
"""Relative error of SEAL's floating-point encoder, n up to 16384."""

_STATE = struct.Struct("<24s32s32sIIII")


@dataclass(frozen=True)
class Tuning:
    """What distinguishes the two circuits.

    Attributes
    ----------
    parameters
        Name of the parameter set.
    variance_bits
        log₂ of V's scale (at the end of a block) after its rescaling.
    weight, forgotten
        About W, and what is left out: see
        :class:`~cipherbayes.crypto.ckks.blocks.BlockPlan`.
    boost
        m of μ_j = round(m α^(−(L−1−j))), which evens V's scale out over a block;
        0 for none.
    switched
        Which of the products w, X and Y are relinearised.
    """

    parameters: str
    variance_bits: float
    weight: int
    forgotten: float
    boost: int
    switched: str


TUNINGS = {
    "fast": Tuning("ckks-8192-fast", 34.25, 2**18, 2e-6, 4, "wXY"),
    "hardened": Tuning("ckks-16384-hardened", 61.0, 2**24, 1e-9, 4, ""),
}


def preconditioned(
    arithmetic: Arithmetic[Node],
    form: FactoredForm,
    squares: Node,
    mean: Node,
    *,
    boost: int,
    start: float,
    switched: str,
) -> Node:
    """P(V) · mean / lead, with V = squares + start: the circuit itself.

    ``squares`` is R at level L, ``mean`` is u one level below.
    """
    a = arithmetic
    v = a.rescale(a.times(a.relinearise(squares), boost))
    square = a.relinearise(a.square(a.add_constant(v, form.shift + start)))
    y = a.rescale(square)
    sloped = a.rescale(a.add(square, a.weighted(v, form.slope, square.scale)))
    w = a.multiply(mean, a.add_constant(v, start - form.root))
    w = a.rescale(a.relinearise(w) if "w" in switched else w)
    x = a.multiply(w, a.add_constant(y, form.first))
    x = a.rescale(a.relinearise(x) if "X" in switched else x)
    second = form.second + form.slope * start
    inner = a.multiply(a.add_constant(sloped, second), a.add_constant(y, form.third))
    inner = a.relinearise(inner) if "Y" in switched else inner
    inner = a.rescale(a.add_constant(inner, form.rest))
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
        top = self.parameters.primes[-1]
        base = 2.0**tuning.variance_bits * top * (1.0 - alpha)
        weight = good_weight(alpha, tuning.weight)
        base /= weight * growth * max(1, tuning.boost)
        self.blocks = BlockPlan(alpha, math.sqrt(base), weight, tuning.forgotten)
        self._places: dict[int, _Place] = {}
        self.form = self._best_form()
        for place in range(length):
            self._place(place + 1)

    def _best_form(self) -> FactoredForm:
        """The factored form with the smallest noise bound."""
        found: dict[float, FactoredForm] = {}
        problem = None
        for form in self.update.polynomial.factored_forms():
            try:
                found[self._derive(form, 1).noise] = form
            except CryptoError as refusal:
                problem = refusal
        if not found:
            assert problem is not None
            raise problem
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
        first = float(out.noise.max()) / math.sqrt(self.replicas)
        noise = (first + float(out.cross.max())) / abs(scale)
        return _Place(multiple, scale, out.size, out.level, noise)

    def _bounded(self, form: FactoredForm, round: int, multiple: int) -> Tracked:
        update, blocks = self.update, self.blocks
        bounds = Bounds(self.parameters)
        edges = np.linspace(0.0, 1.0, CELLS + 1) ** 2
        low, high = edges[:-1], edges[1:]
        root = np.sqrt(high / (1.0 - update.alpha))
        fresh = fresh_noise(self.parameters, update.sites)
        scale, sum_scale = blocks.scale(round), blocks.sum_scale(round)
        fresh += ENCODER_ERROR * scale * update.largest_mean * update.sites
        levels = self.parameters.levels
        # ΔV = 2 (1 − α) Σ α^(t−i) h_i Δh_i with independent Δh_i: its proxy deviation
        # is at most that of Δh times 2 √Σ ((1 − α) α^(t−i) h_i)² ≤ 2 √((1 − α) V).
        error = fresh / blocks.base
        slope = 2.0 * np.sqrt((1.0 - update.alpha) * high)
        squares = Tracked(
            sum_scale,
            levels,
            3,
            low,
            high,
            slope * error * sum_scale,
            np.full(CELLS, error * error * sum_scale),
        )
        mean = Tracked(
            scale * multiple,
            levels - 1,
            2,
            -root - update.drift,
            root + update.drift,
            np.full(CELLS, (fresh + bounds.encoding) * multiple),
            np.full(CELLS, ENCODER_ERROR * scale * multiple * update.drift),
        )
        return preconditioned(
            bounds,
            form,
            bounds.check(squares, "running sum"),
            bounds.check(mean, "mean"),
            boost=self.boost(round),
            start=0.0,
            switched=self.tuning.switched,
        )

    def boost(self, round: int) -> int:
        """μ_j: evens the scale of V out over a block."""
        if not self.tuning.boost:
            return 1
        left = self.blocks.length - 1 - self.blocks.place(round)
        return round_half_up(self.tuning.boost * self.update.alpha**-left)

    def multiple(self, round: int) -> int:
        """ν: the largest integer multiple of h that provably fits."""
        return self._place(round).multiple

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
        return FactoredEvaluator(self, keys, seal_evaluator)


def round_half_up(value: float) -> int:
    """The nearest integer, at least 1."""
    return max(1, math.floor(value + 0.5))


class FactoredEvaluator(Evaluator):
    """Accumulators of the blocks that count, and the circuit on them."""

    def __init__(
        self, circuit: FactoredCircuit, keys: EvaluationKeys, seal_evaluator: Any = None
    ) -> None:
        if keys.parameters != circuit.parameters:
            raise CryptoError("the evaluation keys belong to another circuit")
        self._circuit = circuit
        self._keys = keys
        self._scheme = ckks_scheme(circuit.parameters)
        self._arithmetic = SealArithmetic(self._scheme, keys.relin, seal_evaluator)
        self._round = 0
        self._since = 1
        self._means: list[Encrypted] = []
        # Newest block first; every block has one accumulator for each chunk.
        self._sums: list[list[Encrypted]] = []
        self._past: list[Encrypted] | None = None

    def absorb(self, round: int, messages: Sequence[CkksCiphertext]) -> None:
        circuit, blocks = self._circuit, self._circuit.blocks
        if self._round == 0:
            if blocks.place(round) != 0:
                raise CryptoError(
                    "a circuit starts with the first round of a block",
                    remedy="begin with the first round of the window",
                )
            self._since = round
        elif round != self._round + 1:
            raise CryptoError(
                f"round {round} does not follow round {self._round}",
                remedy="give a circuit every round once, in order",
            )
        if len(messages) != circuit.update.sites:
            raise CryptoError(
                f"{len(messages)} ciphertexts for {circuit.update.sites} sites"
            )
        for message in messages:
            require_message(message, circuit, self._keys.key_id)
        a, scale = self._arithmetic, circuit.message_scale(round)
        levels = circuit.parameters.levels
        self._means = [
            Encrypted(self._scheme.load(chunk), scale, levels)
            for chunk in add_coefficients(messages)
        ]
        squares = [a.square(mean) for mean in self._means]
        if blocks.place(round) == 0:
            self._sums.insert(0, squares)
            del self._sums[blocks.past + 1 :]
            self._past = None
        else:
            self._sums[0] = [
                a.add(total, square)
                for total, square in zip(self._sums[0], squares, strict=True)
            ]
        self._round = round

    def output(self, drift: Floats | None = None) -> CkksCiphertext:
        circuit, round = self._circuit, self._round
        update = circuit.update
        if round == 0 or self._since > circuit.window(round).start:
            raise CryptoError(
                "the window of the round is not complete",
                remedy="give the circuit every round of its window first",
            )
        if drift is not None and float(np.abs(drift).max()) > update.drift:
            raise CryptoError(
                "the prior pulls harder than the circuit was made for",
                where=f"round {round}",
                remedy="a wider prior, or a larger drift bound in the plan",
            )
        a, level = self._arithmetic, circuit.parameters.levels - 1
        outputs = []
        for chunk, mean in enumerate(self._means):
            u = a.times(a.drop(mean, level), circuit.multiple(round))
            if drift is not None and drift.any():
                slots = circuit.parameters.slots
                part = drift[chunk * slots : (chunk + 1) * slots]
                u = a.add_vector(u, replicated(part, slots))
            out = preconditioned(
                a,
                circuit.form,
                self._weighted_sum(chunk),
                u,
                boost=circuit.boost(round),
                start=update.initial * update.alpha**round,
                switched=circuit.tuning.switched,
            )
            outputs.append(self._scheme.coefficients(out.cipher, out.level))
        return CkksCiphertext(
            circuit.parameters, self._keys.key_id, update.dimension, np.stack(outputs)
        )

    def _weighted_sum(self, chunk: int) -> Encrypted:
        """R = W A + Past; Past is put together once for each block."""
        a, blocks = self._arithmetic, self._circuit.blocks
        if self._past is None:
            self._past = self._build_past()
        total = a.times(self._sums[0][chunk], blocks.weight)
        if self._past:
            past = self._past[chunk]
            total = a.add(total, Encrypted(past.cipher, total.scale, total.level))
        return Encrypted(total.cipher, blocks.sum_scale(self._round), total.level)

    def _build_past(self) -> list[Encrypted]:
        a, totals = self._arithmetic, []
        weights = self._circuit.blocks.past_weights()
        finished = list(zip(weights, self._sums[1:], strict=False))
        for chunk in range(len(self._means) if finished else 0):
            terms = [a.times(block[chunk], w) for w, block in finished if w]
            total = terms[0]
            for term in terms[1:]:
                total = a.add(total, term)
            totals.append(total)
        return totals

    def state(self) -> bytes:
        circuit, levels = self._circuit, self._circuit.parameters.levels
        ciphers = [node.cipher for block in self._sums for node in block]
        ciphers += [node.cipher for node in self._means]
        header = _STATE.pack(
            circuit.parameters.id.encode(),
            self._keys.key_id,
            self._keys.digest,
            self._round,
            self._since,
            len(self._sums),
            circuit.chunks,
        )
        words = [self._scheme.coefficients(each, levels) for each in ciphers]
        return encode_frame(
            Kind.CIRCUIT_STATE, header, *(each.tobytes() for each in words)
        )

    def restore(self, data: bytes) -> None:
        circuit, parameters = self._circuit, self._circuit.parameters
        polynomial = 8 * parameters.ring * parameters.levels
        most = circuit.chunks * (3 * (circuit.blocks.past + 1) + 2) * polynomial
        body = decode_frame(data, Kind.CIRCUIT_STATE, limit=_STATE.size + most)
        if len(body) < _STATE.size:
            raise CryptoError("the circuit's state is too short")
        name, key, digest, round, since, count, chunks = _STATE.unpack_from(body)
        expected = chunks * (3 * count + 2) * polynomial
        if (
            name != parameters.id.encode().ljust(24, b"\0")
            or key != self._keys.key_id
            or digest != self._keys.digest
            or chunks != circuit.chunks
            or count < 1
            or len(body) != _STATE.size + expected
        ):
            raise CryptoError(
                "the state belongs to another circuit or run",
                remedy="rebuild it from the sites' ciphertexts of the window",
            )
        check_round(round)
        words = np.frombuffer(body, "<u8", offset=_STATE.size).astype(np.uint64)
        split = chunks * count * 3
        flat = words.reshape(-1, parameters.levels, parameters.ring)
        moduli = np.array(parameters.primes, dtype=np.uint64)
        if not (flat.max(axis=2) < moduli).all():
            raise CryptoError("the circuit's state is not reduced")
        sums = [
            Encrypted(self._scheme.load(flat[i : i + 3]), 1.0, parameters.levels)
            for i in range(0, split, 3)
        ]
        self._sums = [sums[i : i + chunks] for i in range(0, len(sums), chunks)]
        scale = circuit.message_scale(round)
        self._means = [
            Encrypted(self._scheme.load(flat[i : i + 2]), scale, parameters.levels)
            for i in range(split, len(flat), 2)
        ]
        self._round, self._since, self._past = round, since, None


def require_message(message: CkksCiphertext, circuit: Circuit, key_id: bytes) -> None:
    """Refuse a ciphertext that is no site's message of this circuit and key."""
    if (
        message.parameters != circuit.parameters
        or message.key_id != key_id
        or message.dimension != circuit.update.dimension
        or (message.size, message.level) != (2, circuit.parameters.levels)
    ):
        raise CryptoError(
            "a site's ciphertext does not belong to this circuit and key",
            remedy="every site must use the key and the study of this run",
        )

"""All circuits compute the same function, within stated errors of the DP noise."""

from __future__ import annotations

from dataclasses import replace
from functools import partialmethod
from typing import Any

import numpy as np
import pytest

from cipherbayes.crypto.ckks.arithmetic import SealArithmetic
from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.crypto.ckks.circuit import Circuit, Update
from cipherbayes.crypto.ckks.circuits import CIRCUITS, make_circuit
from cipherbayes.crypto.ckks.factored_evaluator import FactoredEvaluator
from cipherbayes.crypto.ckks.keys import CkksKeys
from cipherbayes.crypto.ckks.literal import LiteralCircuit, LiteralEvaluator
from cipherbayes.crypto.ckks.polynomial import minimax
from cipherbayes.crypto.ckks.scheme import ckks_scheme
from cipherbayes.crypto.ckks.stored_literal import StoredLiteral
from cipherbayes.errors import CryptoError
from cipherbayes.typing import Floats, Integers
from cipherbayes_research.benchmarks.reference_update import ReferenceUpdate
from cipherbayes_research.paper.counting import CountingEvaluator

UNIT = 2.0**-20
DP_NOISE = 0.1
TOLERANCE = {"literal": 1e-3, "fast": 1e-2, "hardened": 1e-6}
DIMENSION = 184


def update(sites: int = 2, dimension: int = DIMENSION, alpha: float = 0.9) -> Update:
    return Update(dimension, sites, UNIT, minimax(0.01), alpha=alpha, drift=0.2)


def shares(total: Integers, sites: int) -> list[Integers]:
    rng = np.random.default_rng(0)
    parts = [rng.integers(-(2**20), 2**20, len(total)) for _ in range(sites - 1)]
    return [*parts, total - sum(parts, np.zeros_like(total))]


def gradients(rounds: int, dimension: int, seed: int = 0) -> Integers:
    """Sums with V from 0.01 to about 0.8 over the coordinates."""
    rng = np.random.default_rng(seed)
    spread = np.geomspace(0.02, 0.75, dimension)
    h = np.clip(rng.standard_normal((rounds, dimension)) * spread, -0.95, 0.95)
    return np.rint(h / UNIT).astype(np.int64)


PERIOD = 32
"""Gradients repeat after so many rounds: every circuit's own cycle divides it."""


def worst_error(
    circuit: Circuit,
    keys: CkksKeys,
    totals: Integers,
    rounds: range | None = None,
    every: int = 1,
) -> float:
    """Largest error as a share of the DP noise that the output has, P(V) σ'."""
    rounds = range(1, len(totals) + 1) if rounds is None else rounds
    reference = ReferenceUpdate(circuit.update)
    reference.variance = reference.variance * circuit.update.alpha ** (rounds[0] - 1)
    evaluator = circuit.evaluator(keys.evaluation)
    encryptor = circuit.encryptor(keys.public)
    drift = np.linspace(-0.2, 0.2, circuit.update.dimension)
    sent: dict[int, list[CkksCiphertext]] = {}
    worst = 0.0
    for t in rounds:
        turn = (t - 1) % len(totals)
        if turn not in sent:
            parts = shares(totals[turn], circuit.update.sites)
            sent[turn] = [encryptor.encrypt(part, t) for part in parts]
        expected = reference.step(totals[turn], drift)
        evaluator.absorb(t, sent[turn])
        if (rounds[-1] - t) % every == 0:
            found = circuit.decrypt_exactly(keys.secret, evaluator.output(drift), t)
            noise = DP_NOISE * circuit.update.polynomial(reference.variance)
            worst = max(worst, float((np.abs(found - expected) / noise).max()))
    return worst


class Trios(dict[str, tuple[Circuit, CkksKeys]]):
    """Circuits with keys, made when they are first asked for."""

    def __missing__(self, name: str) -> tuple[Circuit, CkksKeys]:
        circuit = make_circuit(name, update())
        self[name] = (circuit, circuit.generate_keys())
        return self[name]


@pytest.fixture(scope="module")
def trios() -> Trios:
    return Trios()


SLOW_LITERAL = [pytest.param("literal", marks=pytest.mark.slow), "fast", "hardened"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("fast", 300),
        ("hardened", 19),
        pytest.param("hardened", 300, marks=pytest.mark.torture),
        pytest.param("literal", 300, marks=pytest.mark.torture),
    ],
)
def test_a_circuit_agrees_with_float64(name: str, rounds: int, trios: Trios) -> None:
    circuit, keys = trios[name]
    totals = gradients(PERIOD, DIMENSION)
    error = worst_error(circuit, keys, totals, range(1, rounds + 1), every=23)
    assert error < TOLERANCE[name]


FEW_SITES = [(sites, name) for sites in (1, 16) for name in CIRCUITS]
MANY_SITES = [
    pytest.param(64, name, marks=() if name == "fast" else pytest.mark.torture)
    for name in CIRCUITS
]


@pytest.mark.slow
@pytest.mark.parametrize(("sites", "name"), [*FEW_SITES, *MANY_SITES])
def test_a_circuit_serves_any_number_of_sites(
    name: str, sites: int, trios: Trios
) -> None:
    circuit = make_circuit(name, update(sites))
    totals = gradients(2 if sites < 16 else 1, DIMENSION)
    _, keys = trios[name]
    assert worst_error(circuit, keys, totals) < TOLERANCE[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_LITERAL)
def test_v_may_be_anything_from_0_to_1(name: str, trios: Trios) -> None:
    """One round with V = 0.9 V₀ + 0.1 h² swept to 1: the largest h of all."""
    circuit, keys = trios[name]
    h = np.sqrt(np.linspace(0.0, 1.0 - 0.009, DIMENSION) / 0.1)
    totals = np.rint(h / UNIT).astype(np.int64)[None, :]
    assert worst_error(circuit, keys, totals) < TOLERANCE[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "fast",
        "hardened",
        pytest.param("literal", marks=pytest.mark.torture),
    ],
)
def test_round_20000_is_like_any_other(name: str, trios: Trios) -> None:
    circuit, keys = trios[name]
    totals = gradients(PERIOD, DIMENSION, seed=3)
    window = circuit.window(20_000)
    error = worst_error(circuit, keys, totals, window, every=1000)
    assert error < TOLERANCE[name]


@pytest.mark.slow
def test_the_literal_circuit_has_the_papers_operation_counts(trios: Trios) -> None:
    circuit, keys = trios["literal"]
    assert isinstance(circuit, LiteralCircuit)
    counting = CountingEvaluator(ckks_scheme(circuit.parameters).evaluator)
    counts = counting.counts
    public = replace(
        keys.public, _encryptor=CountingEvaluator(keys.public._encryptor, counts)
    )
    evaluator = LiteralEvaluator(circuit, keys.evaluation, counting)
    encryptor = circuit.encryptor(public)
    total = gradients(1, DIMENSION)[0]
    message = encryptor.encrypt(total, 1)
    t = circuit.packed * (circuit.packs - 1) + 1
    for first in range(1, t, circuit.packed):
        # Only how many packs there are matters here, not what is in them.
        evaluator.absorb(first, [message, message])
        evaluator._round = first + circuit.packed - 1
    counts.clear()
    out = evaluator.step(t, [encryptor.encrypt(total, t) for _ in range(2)])
    secret = CkksKeys.from_secret_bytes(keys.to_secret_bytes()).secret
    secret._decryptor = CountingEvaluator(secret._decryptor, counts)
    circuit.decrypt_exactly(secret, out, t)
    assert counts["HM"] == 9
    assert counts["relinearise"] == 7
    assert counts["SM"] == 8 + -(-219 // circuit.packed)
    assert counts["Rot"] == 5 <= 8
    assert (counts["Enc"], counts["Dec"]) == (circuit.update.sites, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast", "hardened"])
def test_a_restored_or_replayed_state_gives_the_same_bytes(
    name: str, trios: Trios
) -> None:
    circuit, keys = trios[name]
    encryptor = circuit.encryptor(keys.public)
    server, site = (circuit.evaluator(keys.evaluation) for _ in range(2))
    restarted = circuit.evaluator(keys.evaluation)
    drift: Floats = np.full(DIMENSION, 0.1)
    for t, total in enumerate(gradients(18, DIMENSION), start=1):
        encryptor.prepare()
        messages = [encryptor.encrypt(part, t) for part in shares(total, 2)]
        received = [
            circuit.read_message(each.to_bytes(), keys.public.key_id)
            for each in messages
        ]
        server.absorb(t, messages)
        site.absorb(t, received)
        if t == 17:
            restarted.restore(server.state())
        elif t == 18:
            restarted.absorb(t, received)
    # A state is the same whether earlier ones were asked for or not.
    assert server.state() == site.state() == restarted.state()
    # What was expected makes no difference, true or not.
    server.expect(18, drift)
    site.expect(18, drift / 2)
    restarted.expect(17, drift)
    out = server.output(drift)
    again = circuit.read_output(out.to_bytes(), keys.public.key_id)
    assert out.digest() == again.digest() == site.output(drift).digest()
    assert out.digest() == restarted.output(drift).digest()
    assert out.digest() != server.output(drift / 2).digest()


@pytest.mark.slow
def test_a_stored_literal_circuit_takes_its_own_steps_and_goes_on(trios: Trios) -> None:
    literal, keys = trios["literal"]
    circuit = StoredLiteral(literal.update, lambda t: 0.5 / t)
    encryptor = circuit.encryptor(keys.public)
    server, restarted = (circuit.evaluator(keys.evaluation) for _ in range(2))
    drift: Floats = np.linspace(-0.2, 0.2, DIMENSION)
    totals, reference = gradients(2, DIMENSION), ReferenceUpdate(circuit.update)
    for t, total in enumerate(totals, start=1):
        messages = [encryptor.encrypt(part, t) for part in shares(total, 2)]
        reference.step(total)
        server.absorb(t, messages)
        if t == 1:
            restarted.restore(server.state())
        else:
            restarted.absorb(t, messages)
    out = server.output(drift)
    assert out.digest() == restarted.output(drift).digest()
    gain = circuit.update.polynomial(reference.variance)
    expected = gain * (0.25 * circuit.update.values(totals[1]) + drift)
    error = np.abs(circuit.decrypt_exactly(keys.secret, out, 2) - expected)
    assert (error / (DP_NOISE * gain)).max() < TOLERANCE["literal"]
    for wrong in (np.full(DIMENSION, np.nan), np.full(DIMENSION, 9.0)):
        with pytest.raises(CryptoError, match="harder than the circuit was made for"):
            restarted.output(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", CIRCUITS)
def test_an_output_uses_up_nothing_that_later_rounds_need(
    name: str, trios: Trios
) -> None:
    """Operations write over their first operand: the sums of rounds are none."""
    circuit, keys = trios[name]
    encryptor = circuit.encryptor(keys.public)
    sent = [
        [encryptor.encrypt(part, t) for part in shares(total, 2)]
        for t, total in enumerate(gradients(18, DIMENSION), start=1)
    ]
    asked, silent = (circuit.evaluator(keys.evaluation) for _ in range(2))
    drift = np.linspace(-0.2, 0.2, DIMENSION)
    for t, messages in enumerate(sent, start=1):
        asked.absorb(t, messages)
        silent.absorb(t, messages)
        if t % 5 == 0:
            assert asked.output(drift).digest() == asked.output(drift).digest()
    assert asked.output(drift).digest() == silent.output(drift).digest()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast", "hardened"])
def test_what_was_done_ahead_changes_no_bit_and_is_not_done_again(
    name: str, trios: Trios, monkeypatch: pytest.MonkeyPatch
) -> None:
    circuit, keys = trios[name]
    encryptor = circuit.encryptor(keys.public)
    ahead, late = (circuit.evaluator(keys.evaluation) for _ in range(2))
    drift = np.linspace(-0.2, 0.2, DIMENSION)
    done: list[str] = []
    for owner, method in (
        (SealArithmetic, "_encoded_constant"),
        (FactoredEvaluator, "_build_past"),
    ):

        def noted(*given: Any, method: str = method, real: Any) -> Any:
            done.append(method)
            return real(*given)

        patched = partialmethod(noted, real=getattr(owner, method))
        monkeypatch.setattr(owner, method, patched)
    for t, total in enumerate(gradients(18, DIMENSION), start=1):
        messages = [encryptor.encrypt(part, t) for part in shares(total, 2)]
        ahead.expect(t, drift)
        done.clear()
        output = ahead.step(t, messages, drift)
        assert not done
        assert output.digest() == late.step(t, messages, drift).digest()
        assert "_encoded_constant" in done
        assert ("_build_past" in done) == (t in (1, 17))


def test_rounds_must_come_in_order(
    trios: Trios,
) -> None:
    circuit, keys = trios["fast"]
    message = circuit.encryptor(keys.public).encrypt(gradients(1, DIMENSION)[0], 1)
    evaluator = circuit.evaluator(keys.evaluation)
    with pytest.raises(CryptoError, match="first round of a block"):
        evaluator.absorb(2, [message, message])
    evaluator.absorb(1, [message, message])
    with pytest.raises(CryptoError, match="does not follow"):
        evaluator.absorb(3, [message, message])
    with pytest.raises(CryptoError, match="1 ciphertexts for 2 sites"):
        evaluator.absorb(2, [message])
    with pytest.raises(CryptoError, match="prior pulls harder"):
        evaluator.output(np.full(DIMENSION, 0.5))


def test_vectors_longer_than_the_slots_take_several_ciphertexts() -> None:
    circuit = make_circuit("fast", update(1, 5000))
    assert circuit.chunks == 2
    keys = circuit.generate_keys()
    # One copy of each value: no averaging, so four times the usual error.
    assert worst_error(circuit, keys, gradients(1, 5000)) < 5e-2


@pytest.mark.parametrize("name", CIRCUITS)
@pytest.mark.parametrize("dimension", [1, 4])
def test_short_vectors_fit_every_circuit(name: str, dimension: int) -> None:
    circuit = make_circuit(name, replace(update(3, dimension), drift=1.0))
    assert len(circuit.rotation_steps()) <= 8


def test_what_could_wrap_is_refused() -> None:
    steep = Update(8, 2, UNIT, minimax(0.01), drift=1e9)
    with pytest.raises(CryptoError, match="exceed its modulus"):
        make_circuit("fast", steep)
    with pytest.raises(CryptoError, match="no such circuit"):
        make_circuit("slow", update())


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.99])
def test_any_weight_of_the_running_mean_works(alpha: float) -> None:
    circuit = make_circuit("fast", update(1, 40, alpha))
    keys = circuit.generate_keys()
    totals = gradients(4, 40)
    assert worst_error(circuit, keys, totals) < TOLERANCE["fast"]

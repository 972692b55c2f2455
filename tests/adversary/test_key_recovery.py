"""Li and Micciancio's key recovery from decrypted CKKS answers, and what stops it.

A CKKS decryption m = c_0 + c_1 s is exact modulo the ciphertext's modulus, so whoever
knows (c_0, c_1) and m knows s: by one division from the polynomial itself or from all
complex slots, from two answers if only the real parts are told (then what is known is
m + m̄, one equation in s and s̄ for each answer). (ePrint 2020/1533.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tenseal.sealapi as sealapi

from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.crypto.ckks.circuit import Circuit, Update
from cipherbayes.crypto.ckks.circuits import make_circuit
from cipherbayes.crypto.ckks.keys import CkksKeys
from cipherbayes.crypto.ckks.polynomial import minimax
from cipherbayes.crypto.ckks.scheme import ckks_scheme
from cipherbayes.privacy.noise import SecureNoise
from cipherbayes.protocols.encrypted_update.flooding import Flooding

SITES = 2


@dataclass
class Run:
    """Rounds of an encrypted update whose vector fills all slots."""

    circuit: Circuit
    keys: CkksKeys
    outputs: list[CkksCiphertext]

    @property
    def modulus(self) -> int:
        return self.circuit.parameters.primes[0]

    def polynomials(self, number: int) -> list[Any]:
        """The output's polynomials modulo q_0, evaluated (SEAL keeps them so)."""
        (chunk,) = self.outputs[number].polynomials
        return [each[0].astype(object) for each in chunk]

    def evaluated(self, slots: Any) -> Any:
        """The integer polynomial with these slots, modulo q_0, evaluated."""
        scheme, plain = ckks_scheme(self.circuit.parameters), sealapi.Plaintext()
        level = scheme.level_ids[self.outputs[0].level]
        scheme.encoder.encode(slots.tolist(), level, 1.0, plain)
        return self.read(plain)

    def read(self, plain: Any) -> Any:
        size = self.circuit.parameters.ring
        return np.array([plain.data(i) for i in range(size)], dtype=object)

    def plain(self, number: int) -> Any:
        """What a CSP that returns Dec(ct) as it is would return."""
        scheme = ckks_scheme(self.circuit.parameters)
        (chunk,) = self.outputs[number].polynomials
        plain = self.keys.secret.decrypt(scheme.load(chunk))
        plain.scale = 1.0
        return plain

    def share_of_key(self, guess: Any) -> float:
        """Part of the secret key's evaluations that a guess has right."""
        return float(np.mean(guess == self.keys.secret._coefficients[0].astype(object)))


@pytest.fixture(scope="module")
def literal() -> Run:
    """The paper's circuit at the paper's parameters."""
    return played("literal", rounds=2)


def played(name: str, rounds: int) -> Run:
    update = Update(
        dimension=8192,
        sites=SITES,
        unit=2.0**-20,
        polynomial=minimax(0.01),
        drift=0.05,
    )
    circuit = make_circuit(name, update)
    keys = circuit.generate_keys()
    site, server = circuit.encryptor(keys.public), circuit.evaluator(keys.evaluation)
    rng = np.random.default_rng(5)
    outputs = []
    for t in range(1, rounds + 1):
        vectors = rng.integers(-(2**15), 2**15, (SITES, update.dimension))
        outputs.append(server.step(t, [site.encrypt(v, round=t) for v in vectors]))
    return Run(circuit, keys, outputs)


def inverse(values: Any, modulus: int) -> Any:
    return np.array([pow(int(v), -1, modulus) for v in values], dtype=object)


def key_from_polynomial(run: Run, message: Any) -> Any:
    """s = (m − c_0) / c_1, point by point."""
    first, second = run.polynomials(0)
    q = run.modulus
    return (message - first) * inverse(second, q) % q


def key_from_real_slots(run: Run, answers: list[Any]) -> Any:
    """s from two answers of which only real parts are known.

    In SEAL's order the conjugate of point i is point n − 1 − i, so each answer is one
    equation c_1(i) s(i) + c_1(ī) s(ī) = r(i) in two unknowns.
    """
    q = run.modulus
    rows = []
    for number, real in enumerate(answers):
        first, second = run.polynomials(number)
        known = run.evaluated(2.0 * real)
        rows.append((second, second[::-1], (known - first - first[::-1]) % q))
    (a, b, r), (c, d, t) = rows
    return (r * d - b * t) * inverse((a * d - b * c) % q, q) % q


@pytest.mark.slow
def test_one_raw_polynomial_is_the_whole_key(literal: Run) -> None:
    assert literal.outputs[0].size == 2
    message = literal.read(literal.plain(0))
    assert literal.share_of_key(key_from_polynomial(literal, message)) == 1.0


def test_one_answer_in_complex_slots_is_the_whole_key(literal: Run) -> None:
    scheme = ckks_scheme(literal.circuit.parameters)
    slots = np.array(scheme.encoder.decode_complex(literal.plain(0)))
    message = literal.evaluated(slots)
    assert literal.share_of_key(key_from_polynomial(literal, message)) == 1.0


def exact_answers(run: Run) -> list[Any]:
    """Without flooding: what ``decrypt_exactly`` says must never be released."""
    return [
        run.circuit.decrypt_exactly(run.keys.secret, output, t)
        * run.circuit.output_scale(t)
        for t, output in enumerate(run.outputs, start=1)
    ]


def flooded_answers(run: Run, bits: float) -> list[Any]:
    """What the CSP releases."""
    flooding = Flooding(bits=bits, releases=len(run.outputs))
    return [
        flooding.release(run.circuit, run.keys.secret, output, t, SecureNoise())
        * run.circuit.output_scale(t)
        for t, output in enumerate(run.outputs, start=1)
    ]


@pytest.mark.slow
def test_two_answers_in_real_slots_are_the_whole_key_and_flooded_ones_nothing(
    literal: Run,
) -> None:
    guess = key_from_real_slots(literal, exact_answers(literal))
    assert literal.share_of_key(guess) == 1.0
    # Even a few bits of flooding; thirty would not fit this circuit's modulus.
    guess = key_from_real_slots(literal, flooded_answers(literal, 2.0))
    assert literal.share_of_key(guess) < 0.01


def rounded(run: Run, bits: int) -> list[Any]:
    return [np.rint(each / 2.0**bits) * 2.0**bits for each in exact_answers(run)]


def test_rounding_alone_stops_the_division_but_proves_nothing(literal: Run) -> None:
    """Which is why the guarantee is stated for flooding, not for rounding."""
    guess = key_from_real_slots(literal, rounded(literal, 20))
    assert literal.share_of_key(guess) < 0.01


def key_from_many(run: Run, messages: list[Any]) -> Any:
    """s from outputs m = c_0 + c_1 s + … + c_k s^k that were never relinearised.

    k answers are k linear equations in s, …, s^k at every point: eliminated together.
    """
    q = run.modulus
    rows = []
    for number, message in enumerate(messages):
        first, *others = run.polynomials(number)
        rows.append([*others, (message - first) % q])
    unknowns = len(rows)
    assert len(rows[0]) == unknowns + 1
    for pivot in range(unknowns - 1, 0, -1):
        scale = inverse(rows[pivot][pivot], q)
        for row in range(pivot):
            factor = rows[row][pivot] * scale % q
            rows[row] = [
                (one - factor * other) % q
                for one, other in zip(rows[row], rows[pivot], strict=True)
            ]
    return rows[0][-1] * inverse(rows[0][0], q) % q


@pytest.mark.slow
def test_the_hardened_circuit_too_gives_its_key_away_unless_it_is_flooded() -> None:
    """Four raw polynomials are the key; four releases of the CSP are not."""
    run = played("hardened", rounds=4)
    assert run.outputs[0].size == 5
    raw = [run.read(run.plain(number)) for number in range(4)]
    assert run.share_of_key(key_from_many(run, raw)) == 1.0
    flooded = flooded_answers(run, 30.0)
    messages = [run.evaluated(each) for each in flooded]
    assert run.share_of_key(key_from_many(run, messages)) < 0.01
    for t, (one, other) in enumerate(
        zip(exact_answers(run), flooded, strict=True), start=1
    ):
        error = run.circuit.noise_bound(t) * abs(run.circuit.output_scale(t))
        # 30 bits: 2¹⁵ times the derived bound on the error that gives it away.
        assert np.std(other - one) > 2.0**15 * error

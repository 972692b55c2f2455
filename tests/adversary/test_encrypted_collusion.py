"""The server and one malicious site against the others, in an encrypted update.

Honest sites attest to the evaluation of whatever was signed, and nobody can see whether
a ciphertext is an honest encryption. So a site that is shown the others' messages first
decides what the sum is. It can find the secret key. It must not see another site's sum
with less noise than was certified.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encrypted_parties import EncryptedConsortium, encrypted_study
from exposed import certified, without
from parties import Consortium, small_study
from scipy import stats

from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext, add_coefficients
from cipherbayes.crypto.ckks.circuit import Circuit, SiteEncryptor, Update
from cipherbayes.crypto.ckks.circuits import make_circuit
from cipherbayes.crypto.ckks.keys import CkksKeys
from cipherbayes.crypto.ckks.masking import RingMask
from cipherbayes.crypto.ckks.polynomial import minimax
from cipherbayes.crypto.ckks.scheme import ckks_scheme
from cipherbayes.privacy.gaussian import epsilon_of
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.noise import SecureNoise
from cipherbayes.protocols.encrypted_update.flooding import Flooding
from cipherbayes.protocols.encrypted_update.messages import (
    Attestation,
    OutputRequest,
    ReplayRequest,
)
from cipherbayes.protocols.messages import (
    DecryptReply,
    Refusal,
    RoundRequest,
    SiteReply,
    decode,
    encode,
)
from cipherbayes.protocols.questions import Question
from enrolled_sites import EnrolledSites, slot_order

Forge = Callable[[dict[str, CkksCiphertext]], np.ndarray]


def negated(message: CkksCiphertext) -> np.ndarray:
    """What takes a message out of the sum."""
    moduli = np.array(message.parameters.primes, dtype=np.uint64)[:, None]
    return (moduli - message.polynomials) % moduli


# -- cancelling all but one ---------------------------------------------------


def opened_by_collusion(consortium: EncryptedConsortium, forge: Forge) -> Any:
    """What the CSP opens when site c chooses its message after it saw the others'.

    All other parties are honest: a and b attest to the evaluation, the CSP checks it.
    """
    circuit, trio = consortium.plan.circuit, consortium.trio
    _, request = consortium.server.request()
    asked = decode(request, RoundRequest)
    replies = {
        name: decode(consortium.sites[name].handle(request), SiteReply) for name in "ab"
    }
    seen = {
        name: circuit.read_message(reply.ciphertext, trio.public.key_id)
        for name, reply in replies.items()
    }
    forged = CkksCiphertext(
        circuit.parameters, trio.public.key_id, 3, np.ascontiguousarray(forge(seen))
    )
    replies["c"] = SiteReply.signed(
        consortium.keys["c"],
        round_id=asked.round_id,
        site="c",
        ciphertext=forged.to_bytes(),
    )
    replay = encode(
        ReplayRequest(asked.round_id, asked.theta, tuple(replies[n] for n in "abc"))
    )
    output = circuit.evaluator(trio.evaluation).step(
        1, [seen["a"], seen["b"], forged], consortium.plan.drift(asked.theta)
    )
    honest = [decode(consortium.sites[n].handle(replay), Attestation) for n in "ab"]
    own = Attestation.signed(
        consortium.keys["c"],
        round_id=asked.round_id,
        site="c",
        output=output.digest(),
    )
    question = OutputRequest(asked.round_id, 0, (output.to_bytes(),), (*honest, own))
    return decode(consortium.csp.handle(encode(question)), DecryptReply, Refusal)


def direction(update: Update, h: Any) -> Any:
    """What round 1 makes of h."""
    v = update.alpha * update.initial + (1.0 - update.alpha) * h**2
    return update.polynomial(v) * h


def undone(update: Update, values: Any) -> Any:
    """h from what was released: up to here the direction grows with h."""
    low, high = np.full(values.shape, -0.4), np.full(values.shape, 0.4)
    for _ in range(60):
        middle = (low + high) / 2.0
        below = direction(update, middle) < values
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low


def cancels_b(seen: dict[str, CkksCiphertext]) -> np.ndarray:
    return negated(seen["b"])


def distance_from_a(consortium: EncryptedConsortium) -> float:
    """How far what was opened is from a's vector, in shares of the noise."""
    reply = opened_by_collusion(consortium, cancels_b)
    if isinstance(reply, Refusal):
        return np.inf
    update, theta = consortium.plan.circuit.update, consortium.plan.prior.mean
    found = undone(update, reply.values * consortium.plan.grid) / update.unit
    sent = consortium.vector("a", 0, np.array(theta))
    share = consortium.plan.last_phase.sums.share_scale
    return float(np.abs(found - sent).max() / share)


@pytest.mark.slow
def test_a_site_cannot_cancel_all_but_one_other_site(tmp_path: Path) -> None:
    """Alone, the target's sum would have its own share of the noise and no more."""
    consortium = EncryptedConsortium(tmp_path / "out", encrypted_study())
    with without("ring masks"):
        assert distance_from_a(consortium) < 0.005
    share = consortium.plan.last_phase.sums.share_scale
    assert share < 0.75 * certified(consortium)  # type: ignore[arg-type]
    # What is left in the sum is the mask that a and b share. The CSP opens an average
    # of uniform numbers, which is that near to three given ones once in 10⁶ runs.
    consortium = EncryptedConsortium(tmp_path / "in", encrypted_study())
    assert distance_from_a(consortium) > 0.005


def test_what_cancelling_all_but_one_site_would_cost() -> None:
    """A certified ε of 1 (δ = 10⁻⁵, one colluder), protected by one share alone."""
    mu = 0.2681
    assert epsilon_of(mu, 1e-5) == pytest.approx(1.0, abs=1e-3)
    for sites, at_least in ((3, 1.45), (8, 2.9), (64, 10.5)):
        assert epsilon_of(mu * np.sqrt(sites - 1), 1e-5) > at_least


# -- the secret key -----------------------------------------------------------

DIMENSION = 8192


class Ward:
    """Three sites, a circuit that is flooded, and two rounds of it."""

    def __init__(self, masked: bool) -> None:
        update = Update(DIMENSION, 3, 2.0**-16, minimax(0.01), drift=0.0)
        self.circuit: Circuit = make_circuit("hardened", update)
        self.keys: CkksKeys = self.circuit.generate_keys()
        self.encryptor: SiteEncryptor = self.circuit.encryptor(self.keys.public)
        self.sites = EnrolledSites("abc")
        rng = np.random.default_rng(3)
        self.vectors = rng.integers(-(2**12), 2**12, (2, DIMENSION))
        self.messages = {
            name: self.encryptor.encrypt(vector, 1, self.mask(name) if masked else None)
            for name, vector in zip("ab", self.vectors, strict=True)
        }

    def mask(self, name: str) -> RingMask:
        return self.sites.ring_mask(name, self.circuit.parameters, DIMENSION)

    def transformed(self, polynomial: Any) -> Any:
        """A polynomial as ciphertexts hold it."""
        parameters = self.circuit.parameters
        nothing = np.zeros((2, parameters.levels, parameters.ring), dtype=np.uint64)
        return ckks_scheme(parameters).added(nothing, polynomial)[0]

    def asks_for_the_key(self, power: int) -> Any:
        """What the CSP releases of (1, weight · X^power) in place of a sum.

        The malicious site needs no mask of its own and none of the others': it sends
        minus all that it was shown.
        """
        parameters = self.circuit.parameters
        polynomial = np.zeros(parameters.ring, dtype=np.int64)
        polynomial[power] = self.weight
        shown = CkksCiphertext(
            parameters,
            self.keys.public.key_id,
            DIMENSION,
            add_coefficients(list(self.messages.values())),
        )
        forged = negated(shown)
        moduli = np.array(parameters.primes, dtype=np.uint64)[:, None]
        one = np.eye(1, parameters.ring, dtype=np.int64)[0]
        forged[0, 0] = (forged[0, 0] + self.transformed(one)) % moduli
        forged[0, 1] = (forged[0, 1] + self.transformed(polynomial)) % moduli
        message = CkksCiphertext(
            parameters, self.keys.public.key_id, DIMENSION, np.ascontiguousarray(forged)
        )
        # Every time the first round of a run: nothing but the attack is in V.
        evaluator = self.circuit.evaluator(self.keys.evaluation)
        output = evaluator.step(1, [*self.messages.values(), message])
        flooding = Flooding(bits=22.0, releases=40)
        return flooding.release(
            self.circuit, self.keys.secret, output, 1, SecureNoise()
        )

    @property
    def weight(self) -> int:
        """So that the key's slots, up to 3.6 √(2n/3), stay where h can be found."""
        largest = 3.6 * np.sqrt(2.0 * self.circuit.parameters.ring / 3.0)
        return int(0.25 * self.circuit.message_scale(1) / largest)

    def found_key(self) -> Any:
        """All coefficients of the key, from the real and the imaginary parts."""
        update, ring = self.circuit.update, self.circuit.parameters.ring
        real = undone(update, self.asks_for_the_key(0))
        turned = undone(update, self.asks_for_the_key(ring // 2))
        # X^(n/2) is i in slots at a root 1 modulo 4, and −i in the others.
        order = slot_order(ring)
        imaginary = np.where(order % 2, turned, -turned)
        slots = (real + 1j * imaginary) * self.circuit.message_scale(1) / self.weight
        # The slots of an integer polynomial, all of them: its inverse transform.
        points = np.zeros(ring, dtype=complex)
        points[order] = slots.conj()
        points[ring - 1 - order] = slots
        twisted = np.fft.ifft(points)
        twist = np.exp(1j * np.pi / ring * np.arange(ring))
        return np.clip(np.rint((twisted * twist).real), -1, 1).astype(np.int64)

    def share_of_key(self) -> float:
        guess = self.transformed(self.found_key())
        found = guess[0] == self.keys.secret._coefficients[0]
        return float(np.mean(found))

    def opened(self, *names: str) -> Any:
        """What the key makes of messages: their sum's slots, in units of the grid."""
        scheme = ckks_scheme(self.circuit.parameters)
        total = add_coefficients([self.messages[name] for name in names])
        plain = self.keys.secret.decrypt(scheme.load(total[0]))
        plain.scale = 1.0
        scale = self.circuit.message_scale(1) * self.circuit.update.unit
        return np.array(scheme.encoder.decode_double(plain)) / scale


@pytest.mark.slow
def test_server_and_one_site_find_the_key_but_it_opens_no_single_message() -> None:
    """No promise to a record may rest on the key, and none does."""
    bare = Ward(masked=False)
    assert bare.share_of_key() == 1.0
    np.testing.assert_array_equal(np.rint(bare.opened("a")), bare.vectors[0])

    masked = Ward(masked=True)
    assert masked.share_of_key() == 1.0
    # With the key, one site's message is uniform modulo Q ...
    assert np.abs(masked.opened("a")).min() > 2.0**200
    # ... and all honest sites' are, but for what they share with the malicious one.
    parameters = masked.circuit.parameters
    own = masked.mask("c").residues
    moduli = np.array(parameters.primes, dtype=np.uint64)[:, None]
    total = add_coefficients(list(masked.messages.values())).copy()
    total[:, 0] = (total[:, 0] + own) % moduli
    masked.messages["sum"] = CkksCiphertext(
        parameters, masked.keys.public.key_id, DIMENSION, total
    )
    # What is left is the sum of the honest sites: noised by all their shares.
    found = np.rint(masked.opened("sum"))
    np.testing.assert_array_equal(found, masked.vectors.sum(axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("level", range(6))
def test_a_masked_message_is_uniform_to_whoever_has_the_key(level: int) -> None:
    """χ² of the residues' upper bits, for each prime."""
    ward = Ward(masked=True)
    q = ward.circuit.parameters.primes[level]
    c0, c1 = ward.messages["a"].polynomials[0, :, level].astype(object)
    key = ward.keys.secret._coefficients[level].astype(object)
    seen = (c0 + c1 * key) % q
    counts = np.bincount((seen * 64 // q).astype(np.int64), minlength=64)
    assert stats.chisquare(counts).pvalue > 1e-9


# -- one mask, one question ---------------------------------------------------


def answered_twice(folder: Path) -> tuple[Any, Any]:
    """The difference of two answers in one exchange, and that of the bare sums.

    In between the site's ledger was lost, as after a backup was restored.
    """
    three = Consortium(folder, small_study())
    moved = np.array([0.4, -0.2, 0.1])
    first = decode(three.sites["a"].handle(three.request()), SiteReply)
    site = three.site(
        "a",
        ledger=Ledger.open(
            folder / "restored.ledger", dataset="a", epsilon=3.0, delta=1e-5
        ),
    )
    site.join(three.manifest, three.offer)
    again = decode(site.handle(three.request(theta=moved)), SiteReply)
    bits = three.pair.public.parameters.word_bits
    phase = three.plan.last_phase
    sums = [
        phase.sums.to_grid(three.contributions("a").total(phase, Question(theta)))
        for theta in (np.zeros(3), moved)
    ]
    seen = three.opened(again) - three.opened(first)
    return seen % 2**bits, (sums[1] - sums[0]) % 2**bits


def test_two_questions_in_one_exchange_never_meet_the_same_mask(tmp_path: Path) -> None:
    """With one mask for both, their difference is that of two sums without noise."""
    with without("masks of a question"):
        seen, truth = answered_twice(tmp_path / "out")
    np.testing.assert_array_equal(seen, truth)
    seen, truth = answered_twice(tmp_path / "in")
    assert (seen != truth).all()

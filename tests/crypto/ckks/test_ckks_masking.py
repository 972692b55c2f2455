"""Encodings are exactly linear, masks are uniform and cancel to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tenseal.sealapi as sealapi
from scipy.stats import chisquare

from cipherbayes.crypto.ckks.ciphertext import add_coefficients
from cipherbayes.crypto.ckks.circuit import Update
from cipherbayes.crypto.ckks.circuits import make_circuit
from cipherbayes.crypto.ckks.encoding import FRACTION_BITS, _table, encode_exactly
from cipherbayes.crypto.ckks.masking import RingMask, uniform_residues
from cipherbayes.crypto.ckks.parameters import CkksParameters
from cipherbayes.crypto.ckks.polynomial import minimax
from cipherbayes.crypto.ckks.scheme import ckks_scheme
from cipherbayes.errors import CryptoError, ProtocolError
from enrolled_sites import QUESTION, EnrolledSites, slot_order

NAMES = ("a", "b", "c")
CIRCUIT = make_circuit("fast", Update(64, 3, 2.0**-16, minimax(0.01)))
KEYS = CIRCUIT.generate_keys()
RNG = np.random.default_rng(11)


SITES = EnrolledSites(NAMES)


def mask_of(
    name: str,
    *,
    round: int = 0,
    question: bytes = QUESTION,
    parameters: CkksParameters = CIRCUIT.parameters,
    dimension: int = 64,
) -> RingMask:
    return SITES.ring_mask(name, parameters, dimension, round=round, question=question)


# -- the encoding -------------------------------------------------------------


def matrix(ring: int, scale: float) -> Any:
    """A: the encoding before it is rounded, in units of 2^(−F)."""
    table = _table(ring, scale)
    rows = []
    for i in range(ring):
        places = [i * pow(3, j, 2 * ring) % (2 * ring) for j in range(ring // 2)]
        rows.append([table[min(k, 2 * ring - k)] for k in places])
    return np.array(rows, dtype=object)


def rounded(numbers: Any) -> list[int]:
    half = 2 ** (FRACTION_BITS - 1)
    return [(int(number) + half) >> FRACTION_BITS for number in numbers]


@pytest.mark.parametrize("ring", [16, 256])
@pytest.mark.parametrize("scale", [2.0**43 / 3.0, 2.0**12 / 3.0, 0.7])
def test_the_encoding_is_a_matrix_of_integers(ring: int, scale: float) -> None:
    """The fast way gives the integers of the slow one, fractions included."""
    slots = RNG.integers(-(2**17), 2**17, ring // 2)
    fractions = RNG.integers(-(2**33), 2**33, ring)
    expected = rounded(matrix(ring, scale) @ slots.astype(object) + fractions)
    assert encode_exactly(slots, scale, ring, fractions).tolist() == expected


@pytest.mark.parametrize("value", [2**14, 2**29 - 1, -(2**29), 2**44 - 1, 2**48])
def test_no_integer_is_between_two_numbers_of_digits(value: int) -> None:
    slots = np.zeros(8, dtype=np.int64)
    slots[5] = value
    expected = rounded(matrix(16, 1.7) @ slots.astype(object))
    assert encode_exactly(slots, 1.7, 16).tolist() == expected


def twist(ring: int) -> Any:
    return np.exp(-1j * np.pi / ring * np.arange(ring))


@pytest.mark.parametrize("circuit", ["fast", "hardened", "literal"])
def test_an_encoding_has_the_slots_it_was_made_of(circuit: str) -> None:
    made = make_circuit(circuit, Update(64, 3, 2.0**-16, minimax(0.01)))
    ring = made.parameters.ring
    slots = RNG.integers(-(2**16), 2**16, ring // 2)
    scale = made.message_scale(1) * 2.0**-16
    coefficients = encode_exactly(slots, scale, ring)
    plain = np.fft.fft(coefficients * twist(ring))[slot_order(ring)].conj()
    np.testing.assert_allclose(plain.imag, 0.0, atol=8.0 * np.sqrt(ring))
    np.testing.assert_allclose(
        plain.real / scale, slots, atol=8 * np.sqrt(ring) / scale
    )


def test_a_message_is_the_same_with_its_zero_read_beforehand() -> None:
    scheme, parameters = ckks_scheme(CIRCUIT.parameters), CIRCUIT.parameters
    zero = KEYS.public.encrypt_zero()
    words = scheme.coefficients(zero, parameters.levels)
    plain = RNG.integers(-(2**61), 2**61, parameters.ring)
    at_once = scheme.encrypted(zero, plain)
    np.testing.assert_array_equal(scheme.added(words, plain), at_once)
    assert (at_once[0] != words[0]).any()
    np.testing.assert_array_equal(at_once[1], words[1])


def test_a_polynomial_is_transformed_as_seals_own_encoder_does() -> None:
    scheme, parameters = ckks_scheme(CIRCUIT.parameters), CIRCUIT.parameters
    zero, constant = KEYS.public.encrypt_zero(), np.zeros(parameters.ring, np.int64)
    constant[0] = -987_654_321
    plain, total = sealapi.Plaintext(), sealapi.Ciphertext()
    level = scheme.level_ids[parameters.levels]
    scheme.encoder.encode(float(constant[0]), level, 1.0, plain)
    scheme.evaluator.add_plain(zero, plain, total)
    np.testing.assert_array_equal(
        scheme.encrypted(zero, constant), scheme.coefficients(total, parameters.levels)
    )


def test_integers_that_no_word_could_hold_are_refused() -> None:
    slots = np.zeros(8, dtype=np.int64)
    slots[3] = -(2**63)
    with pytest.raises(CryptoError, match="too large for the encoder"):
        encode_exactly(slots, 1.0, 16)
    slots[3] = 2**49
    with pytest.raises(CryptoError, match="too large for the encoder"):
        encode_exactly(slots, 1.0, 16)
    slots[3] = 2**40
    with pytest.raises(CryptoError, match="too large for the encoder"):
        encode_exactly(slots, 2.0**22, 16)


# -- what a sum of rounded encodings would tell --------------------------------

RING, SCALE = 1024, 2.0**30 / 3.0


def spread(value: int) -> Any:
    """Three values again and again, as a vector of three parameters is laid out."""
    return np.resize(np.array([value, 2 * value, -value]), RING // 2)


def total(one: int, other: int, fraction: Any) -> Any:
    """Two sites' encodings, added: what whoever has the secret key sees."""
    first = encode_exactly(spread(one), SCALE, RING, fraction)
    return first + encode_exactly(spread(other), SCALE, RING, -fraction)


@pytest.mark.slow
def test_fractions_of_masks_hide_how_a_sum_is_divided() -> None:
    """Without them the rounding of a short vector is its fingerprint."""
    both, truth = 5_000, 1_234
    nothing = np.zeros(RING, dtype=np.int64)
    seen = total(truth, both - truth, nothing)
    guesses = [
        guess
        for guess in range(1_200, 1_300)
        if np.array_equal(total(guess, both - guess, nothing), seen)
    ]
    assert guesses == [truth]
    fraction = RNG.integers(0, 2**FRACTION_BITS, RING)
    seen = total(truth, both - truth, fraction)
    for guess in range(1_200, 1_300):
        assert not np.array_equal(total(guess, both - guess, nothing), seen)


def test_every_division_of_a_sum_has_a_mask_that_gives_the_same_messages() -> None:
    """So messages tell of the sum only: no division is likelier than another."""
    ring, scale = 16, 2.0**20 / 3.0
    a = matrix(ring, scale)
    one, other, moved = (RNG.integers(-(2**15), 2**15, 8) for _ in range(3))
    mask = RNG.integers(0, 2**40, ring)
    # (one, other) under this mask is (one + moved, other − moved) under that one.
    that = np.array([int(m) for m in mask - a @ moved.astype(object)], dtype=np.int64)
    for sign, before, after in ((1, one, one + moved), (-1, other, other - moved)):
        sent = encode_exactly(before, scale, ring, sign * mask)
        again = encode_exactly(after, scale, ring, sign * that)
        assert sent.tolist() == again.tolist()


# -- the masks ----------------------------------------------------------------


@pytest.mark.parametrize("dimension", [64, 5000])
def test_masks_of_all_sites_cancel_to_the_last_bit(dimension: int) -> None:
    masks = [mask_of(name, dimension=dimension) for name in NAMES]
    assert not np.sum([mask.fractions for mask in masks], axis=0).any()
    for level, prime in enumerate(CIRCUIT.parameters.primes):
        parts = [mask.residues[:, level].astype(object) for mask in masks]
        assert not (sum(parts) % prime).any()  # type: ignore[union-attr]
        assert all((part < prime).all() and part.any() for part in parts)


def test_a_part_of_the_sites_does_not_unmask() -> None:
    one, other = mask_of("a"), mask_of("b")
    for level, prime in enumerate(CIRCUIT.parameters.primes):
        both = one.residues[:, level].astype(object) + other.residues[:, level]
        assert np.mean(both % prime == 0) < 0.01
    assert np.mean(one.fractions + other.fractions == 0) < 0.01


def test_every_round_and_question_has_a_mask_of_its_own() -> None:
    masks = [
        mask_of("a"),
        mask_of("a", round=1),
        mask_of("a", question=b"x" * 32),
    ]
    for level in range(CIRCUIT.parameters.levels):
        words = np.concatenate([mask.residues[0, level] for mask in masks])
        # 24,576 numbers below 2³⁴ at least: a few may meet by chance.
        assert len(np.unique(words)) > len(words) - 100
    again = mask_of("a")
    np.testing.assert_array_equal(again.residues, masks[0].residues)
    np.testing.assert_array_equal(again.fractions, masks[0].fractions)


def test_a_mask_needs_the_hash_of_a_question() -> None:
    with pytest.raises(ProtocolError, match="question"):
        mask_of("a", question=b"short")


class Scripted:
    """A stream that says what a test wants."""

    def __init__(self, words: list[int]) -> None:
        self._data = np.array(words, dtype="<u8").tobytes()

    def update(self, zeros: bytes) -> bytes:
        given, self._data = self._data[: len(zeros)], self._data[len(zeros) :]
        return given


def test_a_word_beyond_its_prime_is_drawn_again() -> None:
    """Not reduced: that would make small residues likelier."""
    moduli = np.array([[13], [7]], dtype=np.uint64)
    # Four and three bits of a word count. First 13, 7 and 7 are too large, then the
    # 14 for the 13 and the 15 (again 7) for the first 7.
    stream = Scripted([12, 13, 240 + 5, 7, 6, 7, 14, 15, 1, 3, 2])
    found = uniform_residues(stream, moduli, (2, 3))  # type: ignore[arg-type]
    assert found.tolist() == [[12, 3, 5], [2, 6, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("level", range(CIRCUIT.parameters.levels))
@pytest.mark.parametrize("low", [False, True])
def test_masked_residues_are_uniform(level: int, low: bool) -> None:
    """Upper and lower parts of the residues of messages that all encrypt zero."""
    encryptor = CIRCUIT.encryptor(KEYS.public)
    zeros = np.zeros(64, dtype=np.int64)
    prime = CIRCUIT.parameters.primes[level]
    words = np.concatenate(
        [
            encryptor.encrypt(zeros, 1, mask_of("a", round=round))
            .polynomials[0, 0, level]
            .astype(object)
            for round in range(8)
        ]
    )
    bins = words % 64 if low else words * 64 // prime
    counts = np.bincount(bins.astype(np.int64), minlength=64)
    # Keys are fresh in every session: eight tests, one failure in 10^7 sessions.
    assert chisquare(counts).pvalue > 1e-8


class Given:
    """Encryptions of zero that a test uses twice."""

    def __init__(self, zeros: list[Any]) -> None:
        self._zeros = list(zeros)

    def __len__(self) -> int:
        return len(self._zeros)

    def take(self) -> Any:
        return self._zeros.pop(0)


def sums(masked: bool, zeros: list[Any], *, fractions: bool) -> Any:
    """The sum of three sites' messages, with these encryptions of zero."""
    encryptor = CIRCUIT.encryptor(KEYS.public)
    encryptor._zeros = Given(zeros)  # type: ignore[assignment]
    vectors = np.arange(192, dtype=np.int64).reshape(3, 64) * 1_000
    messages = []
    for name, vector in zip(NAMES, vectors, strict=True):
        mask = mask_of(name)
        if not fractions:
            mask = RingMask(mask.residues, np.zeros_like(mask.fractions))
        messages.append(encryptor.encrypt(vector, 1, mask if masked else None))
    return add_coefficients(messages)


def fresh_zeros() -> list[Any]:
    encryptor = CIRCUIT.encryptor(KEYS.public)
    return [encryptor._read_zero() for _ in NAMES]


def test_the_sum_of_masked_messages_is_that_of_bare_ones_bit_for_bit() -> None:
    zeros = fresh_zeros()
    bare = sums(False, zeros, fractions=False)
    np.testing.assert_array_equal(sums(True, zeros, fractions=False), bare)


def test_with_fractions_a_sum_is_off_by_less_than_one_unit_a_site() -> None:
    """They decide how each site rounds; no unit in the last place more than that."""
    zeros = fresh_zeros()
    scheme = ckks_scheme(CIRCUIT.parameters)
    polynomials = []
    for fractions in (False, True):
        words = sums(True, zeros, fractions=fractions)[0]
        plain = KEYS.secret.decrypt(scheme.load(words))
        plain.scale = 1.0
        slots = np.asarray(scheme.encoder.decode_complex(plain))
        ring = CIRCUIT.parameters.ring
        points = np.zeros(ring, dtype=complex)
        points[slot_order(ring)] = slots.conj()
        points[::-1][slot_order(ring)] = slots
        polynomials.append((np.fft.ifft(points) / twist(ring)).real)
    difference = polynomials[1] - polynomials[0]
    assert 0.0 < np.abs(difference).max() < len(NAMES) + 0.1

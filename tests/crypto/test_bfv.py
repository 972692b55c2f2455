from __future__ import annotations

import math
import os
import pickle

import numpy as np
import pytest
import tenseal.sealapi as sealapi
from hypothesis import given, settings
from hypothesis import strategies as st

from cipherbayes.crypto.bfv.ciphertext import Ciphertext, add
from cipherbayes.crypto.bfv.keys import KeyPair, PublicKey, SecretKey, generate_keys
from cipherbayes.crypto.bfv.limbs import centre
from cipherbayes.crypto.bfv.parameters import PARAMETER_SETS, ParameterSet
from cipherbayes.crypto.bfv.scheme import bfv_scheme
from cipherbayes.crypto.wire.framing import HEADER_BYTES, Kind, encode_frame
from cipherbayes.errors import CryptoError
from cipherbayes.typing import Integers

# Of the sets that differ in how many limbs a word has, the one with the longest words.
LONGEST = {each.id.split("x")[0]: each for each in PARAMETER_SETS.values()}
PAIRS = {each.id: generate_keys(each) for each in LONGEST.values()}
every_pair = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
PAIR = PAIRS["bfv-2048-22x3"]

EDGES = [0, 1, -1, 2**21, 2**22 - 1, -(2**22), 2**43, -(2**43), 2**63 - 1, -(2**63)]
INT64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from(EDGES))


def wrapped_sum(vectors: list[Integers], parameters: ParameterSet) -> Integers:
    """The plaintext sum modulo 2^b."""
    total = np.add.reduce([vector.view(np.uint64) for vector in vectors])
    return centre(total, parameters.word_bits)


@pytest.mark.slow
@every_pair
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_the_encrypted_sum_is_the_plain_sum_for_any_number_of_sites(
    pair: KeyPair, data: st.DataObject
) -> None:
    sites = data.draw(st.integers(1, min(64, pair.public.parameters.max_summands)))
    edges = data.draw(st.lists(INT64, min_size=1, max_size=12))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    vectors = [
        np.append(
            rng.integers(-(2**63), 2**63 - 1, 5, dtype=np.int64, endpoint=True),
            rng.permutation(np.array(edges, dtype=np.int64)),
        )
        for _ in range(sites)
    ]
    total = add([pair.public.encrypt(vector) for vector in vectors])
    expected = wrapped_sum(vectors, pair.public.parameters)
    assert pair.secret.decrypt(total).tolist() == expected.tolist()


@every_pair
@pytest.mark.parametrize("dimension", [1, 184, 2048, 2049, 10_000])
def test_vectors_of_any_length_are_chunked(pair: KeyPair, dimension: int) -> None:
    parameters = pair.public.parameters
    rng = np.random.default_rng(dimension)
    vectors = [
        rng.integers(-(2**63), 2**63 - 1, dimension, dtype=np.int64)
        for _ in range(min(3, parameters.max_summands))
    ]
    summands = [pair.public.encrypt(vector) for vector in vectors]
    for summand in summands:
        assert len(summand.to_bytes()) == parameters.payload_bytes(dimension) + 112
    answer = pair.secret.decrypt(add(summands))
    assert (answer == wrapped_sum(vectors, parameters)).all()


@every_pair
def test_the_largest_sum_that_is_proven_decrypts_exactly(pair: KeyPair) -> None:
    parameters = pair.public.parameters
    # -1 fills every limb; adding one ciphertext to itself adds its noise up in one
    # direction, which is worse than fresh ones do.
    summand = pair.public.encrypt(np.full(300, -1, dtype=np.int64))
    total = add([summand] * parameters.max_summands)
    assert (pair.secret.decrypt(total) == -parameters.max_summands).all()


@every_pair
def test_fresh_noise_is_within_the_bound_that_the_proof_uses(pair: KeyPair) -> None:
    parameters = pair.public.parameters
    parts = bfv_scheme(parameters)
    worst = parameters.plain_modulus * (parameters.noise_bound(1) + 0.5)
    proven = math.floor(math.log2(parameters.modulus / worst)) - 1
    for _ in range(20):
        cipher = sealapi.Ciphertext()
        fresh = pair.public.encrypt(np.arange(100, dtype=np.int64))
        parts.ciphertext.write(cipher, fresh.polynomials[0], parts.context)
        assert pair.secret._decryptor.invariant_noise_budget(cipher) >= proven >= 1


@pytest.mark.parametrize("same_number", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_two_encryptions_of_one_vector_differ_also_across_a_fork(
    ahead: bool, same_number: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if same_number:  # as the first process of a namespace and of one inside it
        monkeypatch.setattr(os, "getpid", lambda: 1)
    vector = np.zeros(3, dtype=np.int64)

    def digest() -> bytes:
        return PAIR.public.encrypt(vector).to_bytes()[16:48]

    if ahead:
        PAIR.public.prepare(3)
    seen = set()
    for _ in range(2):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            os.write(writer, digest())
            os._exit(0)
        os.waitpid(child, 0)
        seen.add(os.read(reader, 32))
        os.close(reader)
        os.close(writer)
    seen |= {digest(), digest()}
    assert len(seen) == 4


@every_pair
def test_what_is_made_ahead_hides_one_message_of_any_length(pair: KeyPair) -> None:
    public = pair.public
    for dimension in (1, 5, public.parameters.ring + 1):
        vector = np.arange(dimension, dtype=np.int64) - 2
        public.prepare(dimension)
        assert len(public._zeros) == public.parameters.chunks(dimension)
        first, second = public.encrypt(vector), public.encrypt(vector)
        assert len(public._zeros) == 0
        assert (first.polynomials != second.polynomials).any()
        for each in (first, second):
            assert (pair.secret.decrypt(each) == vector).all()


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(0, dtype=np.int64),
        np.zeros((2, 2), dtype=np.int64),
        np.zeros(3),
        np.zeros(3, dtype=np.int32),
        np.zeros(3, dtype=np.uint64),
    ],
)
def test_only_vectors_of_64_bit_integers_are_encrypted(values: Integers) -> None:
    with pytest.raises(CryptoError):
        PAIR.public.encrypt(values)


def test_a_limb_above_what_honest_sites_add_up_to_is_refused() -> None:
    two = add([PAIR.public.encrypt(np.full(4, -1, dtype=np.int64))] * 2)
    claim = Ciphertext(two.parameters, two.key_id, 4, 1, two.polynomials.copy())
    with pytest.raises(CryptoError, match="sum of encoded vectors"):
        PAIR.secret.decrypt(claim)


def test_the_last_limb_of_64_bits_is_short() -> None:
    pair = PAIRS["bfv-1024-9x8"]  # 63 bits are in seven limbs
    one = pair.public.encrypt(np.full(4, -1, dtype=np.int64))
    assert (pair.secret.decrypt(one) == -1).all()
    forged = one.polynomials.copy()
    delta = round(one.parameters.modulus / one.parameters.plain_modulus)
    forged[0, 0, 7 * 4] = (int(forged[0, 0, 7 * 4]) + delta) % one.parameters.modulus
    two = Ciphertext(one.parameters, one.key_id, 4, 1, forged)
    with pytest.raises(CryptoError, match="sum of encoded vectors"):
        pair.secret.decrypt(two)


def test_values_beyond_the_announced_dimension_are_refused() -> None:
    long = PAIR.public.encrypt(np.full(5, -1, dtype=np.int64))
    short = Ciphertext(long.parameters, long.key_id, 4, 1, long.polynomials.copy())
    with pytest.raises(CryptoError, match="sum of encoded vectors"):
        PAIR.secret.decrypt(short)


@every_pair
def test_a_public_key_survives_its_bytes(pair: KeyPair) -> None:
    again = PublicKey.from_bytes(pair.public.to_bytes())
    assert again.key_id == pair.public.key_id
    assert again.parameters == pair.public.parameters
    vector = np.arange(9, dtype=np.int64)
    assert (pair.secret.decrypt(again.encrypt(vector)) == vector).all()


@every_pair
def test_a_key_pair_survives_being_stored(pair: KeyPair) -> None:
    again = KeyPair.from_secret_bytes(pair.to_secret_bytes())
    vector = np.arange(9, dtype=np.int64)
    assert (again.secret.decrypt(pair.public.encrypt(vector)) == vector).all()
    assert again.public.key_id == pair.public.key_id


def test_halves_of_two_pairs_are_refused() -> None:
    other = generate_keys(PAIR.public.parameters)
    mixed = KeyPair(
        PAIR.public,
        SecretKey(
            PAIR.public.parameters, PAIR.public.key_id, other.secret._coefficients
        ),
    )
    with pytest.raises(CryptoError, match="not of this key"):
        KeyPair.from_secret_bytes(mixed.to_secret_bytes())


def test_damaged_keys_are_refused() -> None:
    public = PAIR.public.to_bytes()
    body = bytearray(public[HEADER_BYTES:])
    body[24 + 6] = 0xFF
    unreduced = bytes(body)
    empty = unreduced[:24] + bytes(len(body) - 24)
    for data in (
        public[:-1],
        public + b"\0",
        encode_frame(Kind.PUBLIC_KEY, public[HEADER_BYTES:-7]),
        encode_frame(Kind.PUBLIC_KEY, unreduced),
        encode_frame(Kind.PUBLIC_KEY, empty),
        encode_frame(Kind.PUBLIC_KEY, b"bfv-2048-22x3"),
        encode_frame(Kind.PUBLIC_KEY, b"bfv-1024-1x1".ljust(24, b"\0")),
        encode_frame(Kind.PUBLIC_KEY, b"\xff" * 24),
        PAIR.public.encrypt(np.zeros(1, dtype=np.int64)).to_bytes(),
    ):
        with pytest.raises(CryptoError):
            PublicKey.from_bytes(data)


def test_a_secret_key_is_never_shown_or_pickled() -> None:
    shown = repr(PAIR) + repr(PAIR.secret)
    first = str(int(PAIR.secret._coefficients[0, 0]))
    assert first not in shown
    assert len(shown) < 600
    with pytest.raises(CryptoError):
        pickle.dumps(PAIR.secret)

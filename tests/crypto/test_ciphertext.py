"""What an adversary can put in place of a ciphertext, and what happens to it."""

from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
import tenseal.sealapi as sealapi
from hypothesis import given, settings
from hypothesis import strategies as st

from cipherbayes.crypto.bfv.ciphertext import Ciphertext, add
from cipherbayes.crypto.bfv.keys import KeyPair, generate_keys
from cipherbayes.crypto.bfv.parameters import PARAMETER_SETS, ParameterSet
from cipherbayes.crypto.bfv.scheme import bfv_scheme
from cipherbayes.crypto.coefficients import pack_coefficients, unpack_coefficients
from cipherbayes.crypto.wire.framing import HEADER_BYTES, Kind, encode_frame
from cipherbayes.errors import CryptoError

PARAMETERS = PARAMETER_SETS["bfv-2048-22x2"]
PAIR = generate_keys(PARAMETERS)
VALUES = np.arange(-90, 94, dtype=np.int64)
GOOD = PAIR.public.encrypt(VALUES)
FRAME = GOOD.to_bytes()
FIELDS_BYTES = 64


def parse(data: bytes, pair: KeyPair = PAIR, dimension: int = 184) -> Ciphertext:
    return Ciphertext.from_bytes(
        data,
        parameters=pair.public.parameters,
        key_id=pair.public.key_id,
        dimension=dimension,
    )


def reframed(body: bytes) -> bytes:
    """What an adversary sends who can compute a checksum."""
    return encode_frame(Kind.CIPHERTEXT, body)


def with_polynomials(polynomials: np.ndarray) -> Ciphertext:
    return Ciphertext(PARAMETERS, GOOD.key_id, 184, 1, polynomials)


@pytest.mark.parametrize("width", [7, 8])
@given(data=st.data())
def test_coefficients_survive_being_packed(width: int, data: st.DataObject) -> None:
    words = data.draw(st.lists(st.integers(0, 2 ** (8 * width) - 1), min_size=1))
    array = np.array(words, dtype=np.uint64)
    packed = pack_coefficients(array, width)
    assert packed == b"".join(word.to_bytes(width, "little") for word in words)
    assert (unpack_coefficients(packed, width) == array).all()


def test_a_ciphertext_survives_its_bytes() -> None:
    again = parse(FRAME)
    assert (again.polynomials == GOOD.polynomials).all()
    assert again.to_bytes() == FRAME
    assert (PAIR.secret.decrypt(again) == VALUES).all()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 8 * len(FRAME) - 1))
def test_a_flipped_bit_is_refused(position: int) -> None:
    damaged = bytearray(FRAME)
    damaged[position // 8] ^= 1 << position % 8
    with pytest.raises(CryptoError):
        parse(bytes(damaged))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 8 * (len(FRAME) - HEADER_BYTES) - 1))
def test_a_flipped_bit_under_a_fresh_checksum_changes_one_value_at_most(
    position: int,
) -> None:
    """Whoever makes checksums can add to an encrypted value: hence the signature."""
    body = bytearray(FRAME[HEADER_BYTES:])
    body[position // 8] ^= 1 << position % 8
    try:
        answer = PAIR.secret.decrypt(parse(reframed(bytes(body))))
    except CryptoError:
        return
    first = PARAMETERS.payload_bytes(len(VALUES)) // 2
    in_second = position // 8 >= len(body) - first
    assert int((answer != VALUES).sum()) <= (0 if in_second else 1)


@pytest.mark.parametrize("cut", [1, 7, 100, 14_336, len(FRAME) - HEADER_BYTES])
def test_truncated_and_extended_ciphertexts_are_refused(cut: int) -> None:
    body = FRAME[HEADER_BYTES:]
    for data in (
        FRAME[:-cut],
        FRAME + bytes(cut),
        reframed(body[:-cut]),
        reframed(body + bytes(cut)),
    ):
        with pytest.raises(CryptoError):
            parse(data)


def test_another_keys_ciphertext_is_refused_by_its_id() -> None:
    foreign = generate_keys(PARAMETERS).public.encrypt(VALUES)
    with pytest.raises(CryptoError, match="another key"):
        parse(foreign.to_bytes())
    with pytest.raises(CryptoError, match="different keys"):
        add([GOOD, foreign])
    with pytest.raises(CryptoError, match="another key"):
        PAIR.secret.decrypt(foreign)


@pytest.mark.parametrize("honest", [0, 1, 4])
def test_another_keys_ciphertext_with_a_forged_id_is_not_decrypted(
    honest: int,
) -> None:
    foreign = generate_keys(PARAMETERS).public.encrypt(VALUES)
    forged = with_polynomials(foreign.polynomials)
    with pytest.raises(CryptoError, match="not of this key"):
        PAIR.secret.decrypt(add([forged, *[GOOD] * honest]))


def test_a_public_key_in_place_of_a_ciphertext_is_refused() -> None:
    key = PAIR.public
    with pytest.raises(CryptoError, match="expected a CIPHERTEXT"):
        parse(key.to_bytes())
    with pytest.raises(CryptoError):
        parse(reframed(key.to_bytes()[HEADER_BYTES:]))
    disguised = with_polynomials(key._coefficients.reshape(1, 2, 2048).copy())
    with pytest.raises(CryptoError, match="not of this key"):
        PAIR.secret.decrypt(parse(disguised.to_bytes()))


@pytest.mark.parametrize("empty", [0, 1])
def test_transparent_ciphertexts_and_key_queries_are_refused(empty: int) -> None:
    polynomials = GOOD.polynomials.copy()
    polynomials[0, empty] = 0
    with pytest.raises(CryptoError, match="not encrypted"):
        with_polynomials(polynomials)
    packed = pack_coefficients(polynomials, PARAMETERS.coefficient_bytes)
    fields = FRAME[HEADER_BYTES : HEADER_BYTES + FIELDS_BYTES]
    with pytest.raises(CryptoError, match="not encrypted"):
        parse(reframed(fields + packed))


def test_ciphertexts_that_cancel_to_a_transparent_one_are_refused() -> None:
    opposite = PARAMETERS.modulus - GOOD.polynomials
    with pytest.raises(CryptoError, match="not encrypted"):
        add([GOOD, with_polynomials(opposite)])


def test_a_coefficient_that_is_not_reduced_is_refused() -> None:
    polynomials = GOOD.polynomials.copy()
    polynomials[0, 1, 77] = PARAMETERS.modulus
    with pytest.raises(CryptoError, match="not reduced"):
        with_polynomials(polynomials)


def test_foreign_parameters_are_refused() -> None:
    for name in ("bfv-2048-22x1", "bfv-2048-20x4", "bfv-4096-32x1"):
        foreign = generate_keys(PARAMETER_SETS[name]).public.encrypt(VALUES)
        with pytest.raises(CryptoError):
            parse(foreign.to_bytes())
        with pytest.raises(CryptoError):
            add([GOOD, foreign])


def test_another_dimension_or_a_sum_in_place_of_a_summand_is_refused() -> None:
    with pytest.raises(CryptoError, match="expected 183"):
        parse(FRAME, dimension=183)
    with pytest.raises(CryptoError, match="size"):
        parse(FRAME, dimension=5000)
    with pytest.raises(CryptoError, match="2 summands"):
        parse(add([GOOD, GOOD]).to_bytes())


def test_a_length_that_lies_allocates_nothing() -> None:
    fields = struct.pack(
        "<24s32sII", PARAMETERS.id.encode(), GOOD.key_id, 2**32 - 1, 2**32 - 1
    )
    lie = bytearray(FRAME)
    lie[8:16] = (2**62).to_bytes(8, "little")
    tracemalloc.start()
    for data in (bytes(lie), reframed(fields), reframed(fields + FRAME[112:])):
        with pytest.raises(CryptoError):
            parse(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("pad", [False, True])
def test_a_compression_bomb_is_never_inflated(pad: bool) -> None:
    members = bytes(200_000_000)
    squeezed = pa.Codec("zstd").compress(members, asbytes=True)
    header = struct.pack("<HBBBBHQ", 0xA15E, 16, 4, 3, 2, 0, 16 + len(squeezed))
    bomb = header + squeezed
    if pad:
        payload = PARAMETERS.payload_bytes(184)
        bomb = FRAME[HEADER_BYTES : HEADER_BYTES + 64] + bomb.ljust(payload, b"\xff")
    allocated = pa.total_allocated_bytes()
    tracemalloc.start()
    with pytest.raises(CryptoError):
        PAIR.secret.decrypt(parse(reframed(bomb[: PARAMETERS.payload_bytes(184) + 64])))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert pa.total_allocated_bytes() == allocated


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_crypto_errors(data: bytes) -> None:
    for candidate in (data, reframed(data)):
        with pytest.raises(CryptoError):
            parse(candidate)


@pytest.mark.parametrize("name", ["bfv-1024-7x10", "bfv-2048-22x3", "bfv-4096-32x2"])
def test_the_sum_is_the_one_seal_computes(name: str) -> None:
    parameters: ParameterSet = PARAMETER_SETS[name]
    pair = generate_keys(parameters)
    summands = [pair.public.encrypt(VALUES * k) for k in range(7)]
    parts = bfv_scheme(parameters)
    loaded = []
    for summand in summands:
        loaded.append(sealapi.Ciphertext())
        parts.ciphertext.write(loaded[-1], summand.polynomials[0], parts.context)
    total = sealapi.Ciphertext()
    sealapi.Evaluator(parts.context).add_many(loaded, total)
    assert (parts.ciphertext.read(total) == add(summands).polynomials[0]).all()


def test_more_summands_than_are_proven_are_refused() -> None:
    limit = PARAMETERS.max_summands
    assert add([GOOD] * limit).summands == limit
    with pytest.raises(CryptoError, match="decrypt exactly"):
        add([GOOD] * (limit + 1))
    with pytest.raises(CryptoError, match="no ciphertext"):
        add([])


def test_whoever_adds_needs_neither_key_nor_encryption_library() -> None:
    program = (
        "import sys, cipherbayes.crypto.bfv.ciphertext, cipherbayes.protocols.messages;"
        "sys.exit(any(m.startswith(('tenseal', 'cipherbayes.crypto.bfv.scheme',"
        " 'cipherbayes.crypto.bfv.keys',"
        " 'cipherbayes.crypto.key_folder', 'cipherbayes.crypto.seal'))"
        " for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

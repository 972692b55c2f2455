from __future__ import annotations

import hashlib
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cipherbayes.crypto.identity.signatures import Identity, SigningKey
from cipherbayes.errors import CryptoError, ProtocolError

KEY = SigningKey.generate()


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.text(), st.lists(st.one_of(st.binary(), st.text(), st.integers())))
def test_a_signature_verifies_for_the_fields_it_was_made_for(
    domain: str, fields: list[bytes | str | int]
) -> None:
    signature = KEY.sign(domain, *fields)
    KEY.identity.verify(signature, domain, *fields)


def test_a_signature_is_worth_nothing_for_anything_else() -> None:
    signature = KEY.sign("reply", b"round", 3)
    other = SigningKey.generate().identity
    for identity, domain, fields in [
        (KEY.identity, "key-offer", (b"round", 3)),
        (KEY.identity, "reply", (b"round", 4)),
        (KEY.identity, "reply", (b"round", "3")),
        (KEY.identity, "reply", (b"round",)),
        (other, "reply", (b"round", 3)),
    ]:
        with pytest.raises(ProtocolError, match="signature does not verify"):
            identity.verify(signature, domain, *fields)  # type: ignore[arg-type]


@given(st.binary(max_size=80))
def test_random_bytes_are_no_signature(signature: bytes) -> None:
    with pytest.raises(ProtocolError):
        KEY.identity.verify(signature, "reply", b"round")


def test_an_identity_survives_being_written_into_a_study() -> None:
    assert Identity.from_hex(KEY.identity.id) == KEY.identity
    assert len({Identity.from_hex(KEY.identity.id), KEY.identity}) == 1
    for text in ("zz", "00" * 31, ""):
        with pytest.raises(CryptoError):
            Identity.from_hex(text)


def test_a_signing_key_survives_being_stored() -> None:
    stored = KEY.to_secret_bytes()
    again = SigningKey.from_secret_bytes(stored)
    assert again.identity == KEY.identity
    assert again.sign("d", b"x") == KEY.sign("d", b"x")
    with pytest.raises(CryptoError):
        SigningKey.from_secret_bytes(stored[:-1])


def test_a_signing_key_is_never_shown_or_pickled() -> None:
    secret = KEY.to_secret_bytes()[-32:]
    assert secret.hex() not in repr(KEY)
    assert repr(secret) not in repr(KEY)
    with pytest.raises(CryptoError):
        pickle.dumps(KEY)


def test_a_fingerprint_has_128_bits_in_groups_that_can_be_read_aloud() -> None:
    identity = SigningKey.generate().identity
    groups = identity.fingerprint.split(" ")
    assert [len(group) for group in groups] == [4] * 8
    digits = "".join(groups)
    assert 4 * len(digits) == 128
    assert hashlib.sha256(identity.raw).hexdigest().startswith(digits)

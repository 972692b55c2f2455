"""In an encrypted update the CSP decrypts what all sites computed, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encrypted_parties import EncryptedConsortium, encrypted_study

from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.protocols.encrypted_update.csp import EncryptedCsp
from cipherbayes.protocols.encrypted_update.messages import OutputRequest
from cipherbayes.protocols.messages import DecryptReply, Refusal, decode, encode


@pytest.fixture
def consortium(tmp_path: Path) -> EncryptedConsortium:
    return EncryptedConsortium(tmp_path, encrypted_study())


@contextmanager
def without_attestations() -> Iterator[None]:
    """A CSP that decrypts whatever has the form of an output."""

    def credulous(self: EncryptedCsp, request: OutputRequest) -> CkksCiphertext:
        key_id = self._keys.public.key_id
        return self._plan.circuit.read_output(request.outputs[0], key_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EncryptedCsp, "_attested", credulous)
        yield


def answered(consortium: EncryptedConsortium, question: OutputRequest) -> Any:
    reply = decode(consortium.csp.handle(encode(question)), DecryptReply, Refusal)
    return None if isinstance(reply, Refusal) else reply.values * consortium.plan.grid


def alone(consortium: EncryptedConsortium, site: str) -> tuple[OutputRequest, Any]:
    """The update of one site, the others replaced by encryptions of zero."""
    circuit, trio = consortium.plan.circuit, consortium.trio
    replies = consortium.replay_request().replies
    asked = consortium.server.collect(consortium.exchange())
    assert asked is not None
    honest = decode(asked, OutputRequest)
    own = next(reply for reply in replies if reply.site == site)
    message = circuit.read_message(own.ciphertext, trio.public.key_id)
    encryptor = circuit.encryptor(trio.public)
    zeros = [encryptor.encrypt(np.zeros(3, dtype=np.int64), round=1) for _ in "xy"]
    output = circuit.evaluator(trio.evaluation).step(1, [message, *zeros])
    truth = circuit.decrypt_exactly(trio.secret, output, 1)
    return replace(honest, outputs=(output.to_bytes(),)), truth


@pytest.mark.slow
def test_the_update_of_a_single_site_is_not_decrypted(
    consortium: EncryptedConsortium,
) -> None:
    """The server can compute it; only what all sites replayed may be opened."""
    question, truth = alone(consortium, "a")
    assert np.abs(truth).max() > 0.0
    assert answered(consortium, question) is None
    assert consortium.answers.rounds() == 0
    with without_attestations():
        seen = answered(consortium, question)
    assert np.allclose(seen, truth, atol=consortium.plan.grid)


@pytest.mark.slow
def test_a_sites_ciphertext_is_no_output(consortium: EncryptedConsortium) -> None:
    """Another size and level: refused before it could be decrypted by mistake."""
    replies = consortium.replay_request().replies
    asked = consortium.server.collect(consortium.exchange())
    assert asked is not None
    honest = decode(asked, OutputRequest)
    posing = replace(honest, outputs=(replies[0].ciphertext,))
    with without_attestations():
        assert answered(consortium, posing) is None
    assert answered(consortium, posing) is None

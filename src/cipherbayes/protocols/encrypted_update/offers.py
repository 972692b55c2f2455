"""The keys of a run that computes under encryption: offered, and opened."""

from __future__ import annotations

from cipherbayes.crypto.ckks.keys import CkksKeys, CkksPublicKey, EvaluationKeys
from cipherbayes.crypto.identity.signatures import Identity, SigningKey
from cipherbayes.errors import ProtocolError
from cipherbayes.protocols.encrypted_update.messages import TrioOffer
from cipherbayes.protocols.messages import decode, encode


def signed_trio(key: SigningKey, keys: CkksKeys, run: bytes, study: bytes) -> bytes:
    """The CSP's offer of a run's public and evaluation keys."""
    return encode(
        TrioOffer.signed(
            key,
            run=run,
            study=study,
            public_key=keys.public.to_bytes(),
            evaluation_keys=keys.evaluation.to_bytes(),
        )
    )


def opened_trio(
    offer: bytes, csp: Identity, key_id: bytes | None, where: str
) -> tuple[CkksPublicKey, EvaluationKeys]:
    """The keys of an offer, if the CSP signed them and they belong together."""
    trio = _signed(offer, csp)
    public = _public(trio, key_id, where)
    evaluation = EvaluationKeys.from_bytes(trio.evaluation_keys)
    if evaluation.key_id != public.key_id:
        raise ProtocolError("the evaluation keys belong to another key", where=where)
    return public, evaluation


def opened_public(
    offer: bytes, csp: Identity, key_id: bytes, where: str
) -> CkksPublicKey:
    """The public key of an offer, for who encrypts and computes nothing."""
    return _public(_signed(offer, csp), key_id, where)


def _signed(offer: bytes, csp: Identity) -> TrioOffer:
    trio = decode(offer, TrioOffer)
    trio.verify(csp)
    return trio


def _public(trio: TrioOffer, key_id: bytes | None, where: str) -> CkksPublicKey:
    public = CkksPublicKey.from_bytes(trio.public_key)
    if key_id is not None and public.key_id != key_id:
        raise ProtocolError(
            "the public key is not the one of the manifest", where=where
        )
    return public

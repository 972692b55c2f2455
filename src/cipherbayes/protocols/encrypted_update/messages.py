"""What the parties of an encrypted update say beyond the common messages.

========================  ==================  =====================================
message                   from, to            says
========================  ==================  =====================================
:class:`TrioOffer`        CSP, all            the run's public and evaluation keys
:class:`ReplayRequest`    server, sites       all replies of a round: compute it too
:class:`Attestation`      site, server        I computed an output with this digest
:class:`OutputRequest`    server, CSP         the output, and who attests to it
:class:`CiphertextReply`  CSP, server         a value encrypted anew (Algorithm 5)
========================  ==================  =====================================
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated

from cipherbayes.crypto.identity.roster import MAX_SITES
from cipherbayes.crypto.identity.signatures import SIGNATURE_BYTES, Identity, SigningKey
from cipherbayes.crypto.wire.fields import Blob, Vector
from cipherbayes.crypto.wire.framing import Kind
from cipherbayes.crypto.wire.transcript import (
    HASH_BYTES,
    RoundId,
    check_bytes,
    check_token,
    transcript,
)
from cipherbayes.errors import ProtocolError
from cipherbayes.protocols.message_checks import (
    check_blob,
    check_run,
    checked_theta,
)
from cipherbayes.protocols.messages import (
    MAX_CIPHERTEXT_BYTES,
    MAX_REQUEST_BYTES,
    SiteReply,
    register,
)
from cipherbayes.typing import Floats

MAX_PUBLIC_BYTES = 2**22
MAX_EVALUATION_BYTES = 2**28

_TRIO = "cipherbayes/trio-offer/1"
_ATTESTATION = "cipherbayes/attestation/1"
_CIPHERTEXT_REPLY = "cipherbayes/ciphertext-reply/1"
# The domain in which CkksPublicKey names itself.
_PUBLIC_KEY = "cipherbayes/ckks-public-key/1"


def _check_sites(sites: list[str], what: str) -> None:
    if len(sites) > MAX_SITES or sites != sorted(set(sites)):
        raise ProtocolError(f"{what} must be of distinct sites and in order")


@dataclass(frozen=True)
class TrioOffer:
    """The CSP's public and evaluation keys for a run, signed.

    The signature covers (run, study hash, sha256 of each key's frame).
    """

    run: bytes
    study: bytes
    public_key: Annotated[bytes, Blob(MAX_PUBLIC_BYTES)]
    evaluation_keys: Annotated[bytes, Blob(MAX_EVALUATION_BYTES)]
    signature: bytes

    def __post_init__(self) -> None:
        check_run(self.run, self.study)
        check_blob(self.public_key, MAX_PUBLIC_BYTES, "the public key")
        check_blob(self.evaluation_keys, MAX_EVALUATION_BYTES, "the evaluation key")
        check_bytes(self.signature, SIGNATURE_BYTES, "the CSP's signature")

    @classmethod
    def signed(
        cls,
        key: SigningKey,
        *,
        run: bytes,
        study: bytes,
        public_key: bytes,
        evaluation_keys: bytes,
    ) -> TrioOffer:
        """The offer of the CSP that holds ``key``."""
        signature = key.sign(
            _TRIO,
            run,
            study,
            hashlib.sha256(public_key).digest(),
            hashlib.sha256(evaluation_keys).digest(),
        )
        return cls(run, study, public_key, evaluation_keys, signature)

    @property
    def key_id(self) -> bytes:
        """Which key is offered."""
        return hashlib.sha256(transcript(_PUBLIC_KEY, self.public_key)).digest()

    def verify(self, csp: Identity) -> None:
        """Raise ProtocolError unless the CSP offered these keys for this run."""
        csp.verify(
            self.signature,
            _TRIO,
            self.run,
            self.study,
            hashlib.sha256(self.public_key).digest(),
            hashlib.sha256(self.evaluation_keys).digest(),
        )


@dataclass(frozen=True, eq=False)
class ReplayRequest:
    """All replies of a round and its θ: every site computes the output itself."""

    round_id: RoundId
    theta: Annotated[Floats, Vector("<f8")]
    replies: tuple[SiteReply, ...]

    def __post_init__(self) -> None:
        _check_sites([reply.site for reply in self.replies], "the replies")
        if not self.replies:
            raise ProtocolError("a round without replies cannot be replayed")
        if any(reply.round_id != self.round_id for reply in self.replies):
            raise ProtocolError(
                "a reply belongs to another exchange",
                where=f"round {self.round_id.round}",
            )
        theta = checked_theta(self.theta, f"round {self.round_id.round}")
        object.__setattr__(self, "theta", theta)


@dataclass(frozen=True)
class Attestation:
    """A site says that it computed a round's output, and what its digest is.

    The signature covers (exchange, site, digest of the raw coefficients).
    """

    round_id: RoundId
    site: str
    output: bytes
    signature: bytes

    def __post_init__(self) -> None:
        check_token(self.site, "the site's name")
        check_bytes(self.output, HASH_BYTES, "the output's digest")
        check_bytes(self.signature, SIGNATURE_BYTES, "the site's signature")

    @classmethod
    def signed(
        cls, key: SigningKey, *, round_id: RoundId, site: str, output: bytes
    ) -> Attestation:
        """The attestation of the site that holds ``key``."""
        signature = key.sign(_ATTESTATION, round_id.digest, site, output)
        return cls(round_id, site, output, signature)

    def verify(self, identity: Identity) -> None:
        """Raise ProtocolError unless this identity attested to exactly this."""
        identity.verify(
            self.signature, _ATTESTATION, self.round_id.digest, self.site, self.output
        )


@dataclass(frozen=True)
class OutputRequest:
    """What the CSP is asked to decrypt, and the sites that attest to it.

    As printed there is no attestation, and Algorithms 4 and 5 send several
    ciphertexts at once.
    """

    round_id: RoundId
    stage: int
    outputs: tuple[Annotated[bytes, Blob(MAX_CIPHERTEXT_BYTES)], ...]
    attestations: tuple[Attestation, ...]

    def __post_init__(self) -> None:
        if self.stage not in (0, 1) or type(self.stage) is not int:
            raise ProtocolError("a request has an impossible stage")
        if not 1 <= len(self.outputs) <= MAX_SITES:
            raise ProtocolError("a request has no output, or too many")
        for output in self.outputs:
            check_blob(output, MAX_CIPHERTEXT_BYTES, "an output")
        _check_sites([each.site for each in self.attestations], "the attestations")


@dataclass(frozen=True)
class CiphertextReply:
    """A ciphertext of the CSP, signed over (exchange, sha256 of its frame)."""

    round_id: RoundId
    ciphertext: Annotated[bytes, Blob(MAX_CIPHERTEXT_BYTES)]
    signature: bytes

    def __post_init__(self) -> None:
        check_blob(self.ciphertext, MAX_CIPHERTEXT_BYTES, "the ciphertext")
        check_bytes(self.signature, SIGNATURE_BYTES, "the CSP's signature")

    @classmethod
    def signed(
        cls, key: SigningKey, *, round_id: RoundId, ciphertext: bytes
    ) -> CiphertextReply:
        """The answer of the CSP that holds ``key``."""
        digest = hashlib.sha256(ciphertext).digest()
        signature = key.sign(_CIPHERTEXT_REPLY, round_id.digest, digest)
        return cls(round_id, ciphertext, signature)

    def verify(self, csp: Identity) -> None:
        """Raise ProtocolError unless the CSP gave exactly this answer."""
        digest = hashlib.sha256(self.ciphertext).digest()
        csp.verify(self.signature, _CIPHERTEXT_REPLY, self.round_id.digest, digest)


_SMALL, _LARGE = 2**16, 2**20
register(TrioOffer, Kind.TRIO_OFFER, MAX_PUBLIC_BYTES + MAX_EVALUATION_BYTES + _SMALL)
register(ReplayRequest, Kind.REPLAY_REQUEST, MAX_REQUEST_BYTES)
register(Attestation, Kind.ATTESTATION, _SMALL)
register(OutputRequest, Kind.OUTPUT_REQUEST, MAX_REQUEST_BYTES)
register(CiphertextReply, Kind.CIPHERTEXT_REPLY, MAX_CIPHERTEXT_BYTES + _SMALL)

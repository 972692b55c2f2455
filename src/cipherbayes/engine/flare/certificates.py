"""Certificates: every party makes its own key, the lead signs the request for it.

A request names the party and holds two public keys, that of its connection (in an X.509
certificate signing request) and that of its signatures. Private keys stay where they
were made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from nvflare.lighter.spec import Builder
from nvflare.lighter.utils import Identity as Named
from nvflare.lighter.utils import generate_cert

from cipherbayes.crypto.identity.signatures import Identity
from cipherbayes.engine.flare.kits import CSP, SERVER
from cipherbayes.engine.flare.layout import is_name
from cipherbayes.errors import CryptoError, RunError
from cipherbayes.storage.private_files import replace_private

KEY_BITS = 2048
"""FLARE's envelope for messages from end to end has room for RSA keys of this size."""
SUFFIX = ".request.json"
_VERSION = 1
_MAX_REQUEST_BYTES = 2**16


@dataclass(frozen=True)
class Request:
    """What a party sends to the lead: nothing in it is secret.

    Attributes
    ----------
    role
        ``"site"``, ``"csp"`` or ``"server"``.
    party
        The party's name in the study; the role where there is one of its kind.
    key
        Public key of its connections.
    identity
        Public key of its signatures; None for the server, which signs nothing.
    """

    role: str
    party: str
    key: rsa.RSAPublicKey
    identity: Identity | None


def make_key(path: Path) -> rsa.RSAPrivateKey:
    """A party's key for connections, made here; a file that only it may read."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    replace_private(path, _private_bytes(key))
    return key


def write_request(
    path: Path, role: str, party: str, key: rsa.RSAPrivateKey, identity: str | None
) -> None:
    """Write what goes to the lead."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, party)])
    signed = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .sign(key, hashes.SHA256())
    )
    content = {
        "version": _VERSION,
        "role": role,
        "party": party,
        "csr": signed.public_bytes(serialization.Encoding.PEM).decode("ascii"),
        "identity": identity,
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_request(path: Path) -> Request:
    """A request, if whoever made it holds the key in it."""
    try:
        if path.stat().st_size > _MAX_REQUEST_BYTES:
            raise ValueError
        content = json.loads(path.read_text(encoding="utf-8"))
        role, party = content["role"], content["party"]
        signed = x509.load_pem_x509_csr(content["csr"].encode("ascii"))
        key = signed.public_key()
        (name,) = signed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        named = party == role if role in (CSP, SERVER) else role == "site"
        if (
            content["version"] != _VERSION
            or not named
            or not is_name(party)
            or name.value != party
            or not isinstance(key, rsa.RSAPublicKey)
            or key.key_size != KEY_BITS
            or not signed.is_signature_valid
        ):
            raise ValueError
        identity = None if role == SERVER else Identity.from_hex(content["identity"])
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        CryptoError,
        UnsupportedAlgorithm,
    ):
        raise RunError(
            "is not a party's request",
            where=str(path),
            remedy="ask that party for the file that `request` wrote",
        ) from None
    return Request(role, party, key, identity)


def read_requests(folder: Path) -> dict[str, Request]:
    """All requests in a folder, and in the folders within it."""
    found: dict[str, Request] = {}
    for path in sorted((*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*/*{SUFFIX}"))):
        request = read_request(path)
        if request.party in found:
            raise RunError(
                f"is a second request of '{request.party}'",
                where=str(path),
                remedy="ask that party which one it made, and remove the other",
            )
        found[request.party] = request
    return found


def certified_key(path: Path) -> rsa.RSAPublicKey | None:
    """The key that a certificate is for; None if it is none of ours."""
    key = x509.load_pem_x509_certificate(path.read_bytes()).public_key()
    return key if isinstance(key, rsa.RSAPublicKey) else None


class Authority(Builder):  # type: ignore[misc]
    """Signs certificates, as a step of FLARE's provisioning.

    Parameters
    ----------
    keys
        Public keys of participants, by the names of their certificates. A key is
        made here for everyone else, and written to that participant's kit.
    """

    def __init__(self, keys: Mapping[str, rsa.RSAPublicKey]) -> None:
        self._keys = dict(keys)
        self._root = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
        self._certificate: x509.Certificate | None = None

    def build(self, project: Any, ctx: Any) -> None:
        root = Named(project.name)
        self._certificate = generate_cert(
            root, root, self._root, self._root.public_key(), ca=True
        )
        for participant in project.get_all_participants():
            kit = Path(ctx.get_kit_dir(participant))
            server = participant.type == "server"
            stem = "server" if server else "client"
            key = self._keys.get(participant.name)
            if key is None:
                key = make_key(kit / f"{stem}.key").public_key()
            role = participant.get_prop("role") if participant.type == "admin" else None
            certificate = generate_cert(
                Named(participant.subject, participant.org, role),
                root,
                self._root,
                key,
                server_default_host=participant.get_default_host() if server else None,
            )
            (kit / f"{stem}.crt").write_bytes(_public_bytes(certificate))
            (kit / "rootCA.pem").write_bytes(_public_bytes(self._certificate))

    def keep(self, folder: Path) -> None:
        """Write the authority's own key, which can make certificates."""
        assert self._certificate is not None
        folder.mkdir(mode=0o700)
        content = {
            "root_cert": _public_bytes(self._certificate).decode("ascii"),
            "root_pri_key": _private_bytes(self._root).decode("ascii"),
        }
        replace_private(folder / "cert.json", json.dumps(content).encode())


def _public_bytes(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_bytes(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )

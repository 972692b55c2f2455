"""A trial handshake with the server, made before FLARE is started.

FLARE repeats a refused connection without end and leaves the reason to the TLS
library's own log. The same certificates in one plain handshake tell at once whether
this party and its server belong together.
"""

from __future__ import annotations

import json
import socket
import ssl

from cipherbayes.engine.flare.kits import ADMIN, Kit
from cipherbayes.errors import RunError

SECONDS = 5.0
_SAME_KITS = "use the kits of one and the same `cipherbayes deploy`"


def check_server(kit: Kit) -> bool:
    """Whether the server is there; refuse if one of both rejects the other.

    A server that is not there yet is no error: parties may start in any order.
    """
    startup = kit.path / "startup"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # FLARE checks the name; here it is asked who made the certificates.
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(startup / "rootCA.pem")
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    except (OSError, ssl.SSLError):
        raise RunError(
            "certificate, key and authority do not belong together",
            where=str(startup),
            remedy=_SAME_KITS,
        ) from None
    try:
        with (
            socket.create_connection((kit.host, _port(kit)), SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=kit.host) as secure,
        ):
            # In TLS 1.3 a refusal of this party's certificate is the first answer.
            secure.recv(1)
    except ssl.SSLCertVerificationError:
        raise RunError(
            "has a certificate that this kit does not accept",
            where=f"server {kit.host}",
            remedy=_SAME_KITS,
        ) from None
    except ssl.SSLError:
        raise RunError(
            "does not accept this certificate",
            where=f"server {kit.host}",
            remedy=_SAME_KITS,
        ) from None
    except OSError:
        return False
    return True


def _port(kit: Kit) -> int:
    """The server's port, as the kit's settings name it."""
    lead = kit.role == ADMIN
    path = kit.path / "startup" / ("fed_admin.json" if lead else "fed_client.json")
    settings = json.loads(path.read_text(encoding="utf-8"))
    if lead:
        return int(settings["admin"]["port"])
    return int(settings["servers"][0]["service"]["target"].rpartition(":")[2])

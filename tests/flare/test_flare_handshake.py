"""A party whose certificate is of another deployment is told so at once."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from parties import small_study

from cipherbayes.errors import RunError

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from cipherbayes.engine.flare.handshake import check_server
from cipherbayes.engine.flare.kits import Kit
from cipherbayes.engine.flare.provisioning import Deployment, deploy


@pytest.fixture(scope="module")
def deployments(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Path]]:
    """The same study, deployed twice: two authorities."""
    folder = tmp_path_factory.mktemp("deployments")
    study = small_study(("a", "b"))
    return [deploy(Deployment(study, "localhost"), folder / n) for n in ("1", "2")]


@contextmanager
def serving(kit: Path) -> Iterator[int]:
    """The server's certificate on a port: asks for the client's, then says hello."""
    startup = kit / "startup"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(startup / "server.crt", startup / "server.key")
    context.load_verify_locations(startup / "rootCA.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(connection, server_side=True) as secure:
                    secure.sendall(b"hello")
            except OSError:
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(10.0)


def at_port(kit: Path, port: int, folder: Path) -> Kit:
    """A copy of a kit whose server is at another port."""
    shutil.copytree(kit, folder, dirs_exist_ok=True)
    path = folder / "startup" / "fed_client.json"
    settings = json.loads(path.read_text())
    settings["servers"][0]["service"]["target"] = f"localhost:{port}"
    path.write_text(json.dumps(settings))
    return Kit.open(folder)


@pytest.mark.slow
def test_kits_of_one_deployment_belong_together(
    deployments: list[dict[str, Path]], tmp_path: Path
) -> None:
    with serving(deployments[0]["server"]) as port:
        assert check_server(at_port(deployments[0]["a"], port, tmp_path / "a"))


def test_a_kit_of_another_deployment_is_refused(
    deployments: list[dict[str, Path]], tmp_path: Path
) -> None:
    with serving(deployments[0]["server"]) as port:
        foreign = at_port(deployments[1]["a"], port, tmp_path / "a")
        with pytest.raises(RunError, match="this kit does not accept"):
            check_server(foreign)


def test_a_forged_certificate_is_refused_by_the_server(
    deployments: list[dict[str, Path]], tmp_path: Path
) -> None:
    with serving(deployments[0]["server"]) as port:
        forger = at_port(deployments[1]["a"], port, tmp_path / "a")
        shutil.copy(
            deployments[0]["a"] / "startup" / "rootCA.pem",
            forger.path / "startup" / "rootCA.pem",
        )
        with pytest.raises(RunError, match="does not accept this certificate"):
            check_server(forger)


def test_a_server_that_is_not_there_yet_is_no_error(
    deployments: list[dict[str, Path]], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert not check_server(at_port(deployments[0]["a"], port, tmp_path / "a"))


def test_a_key_that_is_not_the_certificates_is_refused(
    deployments: list[dict[str, Path]], tmp_path: Path
) -> None:
    kit = at_port(deployments[0]["a"], 1, tmp_path / "a")
    shutil.copy(deployments[0]["b"] / "startup" / "client.key", kit.path / "startup")
    with pytest.raises(RunError, match="do not belong together"):
        check_server(kit)

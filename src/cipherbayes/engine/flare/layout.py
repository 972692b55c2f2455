"""What a kit looks like: FLARE's start-up files and this release's hardened settings.

Whoever has this release can write these files anew from three public facts, where the
server is and what the project is called. So a party need not trust anybody about
them: it compares what it was given with what it would write itself.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cipherbayes.engine.flare.hardening import RESOURCES, harden_party, without_jobs
from cipherbayes.engine.flare.kits import ADMIN, CSP, SERVER, Kit
from cipherbayes.errors import RunError

LEAD = "lead@cipherbayes.study"
SCHEME = "grpc"
SETTINGS = {SERVER: "fed_server.json", ADMIN: "fed_admin.json"}
_CLIENT_SETTINGS = "fed_client.json"
_MOST_NAME = 64
_CLIENT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HOST = re.compile(
    r"([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9-]*[A-Za-z0-9]"
)


@dataclass(frozen=True)
class Place:
    """Where a deployment's server is, and what FLARE calls the project."""

    project: str
    host: str
    port: int

    @property
    def usable(self) -> bool:
        """Whether these can be names of a project and of a host."""
        return (
            is_name(self.project)
            and is_host(self.host)
            and type(self.port) is int
            and 0 < self.port < 2**16
        )


def is_name(text: str) -> bool:
    """Whether a text can be a party's or a project's name on several machines."""
    return _CLIENT.fullmatch(text) is not None


def is_host(text: str) -> bool:
    """Whether a text can be a host's name, or its address."""
    return len(text) <= _MOST_NAME and _HOST.fullmatch(text) is not None


def lay_out(
    place: Place, clients: Sequence[str], scratch: Path, builders: Sequence[Any] = ()
) -> dict[str, Path]:
    """Write the kits of a server, its clients and the lead; the folder of each.

    Parameters
    ----------
    scratch
        An empty folder.
    builders
        FLARE builders of what else belongs into a kit, such as certificates.
    """
    with _without_remarks():
        from nvflare.lighter.entity import Project, participant_from_dict
        from nvflare.lighter.impl.static_file import StaticFileBuilder
        from nvflare.lighter.impl.workspace import WorkspaceBuilder
        from nvflare.lighter.provisioner import Provisioner

        project = Project(place.project, "", props={"api_version": 3})
        server = {"name": place.host, "type": "server", "org": SERVER}
        described = [
            {**server, "fed_learn_port": place.port},
            *(
                {"name": name, "type": "client", "org": name.replace("-", "_")}
                for name in clients
            ),
            {"name": LEAD, "type": "admin", "org": "lead", "role": "project_admin"},
        ]
        for each in described:
            project.add_participant(participant_from_dict(each))
        files = StaticFileBuilder(config_folder="config", scheme=SCHEME)
        all_builders = [WorkspaceBuilder(), files, *builders]
        context = Provisioner(str(scratch), all_builders).provision(project)
    if context.get("build_error"):
        raise RunError(
            "the kits could not be made",
            where=str(scratch.parent),
            remedy="check names, disk and permissions",
        )
    folder = next(scratch.glob("*/prod_00"))
    made = {name: folder / name for name in clients}
    made |= {SERVER: folder / place.host, ADMIN: folder / LEAD}
    for party, kit in made.items():
        _strip(kit)
        if party != ADMIN:
            harden_party(kit)
    return made


def server_place(kit: Kit) -> Place:
    """Where a kit says that its server is."""
    path = kit.path / "startup" / SETTINGS.get(kit.role, _CLIENT_SETTINGS)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if kit.role == ADMIN:
            admin = content["admin"]
            place = Place(admin["project_name"], admin["host"], admin["port"])
        else:
            server = content["servers"][0]
            host, _, port = server["service"]["target"].rpartition(":")
            place = Place(server["name"], host, int(port))
        if not place.usable:
            raise ValueError
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise RunError(
            "does not say where the server is", where=str(path), remedy=_ANEW
        ) from None
    return place


def check_settings(kit: Kit) -> None:
    """Refuse a kit whose settings are not those that this release writes.

    Formal guarantees
    -----------------
    After this every file in ``startup`` and ``local`` except certificates and keys
    says what this installed release would have written for this party, and there is
    no other. Rights, allowed classes, components and connections in them are
    therefore those of :mod:`cipherbayes.engine.flare.hardening`, whoever made the
    kit.

    Edge cases
    ----------
    Kits of another release may be refused: everyone installs the same one.
    """
    place = server_place(kit)
    if kit.role in ("site", CSP) and not is_name(kit.name):
        raise RunError("is not a party's name", where=str(kit.path), remedy=_ANEW)
    clients = [kit.name] if kit.role in ("site", CSP) else []
    party = SERVER if kit.role == SERVER else kit.name
    with tempfile.TemporaryDirectory() as scratch:
        expected = lay_out(place, clients, Path(scratch))[party]
        for folder in ("startup", "local"):
            _compare(kit.path / folder, expected / folder)


_ANEW = "use a kit that `cipherbayes deploy` of this same release made"
_CERTIFICATES = {
    f"{who}.{what}" for who in ("client", "server") for what in ("crt", "key")
} | {"rootCA.pem"}


def _compare(given: Path, expected: Path) -> None:
    """Refuse what is missing, what differs, and what should not be there."""
    wanted = {path.name: path for path in expected.iterdir()}
    here = {path.name: path for path in given.iterdir()} if given.is_dir() else {}
    for name in sorted({*wanted, *here}):
        if given.name == "startup" and name in _CERTIFICATES:
            continue
        path = given / name
        if name not in wanted:
            raise RunError("does not belong into a kit", where=str(path), remedy=_ANEW)
        if name not in here:
            raise RunError("is missing", where=str(path), remedy=_ANEW)
        if not path.is_file() or _content(path) != _content(wanted[name]):
            raise RunError(
                "is not what this release writes for this party",
                where=str(path),
                remedy=f"somebody loosened or changed this kit; {_ANEW}",
            )


def _content(path: Path) -> Any:
    """A file's content; of JSON what it says, however it is spaced."""
    data = path.read_bytes()
    try:
        content = json.loads(data)
    except ValueError:
        return data
    if path.name == RESOURCES:
        # Where a server keeps jobs is written anew at every start.
        return without_jobs(content)
    return content


def _strip(kit: Path) -> None:
    """Remove FLARE's scripts and remarks: `cipherbayes` starts a party."""
    for path in (*kit.glob("readme.txt"), *kit.glob("startup/*.sh")):
        path.unlink()
    for path in kit.glob("startup/*"):
        if path.suffix == ".ipynb" or path.name == "readme.txt":
            path.unlink()


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Keep FLARE's remarks off the terminal."""
    with redirect_stdout(io.StringIO()):
        yield

"""Kits for several machines: certificates, settings and a page for each party."""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from cipherbayes.engine.flare.hardening import harden_party
from cipherbayes.engine.flare.kits import CSP, Kit, is_loopback
from cipherbayes.engine.flare.readmes import readme
from cipherbayes.errors import RunError, StudyError
from cipherbayes.planning import plan_study
from cipherbayes.study import Study

DEFAULT_PORT = 8002
LEAD = "lead@cipherbayes.study"
_CLIENT = re.compile(r"[A-Za-z0-9_-]+")
_HOST = re.compile(
    r"([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9-]*[A-Za-z0-9]"
)

_SITE_TOML = """\
# Stays at this site: it is read here, and nothing of it is ever sent.
data = "table.csv"      # your table, CSV or Parquet; relative to this folder
# budget = 3.0          # ε this table may spend over all studies
# ledger = "FILE"       # default: beside the table, TABLE.ledger
"""


@dataclass(frozen=True)
class Deployment:
    """Where the parties of a study find their server."""

    study: Study
    host: str
    port: int = DEFAULT_PORT

    def __post_init__(self) -> None:
        where = f"study '{self.study.name}'"
        if self.study.protocol == "pooled" or not self.study.sites:
            raise StudyError(
                "has no sites to deploy to",
                where=where,
                remedy='name them in [sites] and set protocol = "secure-sum"',
            )
        for name in (*self.study.sites, self.study.name):
            if not _CLIENT.fullmatch(name):
                raise StudyError(
                    f"'{name}' cannot be a name on several machines",
                    where=where,
                    remedy="use letters, digits, _ and - only",
                )
        if not _HOST.fullmatch(self.host):
            raise RunError(
                "is not a host name",
                where="--host",
                remedy="give the name under which all parties reach the server",
            )
        if self.study.insecure and not is_loopback(self.host):
            raise StudyError(
                "insecure-repeatable noise is for one machine only",
                where=where,
                remedy='set privacy.randomness = "secure", or --host localhost',
            )
        plan_study(self.study)

    @property
    def parties(self) -> tuple[str, ...]:
        """Folder of every party's kit."""
        return ("server", CSP, *sorted(self.study.sites), "admin")


def deploy(deployment: Deployment, out: Path) -> dict[str, Path]:
    """Make one folder per party, and one for whoever keeps the certificates' key.

    The TLS certificates are made here; the keys that sign what a party says are
    not: each party makes its own (:meth:`~cipherbayes.engine.flare.kits.Kit.enrol`).
    """
    if out.exists() and any(out.iterdir()):
        raise RunError(
            "exists and is not empty", where=str(out), remedy="choose another --out"
        )
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        made = _provision(deployment, Path(scratch))
        for party, folder in made.items():
            shutil.move(folder, out / party)
        authority = out / "authority"
        authority.mkdir(mode=0o700)
        state = next(Path(scratch).glob("*/state/cert.json"))
        shutil.move(state, authority / "cert.json")
        (authority / "cert.json").chmod(0o600)
    for party in deployment.parties:
        _finish(deployment, party, out / party)
    return {party: out / party for party in deployment.parties}


def _provision(deployment: Deployment, scratch: Path) -> dict[str, Path]:
    """Let FLARE make certificates and start-up files; the folders it made."""
    with _quietly():
        from nvflare.lighter.entity import Project, participant_from_dict
        from nvflare.lighter.impl.cert import CertBuilder
        from nvflare.lighter.impl.static_file import StaticFileBuilder
        from nvflare.lighter.impl.workspace import WorkspaceBuilder
        from nvflare.lighter.provisioner import Provisioner

        project = Project(deployment.study.name, "", props={"api_version": 3})
        server = {"name": deployment.host, "type": "server", "org": "server"}
        described = [
            {**server, "fed_learn_port": deployment.port},
            *(
                {"name": name, "type": "client", "org": name.replace("-", "_")}
                for name in (CSP, *deployment.study.sites)
            ),
            {"name": LEAD, "type": "admin", "org": "lead", "role": "project_admin"},
        ]
        for each in described:
            project.add_participant(participant_from_dict(each))
        builders = [
            WorkspaceBuilder(),
            StaticFileBuilder(config_folder="config", scheme=SCHEME),
            CertBuilder(),
        ]
        context = Provisioner(str(scratch), builders).provision(project)
    if context.get("build_error"):
        raise RunError(
            "the certificates could not be made",
            where=str(scratch.parent),
            remedy="check names, disk and permissions",
        )
    made = next(scratch.glob("*/prod_00"))
    names = {"server": deployment.host, "admin": LEAD}
    return {party: made / names.get(party, party) for party in deployment.parties}


SCHEME = "grpc"


def _finish(deployment: Deployment, party: str, folder: Path) -> None:
    """Harden a kit, and add what a party reads and fills in."""
    for path in (*folder.glob("readme.txt"), *folder.glob("startup/*.sh")):
        path.unlink()
    for path in folder.glob("startup/*"):
        if path.suffix == ".ipynb" or path.name == "readme.txt":
            path.unlink()
    folder.chmod(0o700)
    if party != "admin":
        harden_party(folder)
    kit = Kit.open(folder)
    fingerprint = kit.approve(deployment.study)
    if kit.role == "site":
        (folder / "site.toml").write_text(_SITE_TOML, encoding="utf-8")
        os.chmod(folder / "site.toml", 0o600)
    text = readme(kit, deployment.study, fingerprint, deployment.port)
    (folder / "README.md").write_text(text, encoding="utf-8")


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep FLARE's remarks off the terminal."""
    with redirect_stdout(io.StringIO()):
        yield

"""Kits for several machines: certificates, settings and a page for each party."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cipherbayes.engine.flare.certificates import Authority, Request
from cipherbayes.engine.flare.hardening import keep_jobs_in
from cipherbayes.engine.flare.kits import (
    ADMIN,
    CSP,
    SERVER,
    Kit,
    is_loopback,
    write_identity,
)
from cipherbayes.engine.flare.layout import Place, is_host, is_name, lay_out
from cipherbayes.engine.flare.readmes import readme
from cipherbayes.engine.flare.service_files import service_files
from cipherbayes.errors import RunError, StudyError
from cipherbayes.protocols.plan import plan_study
from cipherbayes.storage.folders import require_new_folder
from cipherbayes.study.protocol_rules import choices
from cipherbayes.study.schema import Study

DEFAULT_PORT = 8002

_SITE_TOML = """\
# Stays at this site: it is read here, and nothing of it is ever sent.
data = "table.csv"      # your table, CSV or Parquet; relative to this folder
# budget = 3.0          # ε this table may spend over all studies
# ledger = "FILE"       # default: beside the table, TABLE.ledger
#
# A table may be a query; then name its ledger, and keep passwords in ~/.pgpass:
# data = { database = "postgresql:///NAME", query = "cohort.sql" }
# ledger = "cohort.ledger"
"""


@dataclass(frozen=True)
class Deployment:
    """Where the parties of a study find their server."""

    study: Study
    host: str
    port: int = DEFAULT_PORT

    def __post_init__(self) -> None:
        where = f"study '{self.study.name}'"
        if not self.study.rules.federated or not self.study.sites:
            raise StudyError(
                "has no sites to deploy to",
                where=where,
                remedy="name them in [sites] and set protocol = "
                + choices(lambda protocol: protocol.federated),
            )
        for name in (*self.study.sites, self.study.name):
            if not is_name(name):
                raise StudyError(
                    f"'{name}' cannot be a name on several machines",
                    where=where,
                    remedy="use letters, digits, _ and - only",
                )
        if not is_host(self.host):
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
        return (SERVER, *self.clients, ADMIN)

    @property
    def clients(self) -> tuple[str, ...]:
        """Everyone who connects to the server and takes part."""
        return (CSP, *sorted(self.study.sites))

    @property
    def place(self) -> Place:
        """Where the server is."""
        return Place(self.study.name, self.host, self.port)


def deploy(
    deployment: Deployment, out: Path, requests: Mapping[str, Request] | None = None
) -> dict[str, Path]:
    """Make one folder per party, and one for whoever keeps the certificates' key.

    Parameters
    ----------
    requests
        What every party has sent: its kit then holds a certificate for the key that
        was made there, and no key. Without them all keys of connections are made
        here, which is for trying things out on one machine only.

    Formal guarantees
    -----------------
    No kit holds an approval of a study, or a key that signs what a party says. With
    requests no private key but the lead's own and the authority's is ever here.
    """
    _refuse_requests(deployment, requests)
    require_new_folder(out, remedy="choose another --out")
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    known = {} if requests is None else dict(requests)
    keys = {
        deployment.host if name == SERVER else name: request.key
        for name, request in known.items()
    }
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        authority = Authority(keys)
        place, clients = deployment.place, deployment.clients
        made = lay_out(place, clients, Path(scratch), [authority])
        for party in deployment.parties:
            shutil.move(made[party], out / party)
        authority.keep(out / "authority")
    for party in deployment.parties:
        _finish(deployment, known, out / party)
    return {party: out / party for party in deployment.parties}


def _refuse_requests(
    deployment: Deployment, requests: Mapping[str, Request] | None
) -> None:
    """Refuse a deployment on several machines without a request of every party: the
    lead would make their keys, and know them."""
    if requests is None:
        if is_loopback(deployment.host):
            return
        raise RunError(
            "every party makes its own key",
            where=f"--host {deployment.host}",
            remedy="collect what `cipherbayes site request` (csp, server alike) "
            "writes at each party, then give the folder as --requests",
        )
    wanted = {SERVER, *deployment.clients}
    roles = {name: name if name in (CSP, SERVER) else "site" for name in wanted}
    missing = sorted(wanted - set(requests))
    foreign = sorted(set(requests) - wanted)
    if missing or foreign:
        names = ", ".join(missing or foreign)
        raise RunError(
            f"no request of {names}" if missing else f"{names} is not in the study",
            where="--requests",
            remedy="give one request of each site, the CSP and the server",
        )
    for name, role in roles.items():
        if requests[name].role != role:
            raise RunError(f"'{name}' is not a {role}", where="--requests")


def _finish(
    deployment: Deployment, requests: Mapping[str, Request], folder: Path
) -> None:
    """Add what a party reads, fills in and compares."""
    folder.chmod(0o700)
    kit = Kit.open(folder)
    if kit.role == SERVER:
        keep_jobs_in(folder)
    identities = {
        name: request.identity
        for name, request in requests.items()
        if request.identity is not None
    }
    if identities and kit.role != ADMIN:
        (folder / "identities").mkdir()
        for name, identity in identities.items():
            write_identity(folder / "identities" / f"{name}.json", name, identity)
    own = bool(requests)
    add_pages(kit, deployment.study, deployment.port, own_key=own, here=False)


def add_pages(kit: Kit, study: Study, port: int, *, own_key: bool, here: bool) -> None:
    """Write the study that is proposed, what to do, and a site's empty settings.

    Parameters
    ----------
    own_key
        Whether the party made its own key for connections.
    here
        Whether this is the party's own machine.
    """
    public = study.without_paths()
    (kit.path / "study.toml").write_text(public.to_toml(), encoding="utf-8")
    settings = kit.path / "site.toml"
    if kit.role == "site" and not settings.exists():
        settings.write_text(_SITE_TOML, encoding="utf-8")
        os.chmod(settings, 0o600)
    text = readme(kit, public, public.fingerprint(), port, own_key=own_key)
    (kit.path / "README.md").write_text(text, encoding="utf-8")
    if kit.role != ADMIN:
        (kit.path / "service").mkdir(exist_ok=True)
        for name, text in service_files(kit, port, here=here).items():
            (kit.path / "service" / name).write_text(text, encoding="utf-8")

"""A party's kit: the folder that one party runs from, and what it keeps there.

    KIT/startup/, local/         FLARE's certificates and settings
    KIT/README.md                what this party runs and checks
    KIT/service/                 a systemd unit and a container file
    KIT/party.log                what this party did and refused, a JSON object a line
    KIT/study.toml               the study that the lead proposes: approves nothing
    KIT/studies/HASH.toml        0600; the studies that this party has approved
    KIT/site.toml                a site's table and budget: never leaves the site
    KIT/keys/                    0700; made here, at the party; and heads.sqlite: how
                                 far the sites' ledgers had come
    KIT/request.json             what the lead gets: a certificate signing request
    KIT/identity.json            the public half of the signing key
    KIT/roster.json              everyone's identity, pinned by this party
    KIT/runs/RUN/                what the party remembers of a run
    KIT/runs/RUN/snapshot/       what a site's query returned, while the run lasts

Who a kit belongs to is what its certificate says, and nothing else.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from cipherbayes.crypto.identity.signatures import Identity
from cipherbayes.crypto.key_folder import KeyFolder
from cipherbayes.engine.flare.kit_runs import KitRun
from cipherbayes.engine.flare.site_settings import site_settings
from cipherbayes.engine.local_settings import LocalSettings
from cipherbayes.errors import (
    CryptoError,
    RunError,
    StudyError,
)
from cipherbayes.protocols.messages import Reason
from cipherbayes.protocols.plan import plan_study
from cipherbayes.protocols.refusals import RefusalError
from cipherbayes.storage.private_files import replace_private
from cipherbayes.study.schema import Study
from cipherbayes.typing import JsonObject

CSP = "csp"
SERVER = "server"
ADMIN = "admin"
_VERSION = 1


@dataclass(frozen=True)
class Kit:
    """A party's folder.

    Attributes
    ----------
    path
        The folder.
    role
        ``"site"``, ``"csp"``, ``"server"`` or ``"admin"``.
    name
        The party's name in the study: the common name of its certificate, except
        for the server, whose certificate names its host.
    host
        Host name of the server.
    """

    path: Path
    role: str
    name: str
    host: str

    @classmethod
    def open(cls, path: Path | str) -> Kit:
        """Open a kit; its certificate says whose it is."""
        path = Path(path).absolute()
        startup = path / "startup"
        try:
            if (startup / "server.crt").exists():
                host = _common_name(startup / "server.crt")
                return cls(path, SERVER, SERVER, host)
            name = _common_name(startup / "client.crt")
            if (startup / "fed_admin.json").exists():
                settings = _read_json(startup / "fed_admin.json")["admin"]
                return cls(path, ADMIN, name, settings["host"])
            settings = _read_json(startup / "fed_client.json")["servers"][0]
            host = settings["service"]["target"].rpartition(":")[0]
            return cls(path, CSP if name == CSP else "site", name, host)
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            raise RunError(
                "is not a party's kit",
                where=str(path),
                remedy="give a folder that `cipherbayes deploy` made",
            ) from None

    def require(self, role: str) -> Kit:
        """This kit, or a refusal if its certificate is another role's."""
        if self.role != role:
            raise RunError(
                f"the certificate is of {self.name}, which is not a {role}",
                where=str(self.path),
                remedy=f"use the kit that was made for the {role}",
            )
        return self

    # -- identities --------------------------------------------------------

    def keys(self) -> KeyFolder:
        """The party's keys."""
        return KeyFolder(self.path / "keys")

    def enrol(self) -> Identity:
        """Make this party's signing key, here, and write its public half."""
        identity = self.keys().identity().identity
        write_identity(self.path / "identity.json", self.name, identity)
        return identity

    def pin(self, files: Sequence[Path]) -> dict[str, Identity]:
        """Keep everyone's identity, from the files they sent.

        Formal guarantees
        -----------------
        What a party accepts in a run is signed by the keys pinned here and by no
        other. A pinned key never changes by itself: another key under a name that
        is pinned already is refused.
        """
        pinned = self.roster() if self._roster_file.exists() else {}
        if self.role != SERVER:
            pinned[self.name] = self.enrol()
        for file in files:
            name, identity = read_identity(file)
            if pinned.setdefault(name, identity) != identity:
                raise CryptoError(
                    f"another key of '{name}' is pinned",
                    where=str(file),
                    remedy="ask that party by telephone; if it has a new key, remove "
                    "roster.json and pin everyone again",
                )
        content = {name: pinned[name].id for name in sorted(pinned)}
        _write_json(self._roster_file, {"version": _VERSION, "parties": content})
        return pinned

    def roster(self) -> dict[str, Identity]:
        """Everyone's identity, as this party has pinned it."""
        try:
            parties = _read_json(self._roster_file)["parties"]
            return {name: Identity.from_hex(text) for name, text in parties.items()}
        except FileNotFoundError:
            raise RunError(
                "no identities are pinned",
                where=str(self.path),
                remedy="run `pin` with the identity.json of every party",
            ) from None
        except (ValueError, KeyError, AttributeError, CryptoError):
            raise RunError(
                "cannot be read",
                where=str(self._roster_file),
                remedy="remove it, then run `pin` again",
            ) from None

    @property
    def _roster_file(self) -> Path:
        return self.path / "roster.json"

    # -- studies and runs --------------------------------------------------

    def approve(self, study: Study, *, insecure: bool = False) -> str:
        """Allow runs of a study; its fingerprint.

        Parameters
        ----------
        insecure
            Whether noise that can be repeated is meant, for a test on one machine.

        Formal guarantees
        -----------------
        Nothing but this call makes a study run here: neither a kit nor a job brings
        an approval with it.
        """
        public = study.without_paths()
        if self.role == "site" and self.name not in public.sites:
            raise StudyError(
                f"has no site '{self.name}'",
                where=f"study '{public.name}'",
                remedy="approve a study that this site takes part in",
            )
        if public.insecure and not insecure:
            raise StudyError(
                "has noise that can be repeated, which protects nobody",
                where=f"study '{public.name}'",
                remedy='set privacy.randomness = "secure"; for a test on one machine '
                "approve with --insecure",
            )
        self._refuse_insecure(public)
        fingerprint = public.fingerprint()
        folder = self.path / "studies"
        folder.mkdir(exist_ok=True, mode=0o700)
        replace_private(folder / f"{fingerprint}.toml", public.to_toml().encode())
        return fingerprint

    def run(self, run: str, study: Study) -> KitRun:
        """This party's part in a run of a study it has approved."""
        fingerprint = study.fingerprint()
        approved = self.path / "studies" / f"{fingerprint}.toml"
        if not approved.exists():
            raise RefusalError(
                Reason.WRONG_STUDY,
                "the study is not approved here",
                where=f"{self.name}, study {fingerprint[:16]}",
                remedy=f"read it, then `cipherbayes {self.role} approve {self.path} "
                "STUDY`",
            )
        # Another arrangement of the features has the same fingerprint.
        if list(Study.load(approved).features) != list(study.features):
            raise RefusalError(
                Reason.WRONG_STUDY,
                "the study's features have another order than the approved one's",
                where=f"{self.name}, study {fingerprint[:16]}",
                remedy="submit the study file that was approved",
            )
        self._refuse_insecure(study)
        home = self.path / "runs" / _run_id(run).hex()
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        _bind_to_study(home / "study", fingerprint)
        return KitRun(home, _run_id(run), study, plan_study(study), self)

    def _refuse_insecure(self, study: Study) -> None:
        if study.insecure and not is_loopback(self.host):
            raise RefusalError(
                Reason.WRONG_STUDY,
                "insecure-repeatable noise is for one machine only",
                where=self.name,
                remedy='set privacy.randomness = "secure"',
            )

    def settings(self) -> LocalSettings:
        """A site's own table, ledger and budget, from ``site.toml``."""
        return site_settings(self.path)


def is_loopback(host: str) -> bool:
    """Whether a host name can only be this machine.

    Edge cases
    ----------
    Exact: of names only ``localhost``, of addresses only literals of the loopback
    networks. ``127.example.org`` is anybody's machine.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _common_name(path: Path) -> str:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    (attribute,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(attribute.value)


def _run_id(text: str) -> bytes:
    try:
        run = bytes.fromhex(text)
    except ValueError:
        run = b""
    if len(run) != 16:
        raise RunError("a run's id is 32 hexadecimal digits")
    return run


def _bind_to_study(path: Path, fingerprint: str) -> None:
    """A run belongs to the study that it began with."""
    if not path.exists():
        path.write_text(fingerprint, encoding="ascii")
    if path.read_text(encoding="ascii") != fingerprint:
        raise RunError(
            "the run was begun with another study",
            where=str(path.parent),
            remedy="submit the changed study into a new folder",
        )


def write_identity(path: Path, party: str, identity: Identity) -> None:
    """Write the public half of a party's signing key."""
    content = {"version": _VERSION, "party": party, "identity": identity.id}
    _write_json(path, content)


def read_identity(path: Path) -> tuple[str, Identity]:
    """A party's name and the public half of its signing key."""
    try:
        content = _read_json(path)
        if content["version"] != _VERSION or not isinstance(content["party"], str):
            raise ValueError
        return content["party"], Identity.from_hex(content["identity"])
    except (OSError, ValueError, KeyError, TypeError, CryptoError):
        raise RunError(
            "is not a party's identity.json",
            where=str(path),
            remedy="ask that party for the file that `enrol` wrote",
        ) from None


def _read_json(path: Path) -> JsonObject:
    content: JsonObject = json.loads(path.read_text(encoding="utf-8"))
    return content


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)

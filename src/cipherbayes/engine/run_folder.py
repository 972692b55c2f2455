"""A run's folder, and the parties that live in it.

    DIR/run.json                 id, study hash, every party's public identity
    DIR/study.toml               the study, without where tables are
    DIR/transcript.bin           every total as the CSP signed it, at the end
    DIR/server/checkpoint.sqlite θ after each round, and these totals
    DIR/csp/                     keys, answers given
    DIR/sites/NAME/              keys, and site.json: the table and its ledger
    DIR/snapshots/NAME/          what a site's query returned, while the run lasts

Each party opens its own part only. The folders of the CSP and of the sites are
0700 and their files 0600.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from cipherbayes.crypto.identity.signatures import Identity
from cipherbayes.crypto.key_folder import KeyFolder
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.snapshots import origin_of, remove_snapshot
from cipherbayes.engine.local_settings import (
    LocalSettings,
    ledger_path,
    local_settings,
    open_ledger,
    read_settings,
)
from cipherbayes.engine.table_identity import (
    refuse_equal_files,
)
from cipherbayes.errors import PrivacyError, RunError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.noise import (
    InsecureRepeatableNoise,
    NoiseSource,
    PreparedNoise,
    SecureNoise,
)
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.csp import Csp
from cipherbayes.protocols.messages import RunManifest, decode
from cipherbayes.protocols.plan import Plan, plan_study
from cipherbayes.protocols.protocol import (
    CspParts,
    Protocol,
    ServerParts,
    SiteParts,
)
from cipherbayes.protocols.rounds import StudyRounds
from cipherbayes.protocols.server import Server
from cipherbayes.protocols.site import Site
from cipherbayes.protocols.stores import AnswerStore, Checkpoint, Heads
from cipherbayes.storage.custody import Custody, file_digest
from cipherbayes.storage.folders import (
    LOG,
    PARTIAL_POSTERIOR,
    make_folder,
    require_new_folder,
)
from cipherbayes.storage.private_files import write_private
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import open_site, split_site

SNAPSHOTS = "snapshots"
"""Folder of what queries returned; each site's in a folder 0700 of its own."""
BEGUN = ".run.json.partial"
"""In a folder that is being laid out; no party has been asked for anything yet."""


class AboutRun(TypedDict):
    """``run.json``: id, study hash, every party's public identity."""

    run: str
    study: str
    pinned: dict[str, str]


@dataclass(frozen=True)
class RunFolder:
    """An embedded run on disk."""

    path: Path
    run: bytes
    study: Study
    plan: Plan

    @classmethod
    def create(
        cls, path: Path, study: Study, ledgers: Mapping[str, Path | None]
    ) -> RunFolder:
        """Lay out a new run; the study is written as all parties see it.

        Parameters
        ----------
        ledgers
            Ledger file of each site; None keeps it in the run's folder.
        """
        require_new_folder(
            path,
            remedy="give a new folder, or go on with `cipherbayes resume`",
            allowed=(LOG, PARTIAL_POSTERIOR, SNAPSHOTS),
        )
        make_folder(path)
        _write_private(path / BEGUN, {})
        run = secrets.token_bytes(16)
        folder = cls(path, run, study, plan_study(study))
        text = study.without_paths().to_toml()
        (path / "study.toml").write_text(text, encoding="utf-8")
        for name, site in study.sites.items():
            home = folder.home(name)
            home.mkdir(parents=True, mode=0o700)
            ledger = ledgers[name] or home / "ledger.sqlite"
            _write_private(home / "site.json", local_settings(site, ledger))
        folder.home("csp").mkdir(parents=True, mode=0o700)
        folder.home("server").mkdir(parents=True)
        parties = ("csp", *study.sites) if folder.protocol.federated else ()
        about = {
            "version": 1,
            "run": run.hex(),
            "study": study.fingerprint(),
            "pinned": {
                name: folder.keys(name).identity().identity.id for name in parties
            },
        }
        # Last and in one move: a folder with run.json can be resumed.
        _write_private(path / BEGUN, about)
        os.replace(path / BEGUN, path / "run.json")
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open a run that was laid out before."""
        about = about_run(path)
        run, fingerprint = bytes.fromhex(about["run"]), about["study"]
        study = Study.load(path / "study.toml")
        if study.fingerprint() != fingerprint:
            raise RunError(
                "study.toml is not the study that this run began with",
                where=str(path),
                remedy="restore the file, or start a new run for the changed study",
            )
        return cls(path, run, study, plan_study(study))

    @property
    def protocol(self) -> Protocol[Any]:
        """The study's protocol."""
        return self.plan.protocol

    @property
    def budget_run(self) -> bytes | None:
        """The run in whose settings the sites' budgets were written when it began."""
        return self.run

    def home(self, name: str) -> Path:
        """A party's folder."""
        if name in ("csp", "server"):
            return self.path / name
        return self.path / "sites" / name

    def keys(self, name: str) -> KeyFolder:
        """A party's keys."""
        return KeyFolder(self.home(name) / "keys")

    def pinned(self) -> dict[str, Identity]:
        """Identity of every party, as it was when the run began."""
        pinned = about_run(self.path)["pinned"]
        return {name: Identity.from_hex(text) for name, text in pinned.items()}

    def key_id(self) -> str | None:
        """Id of the encryption key that the parties agreed on; None without one."""
        checkpoint = self.checkpoint()
        try:
            agreed = checkpoint.fact("manifest")
        finally:
            checkpoint.close()
        return None if agreed is None else decode(agreed, RunManifest).key_id.hex()

    def site(self, name: str, table: PreparedTable | None = None) -> Site[Any]:
        """A site, over its table (read from its own file where none is given)."""
        table = self.table(name) if table is None else table
        keys = self.keys(name)
        ledger = self._ledger_of(name, table)
        parts: SiteParts[Any] = {
            "name": name,
            "run": self.run,
            "plan": self.plan,
            "contributions": self.contributions(name, table),
            "ledger": ledger,
            "key": keys.identity(),
            "exchange": keys.exchange_key(self.run),
            "noise": PreparedNoise(self.noise(name)),
            "pinned": self.pinned(),
        }
        site = self.protocol.site(self, table, parts)
        site.heads = self.heads()
        site.forget_keys = partial(keys.forget, self.run)
        return site

    def noise(self, name: str) -> NoiseSource:
        """Where a party's noise comes from."""
        return noise_source(self.study, name)

    def heads(self) -> Heads | None:
        """What a party remembers of the sites' ledgers over all runs.

        Nothing here: all parties are on one machine, with identities of this run only.
        """
        return None

    def table(self, name: str) -> PreparedTable:
        """A site's table, read from the file that only the site knows."""
        source = self.local(name)["data"]
        if source is None:
            raise RunError(
                f"site '{name}' was given a frame, not a file",
                where=str(self.path),
                remedy="only runs whose tables are files can be resumed: begin a new "
                "one in another folder, and count what both released",
            )
        table = open_site(self.study, name, source)
        if self.study.evaluation is None or self.study.checks_privately:
            return table
        return split_site(self.study, name, table)[0]

    def local(self, name: str) -> LocalSettings:
        """What a site keeps to itself: its table, its ledger, its budget."""
        return read_settings(self.home(name) / "site.json")

    def holds_frames(self) -> bool:
        """Whether a table is a frame, whose ledger lasts for the run only."""
        return any(self.local(name)["data"] is None for name in self.study.sites)

    def csp(self) -> Csp[Any]:
        """The CSP, with the run's keys made at the first call."""
        parts: CspParts[Any] = {
            "run": self.run,
            "plan": self.plan,
            "key": self.keys("csp").identity(),
            "store": AnswerStore(self.home("csp") / "answers.sqlite", self.run),
            "pinned": self.pinned(),
        }
        csp = self.protocol.csp(self, parts)
        csp.heads = self.heads()
        csp.forget_keys = partial(self.keys("csp").forget, self.run)
        return csp

    def end(self) -> None:
        """Erase what a finished run needs no more: its keys, and the sites' answers.

        Also what queries returned. Charges, identities and released totals stay. A
        run that has ended is refused by every party.
        """
        for name in self.study.sites:
            path = ledger_path(self.local(name))
            if path.exists():
                ledger = Ledger.read(path)
                try:
                    ledger.end(self.run, name)
                finally:
                    ledger.close()
        for name in ("csp", *self.study.sites) if self.protocol.federated else ():
            self.keys(name).forget(self.run)
        remove_snapshot(self.path / SNAPSHOTS)

    def refuse_equal_files(self) -> None:
        """Raise PrivacyError where two sites of this machine have the same table."""
        local = {name: self.local(name)["data"] for name in self.study.sites}
        refuse_equal_files({n: Path(d) for n, d in local.items() if d is not None})

    def rounds(self) -> StudyRounds[Any]:
        """Where the run stands."""
        return self.protocol.rounds(self.plan, self.checkpoint())

    def checkpoint(self) -> Checkpoint:
        """The memory of whoever drives the run."""
        return Checkpoint(self.home("server") / "checkpoint.sqlite")

    def server(self) -> tuple[Server[Any], StudyRounds[Any]]:
        """The server, where it stopped, and where the study stands."""
        checkpoint = self.checkpoint()
        rounds = self.protocol.rounds(self.plan, checkpoint)
        parts: ServerParts[Any] = {
            "run": self.run,
            "plan": self.plan,
            "rounds": rounds,
            "checkpoint": checkpoint,
            "pinned": self.pinned(),
        }
        return self.protocol.server(self, parts), rounds

    def held_tables(
        self, tables: Mapping[str, PreparedTable] | None
    ) -> dict[str, tuple[Contributions, Ledger]]:
        """All tables of a study in one place, each with its ledger."""
        held = {}
        for name in self.study.sites:
            table = self.table(name) if tables is None else tables[name]
            ledger = self._ledger_of(name, table)
            held[name] = (self.contributions(name, table), ledger)
        return held

    def _ledger_of(self, name: str, table: PreparedTable) -> Ledger:
        """A site's ledger, over the table with which the run began."""
        ledger = open_ledger(self.study, name, self.local(name), self.budget_run)
        try:
            begun = ledger.has_charged(self.run, name)
            self._require_the_same_table(name, table, begun=begun)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _require_the_same_table(
        self, name: str, table: PreparedTable | None = None, *, begun: bool
    ) -> None:
        """Refuse to go on with a table that changed since the run began.

        Which rows are held out, and what earlier rounds said of them, would change with
        it. What is kept is a digest under the owner's key: it tells nobody else. A
        query has that of its rows, in whatever order a database gave them. A file that
        changed after its rows were read is refused, so the digest is that of the rows.
        Where the ledger says that the run has ``begun`` and the digest is lost, nobody
        knows with which rows.
        """
        data = self.local(name)["data"]
        if data is None:
            return  # a frame goes with its process
        origin = origin_of(data)
        digest = (
            bytes.fromhex(origin.digest)
            if origin is not None
            else file_digest(Path(data))
        )
        if table is not None:
            table.check_unchanged()
        digest = Custody.of_user().mac("table of a run", self.run + digest)
        kept = self._kept_digest(name)
        if not kept.exists():
            if begun:
                raise PrivacyError(
                    "was charged for this run, and the record of its rows is gone",
                    where=str(kept),
                    remedy="put the file back and resume, or begin a new run in a new "
                    "folder, which spends anew",
                )
            write_private(kept, digest)
        elif kept.read_bytes() != digest:
            raise PrivacyError(
                "changed since the run began",
                where=str(data) if origin is None else origin.name,
                remedy="put it back as it was and resume, or begin a new run in a new "
                "folder, which spends anew",
            )

    def _kept_digest(self, name: str) -> Path:
        return self.home(name) / f"table-{self.run.hex()}"

    def contributions(self, name: str, table: PreparedTable) -> Contributions:
        """A site's bounded sums over its table, parted where the study parts it."""
        held_out = None
        if self.study.checks_privately:
            table, held_out = split_site(self.study, name, table)
        return Contributions.of_site(self.study, name, table, held_out)


def noise_source(study: Study, name: str) -> NoiseSource:
    """Where a site's noise comes from; a seed only where the study
    says ``insecure-repeatable``."""
    if study.insecure:
        return InsecureRepeatableNoise(f"{study.inference.seed}/{name}")
    return SecureNoise()


def about_run(path: Path) -> AboutRun:
    """The content of run.json."""
    try:
        about = json.loads((path / "run.json").read_text(encoding="utf-8"))
        if about["version"] != 1:
            raise ValueError
        bytes.fromhex(about["run"])
        return {
            "run": about["run"],
            "study": about["study"],
            "pinned": about["pinned"],
        }
    except FileNotFoundError:
        raise RunError(
            "holds no run",
            where=str(path),
            remedy="give the folder of `cipherbayes run --out`",
        ) from None
    except (ValueError, KeyError, TypeError, OSError, RecursionError):
        raise RunError(
            "run.json cannot be read",
            where=str(path),
            remedy="restore it, or start a new run",
        ) from None


def _write_private(path: Path, content: Mapping[str, Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())

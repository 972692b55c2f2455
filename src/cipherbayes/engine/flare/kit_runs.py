"""One party's part in a run, kept in its kit: the rows of a query, and its ledger."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cipherbayes.crypto.identity.signatures import Identity
from cipherbayes.crypto.key_folder import KeyFolder
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.snapshots import FILE, remove_snapshot, take_snapshot
from cipherbayes.engine.local_settings import LocalSettings, ledger_path
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.errors import CipherbayesError, PrivacyError, RunError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.site import Site
from cipherbayes.protocols.stores import Heads
from cipherbayes.storage.private_files import replace_private

if TYPE_CHECKING:
    from cipherbayes.engine.flare.kits import Kit

SNAPSHOT = "snapshot"
LEDGER_OF_RUN = "ledger"
GIVEN_UP_SECONDS = 86_400.0


@dataclass(frozen=True)
class KitRun(RunFolder):
    """One party's part in a run: the parties are made as in an embedded run.

    Attributes
    ----------
    kit
        Where the party's keys, roster and settings are.
    """

    kit: Kit

    @property
    def budget_run(self) -> bytes | None:
        """None: the budget in ``site.toml`` is read anew for every run."""
        return None

    def home(self, name: str) -> Path:
        del name  # there is one party here
        return self.path

    def keys(self, name: str) -> KeyFolder:
        del name
        return self.kit.keys()

    def pinned(self) -> dict[str, Identity]:
        roster = self.kit.roster()
        missing = sorted({*self.study.sites, "csp"} - set(roster))
        if missing:
            raise RunError(
                f"no identity of {', '.join(missing)} is pinned",
                where=self.kit.name,
                remedy="run `pin` with the identity.json of every party",
            )
        return {name: roster[name] for name in ("csp", *self.study.sites)}

    def holds_frames(self) -> bool:
        return False

    def heads(self) -> Heads:
        # Beside the keys: what a party remembers outlives its runs.
        return Heads(self.kit.keys().path / "heads.sqlite")

    def local(self, name: str) -> LocalSettings:
        if name != self.kit.name:
            raise RunError(f"the certificate is not of site '{name}'", where=name)
        local = self.kit.settings()
        if "query" in local:
            local["data"] = str(self._snapshot / FILE)
        return local

    def table(self, name: str) -> PreparedTable:
        local = self.local(name)
        if "query" in local:
            self._remove_ended()
            self._bind_ledger()
            if not self._charged():
                # Nothing was released from these rows: the query may be another now.
                self._forget_rows()
            lost = not self._snapshot.exists()
            take_snapshot(local["query"], self._snapshot)
            if lost:
                self._require_the_rows_that_were_lost(name)
        return super().table(name)

    def site(self, name: str, table: PreparedTable | None = None) -> Site[Any]:
        try:
            site = super().site(name, table)
        except BaseException:
            with suppress(CipherbayesError):  # a ledger that cannot be read
                if not self._charged():
                    self._forget_rows()
            raise
        forget = site.forget_keys

        def forget_all() -> None:
            remove_snapshot(self._snapshot)
            if forget is not None:
                forget()

        site.forget_keys = forget_all
        return site

    @property
    def _snapshot(self) -> Path:
        return self.path / SNAPSHOT

    def _require_the_rows_that_were_lost(self, name: str) -> None:
        """Refuse to go on where a query returns other rows than when the run began."""
        try:
            self._require_the_same_table(name, begun=self._charged())
        except PrivacyError:
            remove_snapshot(self._snapshot)
            raise

    def _forget_rows(self) -> None:
        """Remove a query's rows where the run has released nothing about them."""
        remove_snapshot(self._snapshot)
        self._kept_digest(self.kit.name).unlink(missing_ok=True)

    def _charged(self) -> bool:
        """Whether a round of this run was charged, to the site's ledger now or then."""
        ledgers = ledger_path(self.kit.settings()), _ledger_of(self.path)
        return any(
            _state(ledger, self.run, self.kit.name)[0]
            for ledger in ledgers
            if ledger is not None
        )

    def _bind_ledger(self) -> None:
        """Remember the ledger of this run; refuse another once it was charged."""
        now, begun = ledger_path(self.kit.settings()).resolve(), _ledger_of(self.path)
        charged = begun is not None and _state(begun, self.run, self.kit.name)[0]
        if begun != now and charged:
            raise RunError(
                "this run was charged to another ledger than site.toml names now",
                where=str(self.kit.path / "site.toml"),
                remedy=f'set data as it was and ledger = "{begun}", or begin a new run',
            )
        replace_private(self.path / LEDGER_OF_RUN, str(now).encode())

    def _remove_ended(self) -> None:
        """Remove the rows of queries of runs that were ended from outside.

        Each run's own ledger says which (``cipherbayes ledger FILE --end RUN`` ends
        one); a run that was charged for nothing is given up after a day.
        """
        now = ledger_path(self.kit.settings())
        for folder in self.path.parent.glob(f"*/{SNAPSHOT}"):
            home = folder.parent
            ledger = _ledger_of(home) or now
            charged, over = _state(ledger, bytes.fromhex(home.name), self.kit.name)
            old = time.time() - folder.stat().st_mtime > GIVEN_UP_SECONDS
            if over or (old and not charged):
                remove_snapshot(folder)


def _ledger_of(home: Path) -> Path | None:
    """The ledger that a run of a query was begun with."""
    try:
        return Path((home / LEDGER_OF_RUN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _state(path: Path, run: bytes, site: str) -> tuple[bool, bool]:
    """Whether a ledger has charges of a run, and whether the run is over."""
    if not path.exists():
        return False, False
    with closing(Ledger.read(path)) as ledger:
        return ledger.has_charged(run, site), ledger.is_over(run, site)

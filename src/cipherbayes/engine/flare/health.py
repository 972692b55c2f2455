"""Whether a party can take part: looked at from its own machine, sent to nobody."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from cryptography import x509

from cipherbayes.data.databases import open_database
from cipherbayes.data.snapshots import Query
from cipherbayes.data.tables import open_table
from cipherbayes.engine.flare.handshake import check_server
from cipherbayes.engine.flare.kit_backup import REMARK
from cipherbayes.engine.flare.kit_runs import SNAPSHOT
from cipherbayes.engine.flare.kits import SERVER, Kit
from cipherbayes.engine.flare.starting import check_ready
from cipherbayes.engine.local_settings import LocalSettings, ledger_path
from cipherbayes.errors import CipherbayesError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.storage.custody import Custody

State = Literal["ok", "warning", "fault"]
DAY = 86_400.0
SOON_DAYS = 30
OLD_DAYS = 7
LITTLE_BYTES = 1 << 30


@dataclass(frozen=True)
class HealthFinding:
    """One thing that was looked at, and how it is; never a data value."""

    name: str
    state: State
    words: str


def look_at_party(kit: Kit) -> list[HealthFinding]:
    """Everything that a party needs: files, keys, certificate, disk, server.

    At a site also its table, its ledger, and rows of queries that were left behind.
    """
    checks: dict[str, Callable[[], Iterator[tuple[State, str]]]] = {
        "kit": lambda: _kit(kit),
        "certificate": lambda: _certificate(kit),
        "studies": lambda: _studies(kit),
        "state": _state,
        "disk": lambda: _disk(kit),
    }
    if kit.role == "site":
        checks["table"] = lambda: _table(kit.settings())
        checks["ledger"] = lambda: _ledger(kit)
        checks["snapshots"] = lambda: _snapshots(kit)
    if kit.role != SERVER:
        checks["server"] = lambda: _server(kit)
    found = []
    for name, check in checks.items():
        try:
            found += [HealthFinding(name, state, words) for state, words in check()]
        except CipherbayesError as error:
            found.append(HealthFinding(name, "fault", str(error)))
    return found


def _kit(kit: Kit) -> Iterator[tuple[State, str]]:
    check_ready(kit)
    if kit.path.stat().st_mode & 0o077:
        yield "fault", "other users can look into the kit: chmod 700"
    yield "ok", f"settings, keys and roster of {kit.role} {kit.name} fit together"


def _certificate(kit: Kit) -> Iterator[tuple[State, str]]:
    stem = "server" if kit.role == SERVER else "client"
    data = (kit.path / "startup" / f"{stem}.crt").read_bytes()
    until = x509.load_pem_x509_certificate(data).not_valid_after_utc
    days = (until - datetime.now(UTC)).days
    state: State = "fault" if days < 0 else "warning" if days < SOON_DAYS else "ok"
    remedy = "" if state == "ok" else "; ask the lead for a new one"
    yield state, f"valid until {until:%Y-%m-%d} ({days} days){remedy}"


def _studies(kit: Kit) -> Iterator[tuple[State, str]]:
    count = len(list((kit.path / "studies").glob("*.toml")))
    state: State = "ok" if count else "warning"
    yield state, f"{count} approved" + ("" if count else ": nothing can run here")


def _state() -> Iterator[tuple[State, str]]:
    custody = Custody.of_user()
    if not (custody.path / "seal.key").exists():
        yield "warning", f"{custody.path} has no sealing key yet (right user?)"
        return
    yield "ok", f"sealing key {custody.key_id[:8]} in {custody.path}"


def _disk(kit: Kit) -> Iterator[tuple[State, str]]:
    free = shutil.disk_usage(kit.path).free
    state: State = "ok" if free > LITTLE_BYTES else "warning"
    yield state, f"{free / 1e9:.1f} GB are free"


def _table(settings: LocalSettings) -> Iterator[tuple[State, str]]:
    query = settings.get("query")
    if query is None:
        yield "ok", f"{len(open_table(settings['data']).names)} columns"
        return
    yield "ok", f"the query runs and has {_columns(query)} columns"


def _columns(query: Query) -> int:
    """Columns of a query that is asked for no row."""
    database = open_database(query.database)
    with database.read(query.text(), query.name, rows=False) as opened:
        return len(opened.batches.schema.names)


def _ledger(kit: Kit) -> Iterator[tuple[State, str]]:
    settings = kit.settings()
    path = ledger_path(settings)
    if not path.exists() and settings["budget"] is None and _was_put_back(kit):
        yield (
            "warning",
            "none, and the backup had none: what was spent before the loss is not "
            "known here. Ask the lead which runs there were, then set budget",
        )
        return
    if not path.exists():
        yield "ok", "none yet: the first run begins it"
        return
    ledger = Ledger.read(path)
    try:
        spent, budget = ledger.spent(), ledger.budget_with(settings["budget"])
    finally:
        ledger.close()
    state: State = "ok" if spent < 0.999 * budget else "warning"
    yield state, f"spent ε = {spent:.4g} of {budget:g}"


def _was_put_back(kit: Kit) -> bool:
    return REMARK in (kit.path / "site.toml").read_text(encoding="utf-8")


def _snapshots(kit: Kit) -> Iterator[tuple[State, str]]:
    held = list((kit.path / "runs").glob(f"*/{SNAPSHOT}"))
    old = [path for path in held if _age(path) > OLD_DAYS * DAY]
    if old:
        run = old[0].parent.name
        yield (
            "warning",
            f"rows of run {run[:8]} are older than {OLD_DAYS} days: if it will not go "
            f"on, `cipherbayes ledger FILE --end {run}` and remove {old[0]}",
        )
    yield "ok", f"rows of {len(held)} run(s) are kept"


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _server(kit: Kit) -> Iterator[tuple[State, str]]:
    there = check_server(kit)
    yield (
        ("ok", f"{kit.host} answers")
        if there
        else (
            "warning",
            f"{kit.host} does not answer",
        )
    )

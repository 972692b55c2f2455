"""What a data manager needs: services, logs, health, and what is kept where."""

from __future__ import annotations

import configparser
import json
import logging
import os
import shutil
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from parties import small_study
from query_sites import QUERY, fill

from cipherbayes.engine.logs import PARTY_LOG, keep_party_log
from cipherbayes.privacy.events import GaussianSum
from cipherbayes.privacy.ledger import Ledger
from conftest import logistic_frame
from terminal import cipherbayes

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from cipherbayes.engine.flare import health
from cipherbayes.engine.flare.health import look_at_party
from cipherbayes.engine.flare.kit_backup import back_up
from cipherbayes.engine.flare.kits import Kit
from cipherbayes.engine.flare.provisioning import Deployment, deploy
from cipherbayes.engine.flare.service_files import service_files

SITES = ("a", "b")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("day") / "kits"
    deploy(Deployment(small_study(SITES), "localhost", 1), folder)
    kits = {name: Kit.open(folder / name) for name in ("csp", *SITES)}
    files = []
    for kit in kits.values():
        kit.enrol()
        files.append(kit.path / "identity.json")
    for kit in kits.values():
        kit.pin(files)
        kit.approve(small_study(SITES), insecure=True)
    return folder


@pytest.fixture
def kit(made: Path, tmp_path: Path) -> Kit:
    """A site's kit that is ready, with a table."""
    shutil.copytree(made / "a", tmp_path / "a")
    (tmp_path / "a").chmod(0o700)
    logistic_frame(40).to_csv(tmp_path / "a" / "t.csv", index=False)
    (tmp_path / "a" / "site.toml").write_text('data = "t.csv"\nbudget = 3.0\n')
    return Kit.open(tmp_path / "a")


def states(kit: Kit) -> dict[str, str]:
    return {each.name: each.state for each in look_at_party(kit)}


# -- services ------------------------------------------------------------------------


@pytest.mark.parametrize("party", ["a", "csp", "server"])
def test_every_kit_has_a_unit_and_a_container_file(made: Path, party: str) -> None:
    folder = made / party / "service"
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((folder / f"cipherbayes-{party}.service").read_text())
    role = "site" if party == "a" else party
    service = unit["Service"]
    start = f"cipherbayes {role} start /srv/cipherbayes/{party}"
    assert service["ExecStart"] == f"/usr/bin/env {start}"
    installed = service_files(Kit.open(made / party), 1, here=True)
    here = f"-m cipherbayes {role} start {made / party}\n"
    assert here in installed[f"cipherbayes-{party}.service"]
    state, scratch = service["Environment"].split()
    assert state == "CIPHERBAYES_STATE=/var/lib/cipherbayes"
    # The only folder that it may write to.
    assert scratch == f"CIPHERBAYES_SCRATCH={service['ReadWritePaths']}"
    assert service["StateDirectoryMode"] == "0700"
    assert service["ProtectSystem"] == "strict"
    container = (folder / "Containerfile").read_text()
    assert f'ENTRYPOINT ["cipherbayes", "{role}", "start", "/kit"]' in container
    assert f'"{role}", "health", "/kit"]' in container
    assert "USER party" in container
    assert ("-p 1:1" in container) == (party == "server")
    # A kit is read by its party: it copies no key into an image.
    assert "COPY" not in container


# -- logs ----------------------------------------------------------------------------


def test_a_partys_log_has_one_json_object_a_line_and_one_reader(
    tmp_path: Path,
) -> None:
    stop = keep_party_log(tmp_path)
    logging.getLogger("cipherbayes.site").info("round %d", 3)
    stop()
    logging.getLogger("cipherbayes.site").warning("not kept")
    file = tmp_path / PARTY_LOG
    (line,) = file.read_text().splitlines()
    entry = json.loads(line)
    assert entry.pop("time").endswith("+00:00")
    assert entry == {"party": "site", "level": "info", "message": "round 3"}
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600


def test_a_log_is_rotated_and_stays_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cipherbayes.engine.logs.MOST_BYTES", 300)
    stop = keep_party_log(tmp_path)
    for number in range(40):
        logging.getLogger("cipherbayes.site").info("round %d", number)
    stop()
    files = sorted(tmp_path.glob(f"{PARTY_LOG}*"))
    assert len(files) == 6
    assert all(stat.S_IMODE(os.stat(file).st_mode) == 0o600 for file in files)


# -- health --------------------------------------------------------------------------


def test_a_site_that_is_ready_is_healthy_although_its_server_sleeps(kit: Kit) -> None:
    found = states(kit)
    assert set(found.values()) <= {"ok", "warning"}
    assert found["server"] == "warning"
    assert found["table"] == found["ledger"] == found["certificate"] == "ok"
    done = cipherbayes("site", "health", kit.path)
    assert done.returncode == 0, done.stdout
    assert "none yet: the first run begins it" in done.stdout
    record = json.loads(cipherbayes("site", "health", kit.path, "--json").stdout)
    assert {each["name"] for each in record} == set(found)


def test_what_keeps_a_site_from_a_run_is_a_fault(kit: Kit) -> None:
    (kit.path / "t.csv").unlink()
    (kit.path / "roster.json").unlink()
    kit.path.chmod(0o755)
    found = states(kit)
    assert found["table"] == found["kit"] == "fault"
    assert cipherbayes("site", "health", kit.path).returncode == 1
    (kit.path / "site.toml").write_text("data = 3")
    assert states(kit)["ledger"] == "fault"


def test_a_query_is_tried_without_a_row(kit: Kit) -> None:
    pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")
    fill(kit.path / "a.sqlite", logistic_frame(20))
    (kit.path / "a.sql").write_text(QUERY)
    (kit.path / "site.toml").write_text(
        'data = { database = "sqlite:a.sqlite", query = "a.sql" }\nledger = "a.ledger"'
    )
    (each,) = (f for f in look_at_party(kit) if f.name == "table")
    assert (each.state, each.words) == ("ok", "the query runs and has 3 columns")
    (kit.path / "a.sql").write_text("SELECT * FROM nope")
    assert states(kit)["table"] == "fault"


def test_budgets_certificates_and_rows_are_warned_of_in_time(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(
        kit.path / "t.csv.ledger", dataset="t.csv", epsilon=3.0, delta=1e-5
    )
    ledger.close()
    rows = kit.path / "runs" / ("00" * 16) / "snapshot"
    rows.mkdir(parents=True)
    assert states(kit)["ledger"] == states(kit)["snapshots"] == "ok"
    os.utime(rows, (0, 0))
    assert "warning" in {f.state for f in look_at_party(kit) if f.name == "snapshots"}
    (kit.path / "site.toml").write_text('data = "t.csv"\nbudget = 1e-12\n')
    (each,) = (f for f in look_at_party(kit) if f.name == "ledger")
    assert each.words == "spent ε = 0 of 1e-12"

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            del tz
            return datetime.now(UTC) + timedelta(days=365 * 50)

    monkeypatch.setattr(health, "datetime", Later)
    assert states(kit)["certificate"] == "fault"


def test_a_damaged_ledger_is_a_fault(kit: Kit) -> None:
    (kit.path / "t.csv.ledger").write_bytes(b"not a ledger")
    (kit.path / "t.csv.ledger").chmod(0o600)
    assert states(kit)["ledger"] == "fault"


def test_a_start_removes_what_a_killed_check_left(kit: Kit) -> None:
    (kit.path / ".checked-left").mkdir()
    (kit.path / "roster.json").unlink()
    assert cipherbayes("site", "start", kit.path).returncode == 1
    assert not (kit.path / ".checked-left").exists()


# -- backups -------------------------------------------------------------------------


def charge(path: Path, number: int) -> None:
    book = Ledger.open(path, dataset="t.csv", epsilon=3.0, delta=1e-5)
    book.release(
        run=b"r" * 16, site="a", round=number, purpose="gradient", study=bytes(32),
        question=bytes(32), event=GaussianSum(4.0), compute=lambda: b"ANSWER-6713",
    )  # fmt: skip
    book.close()


def test_a_backup_makes_the_kit_again_and_gives_no_budget_back(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kit.path / "site.toml").write_text('data = "../t.csv"\n"budget"=3.0 # ours\n')
    (kit.path / "t.csv").rename(tmp_path / "t.csv")
    ledger = tmp_path / "t.csv.ledger"
    charge(ledger, 0)
    (kit.path / "runs" / "x").mkdir(parents=True)
    (kit.path / "keys" / ("00" * 16 + ".exchange.key")).write_bytes(b"of a run")
    backup = tmp_path / "backup"
    done = cipherbayes("site", "backup", kit.path, backup)
    assert done.returncode == 0, done.stderr
    names = {p.name for p in backup.rglob("*") if p.is_file()}
    assert {"identity.key", "client.key", "roster.json", "ledger.copy"} <= names
    assert not any("exchange" in name for name in names)
    assert not (backup / "runs").exists()
    assert not any(
        b"ANSWER-6713" in p.read_bytes() for p in backup.rglob("*") if p.is_file()
    )
    # More is spent; then the machine is lost with its state folder.
    charge(ledger, 1)
    spent = Ledger.read(ledger).spent()
    for file in (ledger, Path(f"{ledger}-wal"), Path(f"{ledger}-shm")):
        file.unlink(missing_ok=True)
    shutil.rmtree(kit.path)
    monkeypatch.setenv("CIPHERBAYES_STATE", str(tmp_path / "new-state"))
    done = cipherbayes("site", "restore", kit.path, backup)
    assert done.returncode == 0, done.stderr
    assert "nothing is left of the budget" in " ".join(done.stdout.split())
    again = Kit.open(kit.path)
    assert again.roster() == kit.roster()
    assert states(again)["kit"] == "ok"
    assert states(again)["ledger"] == "warning"
    book = Ledger.read(ledger)
    assert 0.0 < book.epsilon < spent
    assert book.spent() == pytest.approx(book.epsilon)
    # No run sets again what the owner said before.
    assert again.settings()["budget"] is None
    assert "before the restore" in (kit.path / "site.toml").read_text()
    book.close()


@pytest.mark.parametrize("budget", ["budget = 3.0\n", ""])
def test_a_backup_from_before_the_first_run_gives_no_budget_back(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str
) -> None:
    (kit.path / "site.toml").write_text(f'data = "../t.csv"\n{budget}')
    (kit.path / "t.csv").rename(tmp_path / "t.csv")
    back_up(kit, tmp_path / "backup")
    shutil.rmtree(kit.path)
    monkeypatch.setenv("CIPHERBAYES_STATE", str(tmp_path / "new-state"))
    done = cipherbayes("site", "restore", kit.path, tmp_path / "backup")
    assert done.returncode == 0, done.stderr
    assert "the backup has no ledger" in done.stdout
    assert Kit.open(kit.path).settings()["budget"] is None
    assert states(kit)["ledger"] == "warning"
    text = (kit.path / "site.toml").read_text()
    (kit.path / "site.toml").write_text(f"budget = 1.0\n{text}")
    assert states(kit)["ledger"] == "ok"


def test_an_old_backup_is_refused_where_the_state_folder_knows_better(
    kit: Kit, tmp_path: Path
) -> None:
    ledger = kit.path / "t.csv.ledger"
    charge(ledger, 0)
    cipherbayes("site", "backup", kit.path, tmp_path / "backup")
    charge(ledger, 1)
    shutil.rmtree(kit.path)
    done = cipherbayes("site", "restore", kit.path, tmp_path / "backup")
    assert done.returncode == 1
    assert "is an old copy" in done.stderr
    assert not kit.path.exists()

"""Kits: whose they are, what they forbid, what they refuse."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from parties import small_study, write_tables
from query_sites import QUERY, fill

from cipherbayes.errors import (
    CipherbayesError,
    CryptoError,
    PrivacyError,
    ProtocolError,
    RunError,
    StudyError,
)
from cipherbayes.privacy.events import GaussianSum
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.study.schema import Study
from conftest import logistic_frame
from terminal import cipherbayes

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from cipherbayes.engine.flare import channels, hardening, layout, submitting
from cipherbayes.engine.flare.hardening import ALLOWED_CLASSES, keep_jobs_in
from cipherbayes.engine.flare.jobs import write_job
from cipherbayes.engine.flare.kits import Kit
from cipherbayes.engine.flare.provisioning import Deployment, deploy
from cipherbayes.engine.flare.starting import check_ready, command
from cipherbayes.engine.flare.submitting import submit

SITES = ("a", "b")
RUN = "00" * 16


def made(folder: Path, study: Study | None = None) -> dict[str, Kit]:
    study = study or small_study(SITES)
    kits = deploy(Deployment(study, "localhost", 8002), folder / "kits")
    return {name: Kit.open(path) for name, path in kits.items()}


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kit]:
    return made(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def fresh(kits: dict[str, Kit], tmp_path: Path) -> dict[str, Kit]:
    """Copies: making certificates takes a while."""
    shutil.copytree(kits["server"].path.parent, tmp_path / "kits")
    return {name: Kit.open(tmp_path / "kits" / name) for name in kits}


def local(kit: Kit, name: str) -> dict[str, Any]:
    return json.loads((kit.path / "local" / name).read_text())  # type: ignore[no-any-return]


def pinned(kits: dict[str, Kit]) -> dict[str, Kit]:
    names = ("csp", *SITES)
    for name in names:
        kits[name].enrol()
    files = [kits[name].path / "identity.json" for name in names]
    for name in (*names, "server"):
        kits[name].pin(files)
    return approved(kits)


def approved(kits: dict[str, Kit], study: Study | None = None) -> dict[str, Kit]:
    for name in ("csp", "server", *SITES):
        kits[name].approve(study or small_study(SITES), insecure=True)
    return kits


# -- what deploy makes -----------------------------------------------------


def test_a_kit_belongs_to_whom_its_certificate_names(kits: dict[str, Kit]) -> None:
    assert {name: kit.role for name, kit in kits.items()} == {
        "server": "server", "csp": "csp", "a": "site", "b": "site", "admin": "admin",
    }  # fmt: skip
    assert kits["a"].name == "a"
    with pytest.raises(RunError, match="not a csp"):
        kits["a"].require("csp")


@pytest.mark.parametrize("party", ["server", "csp", *SITES])
def test_every_kit_forbids_code_from_outside(kits: dict[str, Kit], party: str) -> None:
    permissions = local(kits[party], "authorization.json")["permissions"]
    for role in ("project_admin", "org_admin", "lead", "member"):
        assert isinstance(permissions[role], dict)
        for right in ("byoc", "shell_commands", "operate", "clone_job"):
            assert permissions[role][right] == "none"
        assert permissions[role]["view"] == "none" or party == "server"
    resources = local(kits[party], "resources.json")
    assert resources["class_allow_list"] == list(ALLOWED_CLASSES)
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert not list((kits[party].path / "local").glob("resources.json.default"))
    assert not list((kits[party].path / "local").glob("authorization.json.default"))


@pytest.mark.parametrize("party", ["server", "csp", *SITES])
def test_no_kit_streams_logs_or_uses_the_shared_temporary_folder(
    kits: dict[str, Kit], party: str
) -> None:
    resources = local(kits[party], "resources.json")
    text = json.dumps(resources)
    assert "log_stream" not in text.replace("allow_log_streaming", "")
    assert "log_receiver" not in text
    assert "/tmp/nvflare" not in text
    if party != "server":
        assert resources["allow_log_streaming"] is False
    else:
        (store,) = (c for c in resources["components"] if c["id"] == "job_store")
        assert store["args"]["root_dir"] == str(kits["server"].path / "jobs")


@pytest.mark.parametrize("party", ["server", "csp", *SITES])
def test_messages_are_repeated_until_a_silent_party_is_given_up(
    kits: dict[str, Kit], party: str
) -> None:
    settings = local(kits[party], "comm_config.json")
    given_up = channels.PROBES * (channels.PROBE_EVERY + channels.PROBE_TIMEOUT)
    assert given_up < settings["streaming_retry_timeout"] < 30.0
    assert settings["allow_adhoc_conns"] is False


def test_jobs_stay_in_the_servers_kit_after_it_was_moved(
    fresh: dict[str, Kit], tmp_path: Path
) -> None:
    moved = (tmp_path / "kits" / "server").rename(tmp_path / "elsewhere")
    keep_jobs_in(moved)
    assert str(moved / "jobs") in (moved / "local" / "resources.json").read_text()


def test_private_files_are_private_and_no_signing_key_is_made_centrally(
    kits: dict[str, Kit],
) -> None:
    for name, kit in kits.items():
        assert stat.S_IMODE(kit.path.stat().st_mode) == 0o700, name
        assert not (kit.path / "keys").exists()
        for key in kit.path.rglob("*.key"):
            assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert not list((kit.path / "startup").glob("*.sh"))
    authority = kits["server"].path.parent / "authority" / "cert.json"
    assert stat.S_IMODE(authority.stat().st_mode) == 0o600


def test_every_kit_has_one_page_that_names_study_and_commands(
    kits: dict[str, Kit],
) -> None:
    for name, kit in kits.items():
        text = (kit.path / "README.md").read_text()
        assert len(text.splitlines()) <= 60
        assert small_study(SITES).fingerprint() in text
        verb = "submit" if name == "admin" else f"{kit.role} start"
        assert f"cipherbayes {verb}" in text


def test_a_kit_holds_no_path_of_a_table(tmp_path: Path) -> None:
    study = write_tables(tmp_path / "tables", small_study(SITES))
    for kit in made(tmp_path, study).values():
        for path in kit.path.rglob("*"):
            if path.is_file():
                assert b"tables" not in path.read_bytes()


@pytest.mark.parametrize(
    ("study", "host", "expected"),
    [
        (small_study(SITES), "flare.example.org", "one machine only"),
        (small_study(("a.b", "c")), "localhost", "cannot be a name"),
        (small_study(SITES, header={"protocol": "pooled"}), "localhost", "no sites"),
        (small_study(SITES), "not a host", "host name"),
    ],
)
def test_what_cannot_be_deployed_is_refused(
    study: Any, host: str, expected: Any
) -> None:
    with pytest.raises((StudyError, RunError), match=expected):
        Deployment(study, host)


# -- identities ------------------------------------------------------------


def test_a_pinned_key_cannot_be_exchanged(
    fresh: dict[str, Kit], tmp_path: Path
) -> None:
    pinned(fresh)
    forged = tmp_path / "forged.json"
    content = json.loads((fresh["b"].path / "identity.json").read_text())
    forged.write_text(json.dumps({**content, "party": "csp"}))
    with pytest.raises(CryptoError, match="another key of 'csp'"):
        fresh["a"].pin([forged])
    assert fresh["a"].roster()["csp"] == fresh["csp"].enrol()


def test_a_party_starts_only_with_its_own_key_pinned(fresh: dict[str, Kit]) -> None:
    with pytest.raises(RunError, match="no identities are pinned"):
        check_ready(fresh["a"])
    pinned(fresh)
    check_ready(fresh["a"])
    (fresh["a"].path / "keys" / "identity.key").unlink()
    with pytest.raises(RunError, match="another key"):
        check_ready(fresh["a"])


def test_a_run_needs_everyone_pinned(fresh: dict[str, Kit]) -> None:
    fresh["a"].enrol()
    fresh["a"].pin([fresh["a"].path / "identity.json"])
    approved(fresh)
    folder = fresh["a"].run(RUN, small_study(SITES))
    with pytest.raises(RunError, match="no identity of b, csp"):
        folder.pinned()


# -- runs ------------------------------------------------------------------


def test_a_study_that_was_not_approved_is_refused(fresh: dict[str, Kit]) -> None:
    secure = small_study(SITES, privacy={"randomness": "secure"})
    for name in ("server", "csp", "a"):
        with pytest.raises(ProtocolError, match=f"cipherbayes {fresh[name].role} appr"):
            fresh[name].run(RUN, secure)
        fresh[name].approve(secure)
        assert fresh[name].run(RUN, secure).study == secure
        (kept,) = (fresh[name].path / "studies").iterdir()
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_no_kit_comes_with_an_approval(kits: dict[str, Kit]) -> None:
    for kit in kits.values():
        assert not (kit.path / "studies").exists()
        assert (kit.path / "study.toml").exists()


def test_noise_that_can_be_repeated_is_approved_only_by_name(
    fresh: dict[str, Kit],
) -> None:
    with pytest.raises(StudyError, match="--insecure"):
        fresh["a"].approve(small_study(SITES))
    assert not (fresh["a"].path / "studies").exists()
    fresh["a"].approve(small_study(SITES), insecure=True)


def test_a_site_approves_only_studies_that_it_takes_part_in(
    fresh: dict[str, Kit],
) -> None:
    others = small_study(("b", "c"), privacy={"randomness": "secure"})
    with pytest.raises(StudyError, match="has no site 'a'"):
        fresh["a"].approve(others)


def test_a_run_keeps_its_study(fresh: dict[str, Kit]) -> None:
    other = small_study(SITES, inference={"rounds": 9})
    approved(approved(fresh), other)
    fresh["csp"].run(RUN, small_study(SITES))
    with pytest.raises(RunError, match="begun with another study"):
        fresh["csp"].run(RUN, other)


def test_repeatable_noise_is_refused_off_this_machine(
    fresh: dict[str, Kit], tmp_path: Path
) -> None:
    approved(fresh)
    away = Kit(fresh["a"].path, "site", "a", "flare.example.org")
    for attempt in (
        lambda: away.run(RUN, small_study(SITES)),
        lambda: away.approve(small_study(SITES), insecure=True),
    ):
        with pytest.raises(ProtocolError, match="one machine only"):
            attempt()
    lead = Kit(fresh["admin"].path, "admin", fresh["admin"].name, "flare.example.org")
    with pytest.raises(StudyError, match="one machine only"):
        submit(small_study(SITES), lead, tmp_path / "out", lambda done, rounds: None)


@pytest.mark.parametrize(
    "text",
    ["data = 3", 'data = "t.csv"\nbudget = -1', 'data = "t.csv"\nmore = 1', "data ="],
)
def test_a_sites_settings_must_be_usable(fresh: dict[str, Kit], text: str) -> None:
    (fresh["a"].path / "site.toml").write_text(text)
    with pytest.raises(RunError):
        fresh["a"].settings()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('data = { database = "sqlite:a.db", query = "a.sql" }', "needs a ledger"),
        ('data = { query = "a.sql" }\nledger = "l"', "no usable query"),
        ('data = { database = 3, query = "a.sql" }\nledger = "l"', "valid string"),
        ('data = { database = "d", query = "q", x = 1 }\nledger = "l"', "no usable"),
        (
            'data = { database = "postgresql://u:s3cret@h/d", query = "q" }\n'
            'ledger = "l"',
            "holds a password",
        ),
    ],
)
def test_a_sites_query_must_be_usable(
    fresh: dict[str, Kit], text: str, words: str
) -> None:
    (fresh["a"].path / "site.toml").write_text(text)
    with pytest.raises(RunError, match=words) as refused:
        fresh["a"].settings()
    assert "s3cret" not in str(refused.value)


def test_a_sites_query_is_read_once_a_run_and_its_rows_go_with_the_run(
    fresh: dict[str, Kit],
) -> None:
    pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")
    kit = pinned(fresh)["a"]
    fill(kit.path / "a.sqlite", logistic_frame(60, seed=1))
    (kit.path / "cohort.sql").write_text(QUERY)
    (kit.path / "site.toml").write_text(
        'data = { database = "sqlite:a.sqlite", query = "cohort.sql" }\n'
        'ledger = "cohort.ledger"\n'
    )
    check_ready(kit)
    folder = kit.run(RUN, small_study(SITES))
    site = folder.site("a")
    rows = kit.path / "runs" / RUN / "snapshot" / "query.parquet"
    assert rows.stat().st_mode & 0o777 == 0o600
    assert rows.parent.stat().st_mode & 0o777 == 0o700
    assert (kit.path / "cohort.ledger").exists()
    book = Ledger.read(kit.path / "cohort.ledger")
    book.release(
        run=bytes.fromhex(RUN), site="a", round=0, purpose="gradient", study=bytes(32),
        question=bytes(32), event=GaussianSum(4.0), compute=lambda: b"",
    )  # fmt: skip
    book.close()
    # The process is started again, and the database has changed.
    fill(kit.path / "a.sqlite", logistic_frame(40, seed=2))
    again = kit.run(RUN, small_study(SITES))
    assert again.table("a").count == 60
    # Another run reads the query anew, and is charged to the same ledger.
    other = kit.run("11" * 16, small_study(SITES))
    assert other.table("a").count == 40
    assert rows.exists()
    other.site("a").end()
    assert not (kit.path / "runs" / ("11" * 16) / "snapshot").exists()
    site.end()
    assert not rows.parent.exists()


def test_a_query_is_read_anew_while_a_run_was_charged_for_nothing(
    fresh: dict[str, Kit],
) -> None:
    pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")
    kit = pinned(fresh)["a"]
    fill(kit.path / "a.sqlite", logistic_frame(60, seed=1))
    query, rows = kit.path / "cohort.sql", kit.path / "runs" / RUN / "snapshot"
    query.write_text("SELECT age, sex, 'no' AS death FROM admissions")
    (kit.path / "site.toml").write_text(
        'data = { database = "sqlite:a.sqlite", query = "cohort.sql" }\n'
        'ledger = "cohort.ledger"\n'
    )
    with pytest.raises(CipherbayesError, match="death"):
        kit.run(RUN, small_study(SITES)).site("a")
    assert not rows.exists()
    query.write_text(QUERY)
    assert kit.run(RUN, small_study(SITES)).site("a") is not None
    assert rows.exists()
    query.write_text("SELECT age, sex, death FROM admissions LIMIT 50")
    assert kit.run(RUN, small_study(SITES)).table("a").count == 50


def test_a_run_goes_on_over_its_own_rows_or_not_at_all(fresh: dict[str, Kit]) -> None:
    pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")
    kit = pinned(fresh)["a"]

    def name(cohort: str) -> None:
        (kit.path / f"{cohort}.sql").write_text(QUERY + f" -- {cohort}")
        (kit.path / "site.toml").write_text(
            f'data = {{ database = "sqlite:{cohort}.sqlite", query = "{cohort}.sql" }}'
            f'\nledger = "{cohort}.ledger"\n'
        )

    for seed, cohort in enumerate(("one", "two")):
        fill(kit.path / f"{cohort}.sqlite", logistic_frame(60, seed=seed))
    name("one")
    kit.run(RUN, small_study(SITES)).site("a")
    book = Ledger.read(kit.path / "one.ledger")
    book.release(
        run=bytes.fromhex(RUN), site="a", round=0, purpose="gradient", study=bytes(32),
        question=bytes(32), event=GaussianSum(4.0), compute=lambda: b"",
    )  # fmt: skip
    book.close()
    rows = kit.path / "runs" / RUN / "snapshot"
    # Two days later a run of another query, with a ledger of its own.
    os.utime(rows, (0, 0))
    name("two")
    kit.run("11" * 16, small_study(SITES)).table("a")
    assert rows.exists()
    with pytest.raises(RunError, match="charged to another ledger"):
        kit.run(RUN, small_study(SITES)).site("a")
    # The rows are lost, and the database went on.
    name("one")
    shutil.rmtree(rows)
    fill(kit.path / "one.sqlite", logistic_frame(50, seed=3))
    with pytest.raises(PrivacyError, match="changed since the run began"):
        kit.run(RUN, small_study(SITES)).site("a")
    # With the same rows it goes on.
    fill(kit.path / "one.sqlite", logistic_frame(60, seed=0))
    assert kit.run(RUN, small_study(SITES)).site("a") is not None


def test_rows_of_a_run_that_was_given_up_are_removed_by_the_next(
    fresh: dict[str, Kit],
) -> None:
    pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")
    kit = pinned(fresh)["a"]
    fill(kit.path / "a.sqlite", logistic_frame(60, seed=1))
    (kit.path / "cohort.sql").write_text(QUERY)
    (kit.path / "site.toml").write_text(
        'data = { database = "sqlite:a.sqlite", query = "cohort.sql" }\n'
        'ledger = "cohort.ledger"\n'
    )
    kit.run(RUN, small_study(SITES)).table("a")
    old = kit.path / "runs" / RUN / "snapshot"
    kit.run("11" * 16, small_study(SITES)).table("a")
    assert old.exists()
    os.utime(old, (0, 0))
    kit.run("22" * 16, small_study(SITES)).table("a")
    assert not old.exists()


def test_a_site_serves_only_its_own_table(fresh: dict[str, Kit]) -> None:
    folder = pinned(fresh)["a"].run(RUN, small_study(SITES))
    with pytest.raises(RunError, match="not of site 'b'"):
        folder.site("b")


def test_a_job_has_no_code_and_no_path(tmp_path: Path) -> None:
    study = write_tables(tmp_path / "tables", small_study(SITES))
    job = write_job(tmp_path / "job", study, RUN)
    files = sorted(p.relative_to(job).as_posix() for p in job.rglob("*") if p.is_file())
    assert files == [
        "app/config/config_fed_client.json",
        "app/config/config_fed_server.json",
        "app/config/study.toml",
        "meta.json",
    ]
    assert not any(b"tables" in p.read_bytes() for p in job.rglob("*") if p.is_file())


def test_a_folder_of_another_study_is_not_submitted_into(
    kits: dict[str, Kit], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "submission.json").write_text(json.dumps({"run": RUN, "study": "0"}))
    with pytest.raises(RunError, match="another study"):
        submit(small_study(SITES), kits["admin"], out, lambda done, rounds: None)


# -- at the terminal -------------------------------------------------------


@pytest.mark.slow
def test_the_commands_take_a_kit_from_enrolment_to_the_start(tmp_path: Path) -> None:
    study = small_study(SITES)
    (tmp_path / "study.toml").write_text(study.to_toml())
    done = cipherbayes("deploy", "study.toml", "--out", "kits", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "WARNING" in done.stdout
    shown = cipherbayes("site", "enrol", "kits/a", cwd=tmp_path)
    fingerprint = Kit.open(tmp_path / "kits" / "a").enrol().fingerprint
    assert fingerprint[:4] in shown.stdout
    done = cipherbayes("site", "pin", "kits/a", "kits/a/identity.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert cipherbayes("csp", "enrol", "kits/a", cwd=tmp_path).returncode == 1
    assert "uid=a" in command(Kit.open(tmp_path / "kits" / "a"))
    again = cipherbayes("deploy", "study.toml", "--out", "kits", cwd=tmp_path)
    assert again.stderr.startswith("error: ")
    assert again.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_commands_take_a_party_from_its_key_to_the_start(tmp_path: Path) -> Any:
    study = small_study(SITES, privacy={"randomness": "secure"})
    (tmp_path / "study.toml").write_text(study.to_toml())

    def typed(*words: str) -> str:
        done = cipherbayes(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for name in SITES:
        assert f"send {name}/{name}.request.json" in typed("site", "request", name)
    typed("csp", "request")
    typed("server", "request")
    typed("deploy", "study.toml", "--requests", ".", "--host", "flare.example.org")
    shown = typed("site", "install", "a", "kits/a")
    assert Kit.open(tmp_path / "a").roster().keys() == {"a", "b", "csp"}
    assert Kit.open(tmp_path / "b" / ".." / "a").enrol().fingerprint[:4] in shown
    typed("server", "install", "server", "kits/server")
    assert Kit.open(tmp_path / "server").run(RUN, study).study == study
    said = typed("site", "approve", "a", "--yes")
    for words in ("age: a number from 18 to 100", "epsilon 3", "rounds      4"):
        assert words in said
    assert study.fingerprint() in said
    (tmp_path / "a" / "site.toml").write_text('data = "t.csv"')
    check_ready(Kit.open(tmp_path / "a"))


@pytest.mark.parametrize("typed", ["n\n", "\n", ""])
def test_a_study_is_not_approved_without_a_yes(
    fresh: dict[str, Kit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    study = small_study(SITES, privacy={"randomness": "secure"})
    (tmp_path / "study.toml").write_text(study.to_toml())
    words = ("site", "approve", fresh["a"].path, tmp_path / "study.toml")
    assert cipherbayes(*words).returncode == 1
    assert not (fresh["a"].path / "studies").exists()


@pytest.mark.slow
def test_a_server_that_does_not_run_is_named_in_one_line(tmp_path: Path) -> None:
    study = small_study(SITES)
    (tmp_path / "study.toml").write_text(study.to_toml())
    cipherbayes("deploy", "study.toml", "--port", "1", cwd=tmp_path)
    done = cipherbayes("submit", "study.toml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_leads_name_and_the_classes_of_a_job_are_what_kits_know() -> None:
    """Kits carry both: they change with a release that says so, never by the way."""
    assert layout.LEAD == "lead@cipherbayes.study"
    assert hardening.ALLOWED_CLASSES == (
        "cipherbayes.results.flare_server.ResultController",
        "cipherbayes.engine.flare.executor.PartyExecutor",
    )
    for name in hardening.ALLOWED_CLASSES:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute)


def test_a_server_that_is_still_starting_is_asked_again(
    kits: dict[str, Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first answers have no certificate, on which FLARE's client fails."""
    from nvflare.fuel.flare_api import flare_api

    calls: list[str] = []

    def connect(name: str, *_: Any, **__: Any) -> str:
        calls.append(name)
        if len(calls) < 3:
            raise TypeError("'None' is not an instance of 'bytes'")
        return "a session"

    monkeypatch.setattr(flare_api, "new_secure_session", connect)
    monkeypatch.setattr(submitting, "_POLL_SECONDS", 0.0)
    assert submitting._connected(kits["admin"]) == "a session"
    assert len(calls) == 3
    monkeypatch.setattr(submitting, "_CONNECT_SECONDS", -1.0)
    calls.clear()
    with pytest.raises(RunError, match="cannot be reached"):
        submitting._connected(kits["admin"])


def test_a_lead_that_loses_the_server_follows_the_run_over_a_new_connection(
    kits: dict[str, Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nvflare.fuel.flare_api.api_spec import NoConnection

    replies: list[dict[str, Any] | Exception] = [
        {"state": "running", "done": 1, "rounds": 2},
        NoConnection("cannot connect to server"),
        {"state": "finished", "done": 2, "rounds": 2, "files": {"result.json": ""}},
    ]

    class Session:
        def do_app_command(self, *_: Any) -> dict[str, Any]:
            reply = replies.pop(0)
            if isinstance(reply, Exception):
                raise reply
            return reply

        def close(self) -> None:
            pass

    seen: list[int] = []
    monkeypatch.setattr(submitting, "check_server", lambda _: True)
    monkeypatch.setattr(submitting, "_connected", lambda _: Session())
    monkeypatch.setattr(submitting, "_POLL_SECONDS", 0.0)
    found = submitting._followed(
        kits["admin"], "job", lambda done, _: seen.append(done)
    )
    assert found == {"result.json": ""}
    assert seen == [1, 2]
    replies.append(NoConnection("cannot connect to server"))
    monkeypatch.setattr(submitting, "_CONNECT_SECONDS", -1.0)
    with pytest.raises(RunError, match="cannot be reached"):
        submitting._followed(kits["admin"], "job", lambda *_: None)


def test_a_job_that_starts_slowly_is_followed_over_a_new_connection(
    kits: dict[str, Kit], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nvflare.fuel.flare_api.api_spec import JobNotRunning, NoConnection

    waiting = [JobNotRunning("not yet")] * 4
    replies: list[dict[str, Any] | Exception] = [
        *waiting,
        NoConnection("cannot connect to server"),
        {"state": "finished", "done": 2, "rounds": 2, "files": {"result.json": ""}},
    ]
    now = [0.0]

    class Session:
        def do_app_command(self, *_: Any) -> dict[str, Any]:
            now[0] += 20.0  # and after 30 without an answer the server is gone
            reply = replies.pop(0)
            if isinstance(reply, Exception):
                raise reply
            return reply

        def get_job_meta(self, _: str) -> dict[str, Any]:
            return {"status": "RUNNING"}

        def close(self) -> None:
            pass

    monkeypatch.setattr(submitting, "check_server", lambda _: True)
    monkeypatch.setattr(submitting, "_connected", lambda _: Session())
    monkeypatch.setattr(submitting, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    found = submitting._followed(kits["admin"], "job", lambda *_: None)
    assert found == {"result.json": ""}

"""Kits: whose they are, what they forbid, what they refuse."""

from __future__ import annotations

import io
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from parties import small_study, write_tables

from cipherbayes.errors import CryptoError, ProtocolError, RunError, StudyError
from terminal import cipherbayes

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from small_kits import RUN, SITES, approved, fresh, kits, local, made, pinned

from cipherbayes.engine.flare import channels
from cipherbayes.engine.flare.hardening import ALLOWED_CLASSES, keep_jobs_in
from cipherbayes.engine.flare.kits import Kit
from cipherbayes.engine.flare.provisioning import Deployment
from cipherbayes.engine.flare.starting import check_ready, command
from cipherbayes.engine.flare.submitting import submit

__all__ = ["fresh", "kits"]

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


def test_a_site_serves_only_its_own_table(fresh: dict[str, Kit]) -> None:
    folder = pinned(fresh)["a"].run(RUN, small_study(SITES))
    with pytest.raises(RunError, match="not of site 'b'"):
        folder.site("b")


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

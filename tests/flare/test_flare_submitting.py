"""A lead submits a study, and follows it whatever its connection does."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from parties import small_study, write_tables

from cipherbayes.errors import RunError

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from small_kits import RUN, SITES, kits

from cipherbayes.engine.flare import hardening, layout, submitting
from cipherbayes.engine.flare.jobs import write_job
from cipherbayes.engine.flare.kits import Kit
from cipherbayes.engine.flare.submitting import submit

__all__ = ["kits"]


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

"""Start a party: FLARE's own program, in the foreground, in the kit's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cipherbayes.engine.flare.hardening import keep_jobs_in
from cipherbayes.engine.flare.installing import own_request
from cipherbayes.engine.flare.kits import CSP, SERVER, Kit, is_loopback
from cipherbayes.engine.flare.layout import check_settings
from cipherbayes.errors import RunError

_CLIENT = "nvflare.private.fed.app.client.client_train"
_SERVER = "nvflare.private.fed.app.server.server_train"


def command(kit: Kit) -> list[str]:
    """The program of a party, with its arguments."""
    server = kit.role == SERVER
    settings = ["secure_train=true", "config_folder=config"]
    settings.append(f"org={SERVER}" if server else f"org={kit.name.replace('-', '_')}")
    if not server:
        settings.append(f"uid={kit.name}")
    return [
        sys.executable, "-u", "-m", _SERVER if server else _CLIENT,
        "-m", str(kit.path),
        "-s", "fed_server.json" if server else "fed_client.json",
        "--set", *settings,
    ]  # fmt: skip


def check_ready(kit: Kit) -> None:
    """Refuse a start that could only fail later, or do harm.

    Settings, keys, roster, a site's table.
    """
    check_settings(kit)
    if not is_loopback(kit.host):
        own_request(kit.path)
    roster = kit.roster()
    named = kit.role in ("site", CSP)
    if named and roster.get(kit.name) != kit.keys().identity().identity:
        raise RunError(
            "the roster pins another key than this kit's",
            where=str(kit.path),
            remedy="enrol, send the new identity.json, and pin everyone again",
        )
    if kit.role == "site":
        kit.settings()


def environment() -> dict[str, str]:
    """The variables that a party's program sees.

    Nothing is inherited that could add code: the program sees the installed
    packages only, and not what lies in the folder that it runs in.
    """
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    inherited["PYTHONSAFEPATH"] = "1"
    # FLARE then reports the class of an exception of its own, not its text.
    inherited["NVFLARE_SECURE_LOGGING"] = "true"
    inherited.setdefault("OPENBLAS_NUM_THREADS", "1")
    # FLARE starts several threads for a message: each could get a heap of its own,
    # and heaps do not shrink.
    inherited.setdefault("MALLOC_ARENA_MAX", "2")
    return inherited


def start(kit: Kit, *, log: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a party's program; its messages go to the terminal, or to a file."""
    if kit.role == SERVER:
        keep_jobs_in(kit.path)
    output = None if log is None else log.open("ab")
    try:
        return subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
            command(kit),
            cwd=kit.path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
        )
    finally:
        if output is not None:
            output.close()

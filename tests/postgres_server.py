"""A PostgreSQL server of the tests' own: a new cluster on a socket, gone at the end."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSWORD = "tiger-6713"


@dataclass(frozen=True)
class PostgresServer:
    """A running server.

    ``owner`` may log in without a password, ``reader`` needs one and may read.
    """

    binaries: Path
    folder: Path

    def address(self, database: str = "icu", user: str = "owner") -> str:
        return f"postgresql:///{database}?host={self.folder}&user={user}"

    def execute(self, text: str, database: str = "icu") -> str:
        """Run statements as the owner, with the server's own tool."""
        done = subprocess.run(
            [
                self.binaries / "psql", "-h", self.folder, "-U", "owner", "-X", "-q",
                "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database,
            ],
            input=text, text=True, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def running() -> Iterator[PostgresServer]:
    """Start a server; skip the test, with a reason, where there is none."""
    binaries, prefix = find_binaries(), unprivileged()
    # Not in the tests' own folder, which another user cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="cb-pg-", dir="/tmp"))
    try:
        if prefix:
            shutil.chown(folder, *nobody())
        folder.chmod(0o755)

        def call(program: str, *arguments: str) -> None:
            subprocess.run(
                [*prefix, binaries / program, *arguments],
                check=True, cwd=folder, capture_output=True, timeout=60,
            )  # fmt: skip

        data = str(folder / "data")
        call("initdb", "-D", data, "-U", "owner", "-A", "trust", "-N", "-E", "UTF8",
             "--locale=C")  # fmt: skip
        rules = "local all owner trust\nlocal all all scram-sha-256\n"
        (folder / "data" / "pg_hba.conf").write_text(rules)
        options = f"-c listen_addresses= -c fsync=off -k {folder}"
        # Its output goes to a file: a pipe would stay open as long as it lives.
        call("pg_ctl", "-D", data, "-o", options, "-l", str(folder / "log"), "-w",
             "start")  # fmt: skip
        try:
            server = PostgresServer(binaries, folder)
            server.execute(
                f"CREATE DATABASE icu;CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}';",
                "postgres",
            )
            yield server
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_binaries() -> Path:
    """The folder of initdb and postgres."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if all((folder / p).exists() for p in ("initdb", "pg_ctl", "psql")):
            return folder
    pytest.skip("no PostgreSQL server on this machine")


def nobody() -> tuple[int, int]:
    user = pwd.getpwnam("nobody")
    return user.pw_uid, user.pw_gid


def unprivileged() -> list[str]:
    """What to put before a command that may not run as root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no setpriv")
    uid, gid = nobody()
    return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
